#include "runtime/choice/cublaslt.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/choice/cublaslt_product.hpp"
#include "runtime/serve/not_for_problem.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

using cublaslt::kAlgoAttributes;
using cublaslt::kAlignment;
using cublaslt::Product;
using cublaslt::Session;

/// That are kept because their attributes do not restore them: each has 64 bytes and a key.
constexpr std::size_t kMostAnswers = std::size_t{1} << 16;

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
        scale_a_(gemm.scale_a),
        scale_b_(gemm.scale_b),
        workspaces_(workspaces) {}

  void reserve(Stream stream) const override { workspaces_.reserve(stream, {bytes_, 0}); }

  void operator()(Stream stream, void** args) const override {
    const auto pointer = [&](std::size_t i) { return *static_cast<void* const*>(args[i]); };
    const auto matrix = [&](std::size_t i) {
      void* const at = pointer(i);
      if (reinterpret_cast<std::uintptr_t>(at) % kAlignment != 0)
        throw UserError(format("cublaslt: argument {} is not aligned to {} bytes", i, kAlignment));
      return at;
    };
    Product::Arrays arrays{.c = matrix(c_), .a = matrix(a_), .b = matrix(b_)};
    const auto scale = [&](std::size_t i) {
      void* const at = pointer(i);
      // The library would take it for a scale of 1.
      if (!at) throw UserError(format("cublaslt: argument {}, a scale, is null", i));
      return at;
    };
    if (scale_a_) arrays.scale_a = scale(*scale_a_);
    if (scale_b_) arrays.scale_b = scale(*scale_b_);
    void* const workspace = workspaces_.of(stream, {bytes_, 0}).scratch;
    const auto work = [&] { product_->multiply(algo_, arrays, workspace, bytes_, stream); };
    product_->device().within(std::cref(work));  // a reference: nothing is allocated
  }

 private:
  const std::shared_ptr<const Product> product_;
  const cublaslt::Algo algo_;
  const std::size_t bytes_, c_, a_, b_;
  const std::optional<std::size_t> scale_a_, scale_b_;
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
    const CublasltGemm& g = gemm();
    const MatrixProduct p = g.product(problem);
    std::string text =
        format("type {}, {}x{}x{}{}{}, leading {} {} {}, {} batches, strides {} {} {}",
               static_cast<int>(g.type), p.m, p.n, p.k, p.a_transposed ? ", A across" : "",
               p.b_transposed ? ", B across" : "", p.ldc, p.lda, p.ldb, p.batch, p.stride_c,
               p.stride_a, p.stride_b);
    if (g.b_type) text += format(", B of type {}", static_cast<int>(*g.b_type));
    if (g.c_type) text += format(", C of type {}", static_cast<int>(*g.c_type));
    if (g.scale_a) text += ", A scaled";
    if (g.scale_b) text += ", B scaled";
    if (g.fast_accumulation) text += ", fast accumulation";
    return text;
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
    why = {cublaslt::refusal_of_8_bits(gemm(), p, device_->info().target), false};
    if (!why.text.empty()) return nullptr;
    std::shared_ptr<const Product> made;
    try {
      device_->within([&] { made = std::make_shared<const Product>(session_, gemm(), p); });
    } catch (const NotForProblem& refusal) {
      why = {refusal.what(), false};
    }
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
