#include "runtime/build/builder.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <exception>
#include <functional>

#include <sys/resource.h>

#include "cache/substitute.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/support/machine.hpp"
#include "runtime/support/trace.hpp"

namespace kiln::runtime {

namespace {

/// Logs may be long.
constexpr std::size_t kMostFailures = 4096;
constexpr std::string_view kKernel = "kernel";

/// Warnings of two configs differ in lines and values.
std::string without_numbers(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return text;
}

}  // namespace

Builder::Builder(std::shared_ptr<cache::Store> store, MakeCompiler make_compiler, LogSink log,
                 unsigned threads, Access access, std::shared_ptr<Telemetry> telemetry,
                 unsigned sharing)
    : store_(std::move(store)),
      make_compiler_(std::move(make_compiler)),
      log_(std::move(log)),
      asked_(threads != 0),
      threads_(threads ? threads : cores_shared_by(sharing)),
      access_(access),
      telemetry_(std::move(telemetry)) {}

unsigned Builder::builds_at_once() const {
  return asked_ ? threads_ : jobs_that_fit(threads_, kCompilerBytes);
}

BuildCrew& Builder::crew() {
  const std::lock_guard lock(crews_mutex_);
  return crews_[::getpriority(PRIO_PROCESS, 0)];  // on Linux: of this thread
}

void Builder::finish_builds() {
  std::vector<BuildCrew*> crews;
  {
    const std::lock_guard lock(crews_mutex_);
    for (auto& [priority, crew] : crews_) crews.push_back(&crew);
  }
  for (BuildCrew* const crew : crews) crew->wait();
}

codegen::Compiler& Builder::compiler(Target::Kind kind) {
  std::lock_guard lock(compilers_mutex_);
  auto& slot = compilers_[static_cast<std::size_t>(kind)];
  if (!slot) slot = make_compiler_(kind);
  return *slot;
}

std::string Builder::compiler_version(Target::Kind kind) {
  std::lock_guard lock(compilers_mutex_);
  const auto& compiler = compilers_[static_cast<std::size_t>(kind)];
  return compiler ? compiler->identity().version : std::string();
}

std::optional<Digest> Builder::source_digest(const KernelDefinition& kernel) {
  return codegen::source_digest(kernel, includes_);
}

std::optional<codegen::KernelSourceDigest> Builder::read_source_digest(
    const KernelDefinition& kernel) {
  return codegen::read_source_digest(kernel, includes_);
}

/// Fills in the build if the store has exactly this key.
bool Builder::take(const Key& key, Build& build) {
  auto bytes = store_->find(key);
  if (!bytes) return false;
  auto binary = codegen::parse_binary(*bytes);
  if (!binary) return false;
  binary->key = key.digest;
  build.outcome = std::make_shared<const codegen::Binary>(std::move(*binary));
  build.key = key;
  build.bytes = *std::move(bytes);
  return true;
}

/// A substitute for one target. Where there is none because several differ, `ambiguous` says so.
std::optional<Build> Builder::substitute(const Key& wanted, const std::optional<Digest>& source,
                                         Substitutes which, std::string& ambiguous) {
  using Where = cache::Store::Where;
  const Where where = which == Substitutes::any ? Where::anywhere : Where::roots;
  const std::function<bool(const Key&)> same_source =
      [source_hex = source ? to_hex(*source) : std::string()](const Key& found) {
        return source_hex.empty() || found.value(codegen::kKernelSourceField) == source_hex;
      };
  std::optional<codegen::Binary> binary;  // one of another format is passed over
  cache::SubstituteSearch search{.kind = EntryKind::binary,
                                 .portable = wanted.portable,
                                 .where = where,
                                 .may_be_of = same_source,
                                 .take = [&](const cache::StoredEntry& entry) {
                                   binary = codegen::parse_binary(entry.payload);
                                   return binary.has_value();
                                 }};
  if (!source)
    search.unread_source = [](const Key& found) {
      return found.value(codegen::kKernelSourceField);
    };
  auto [found, sources] = cache::find_substitute(*store_, search);
  if (sources > 1)
    ambiguous = "the store holds binaries made of " + std::to_string(sources) +
                " sources, and the kernel's own source, which would decide, cannot be read";
  if (!found) return {};
  binary->key = found->key.digest;
  Build build;
  build.outcome = std::make_shared<const codegen::Binary>(std::move(*binary));
  build.key = std::move(found->key);
  build.bytes = std::move(found->payload);
  return build;
}

/// The target's own substitute comes first, then that of the widest target whose code runs on it.
std::optional<Build> Builder::substitute(const Instance& instance, Substitutes which,
                                         std::string* ambiguous) {
  const auto targets = which == Substitutes::any ? targets_that_run_on(instance.target)
                                                 : std::vector{instance.target};
  for (const Target& runs : targets) {
    std::string why_not;
    auto build = substitute(codegen::wanted_key(instance.kernel, instance.config, runs),
                            instance.source, which, why_not);
    if (build) return build;
    if (ambiguous && ambiguous->empty()) *ambiguous = std::move(why_not);
  }
  return {};
}

/// How each request begins: what serves where no compiler is asked, or the source that is compiled
/// where nothing lies under its key.
struct Builder::Beginning {
  std::optional<Build> found{};
  codegen::Compiler* compiler = nullptr;  ///< null: nothing can be compiled
  std::exception_ptr no_compiler{};       ///< why; null: this mode compiles nothing
  std::string ambiguous{};                ///< why nothing was found instead
  codegen::Source source{};
  Key key{};
  bool kept = false;  ///< in the store
};

Builder::Beginning Builder::begin(const Instance& instance, const codegen::FilesSeen& files) {
  Beginning begun;
  if (access_ == Access::look_up) {
    begun.found = substitute(instance, Substitutes::any, &begun.ambiguous);
    return begun;
  }
  // A program may be shipped without its sources. What lies in the writable store may be of an
  // older source: there, making the source says which file is missing.
  if (!instance.source && (begun.found = substitute(instance, Substitutes::shipped))) return begun;
  try {
    begun.compiler = &compiler(instance.target.kind);
  } catch (const EnvironmentError&) {
    begun.no_compiler = std::current_exception();
    // What lies in a bundle needs no compiler.
    begun.found = substitute(instance, Substitutes::any, &begun.ambiguous);
    return begun;
  }
  begun.source = codegen::make_source(instance.kernel, instance.config, instance.target,
                                      *begun.compiler, files);
  begun.key = codegen::binary_key(begun.source, instance.target, *begun.compiler, instance.source);
  begun.kept = begun.source.cacheable && begun.compiler->worth_keeping();
  return begun;
}

/// What needs no compiling, though there is a compiler: what lies under the key, the failure that
/// is remembered for it, or what was shipped.
std::optional<Build> Builder::look_up(const Instance& instance, const Key& key) {
  Build build;
  if (take(key, build) || failed_before(key, build)) return build;
  return substitute(instance, Substitutes::shipped);
}

/// The nearest entry may differ from `key` in what it was made with, so that is named as well.
Build Builder::only_looked_up(const Instance& instance, const Key& key) {
  Build build = missing(instance, "this request compiles nothing (look_up)");
  auto& lacking = std::get<Missing>(build.outcome);
  lacking.wanted = key;
  if (lacking.closest) lacking.differences = differences(key, *lacking.closest);
  return build;
}

Build Builder::missing(const Instance& instance, std::string why) {
  Key wanted = codegen::wanted_key(instance.kernel, instance.config, instance.target);
  if (instance.source)  // so that an edit is named as the difference
    wanted.fields.push_back({codegen::kKernelSourceField, to_hex(*instance.source), 'd'});
  Missing missing{codegen::describe_instance(instance.kernel, instance.config),
                  wanted,
                  closest(wanted),
                  {},
                  std::move(why)};
  if (missing.closest) missing.differences = differences(wanted, *missing.closest);
  Build build;
  build.outcome = std::move(missing);
  return build;
}

/// Searching the whole store is slow, and many problems lack the same instance.
std::optional<Key> Builder::closest(const Key& wanted) {
  {
    const std::lock_guard lock(closest_mutex_);
    if (const auto known = closest_.find(wanted.portable); known != closest_.end())
      return known->second;
  }
  const auto nearest = store_->closest(EntryKind::binary, wanted, [&](const Key& found) {
    return found.value(kKernel) == wanted.value(kKernel);
  });
  if (!nearest) return nearest;  // one may come
  const std::lock_guard lock(closest_mutex_);
  if (closest_.size() >= kMostFailures) closest_.clear();
  return closest_.try_emplace(wanted.portable, nearest).first->second;
}

void Builder::forget_failures() {
  std::lock_guard lock(failures_mutex_);
  failures_.clear();
}

/// Fills in the build if this very key was refused before.
bool Builder::failed_before(const Key& key, Build& build) {
  std::lock_guard lock(failures_mutex_);
  const auto known = failures_.find(key.digest);
  if (known == failures_.end()) return false;
  build.outcome = known->second;
  build.key = key;
  return true;
}

/// A compiler repeats its warnings for every config; they are passed on once.
void Builder::pass_on_warnings(const codegen::Source& source, const std::string& words) {
  if (!log_ || words.empty()) return;
  {
    std::lock_guard lock(warnings_mutex_);
    if (warned_.size() >= kMostFailures) warned_.clear();
    if (!warned_.insert(source.kernel + ": " + without_numbers(words)).second) return;
  }
  log_(LogLevel::warning, "compiling " + source.label + ":\n" + words);
}

codegen::CompileResult Builder::compile_counted(const Instance& instance,
                                                const codegen::Source& source,
                                                codegen::Compiler& compiler) {
  Counters& counters = telemetry_->counters;
  compiled_.fetch_add(1, std::memory_order_relaxed);
  SpanScope span(&telemetry_->spans, "kiln.compile",
                 {{"kernel", instance.kernel.name},
                  {"config", instance.kernel.space.describe(instance.config)},
                  {"target", instance.target.arch}});
  const auto start = Clock::now();
  try {
    codegen::CompileResult result = compiler.compile(source, instance.target);
    const bool failed = std::holds_alternative<CompileFailure>(result);
    if (!failed) BuildCrew::note_compiled();
    counters.compiles.add(failed ? "failed" : "compiled");
    counters.compile_seconds.add(seconds_since(start));
    if (!failed) span.end();
    return result;
  } catch (...) {
    counters.compiles.add("error");
    counters.compile_seconds.add(seconds_since(start));
    throw;
  }
}

/// Whether the files behind a key are still the same: a compiler reads them after the key was
/// made.
bool Builder::is_still_of(const Key& key, const Instance& instance, codegen::Compiler& compiler) {
  try {
    const codegen::FilesSeen files(includes_);
    const codegen::Source now =
        codegen::make_source(instance.kernel, instance.config, instance.target, compiler, files);
    return codegen::binary_key(now, instance.target, compiler,
                               codegen::source_digest(instance.kernel, files)) == key;
  } catch (const Error&) {  // a file is gone
    return false;
  }
}

Build Builder::compile(const Instance& instance, const codegen::Source& source,
                       codegen::Compiler& compiler, const Key& key) {
  Build build;
  build.key = key;
  build.keepable = source.cacheable;
  build.compiled = true;
  codegen::CompileResult result = compile_counted(instance, source, compiler);
  if (auto* failure = std::get_if<CompileFailure>(&result)) {
    if (const std::string unknown = codegen::unknown_entry(instance.kernel, includes_);
        !unknown.empty())
      failure->log = "error: " + unknown + "\n" + failure->log;
    if (source.cacheable && is_still_of(key, instance, compiler)) {
      std::lock_guard lock(failures_mutex_);
      if (failures_.size() >= kMostFailures) failures_.clear();
      failures_.insert_or_assign(key.digest, *failure);
    }
    build.outcome = std::move(*failure);
    return build;
  }
  auto& binary = std::get<codegen::Binary>(result);
  pass_on_warnings(source, binary.log);
  build.bytes = codegen::serialize(binary);
  if (source.cacheable && compiler.worth_keeping()) {
    build.keepable = is_still_of(key, instance, compiler);
    build.edited = !build.keepable;
    if (build.keepable)
      store_->put(key, build.bytes);
    else if (log_)
      log_(LogLevel::debug, source.label +
                                " is not kept in the store: a file that it includes was edited "
                                "while it was compiled");
  } else if (!source.cacheable && log_)
    log_(LogLevel::debug,
         source.label +
             " is not kept in the store: only a compiler can tell which files it includes");
  if (build.keepable) binary.key = key.digest;
  build.outcome = std::make_shared<const codegen::Binary>(std::move(binary));
  return build;
}

std::optional<Build> Builder::find(const KernelDefinition& kernel,
                                   std::span<const std::int64_t> config, const Target& target,
                                   const std::optional<Digest>& digest) {
  const Instance instance{kernel, config, target, digest};
  Beginning begun = begin(instance, includes_);
  if (begun.found || !begun.kept) return std::move(begun.found);
  return look_up(instance, begun.key);
}

Build Builder::build(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                     const Target& target, Access at_most, const std::optional<Digest>* digest) {
  const auto start = std::chrono::steady_clock::now();
  const auto timed = [&](Build build) {
    build.seconds = seconds_since(start);
    return build;
  };
  const codegen::FilesSeen files(includes_);
  const Instance instance{kernel, config, target,
                          digest ? *digest : codegen::source_digest(kernel, files)};
  Beginning begun = begin(instance, files);
  if (begun.found) return timed(*std::move(begun.found));
  if (!begun.compiler) {
    std::string why = "this mode compiles nothing";
    if (begun.no_compiler) try {
        std::rethrow_exception(begun.no_compiler);
      } catch (const EnvironmentError& error) {
        if (at_most != Access::look_up) throw;
        why = error.what();
      }
    return timed(missing(instance, begun.ambiguous.empty() ? why : begun.ambiguous));
  }
  const Key& key = begun.key;
  if (at_most == Access::look_up) {
    auto found = begun.kept ? look_up(instance, key) : std::nullopt;
    return timed(found ? *std::move(found) : only_looked_up(instance, key));
  }
  bool own = false;
  Build build = flights_.run(key.digest, [&] {
    own = true;
    if (!begun.kept) return compile(instance, begun.source, *begun.compiler, key);
    if (auto found = look_up(instance, key)) return *std::move(found);
    cache::WorkLock lock;
    const auto outcome = store_->lock(EntryKind::binary, key, lock);
    Build made;
    if (outcome == cache::WorkLock::Outcome::ready && take(key, made)) return made;
    return compile(instance, begun.source, *begun.compiler, key);
  });
  build.compiled = build.compiled && own;
  return timed(std::move(build));
}

}  // namespace kiln::runtime
