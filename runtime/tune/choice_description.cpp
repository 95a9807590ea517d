// What a choice must have. Releases check that, too, and do not see how choices are launched.
#include <set>

#include "kiln/detail/choice_core.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/error.hpp"

namespace kiln::detail {

namespace {

bool is_8_bits(CublasltGemm::Type type) {
  return type == CublasltGemm::Type::float8_e4m3 || type == CublasltGemm::Type::float8_e5m2;
}

}  // namespace

void ChoiceDescription::validate() const {
  const std::string subject = "choice " + name;
  check_names(subject, name, operation.problem_fields);
  if (alternatives.empty()) throw UserError(subject + ": it has no alternatives");
  if (!operation.workload)
    throw UserError(subject +
                    ": `workload` is missing, and no alternative is a kernel that has one");
  std::set<std::string> names;
  for (const AlternativeDescription& a : alternatives) {
    const std::string which = format("{}, alternative {}", subject, a.name);
    check_names(which, a.name, {});
    if (!names.insert(a.name).second)
      throw UserError(format("{}: another alternative has that name", which));
    const int ways = (a.call ? 1 : 0) + (a.kernel ? 1 : 0) + (a.cublaslt ? 1 : 0);
    if (ways != 1)
      throw UserError(format("{}: it needs one of `call`, `kernel` and `cublaslt`", which));
    if (!a.call && (a.workspace || !a.knobs.parameters().empty()))
      throw UserError(format("{}: `knobs` and `workspace` are those of a `call`", which));
    if (a.kernel && (a.kernel->problem_fields != operation.problem_fields ||
                     a.kernel->arguments != operation.arguments))
      throw UserError(
          format("{}: kernel {} has other arguments or problem fields", which, a.kernel->name));
    if (!a.cublaslt) continue;
    const CublasltGemm& gemm = *a.cublaslt;
    if (!gemm.product) throw UserError(format("{}: `product` is missing", which));
    for (const std::size_t place :
         {gemm.c, gemm.a, gemm.b, gemm.scale_a.value_or(gemm.a), gemm.scale_b.value_or(gemm.b)})
      if (place >= operation.arguments.size())
        throw UserError(format("{}: there is no argument {}", which, place));
    if (is_8_bits(gemm.c_type.value_or(gemm.type)))
      throw UserError(format("{}: C cannot be of 8-bit floats; name its type, `c_type`", which));
    if ((gemm.scale_a || gemm.scale_b || gemm.fast_accumulation) && !is_8_bits(gemm.type))
      throw UserError(
          format("{}: scales and `fast_accumulation` are those of 8-bit operands", which));
    if (gemm.top < 1) throw UserError(format("{}: `top` must be at least 1", which));
  }
}

}  // namespace kiln::detail
