// What a RecordedSpace holds: flat arrays, so that half a million configs fit and copy in one
// piece.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kiln/recorded.hpp"

namespace kiln {

struct RecordedSpace::Data {
  struct Entry {
    double seconds = 0, compile_seconds = 0;
    std::size_t first_sample = 0;
    std::uint32_t samples = 0;
    std::uint16_t invalidity = 0;  ///< into `invalidities`
    CandidateStatus status = CandidateStatus::measured;
  };

  std::filesystem::path file;
  Digest digest{};
  std::vector<RecordedParameter> parameters;
  std::vector<Entry> entries;
  std::vector<std::uint16_t> places;  ///< of entry i's values: [i * parameters, (i+1) * parameters)
  std::vector<double> samples;
  std::vector<std::string> invalidities;
  std::size_t best = 0, first = 0, works = 0;  ///< `first`: the first that works

  std::span<const std::uint16_t> point(std::size_t index) const {
    return {places.data() + index * parameters.size(), parameters.size()};
  }
  /// Fills the index. Returns the first entry that repeats an earlier one, and that earlier one;
  /// two equal numbers if no entry does.
  std::pair<std::size_t, std::size_t> make_index();
  /// entries.size() when it is not listed.
  std::size_t find(std::span<const std::uint16_t> point) const;

  static constexpr std::size_t kMaxParameters = 256;

 private:
  static constexpr std::uint32_t kFree = 0xffffffff;
  std::size_t slot(std::span<const std::uint16_t> point) const;
  std::vector<std::uint32_t> table_;  ///< open addressing, a power of two, at most half full
};

}  // namespace kiln
