// What two processes say to each other, whole and damaged.
#include <cstring>

#include "kiln_test.hpp"
#include "runtime/processes/frame.hpp"

using namespace kiln::runtime;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

Bytes framed(std::string_view payload, std::uint64_t id = 7) {
  Bytes out;
  put_frame(out, FrameKind::answer, id, bytes_of(payload));
  return out;
}

}  // namespace

TEST_CASE("frames arrive whole, however they are cut", "[processes][frame]") {
  Bytes stream = framed("one", 1);
  for (const Bytes& more : {framed("", 2), framed(std::string(100000, 'x'), 3)})
    stream.insert(stream.end(), more.begin(), more.end());
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{35}, std::size_t{4096}, stream.size()}) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.add(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (auto frame = reader.next()) frames.push_back(*std::move(frame));
    }
    REQUIRE(frames.size() == 3);
    CHECK(frames[0].payload == bytes_of("one"));
    CHECK(frames[1].payload.empty());
    CHECK(frames[2].payload.size() == 100000);
    for (std::uint64_t i = 0; i < 3; ++i) {
      CHECK(frames[i].id == i + 1);
      CHECK(frames[i].kind == FrameKind::answer);
    }
  }
}

TEST_CASE("a frame of which one byte is wrong is refused, or is not whole", "[processes][frame]") {
  const Bytes right = framed("a payload");
  std::size_t refused = 0, waiting = 0;
  for (std::size_t at = 0; at < right.size(); ++at)
    for (const int flip : {0x01, 0x80}) {
      Bytes wrong = right;
      wrong[at] ^= static_cast<std::byte>(flip);
      FrameReader reader;
      reader.add(wrong);
      try {
        const auto frame = reader.next();
        if (!frame) {
          ++waiting;  // a length that is larger, but possible
          continue;
        }
        // The reader of the frame compares kind and id with its request.
        CHECK(at >= 8);
        CHECK(at < 20);
        CHECK(frame->payload == bytes_of("a payload"));
      } catch (const BrokenFrame&) {
        ++refused;
      }
    }
  CHECK(refused > 30);
  CHECK(waiting > 0);
  CHECK(waiting < 16);
}

TEST_CASE("text is refused at its first letter, a length at its header", "[processes][frame]") {
  FrameReader text;
  text.add(bytes_of("L"));
  CHECK_THROWS_AS(text.next(), BrokenFrame);
  FrameReader large;
  Bytes header = framed("");
  const std::uint64_t length = kMostPayload + 1;
  std::memcpy(header.data() + 20, &length, sizeof length);
  large.add(header);
  CHECK_THROWS_AS(large.next(), BrokenFrame);
  Bytes out;
  CHECK_THROWS_AS(put_frame(out, FrameKind::request, 1, Bytes(kMostPayload + 1)), BrokenFrame);
}

TEST_CASE("a message of the version before is refused", "[processes][frame]") {
  FrameReader reader;
  Bytes message = framed("");
  message[4] = std::byte{1};  // whose requests to compile have no steps
  reader.add(message);
  CHECK_THROWS_AS(reader.next(), BrokenFrame);
}

TEST_CASE("fields come back in order, and where one is missing that is said",
          "[processes][frame]") {
  const std::vector<std::string> names{"a", "", std::string(1000, 'b')};
  const Bytes payload = FieldWriter().integer(~0ULL).text("t\0t").texts(names).finish();
  FieldReader fields(payload);
  CHECK(fields.integer() == ~0ULL);
  CHECK(fields.text() == "t");
  CHECK_THROWS_AS(fields.finish(), BrokenFrame);
  CHECK(fields.texts() == names);
  CHECK_NOTHROW(fields.finish());
  CHECK_THROWS_AS(fields.integer(), BrokenFrame);

  for (std::size_t size = 0; size < payload.size(); ++size) {
    FieldReader cut(std::span<const std::byte>(payload).first(size));
    const auto read = [&] {
      cut.integer();
      cut.text();
      cut.texts();
    };
    CHECK_THROWS_AS(read(), BrokenFrame);
  }
  // Counts and lengths beyond all memory.
  for (const std::uint64_t count : {~0ULL, 1ULL << 62, 1ULL << 61}) {
    const Bytes huge = FieldWriter().integer(count).integer(0).finish();
    CHECK_THROWS_AS(FieldReader(huge).texts(), BrokenFrame);
    CHECK_THROWS_AS(FieldReader(huge).bytes(), BrokenFrame);
  }
}
