// Manifests of wanted instances.
#include "kiln/manifest.hpp"

#include "fuzz.hpp"
#include "kiln/error.hpp"

using namespace kiln;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::File file(fuzz::bytes_of(data, size));
  try {
    (void)Manifest::read(file.path());
  } catch (const UserError&) {
  }
  return 0;
}
