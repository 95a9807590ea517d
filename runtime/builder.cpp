#include "runtime/builder.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <thread>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Builder::Builder(std::shared_ptr<cache::Store> store, MakeCompiler make_compiler, LogSink log,
                 unsigned threads)
    : store_(std::move(store)),
      make_compiler_(std::move(make_compiler)),
      log_(std::move(log)),
      threads_(threads ? threads : std::max(1u, std::thread::hardware_concurrency())) {}

codegen::Compiler& Builder::compiler(Target::Kind kind) {
  std::lock_guard lock(compilers_mutex_);
  auto& slot = compilers_[static_cast<std::size_t>(kind)];
  if (!slot) slot = make_compiler_(kind);
  return *slot;
}

Digest Builder::source_digest(const KernelDefinition& kernel, const Target& target) {
  KernelDefinition bare = kernel;
  // Neither names nor values of parameters: the record keeps those itself.
  bare.passing = Passing::template_arguments;
  return codegen::make_source(bare, kernel.space.default_config(), target, compiler(target.kind),
                              includes_)
      .closure;
}

Build Builder::build(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                     const Target& target) {
  const auto start = std::chrono::steady_clock::now();
  codegen::Compiler& compiler = this->compiler(target.kind);
  const codegen::Source source = codegen::make_source(kernel, config, target, compiler, includes_);
  const Key key = codegen::binary_key(source, target, compiler);
  Build build;
  if (source.cacheable)
    if (const auto bytes = store_->find(key))
      if (auto binary = codegen::parse_binary(*bytes)) {
        build.outcome = std::make_shared<const codegen::Binary>(std::move(*binary));
        build.from_store = true;
        build.seconds = seconds_since(start);
        return build;
      }
  compiled_.fetch_add(1, std::memory_order_relaxed);
  codegen::CompileResult result = compiler.compile(source, target);
  if (auto* failure = std::get_if<CompileFailure>(&result)) {
    build.outcome = std::move(*failure);
  } else {
    auto& binary = std::get<codegen::Binary>(result);
    if (source.cacheable)
      store_->put(key, codegen::serialize(binary));
    else if (log_)
      log_(LogLevel::debug,
           source.label + " includes files that cannot be told beforehand: not kept");
    build.outcome = std::make_shared<const codegen::Binary>(std::move(binary));
  }
  build.seconds = seconds_since(start);
  return build;
}

std::vector<Build> Builder::build_all(const KernelDefinition& kernel,
                                      std::span<const Values> configs, const Target& target,
                                      const std::function<void(std::size_t)>& progress) {
  std::vector<Build> builds(configs.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::size_t done = 0, running = 0;
  std::exception_ptr failure;

  auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < configs.size();) {
      try {
        builds[i] = build(kernel, configs[i], target);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = configs.size();
      }
      std::lock_guard lock(mutex);
      ++done;
      finished.notify_one();
    }
    std::lock_guard lock(mutex);
    --running;
    finished.notify_one();
  };

  std::vector<std::jthread> workers;
  {
    std::unique_lock lock(mutex);
    const std::size_t count = std::min<std::size_t>(threads_, configs.size());
    for (std::size_t i = 0; i < count; ++i) {
      ++running;
      workers.emplace_back(work);
    }
    for (std::size_t seen = 0; running != 0 || done != seen;) {
      finished.wait(lock, [&] { return running == 0 || done != seen; });
      if (done == seen) continue;
      seen = done;
      if (!progress) continue;
      lock.unlock();
      try {
        progress(seen);
      } catch (...) {
        next = configs.size();  // the caller does not want the rest
        throw;
      }
      lock.lock();
    }
  }
  workers.clear();
  if (failure) std::rethrow_exception(failure);
  return builds;
}

}  // namespace kiln::runtime
