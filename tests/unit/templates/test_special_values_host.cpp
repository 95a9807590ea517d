// NaNs, infinities and zeros among the inputs of each shipped kernel, on the host target.
#include <cmath>

#include "special_values.hpp"
#include "template_test.hpp"
#include "templates/kernels.hpp"

using special_values::Special;

namespace {

/// NaNs among all that a reference leaves.
double part_of_nans(const kiln::KernelDefinition& kernel, const kiln::Values& problem) {
  kiln::Workload w(2);
  kernel.workload(problem, w);
  std::vector<void*> args;
  for (auto& argument : w.arguments()) args.push_back(argument.bytes.data());
  kernel.reference(problem, args);
  std::size_t nans = 0, elements = 0;
  for (const auto& argument : w.arguments()) {
    if (argument.direction == kiln::Direction::in || !special_values::is_float(argument.type))
      continue;
    for (std::size_t i = 0; i < argument.count; ++i)
      if (argument.has(i)) ++elements, nans += std::isnan(special_values::get(argument, i));
  }
  return static_cast<double>(nans) / static_cast<double>(elements);
}

}  // namespace

TEST_CASE("each shipped kernel makes of NaNs, infinities and zeros what its reference does",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const kiln::Registry registry = kiln::shipped_kernels();
  for (const auto& registered : registry.kernels()) {
    if (!special_values::tried(registered.name)) continue;
    const kiln::KernelDefinition kernel = registered.make(registered.types.back());
    for (const Special special : {Special::nans, Special::infinities}) {
      const auto specials = special_values::with_specials(kernel, special);
      const kiln::Values problem = special_values::small_problem(kernel);
      INFO(kernel.name << (special == Special::nans ? " NaNs" : " infinities"));
      if (special == Special::nans) {
        const double nans = part_of_nans(specials, problem);
        CHECK((nans > 0 && nans < 0.75));
      }
      const kiln::Verification v = runtime.tuned(specials).verify(problem);
      INFO(v.why);
      CHECK(v.right);
    }
  }
}
