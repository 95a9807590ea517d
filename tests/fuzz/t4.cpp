// Recorded spaces in the T4 format, plain or gzip.
#include <algorithm>
#include <cmath>

#include "fuzz.hpp"
#include "kiln/error.hpp"
#include "kiln/recorded.hpp"

using namespace kiln;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::File file(fuzz::bytes_of(data, size));
  try {
    const RecordedSpace space(file.path());
    require(space.works() >= 1 && space.works() <= space.size(), "a space where nothing works");
    require(std::isfinite(space.optimum()) && space.optimum() > 0, "an optimum that is no time");
    require(space.status(space.best()) == CandidateStatus::measured, "the best does not work");
    for (std::size_t i = 0; i < std::min<std::size_t>(space.size(), 100); ++i) {
      const Values config = space.config(i);
      require(config.size() == space.parameters().size(), "a config of another size");
      require(space.find(config) == i, "a config that is listed is not found");
      require(space.seconds(i) >= space.optimum(), "faster than the optimum");
      (void)space.describe(i);
      (void)space.samples(i);
    }
    (void)space.dynamic();
  } catch (const UserError&) {
  }
  return 0;
}
