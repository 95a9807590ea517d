// Binaries as the store keeps them: the payload of an entry.
#include "codegen/binary.hpp"

#include <algorithm>

#include "fuzz.hpp"

using namespace kiln;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::byte> bytes = fuzz::bytes_of(data, size);
  const auto binary = codegen::parse_binary(detail::Bytes(bytes));
  if (!binary) return 0;
  require(codegen::serialize(*binary) == bytes, "written again it is not the same");
  return 0;
}
