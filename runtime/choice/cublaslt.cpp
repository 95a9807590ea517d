#include "runtime/choice/cublaslt.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/choice/cublaslt_library.hpp"
#include "runtime/serve/not_for_problem.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

using cublaslt::kAlgoAttributes;
using cublaslt::Library;

/// The alignment of A, B and C in bytes. The heuristic assumes no more, so all pointers with this
/// alignment can be launched.
constexpr std::uint32_t kAlignment = 16;
/// That are kept because their attributes do not restore them: each has 64 bytes and a key.
constexpr std::size_t kMostAnswers = 4096;

void check_status(cublaslt::Status status, const char* call) {
  if (status != cublaslt::Status::success)
    throw EnvironmentError(
        format("cublasLt{} failed with status {}", call, static_cast<int>(status)));
}

/// Whether the library supports what it was asked for. @throws EnvironmentError if the call failed
bool supports(cublaslt::Status status, const char* call) {
  if (status == cublaslt::Status::invalid_value || status == cublaslt::Status::not_supported)
    return false;
  check_status(status, call);
  return true;
}

/// Destroys what it has with its library's function.
template <class T>
class Owned {
 public:
  explicit Owned(cublaslt::Status (*destroy)(T)) : destroy_(destroy) {}
  ~Owned() {
    if (what_) destroy_(what_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* place() noexcept { return &what_; }
  T get() const noexcept { return what_; }

 private:
  T what_ = nullptr;
  cublaslt::Status (*destroy_)(T);
};

/// The library and its handle on one device. Thread-safe, as the library's handles are.
struct Session {
  Session(std::shared_ptr<const Library> l, std::shared_ptr<Device> d)
      : library(std::move(l)), device(std::move(d)), handle(library->Destroy) {
    device->within([&] { check_status(library->Create(handle.place()), "Create"); });
  }
  const std::shared_ptr<const Library> library;
  const std::shared_ptr<Device> device;
  Owned<cublaslt::Handle> handle;
};

cublaslt::DataType native(CublasltGemm::Type type) {
  return type == CublasltGemm::Type::float16    ? cublaslt::DataType::r_16f
         : type == CublasltGemm::Type::bfloat16 ? cublaslt::DataType::r_16bf
                                                : cublaslt::DataType::r_32f;
}

/// A product as the library describes it, which takes matrices by columns: C^T = op(B)^T * op(A)^T.
class Product {
 public:
  Product(std::shared_ptr<const Session> session, const CublasltGemm& gemm, const MatrixProduct& p)
      : session_(std::move(session)),
        library_(*session_->library),
        type_(native(gemm.type)),
        desc_(library_.MatmulDescDestroy),
        a_(library_.MatrixLayoutDestroy),
        b_(library_.MatrixLayoutDestroy),
        c_(library_.MatrixLayoutDestroy) {
    check_status(library_.MatmulDescCreate(desc_.place(), cublaslt::ComputeType::c_32f,
                                           cublaslt::DataType::r_32f),
                 "MatmulDescCreate");
    const auto transpose = [&](cublaslt::DescAttribute which) {
      check_status(library_.MatmulDescSetAttribute(desc_.get(), which, &cublaslt::kTransposed,
                                                   sizeof(cublaslt::kTransposed)),
                   "MatmulDescSetAttribute");
    };
    if (p.b_transposed) transpose(cublaslt::DescAttribute::transa);
    if (p.a_transposed) transpose(cublaslt::DescAttribute::transb);
    // Rows as they are stored are the library's columns.
    lay(b_, p.b_transposed ? p.k : p.n, p.b_transposed ? p.n : p.k, p.ldb, p.batch, p.stride_b);
    lay(a_, p.a_transposed ? p.m : p.k, p.a_transposed ? p.k : p.m, p.lda, p.batch, p.stride_a);
    lay(c_, p.n, p.m, p.ldc, p.batch, p.stride_c);
  }

  std::vector<cublaslt::Algo> heuristic(int top, std::uint64_t workspace) const {
    Owned<cublaslt::Preference> preference(library_.MatmulPreferenceDestroy);
    check_status(library_.MatmulPreferenceCreate(preference.place()), "MatmulPreferenceCreate");
    const auto set = [&](cublaslt::PreferenceAttribute which, const auto& value) {
      check_status(
          library_.MatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof(value)),
          "MatmulPreferenceSetAttribute");
    };
    set(cublaslt::PreferenceAttribute::max_workspace_bytes, workspace);
    set(cublaslt::PreferenceAttribute::reduction_scheme_mask, cublaslt::kReducedInComputeType);
    for (const auto which : {cublaslt::PreferenceAttribute::min_alignment_a,
                             cublaslt::PreferenceAttribute::min_alignment_b,
                             cublaslt::PreferenceAttribute::min_alignment_c,
                             cublaslt::PreferenceAttribute::min_alignment_d})
      set(which, kAlignment);
    std::vector<cublaslt::HeuristicResult> results(static_cast<std::size_t>(top));
    int returned = 0;
    if (!supports(library_.MatmulAlgoGetHeuristic(session_->handle.get(), desc_.get(), b_.get(),
                                                  a_.get(), c_.get(), c_.get(), preference.get(),
                                                  top, results.data(), &returned),
                  "MatmulAlgoGetHeuristic"))
      return {};
    std::vector<cublaslt::Algo> algos;
    for (int i = 0; i < returned; ++i)
      if (const auto& result = results[static_cast<std::size_t>(i)];
          result.state == cublaslt::Status::success)
        algos.push_back(result.algo);
    return algos;
  }

  /// An algorithm by its public attributes; nothing if the library does not know some of them.
  std::optional<cublaslt::Algo> algo(std::span<const std::int64_t> description) const {
    cublaslt::Algo algo;
    if (!supports(library_.MatmulAlgoInit(session_->handle.get(), cublaslt::ComputeType::c_32f,
                                          cublaslt::DataType::r_32f, type_, type_, type_, type_,
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

  std::optional<Values> describe(const cublaslt::Algo& algo) const {
    Values description;
    for (const cublaslt::AlgoAttribute& attribute : kAlgoAttributes) {
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

  /// The bytes of workspace that it needs here; nothing: the library refuses it.
  std::optional<std::size_t> check(const cublaslt::Algo& algo) const {
    cublaslt::HeuristicResult result;
    if (!supports(library_.MatmulAlgoCheck(session_->handle.get(), desc_.get(), b_.get(), a_.get(),
                                           c_.get(), c_.get(), &algo, &result),
                  "MatmulAlgoCheck"))
      return {};
    return result.workspace;
  }

  void multiply(const cublaslt::Algo& algo, void* c, const void* a, const void* b, void* workspace,
                std::size_t bytes, Stream stream) const {
    constexpr float kOne = 1, kZero = 0;
    check_status(
        library_.Matmul(session_->handle.get(), desc_.get(), &kOne, b, b_.get(), a, a_.get(),
                        &kZero, c, c_.get(), c, c_.get(), &algo, workspace, bytes, stream.handle),
        "Matmul");
  }

  const Device& device() const noexcept { return *session_->device; }

 private:
  void lay(Owned<cublaslt::Layout>& layout, std::int64_t rows, std::int64_t columns,
           std::int64_t leading, std::int64_t batch, std::int64_t stride) const {
    check_status(
        library_.MatrixLayoutCreate(layout.place(), type_, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), leading),
        "MatrixLayoutCreate");
    if (batch == 1) return;
    const auto count = static_cast<std::int32_t>(batch);
    check_status(library_.MatrixLayoutSetAttribute(
                     layout.get(), cublaslt::LayoutAttribute::batch_count, &count, sizeof(count)),
                 "MatrixLayoutSetAttribute");
    check_status(
        library_.MatrixLayoutSetAttribute(
            layout.get(), cublaslt::LayoutAttribute::strided_batch_offset, &stride, sizeof(stride)),
        "MatrixLayoutSetAttribute");
  }

  const std::shared_ptr<const Session> session_;
  const Library& library_;
  const cublaslt::DataType type_;
  Owned<cublaslt::Desc> desc_;
  Owned<cublaslt::Layout> a_, b_, c_;
};

class CublasltCall final : public ChoiceCall {
 public:
  CublasltCall(std::shared_ptr<const Product> product, cublaslt::Algo algo, std::size_t bytes,
               const CublasltGemm& gemm, Workspaces& workspaces)
      : product_(std::move(product)),
        algo_(algo),
        bytes_(bytes),
        c_(gemm.c),
        a_(gemm.a),
        b_(gemm.b),
        workspaces_(workspaces) {}

  void operator()(Stream stream, void** args) const override {
    const auto pointer = [&](std::size_t i) {
      void* const at = *static_cast<void* const*>(args[i]);
      if (reinterpret_cast<std::uintptr_t>(at) % kAlignment != 0)
        throw UserError(format("cublaslt: argument {} is not aligned to {} bytes", i, kAlignment));
      return at;
    };
    void *const c = pointer(c_), *const a = pointer(a_), *const b = pointer(b_);
    void* const workspace = workspaces_.of(stream, {bytes_, 0}).scratch;
    const auto work = [&] { product_->multiply(algo_, c, a, b, workspace, bytes_, stream); };
    product_->device().within(std::cref(work));  // a reference: nothing is allocated
  }

 private:
  const std::shared_ptr<const Product> product_;
  const cublaslt::Algo algo_;
  const std::size_t bytes_, c_, a_, b_;
  Workspaces& workspaces_;
};

class Cublaslt final : public Contender {
 public:
  Cublaslt(std::shared_ptr<Device> device, const KernelDefinition& operation,
           const detail::AlternativeDescription& what, Workspaces& workspaces)
      : Contender(what),
        device_(std::move(device)),
        operation_(operation),
        workspaces_(workspaces) {}

  std::string version() const override {
    const Session* session = this->session();
    return session ? format("{} {}", session->library->version, what().version) : what().version;
  }
  std::vector<std::string> parameters() const override {
    std::vector<std::string> names;
    for (const cublaslt::AlgoAttribute& attribute : kAlgoAttributes)
      names.push_back(attribute.name);
    return names;
  }

  std::string identity(Span problem) const override {
    const MatrixProduct p = gemm().product(problem);
    return format("type {}, {}x{}x{}{}{}, leading {} {} {}, {} batches, strides {} {} {}",
                  static_cast<int>(gemm().type), p.m, p.n, p.k, p.a_transposed ? ", A across" : "",
                  p.b_transposed ? ", B across" : "", p.ldc, p.lda, p.ldb, p.batch, p.stride_c,
                  p.stride_a, p.stride_b);
  }

  Entrance enter(Span problem) override {
    if (std::string why = unsupported(problem, device_->info()); !why.empty())
      return {{}, std::move(why)};
    Entrance entrance;
    Reason reason;
    const auto product = this->product(problem, reason);
    if (!product) return {{}, std::move(reason.text), reason.passing};
    const std::string of = identity(problem);
    device_->within([&] {
      bool first = true;
      for (const auto& found : product->heuristic(gemm().top, gemm().workspace)) {
        // An algorithm without a description could not be read from a record.
        const auto description = product->describe(found);
        const bool again = description && std::ranges::find(entrance.candidates, *description) !=
                                              entrance.candidates.end();
        if (description && !again &&
            (restores(*product, *description) || keep(*product, of, found, *description))) {
          entrance.candidates.push_back(*description);
        } else if (first) {
          entrance.why_not_first =
              format("the first answer of cuBLASLt {} for {} is not tried: {}",
                     session()->library->version, operation_.describe_problem(problem),
                     description ? "the library's own check refuses it, or it needs more workspace"
                                 : "the library does not tell its public attributes");
        }
        first = false;
      }
    });
    if (entrance.candidates.empty())
      entrance.why_not = format("cuBLASLt {} has no algorithm for {}{}{}",
                                session()->library->version, operation_.describe_problem(problem),
                                entrance.why_not_first.empty() ? "" : ": ", entrance.why_not_first);
    return entrance;
  }

  std::shared_ptr<const ChoiceCall> ready(Span problem, Span candidate,
                                          const std::optional<Values>&) override {
    Reason reason;
    const auto product = this->product(problem, reason);
    const std::string why = format("{}: {}", what().name, reason.text);
    if (!product && reason.passing) throw EnvironmentError(why);
    if (!product) throw NotForProblem(why);
    std::optional<cublaslt::Algo> algo;
    std::optional<std::size_t> bytes;
    device_->within([&] {
      algo = product->algo(candidate);
      if (algo) bytes = product->check(*algo);
      if (fits(bytes)) return;
      algo = kept(identity(problem), candidate);
      if (!algo) algo = kept(identity(operation_.bucketed(problem)), candidate);
      if (algo) bytes = product->check(*algo);
    });
    if (!algo || !fits(bytes))
      throw NotForProblem(format("{}: cuBLASLt {} does not take this algorithm for {}", what().name,
                                 session()->library->version,
                                 operation_.describe_problem(problem)));
    return std::make_shared<CublasltCall>(product, *algo, *bytes, gemm(), workspaces_);
  }

 private:
  const CublasltGemm& gemm() const noexcept { return *what().cublaslt; }
  bool fits(const std::optional<std::size_t>& bytes) const {
    return bytes && *bytes <= gemm().workspace;
  }
  bool restores(const Product& product, const Values& description) const {
    const auto algo = product.algo(description);
    return algo && fits(product.check(*algo));
  }

  /// An answer that its public attributes do not restore can be launched all the same, as it is.
  /// False: it cannot. @param of the product's identity: the same attributes may stand for another
  /// algorithm there
  bool keep(const Product& product, const std::string& of, const cublaslt::Algo& answer,
            const Values& description) {
    if (!fits(product.check(answer))) return false;
    const std::lock_guard lock(mutex_);
    if (answers_.size() >= kMostAnswers) answers_.clear();  // entering again brings them back
    answers_.insert_or_assign({description, of}, answer);
    return true;
  }
  std::optional<cublaslt::Algo> kept(const std::string& of, Span description) const {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find({Values(description.begin(), description.end()), of});
    if (found == answers_.end()) return {};
    return found->second;
  }

  /// Why there is no product.
  struct Reason {
    std::string text{};
    bool passing = false;
  };
  /// Null: `why`. @throws EnvironmentError where the library cannot make it just now
  std::shared_ptr<const Product> product(Span problem, Reason& why) const {
    if (!session(&why)) return nullptr;
    const MatrixProduct p = gemm().product(problem);
    if (p.m < 1 || p.n < 1 || p.k < 1 || p.batch < 1) {
      why = {"the product is empty", false};
      return nullptr;
    }
    std::shared_ptr<const Product> made;
    device_->within([&] { made = std::make_shared<const Product>(session_, gemm(), p); });
    return made;
  }

  /// Opened when it is first needed; null: `reason` says why there is none. What the library fails
  /// with just now is tried again the next time.
  const Session* session(Reason* reason = nullptr) const {
    const std::lock_guard lock(mutex_);
    std::string passing;
    if (!session_ && lasting_reason_.empty()) {
      if (device_->info().target.kind != Target::Kind::cuda) {
        lasting_reason_ = "cuBLASLt runs on CUDA devices only";
      } else if (const cublaslt::Probe probe = cublaslt::open(); !probe.library) {
        lasting_reason_ = probe.reason;
      } else {
        try {
          session_ = std::make_shared<const Session>(probe.library, device_);
        } catch (const EnvironmentError& error) {
          passing = error.what();
        }
      }
    }
    if (reason) *reason = {passing.empty() ? lasting_reason_ : passing, !passing.empty()};
    return session_.get();
  }

  const std::shared_ptr<Device> device_;
  const KernelDefinition& operation_;
  Workspaces& workspaces_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Session> session_;
  mutable std::string lasting_reason_;  ///< why there will be none
  /// keep(); by description and product.
  std::map<std::pair<Values, std::string>, cublaslt::Algo> answers_;
};

}  // namespace

std::unique_ptr<Contender> make_cublaslt(std::shared_ptr<Device> device,
                                         const KernelDefinition& operation,
                                         const detail::AlternativeDescription& what,
                                         Workspaces& workspaces) {
  return std::make_unique<Cublaslt>(std::move(device), operation, what, workspaces);
}

}  // namespace kiln::runtime
