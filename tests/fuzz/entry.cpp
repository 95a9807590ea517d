// Binary entries: grammar in cache/FORMAT.md.
#include "cache/entry.hpp"

#include <algorithm>

#include "fuzz.hpp"

using namespace kiln;
using fuzz::require;

namespace {

void try_entry(std::span<const std::byte> file) {
  const cache::EntryFront front =
      cache::decode_front(file.first(std::min<std::size_t>(file.size(), 300)));
  const cache::DecodedEntry entry = cache::decode_entry(file);
  require(entry.status == cache::DecodeStatus::valid || !entry.why.empty(), "no reason is given");
  if (entry.status != cache::DecodeStatus::valid) return;
  require(entry.payload_offset <= file.size() &&
              entry.payload_size <= file.size() - entry.payload_offset,
          "the payload is not in the file");
  require(entry.key.portable_fields <= entry.key.fields.size(),
          "more fields are portable than there are");
  require(front.version != 0 && (front.cut || (front.key && front.key->fields == entry.key.fields)),
          "the front says something else");
  (void)entry.key.explain();

  const auto payload = file.subspan(entry.payload_offset, entry.payload_size);
  const std::vector<std::byte> again = cache::encode_entry(entry.key, payload);
  const cache::DecodedEntry twice = cache::decode_entry(again);
  require(twice.status == cache::DecodeStatus::valid && twice.key.digest == entry.key.digest &&
              twice.key.portable == entry.key.portable && twice.key.fields == entry.key.fields &&
              twice.key.portable_fields == entry.key.portable_fields &&
              std::ranges::equal(std::span(again).subspan(twice.payload_offset, twice.payload_size),
                                 payload),
          "written again it reads differently");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file = fuzz::bytes_of(data, size);
  try_entry(file);
  if (size < sizeof(Digest)) return 0;
  const auto body = std::span(file).first(size - sizeof(Digest));
  const Digest checksum = sha256(body);
  std::ranges::copy(checksum, file.begin() + static_cast<std::ptrdiff_t>(body.size()));
  try_entry(file);
  return 0;
}
