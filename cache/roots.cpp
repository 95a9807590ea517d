#include "cache/roots.hpp"

#include <string_view>
#include <utility>

#include "kiln/detail/environment.hpp"

namespace kiln::cache {
namespace {

std::vector<std::filesystem::path> split(std::string_view paths) {
  std::vector<std::filesystem::path> result;
  while (!paths.empty()) {
    const auto end = std::min(paths.find(':'), paths.size());
    if (end > 0) result.emplace_back(paths.substr(0, end));
    paths.remove_prefix(std::min(end + 1, paths.size()));
  }
  return result;
}

}  // namespace

Roots::Roots(const StoreOptions& options)
    : log_(options.log),
      named_(options.roots.empty() ? split(detail::environment("KILN_ROOTS")) : options.roots),
      public_key_(options.bundle_key.empty() ? detail::environment("KILN_BUNDLE_KEY")
                                             : options.bundle_key) {}

const std::vector<std::unique_ptr<Root>>& Roots::usable() {
  if (named_.empty()) return usable_;
  std::call_once(opened_, [&] {
    // A bad_alloc half way lets the next caller begin again.
    std::vector<std::unique_ptr<Root>> roots;
    std::vector<Problem> problems;
    for (const auto& path : named_) {
      auto opened = open_root(path, public_key_);
      if (auto* root = std::get_if<std::unique_ptr<Root>>(&opened)) {
        (*root)->when_damaged([log = log_](const std::string& what) {
          if (log) log(LogLevel::warning, "cache: " + what);
        });
        roots.push_back(std::move(*root));
        continue;
      }
      const Failure& failure = std::get<Failure>(opened);
      problems.push_back({path, failure.what + "; " + failure.advice});
      if (log_) log_(LogLevel::warning, "cache: read-only root not used: " + problems.back().what);
    }
    usable_ = std::move(roots);
    problems_ = std::move(problems);
  });
  return usable_;
}

std::vector<std::string> Roots::problems() {
  usable();
  std::vector<std::string> texts;
  for (const Problem& problem : problems_) texts.push_back(problem.what);
  return texts;
}

std::vector<StoreStatistics::Root> Roots::statistics() {
  usable();
  std::vector<StoreStatistics::Root> result;
  auto root = usable_.begin();
  auto problem = problems_.begin();
  for (const auto& path : named_) {  // each went to one of the two, in order
    if (problem != problems_.end() && problem->path == path)
      result.push_back({path, 0, 0, (problem++)->what});
    else if (root != usable_.end()) {
      result.push_back(
          {path, (*root)->count(EntryKind::binary), (*root)->count(EntryKind::record), {}});
      ++root;
    }
  }
  return result;
}

}  // namespace kiln::cache
