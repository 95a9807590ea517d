#include "runtime/serve/handle_modules.hpp"

#include <utility>

#include "runtime/device/resource_check.hpp"

namespace kiln::runtime {

namespace {

void append(Values& needs, const Launch& launch) {
  if (empty(launch)) {  // asks for nothing
    needs.push_back(-1);
    return;
  }
  for (const std::int64_t one :
       {std::int64_t{launch.shared_bytes}, std::int64_t{launch.cluster.x},
        std::int64_t{launch.cluster.y}, std::int64_t{launch.cluster.z},
        std::int64_t{launch.cooperative}, std::int64_t{launch.programmatic},
        std::int64_t{launch.shared_carveout}})
    needs.push_back(one);
}

Values needs_of(const detail::LaunchPlan& plan) {
  Values needs;
  append(needs, plan.launch);
  for (const Launch& step : plan.steps) append(needs, step);
  return needs;
}

}  // namespace

std::shared_ptr<const Module> HandleModules::find(const std::optional<Digest>& binary,
                                                  std::span<const std::int64_t> problem,
                                                  const detail::LaunchPlan& plan) const {
  if (!binary) return nullptr;
  Purpose purpose{*binary, needs_of(plan), {}};
  const std::lock_guard lock(mutex_);
  const auto loaded = [&]() -> std::shared_ptr<const Module> {
    const auto found = found_.find(purpose);
    return found == found_.end() ? nullptr : found->second.lock();
  };
  if (auto shared = loaded()) return shared;
  purpose.problem.assign(problem.begin(), problem.end());
  return loaded();
}

std::shared_ptr<const Module> HandleModules::find_or_load(
    const std::optional<Digest>& binary, std::span<const std::int64_t> problem,
    const detail::LaunchPlan& plan, const std::function<std::shared_ptr<const Module>()>& load) {
  if (!binary) return load();
  for (;;) {
    if (auto found = find(binary, problem, plan)) return found;
    if (serves_one_problem(*binary)) return load();
    bool own = false;
    auto loaded = flights_.run({*binary, needs_of(plan), {}}, [&] {
      own = true;
      auto found = find(binary, problem, plan);
      return found ? found : load();
    });
    // What another thread has loaded may turn out to be its problem's alone.
    if (own || !loaded->has_variables()) return loaded;
  }
}

bool HandleModules::serves_one_problem(const Digest& binary) const {
  const std::lock_guard lock(mutex_);
  return with_variables_.contains(binary);
}

std::shared_ptr<const Module> HandleModules::add(std::shared_ptr<const Module> loaded,
                                                 std::span<const std::int64_t> problem,
                                                 const detail::LaunchPlan& plan) {
  struct Counted {
    const std::shared_ptr<Count> unloaded;
    std::shared_ptr<const Module> module;

    Counted(std::shared_ptr<Count> among, std::shared_ptr<const Module> counted)
        : unloaded(std::move(among)), module(std::move(counted)) {}
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() {
      module.reset();
      unloaded->fetch_add(1, std::memory_order_relaxed);
    }
  };
  const auto counted = std::make_shared<const Counted>(unloaded_, std::move(loaded));
  const std::shared_ptr<const Module> module(counted, counted->module.get());
  const std::lock_guard lock(mutex_);
  if (all_.size() == all_.capacity()) {  // what has ended leaves before the list grows
    std::erase_if(all_, [](const auto& one) { return one.expired(); });
    std::erase_if(found_, [](const auto& one) { return one.second.expired(); });
  }
  all_.push_back(module);
  if (module->binary_key) {
    Purpose purpose{*module->binary_key, needs_of(plan), {}};
    if (module->has_variables()) {
      purpose.problem.assign(problem.begin(), problem.end());
      with_variables_.insert(purpose.binary);
    }
    found_.insert_or_assign(std::move(purpose), module);
  }
  if (keep_ == Keep::always) kept_.push_back(module);
  return module;
}

std::vector<std::shared_ptr<const Module>> HandleModules::all() const {
  std::vector<std::shared_ptr<const Module>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& one : all_)
    if (auto module = one.lock()) found.push_back(std::move(module));
  return found;
}

}  // namespace kiln::runtime
