// Gets binaries: from the store, else from a compiler.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cache/single_flight.hpp"
#include "cache/store.hpp"
#include "codegen/compiler.hpp"
#include "codegen/instance.hpp"
#include "kiln/definition.hpp"
#include "kiln/log.hpp"
#include "kiln/missing.hpp"
#include "runtime/build/build_crew.hpp"
#include "runtime/support/telemetry.hpp"

namespace kiln::runtime {

/// What one compilation may take of the memory. Shipped kernels take about 100 MB.
inline constexpr std::int64_t kCompilerBytes = std::int64_t{1} << 29;

/// One instance's binary, or why there is none.
struct Build {
  /// Nothing for what need not be built. Missing only where nothing may be compiled.
  std::variant<std::monostate, std::shared_ptr<const codegen::Binary>, CompileFailure, Missing>
      outcome;
  Key key;                ///< of the binary
  detail::Bytes bytes;    ///< the binary as the store keeps it
  bool compiled = false;  ///< for this request; else found, refused before, missing, or no need
  /// False: its key does not say what it was made of, because an include cannot be followed or a
  /// file was edited while it was compiled (`edited`).
  bool keepable = true;
  bool edited = false;
  double seconds = 0;  ///< spent on it, by one thread

  const codegen::Binary* binary() const {
    const auto* b = std::get_if<std::shared_ptr<const codegen::Binary>>(&outcome);
    return b ? b->get() : nullptr;
  }
};

/// Safe to use from several threads. One thread of one process compiles an instance; the others
/// wait for it. No thread waits for another instance.
class Builder {
 public:
  /// Makes the compiler for a target kind, at the first time one is needed.
  using MakeCompiler = std::function<std::shared_ptr<codegen::Compiler>(Target::Kind)>;

  enum class Access {
    compile,  ///< a binary that is nowhere is compiled and kept
    look_up   ///< nothing is compiled: a binary that is nowhere is Missing
  };

  /// @param threads that builds may use; 0: the cores that this process may use, divided by
  /// `sharing` where that many processes share them
  Builder(std::shared_ptr<cache::Store> store, MakeCompiler make_compiler, LogSink log,
          unsigned threads, Access access = Access::compile,
          std::shared_ptr<Telemetry> telemetry = std::make_shared<Telemetry>(),
          unsigned sharing = 1);

  /// From memory, the store, a read-only root (there also what another compiler made of the same
  /// kernel source), else compiled.
  /// With `at_most` look_up nothing is compiled; where the builder may compile, a binary is then
  /// found as it would be found before compiling it. Missing::why says if it could not be compiled.
  /// @param digest what source_digest() has said a moment ago; null: it is asked
  /// @throws UserError, EnvironmentError as make_source and Compiler::compile do.
  Build build(const KernelDefinition& kernel, std::span<const std::int64_t> config,
              const Target& target, Access at_most = Access::compile,
              const std::optional<Digest>* digest = nullptr);

  /// What build() finds without compiling, or an instance's failure that it remembers. Nothing if
  /// there is neither: then build() says what is missing. @throws as build()
  std::optional<Build> find(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                            const Target& target, const std::optional<Digest>& digest);

  /// An instance that does not compile is refused at once the second time, until its key changes or
  /// this is called: a header that was missing may be there now, where no key can tell.
  void forget_failures();

  /// As codegen::source_digest.
  std::optional<Digest> source_digest(const KernelDefinition& kernel);
  /// As codegen::read_source_digest.
  std::optional<codegen::KernelSourceDigest> read_source_digest(const KernelDefinition& kernel);

  codegen::Compiler& compiler(Target::Kind kind);
  /// The version of the compiler for a target kind, if it was needed before; else empty.
  std::string compiler_version(Target::Kind kind);
  /// The threads that builds may use: as asked for, else one per usable core.
  unsigned threads() const noexcept { return threads_; }
  /// How many builds a caller that has many should run at once: threads(), or fewer if their number
  /// was not asked for and the memory that is available now is not enough. Reads files.
  unsigned builds_at_once() const;
  /// For builds that may outlast the search that wants them. A thread inherits the priority of the
  /// thread that starts it, and cannot be raised again, so there is a crew for each priority: this
  /// one is for the calling thread's.
  BuildCrew& crew();
  /// Waits for the builds that have been submitted to any of the crews.
  void finish_builds();
  std::size_t compiled() const noexcept { return compiled_.load(std::memory_order_relaxed); }

 private:
  /// Binaries that may serve where none has the exact key. All are of the same instance, and of the
  /// same kernel source where that can be read.
  enum class Substitutes {
    shipped,  ///< those of read-only roots, for this very target
    any       ///< also those of the writable store, and those of other targets that run on this one
  };
  /// What is to be built. A view, for one build.
  struct Instance {
    const KernelDefinition& kernel;
    std::span<const std::int64_t> config;
    const Target& target;
    std::optional<Digest> source;  ///< as codegen::source_digest
  };
  std::optional<Build> substitute(const Instance& instance, Substitutes which,
                                  std::string* ambiguous = nullptr);
  std::optional<Build> substitute(const Key& wanted, const std::optional<Digest>& source,
                                  Substitutes which, std::string& ambiguous);
  struct Beginning;
  Beginning begin(const Instance& instance, const codegen::FilesSeen& files);
  std::optional<Build> look_up(const Instance& instance, const Key& key);
  Build only_looked_up(const Instance& instance, const Key& key);
  Build missing(const Instance& instance, std::string why);
  bool is_still_of(const Key& key, const Instance& instance, codegen::Compiler& compiler);
  Build compile(const Instance& instance, const codegen::Source& source,
                codegen::Compiler& compiler, const Key& key);
  codegen::CompileResult compile_counted(const Instance& instance, const codegen::Source& source,
                                         codegen::Compiler& compiler);
  void pass_on_warnings(const codegen::Source& source, const std::string& words);
  bool failed_before(const Key& key, Build& build);
  bool take(const Key& key, Build& build);
  std::optional<Key> closest(const Key& wanted);

  std::shared_ptr<cache::Store> store_;
  MakeCompiler make_compiler_;
  LogSink log_;
  const bool asked_;  ///< for this number of threads
  const unsigned threads_;
  const Access access_;
  const std::shared_ptr<Telemetry> telemetry_;
  std::mutex compilers_mutex_;
  std::shared_ptr<codegen::Compiler> compilers_[2];
  codegen::IncludeCache includes_;
  std::mutex closest_mutex_;
  std::map<Digest, std::optional<Key>> closest_;  ///< by Key::portable of what was wanted
  std::mutex failures_mutex_;
  std::map<Digest, CompileFailure> failures_;
  std::mutex warnings_mutex_;
  std::set<std::string> warned_;  ///< kernel and words, without numbers
  cache::SingleFlight<Digest, Build> flights_;
  std::atomic<std::size_t> compiled_{0};
  std::mutex crews_mutex_;
  std::map<int, BuildCrew> crews_;  ///< by priority; last: their threads use all of the above
};

}  // namespace kiln::runtime
