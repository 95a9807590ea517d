#include "runtime/build/builder.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <set>

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
                 unsigned threads, Access access)
    : store_(std::move(store)),
      make_compiler_(std::move(make_compiler)),
      log_(std::move(log)),
      threads_(threads ? threads : usable_cores()),
      access_(access) {}

codegen::Compiler& Builder::compiler(Target::Kind kind) {
  std::lock_guard lock(compilers_mutex_);
  auto& slot = compilers_[static_cast<std::size_t>(kind)];
  if (!slot) slot = make_compiler_(kind);
  return *slot;
}

std::optional<Digest> Builder::kernel_source(const KernelDefinition& kernel) {
  return codegen::kernel_source(kernel, includes_);
}

/// Fills in the build if the store has exactly this key.
bool Builder::take(const Key& key, Build& build) {
  auto bytes = store_->find(key);
  if (!bytes) return false;
  auto binary = codegen::parse_binary(*bytes);
  if (!binary) return false;
  build.outcome = std::make_shared<const codegen::Binary>(std::move(*binary));
  build.key = key;
  build.bytes = *std::move(bytes);
  build.from_store = true;
  return true;
}

/// What any compiler made of this instance and kernel source for one target; `own`: also of the
/// writable store. `ambiguous` says why an entry that is there cannot be taken.
bool Builder::look_up(const Key& wanted, const std::optional<Digest>& source, bool own,
                      Build& build, std::string& ambiguous) {
  const std::string source_hex = source ? to_hex(*source) : std::string();
  const auto same_source = [&](const Key& found) {
    return !source || found.value(codegen::kKernelSourceField) == source_hex;
  };
  if (!source) {
    // Any of them may be stale; if there are several, all but one are.
    std::set<std::string> sources;
    store_->find_portable(EntryKind::binary, wanted.portable, own, [&](const Key& found) {
      sources.insert(found.value(codegen::kKernelSourceField));
      return false;
    });
    if (sources.size() > 1) {
      ambiguous = "it is there made of " + std::to_string(sources.size()) +
                  " sources; which is meant cannot be told where the kernel's own is not readable";
      return false;
    }
  }
  auto found = store_->find_portable(EntryKind::binary, wanted.portable, own, same_source);
  if (!found) return false;
  auto binary = codegen::parse_binary(found->payload);
  if (!binary) return false;
  build.outcome = std::make_shared<const codegen::Binary>(std::move(*binary));
  build.key = std::move(found->key);
  build.bytes = std::move(found->payload);
  build.from_store = true;
  return true;
}

/// As above. `alone`: nothing can be compiled, so that the writable store is looked into as well,
/// and where there is none for the target, the widest serves whose code runs on it.
Build Builder::look_up(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                       const Target& target, bool alone, const std::string& why) {
  const auto source = kernel_source(kernel);
  Build build;
  std::string ambiguous;
  for (const Target& runs : alone ? targets_that_run_on(target) : std::vector{target}) {
    std::string problem;
    if (look_up(codegen::wanted_key(kernel, config, runs), source, alone, build, problem))
      return build;
    if (ambiguous.empty()) ambiguous = std::move(problem);
  }
  Key wanted = codegen::wanted_key(kernel, config, target);
  if (source)  // so that an edited kernel is named as the difference
    wanted.fields.push_back({codegen::kKernelSourceField, to_hex(*source), 'd'});
  Missing missing{codegen::describe_instance(kernel, config),
                  wanted,
                  {},
                  {},
                  ambiguous.empty() ? why : ambiguous};
  if (!why.empty()) {
    missing.closest = closest(wanted);
    if (missing.closest) missing.differences = differences(wanted, *missing.closest);
  }
  build.outcome = std::move(missing);
  return build;
}

/// Searching the whole store is slow, and many problems lack the same instance.
std::optional<Key> Builder::closest(const Key& wanted) {
  std::lock_guard lock(closest_mutex_);
  const auto [place, first] = closest_.try_emplace(wanted.portable);
  if (first)
    place->second = store_->closest(EntryKind::binary, wanted, [&](const Key& found) {
      return found.value(kKernel) == wanted.value(kKernel);
    });
  return place->second;
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
  build.from_store = true;
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

Build Builder::compile(const KernelDefinition& kernel, const codegen::Source& source,
                       const Target& target, codegen::Compiler& compiler, const Key& key) {
  Build build;
  build.key = key;
  build.keepable = source.cacheable;
  compiled_.fetch_add(1, std::memory_order_relaxed);
  codegen::CompileResult result = compiler.compile(source, target);
  if (auto* failure = std::get_if<CompileFailure>(&result)) {
    if (const std::string unknown = codegen::unknown_entry(kernel, includes_); !unknown.empty())
      failure->log = "error: " + unknown + "\n" + failure->log;
    if (source.cacheable) {
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
  if (source.cacheable && compiler.worth_keeping())
    store_->put(key, build.bytes);
  else if (!source.cacheable && log_)
    log_(LogLevel::debug,
         source.label + " includes files that cannot be told beforehand: not kept");
  build.outcome = std::make_shared<const codegen::Binary>(std::move(binary));
  return build;
}

Build Builder::build(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                     const Target& target) {
  const auto start = std::chrono::steady_clock::now();
  const auto timed = [&](Build build) {
    build.seconds = seconds_since(start);
    return build;
  };
  if (access_ == Access::look_up)
    return timed(look_up(kernel, config, target, true, "this mode compiles nothing"));
  codegen::Compiler* compiler = nullptr;
  try {
    compiler = &this->compiler(target.kind);
  } catch (const EnvironmentError&) {
    // What lies in a bundle needs no compiler.
    Build build = look_up(kernel, config, target, true, {});
    if (!build.binary()) throw;
    return timed(std::move(build));
  }
  const codegen::Source source = codegen::make_source(kernel, config, target, *compiler, includes_);
  const Key key = codegen::binary_key(source, target, *compiler, kernel_source(kernel));
  return timed(flights_.run(key.digest, [&] {
    Build build;
    if (!source.cacheable || !compiler->worth_keeping())
      return compile(kernel, source, target, *compiler, key);
    if (take(key, build) || failed_before(key, build)) return build;
    build = look_up(kernel, config, target, false, {});
    if (build.binary()) return build;
    cache::WorkLock lock;
    const auto outcome = store_->lock(EntryKind::binary, key, lock);
    if (outcome == cache::WorkLock::Outcome::ready && take(key, build)) return build;
    return compile(kernel, source, target, *compiler, key);
  }));
}

}  // namespace kiln::runtime
