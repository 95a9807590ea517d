#include "runtime/choice/cublaslt_product.hpp"

#include <algorithm>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/serve/not_for_problem.hpp"

namespace kiln::runtime::cublaslt {

using kiln::detail::format;

namespace {

using Type = CublasltGemm::Type;

/// The oldest GPUs (8.9) whose tensor cores multiply 8-bit floats.
constexpr int kOldestWith8Bits = 89;

void check_status(Status status, const char* call) {
  if (status != Status::success)
    throw EnvironmentError(
        format("cublasLt{} failed with status {}", call, static_cast<int>(status)));
}

/// Whether the library supports what it was asked for. @throws EnvironmentError if the call failed
bool supports(Status status, const char* call) {
  if (status == Status::invalid_value || status == Status::not_supported) return false;
  check_status(status, call);
  return true;
}

DataType native(Type type) {
  switch (type) {
    case Type::float16:
      return DataType::r_16f;
    case Type::bfloat16:
      return DataType::r_16bf;
    case Type::float8_e4m3:
      return DataType::r_8f_e4m3;
    case Type::float8_e5m2:
      return DataType::r_8f_e5m2;
    default:
      return DataType::r_32f;
  }
}

int bytes_of(DataType type) {
  return type == DataType::r_32f                                      ? 4
         : type == DataType::r_8f_e4m3 || type == DataType::r_8f_e5m2 ? 1
                                                                      : 2;
}

DataType type_of_a(const CublasltGemm& gemm) { return native(gemm.type); }
DataType type_of_b(const CublasltGemm& gemm) { return native(gemm.b_type.value_or(gemm.type)); }
DataType type_of_c(const CublasltGemm& gemm) { return native(gemm.c_type.value_or(gemm.type)); }

}  // namespace

Session::Session(std::shared_ptr<const Library> l, std::shared_ptr<Device> d)
    : library(std::move(l)), device(std::move(d)), handle(library->Destroy) {
  device->within([&] { check_status(library->Create(handle.place()), "Create"); });
}

std::string refusal_of_8_bits(const CublasltGemm& gemm, const MatrixProduct& p,
                              const Target& target) {
  const int a = bytes_of(type_of_a(gemm)), b = bytes_of(type_of_b(gemm)),
            c = bytes_of(type_of_c(gemm));
  if (a != 1 && b != 1) return {};
  if (const int capability = compute_capability(target); capability < kOldestWith8Bits)
    return format("8-bit floats need a GPU of compute capability {}.{}; this one has {}.{}",
                  kOldestWith8Bits / 10, kOldestWith8Bits % 10, capability / 10, capability % 10);
  if (p.a_transposed || !p.b_transposed) return "8-bit floats must be stored as [m][k] and [n][k]";
  struct Count {
    const char* name;
    std::int64_t elements;
    int bytes;
  };
  const bool many = p.batch > 1;
  for (const auto& [name, elements, bytes] :
       {Count{"k", p.k, std::min(a, b)}, Count{"n", p.n, c}, Count{"lda", p.lda, a},
        Count{"ldb", p.ldb, b}, Count{"ldc", p.ldc, c}, Count{"stride_a", many ? p.stride_a : 0, a},
        Count{"stride_b", many ? p.stride_b : 0, b}, Count{"stride_c", many ? p.stride_c : 0, c}})
    if (elements * bytes % kAlignment != 0)
      return format("of 8-bit floats {} must be a multiple of {}; it is {}", name,
                    static_cast<int>(kAlignment) / bytes, elements);
  return {};
}

Product::Product(std::shared_ptr<const Session> session, const CublasltGemm& gemm,
                 const MatrixProduct& p)
    : session_(std::move(session)),
      library_(*session_->library),
      a_type_(type_of_a(gemm)),
      b_type_(type_of_b(gemm)),
      c_type_(type_of_c(gemm)),
      a_transposed_(p.a_transposed),
      b_transposed_(p.b_transposed),
      scaled_(gemm.scale_a || gemm.scale_b),
      fast_(gemm.fast_accumulation),
      a_(library_.MatrixLayoutDestroy),
      b_(library_.MatrixLayoutDestroy),
      c_(library_.MatrixLayoutDestroy) {
  // The least alignment that a scale may have.
  const void* const somewhere = reinterpret_cast<const void*>(alignof(float));
  describe_operation(desc_, gemm.scale_a ? somewhere : nullptr, gemm.scale_b ? somewhere : nullptr);
  // Rows as they are stored are the library's columns.
  lay(b_, b_type_, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.ldb, p.batch,
      p.stride_b);
  lay(a_, a_type_, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.lda, p.batch,
      p.stride_a);
  lay(c_, c_type_, p.n, p.m, p.ldc, p.batch, p.stride_c);
}

void Product::describe_operation(DescOpaque& desc, const void* scale_a, const void* scale_b) const {
  if (!supports(library_.MatmulDescInit_internal(&desc, sizeof(desc), ComputeType::c_32f,
                                                 DataType::r_32f),
                "MatmulDescInit"))
    throw NotForProblem(
        format("cuBLASLt {} describes products in a way that is not known", library_.version));
  const auto set = [&](DescAttribute which, const auto& value) {
    if (!supports(library_.MatmulDescSetAttribute(&desc, which, &value, sizeof(value)),
                  "MatmulDescSetAttribute"))
      throw NotForProblem(format("cuBLASLt {} does not know attribute {} of a product",
                                 library_.version, static_cast<int>(which)));
  };
  if (b_transposed_) set(DescAttribute::transa, kTransposed);
  if (a_transposed_) set(DescAttribute::transb, kTransposed);
  if (fast_) set(DescAttribute::fast_accum, std::int8_t{1});
  if (scale_b) set(DescAttribute::a_scale_pointer, scale_b);
  if (scale_a) set(DescAttribute::b_scale_pointer, scale_a);
}

std::vector<Algo> Product::heuristic(int top, std::uint64_t workspace) const {
  Owned<Preference> preference(library_.MatmulPreferenceDestroy);
  check_status(library_.MatmulPreferenceCreate(preference.place()), "MatmulPreferenceCreate");
  const auto set = [&](PreferenceAttribute which, const auto& value) {
    check_status(
        library_.MatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof(value)),
        "MatmulPreferenceSetAttribute");
  };
  set(PreferenceAttribute::max_workspace_bytes, workspace);
  set(PreferenceAttribute::reduction_scheme_mask, kReducedInComputeType);
  for (const auto which :
       {PreferenceAttribute::min_alignment_a, PreferenceAttribute::min_alignment_b,
        PreferenceAttribute::min_alignment_c, PreferenceAttribute::min_alignment_d})
    set(which, kAlignment);
  std::vector<HeuristicResult> results(static_cast<std::size_t>(top));
  int returned = 0;
  if (!supports(library_.MatmulAlgoGetHeuristic(session_->handle.get(), &desc_, b_.get(), a_.get(),
                                                c_.get(), c_.get(), preference.get(), top,
                                                results.data(), &returned),
                "MatmulAlgoGetHeuristic"))
    return {};
  std::vector<Algo> algos;
  for (int i = 0; i < returned; ++i)
    if (const auto& result = results[static_cast<std::size_t>(i)]; result.state == Status::success)
      algos.push_back(result.algo);
  return algos;
}

