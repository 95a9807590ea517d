// What ranks tell each other: messages of fixed size, the same for any cache, kernel or result.
// Little-endian, no padding.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/ranks.hpp"
#include "runtime/support/fixed_text.hpp"

namespace kiln::runtime::ranks {

static_assert(std::endian::native == std::endian::little);

/// What must be the same on every rank, as digests.
struct Identity {
  std::uint64_t kernel = 0;      ///< source, entry, types, options
  std::uint64_t candidates = 0;  ///< every config of every problem, in order
  std::uint64_t problems = 0;    ///< and how they are timed
  std::uint64_t target = 0;
  std::uint64_t build = 0;   ///< Kiln's version and schema, the compiler's build
  std::uint64_t device = 0;  ///< model and clocks: compared where one device speaks for another
};

/// The first 64 bits of a SHA-256.
std::uint64_t short_digest(std::string_view text);
std::uint64_t short_digest(std::span<const std::byte> bytes);

/// The version of all messages: it changes with any of them.
inline constexpr std::uint32_t kProtocol = 8;

/// Whether a rank tries candidates in a worker. Those that run in step: all ranks do where one
/// wants to and none must not. Others: each may where one wants to.
enum class RankIsolation : std::uint64_t {
  no,    ///< it cannot, or is asked not to; not in step: it knows of no fault
  may,   ///< it has no reason to, so far
  wants  ///< it is asked to; not in step: it knows of a fault
};

/// Before the agreement: what a rank has. Its size never changes, however many problems there are.
struct HeldMessage {
  static constexpr std::uint64_t kMagic = 0x646c65686e6c696b;  // "kilnheld"
  static constexpr std::size_t kPlaces = 32;
  using Places = std::array<std::uint64_t, kPlaces>;

  std::uint64_t magic = kMagic;
  std::uint64_t protocol = kProtocol;
  /// What this rank comes to agree on, and so what its places mean.
  enum class About : std::uint64_t {
    winners,      ///< digests of the winners that it would use, of all problems that share a place;
                  ///< 0: of one of them it knows none (together/tune_together.cpp)
    alternatives  ///< what a choice is asked for, then its alternatives (choice/meeting.cpp)
  } about = About::winners;
  std::uint64_t retune = 0;  ///< this rank is asked to measure again
  Places places{};
  Places recorded{};  ///< winners: digests of those on record, whether or not it would use them
  std::uint64_t isolation = 0;  ///< RankIsolation: what it is to do in workers
  FixedText<112> refusal{};     ///< why this rank takes no part; empty: it does
};
static_assert(sizeof(HeldMessage) == 664);

/// First of the agreement. Its size never changes, so that versions of Kiln can tell that they
/// differ.
struct DigestMessage {
  static constexpr std::uint64_t kMagic = 0x736b6e61726e6c6b;  // "klnranks"

  std::uint64_t magic = kMagic;
  std::uint32_t protocol = kProtocol;
  std::uint32_t unused = 0;
  std::uint64_t settings = 0;  ///< of `RankOptions`, without its seconds
  Identity identity;
  std::uint64_t store = 0;    ///< which file system's store this rank writes to; 0: none
  std::uint64_t nonce = 0;    ///< random: no two agreements settle the same question
  std::uint64_t trouble = 0;  ///< not 0: this rank cannot say what it would try
  std::array<std::byte, 32> reserved{};
};
static_assert(sizeof(DigestMessage) == 128);

/// Second exchange, one per problem.
struct VoteMessage {
  std::uint64_t has_record = 0;
  std::uint64_t record = 0;  ///< digest of its times
};
static_assert(sizeof(VoteMessage) == 16);

/// Last but one: whether this rank got through, and what it would use.
struct CompareMessage {
  std::uint64_t status = 0;  ///< 0: well; else `reason` says why not
  Digest plan{};
  FixedText<88> reason{};
};
static_assert(sizeof(CompareMessage) == 128);

/// Last: "I have seen that all plans are equal".
struct ConfirmMessage {
  std::uint64_t confirmed = 0;  ///< the plan's first 64 bits
};
static_assert(sizeof(ConfirmMessage) == 8);

template <class Message>
std::vector<std::byte> encode(const Message& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

/// Message `index` of a gathered array. @pre it is there
template <class Message>
Message decode(std::span<const std::byte> bytes, std::size_t index = 0) {
  Message message;
  std::memcpy(&message, bytes.data() + index * sizeof(Message), sizeof(Message));
  return message;
}

std::uint64_t settings_digest(const RankOptions& options, bool settles);

/// The ranks whose first messages differ from those of most, and in what: `another candidate list`.
struct Difference {
  std::vector<int> ranks;
  std::string what;  ///< empty: there is none
};
Difference find_difference(std::span<const std::byte> digests, int size, bool like_devices);

}  // namespace kiln::runtime::ranks
