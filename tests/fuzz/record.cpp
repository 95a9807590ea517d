// Records: grammar in cache/FORMAT.md.
#include "cache/record.hpp"

#include "fuzz.hpp"

using namespace kiln;
using fuzz::require;

namespace {

void try_record(std::string_view text) {
  const cache::DecodedRecord record = cache::decode_record(text);
  require(record.status == cache::DecodeStatus::valid || !record.why.empty(), "no reason is given");
  if (record.status != cache::DecodeStatus::valid) return;
  require(record.key.portable_fields <= record.key.fields.size(),
          "more fields are portable than there are");
  (void)record.key.explain();
  (void)cache::printable(record.key);

  const cache::DecodedRecord twice =
      cache::decode_record(cache::encode_record(record.key, record.record));
  require(twice.status == cache::DecodeStatus::valid && twice.key.digest == record.key.digest &&
              twice.key.fields == record.key.fields,
          "written again it reads differently");
  require(twice.record == record.record, "written again it is another record");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kBefore = ",\n  \"sha256\": \"", kAfter = "\"\n}\n";
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_record(text);
  const std::string body(text.substr(0, text.rfind(kBefore)));
  try_record(body + std::string(kBefore) + to_hex(sha256(body)) + std::string(kAfter));
  return 0;
}