std::optional<Algo> Product::algo(std::span<const std::int64_t> description) const {
  Algo algo;
  if (!supports(library_.MatmulAlgoInit(session_->handle.get(), ComputeType::c_32f, DataType::r_32f,
                                        b_type_, a_type_, c_type_, c_type_,
                                        static_cast<int>(description[0]), &algo),
                "MatmulAlgoInit"))
    return {};
  for (std::size_t i = 1; i < kAlgoAttributes.size(); ++i) {
    const auto value = static_cast<std::uint32_t>(description[i]);
    const auto half = static_cast<std::uint16_t>(description[i]);
    const void* at = kAlgoAttributes[i].bytes == sizeof(half) ? static_cast<const void*>(&half)
                                                              : static_cast<const void*>(&value);
    if (!supports(library_.MatmulAlgoConfigSetAttribute(&algo, kAlgoAttributes[i].id, at,
                                                        kAlgoAttributes[i].bytes),
                  "MatmulAlgoConfigSetAttribute"))
      return {};
  }
  return algo;
}

std::optional<Values> Product::describe(const Algo& algo) const {
  Values description;
  for (const AlgoAttribute& attribute : kAlgoAttributes) {
    std::uint32_t value = 0;
    std::uint16_t half = 0;
    void* at =
        attribute.bytes == sizeof(half) ? static_cast<void*>(&half) : static_cast<void*>(&value);
    std::size_t written = 0;
    if (!supports(library_.MatmulAlgoConfigGetAttribute(&algo, attribute.id, at, attribute.bytes,
                                                        &written),
                  "MatmulAlgoConfigGetAttribute"))
      return {};
    description.push_back(attribute.bytes == sizeof(half) ? half : value);
  }
  return description;
}

std::optional<std::size_t> Product::check(const Algo& algo) const {
  HeuristicResult result;
  if (!supports(library_.MatmulAlgoCheck(session_->handle.get(), &desc_, b_.get(), a_.get(),
                                         c_.get(), c_.get(), &algo, &result),
                "MatmulAlgoCheck"))
    return {};
  return result.workspace;
}

void Product::multiply(const Algo& algo, const Arrays& arrays, void* workspace, std::size_t bytes,
                       Stream stream) const {
  constexpr float kOne = 1, kZero = 0;
  std::optional<DescOpaque> own;
  if (scaled_) describe_operation(own.emplace(), arrays.scale_a, arrays.scale_b);
  check_status(library_.Matmul(session_->handle.get(), own ? &*own : &desc_, &kOne, arrays.b,
                               b_.get(), arrays.a, a_.get(), &kZero, arrays.c, c_.get(), arrays.c,
                               c_.get(), &algo, workspace, bytes, stream.handle),
               "Matmul");
}

void Product::lay(Owned<Layout>& layout, DataType type, std::int64_t rows, std::int64_t columns,
                  std::int64_t leading, std::int64_t batch, std::int64_t stride) const {
  check_status(library_.MatrixLayoutCreate(layout.place(), type, static_cast<std::uint64_t>(rows),
                                           static_cast<std::uint64_t>(columns), leading),
               "MatrixLayoutCreate");
  if (batch == 1) return;
  const auto count = static_cast<std::int32_t>(batch);
  check_status(library_.MatrixLayoutSetAttribute(layout.get(), LayoutAttribute::batch_count, &count,
                                                 sizeof(count)),
               "MatrixLayoutSetAttribute");
  check_status(library_.MatrixLayoutSetAttribute(
                   layout.get(), LayoutAttribute::strided_batch_offset, &stride, sizeof(stride)),
               "MatrixLayoutSetAttribute");
}

}  // namespace kiln::runtime::cublaslt
