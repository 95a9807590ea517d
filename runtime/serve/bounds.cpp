#include "runtime/serve/bounds.hpp"

#include <exception>
#include <utility>

#include "runtime/serve/problems.hpp"
#include "runtime/serve/serving.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kEvictedAtOnce = 16;
constexpr std::size_t kMostProblems = std::size_t{1} << 16;
// A launch does not look whether it is captured, so only the program knows what its graphs need.
constexpr std::uint64_t kMostModuleBytes = std::uint64_t{4} << 30;  ///< where there are no graphs

}  // namespace

Bounds::Bounds(const RuntimeOptions& options, std::shared_ptr<Device> device,
               const Serving& serving)
    : device_(std::move(device)),
      serving_(serving),
      keep_(device_->graphs() && options.max_problems.value_or(0) == 0 &&
                    options.max_module_bytes.value_or(0) == 0
                ? HandleModules::Keep::always
                : HandleModules::Keep::while_used),
      max_problems_(options.max_problems.value_or(kMostProblems)),
      max_module_bytes_(
          options.max_module_bytes.value_or(device_->graphs() ? 0 : kMostModuleBytes)) {}

void Bounds::dispose(std::shared_ptr<const void> what) noexcept {
  if (!device_->graphs()) return;
  // CUDA waits for all running kernels when it unloads a module.
  struct Last {
    std::shared_ptr<Device> device;
    std::shared_ptr<const void> what;
    std::shared_ptr<std::atomic<int>> waiting;
    ~Last() {
      what.reset();
      --*waiting;
    }
  };
  try {
    auto last = std::make_shared<Last>(device_, nullptr, disposing_);
    ++*disposing_;
    last->what = std::move(what);
    Reaper::release(reaper_.hold(std::move(last)));
  } catch (const std::exception&) {
    // No thread can be started: it is destroyed here.
  }
}

Bounds::Hold::~Hold() try {
  if (--bounds_.held_ == 0) bounds_.keep_to_module_bytes();
} catch (const std::exception&) {
  // There is no memory for it now; whatever is published next keeps to the bound.
}

void Bounds::keep_to_module_bytes() {
  if (serving_.sealed() || held_ > 0) return;  // nothing leaves
  const std::uint64_t most = max_module_bytes_;
  const auto over = [&] {
    const std::int64_t bytes = device_->loaded_modules()->bytes;
    return most != 0 && bytes > 0 && static_cast<std::uint64_t>(bytes) > most;
  };
  if (!over()) return;
  const std::unique_lock alone(evicting_, std::try_to_lock);
  if (!alone) return;
  const std::int64_t before = device_->loaded_modules()->bytes;
  if (before == stuck_at_) return;
  // What has left counts until it is unloaded: by this thread, when no launch uses it, or by
  // another.
  const auto unloads = [&](Problems& problems) {
    problems.reclaim();
    return problems.waiting() || *disposing_ > 0;
  };
  const auto handles = serving_.handles();
  for (const auto& handle : handles)
    if (unloads(handle->problems())) return;
  // The first round takes what was not used since the last one, and the second what was not used
  // since the first.
  for (int round = 0; round < 2; ++round)
    for (const auto& handle : handles)
      while (over()) {
        const std::int64_t had = device_->loaded_modules()->bytes;
        if (handle->problems().evict(kEvictedAtOnce) == 0) break;
        if (unloads(handle->problems())) return;
        // Others share what these have launched: the handle would have to lose all of them.
        if (device_->loaded_modules()->bytes == had) break;
      }
  stuck_at_ = over() ? device_->loaded_modules()->bytes.load() : 0;
}

}  // namespace kiln::runtime
