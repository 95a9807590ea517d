#include "cache/root.hpp"

#include <system_error>
#include <utility>

#include "cache/bundle.hpp"
#include "cache/directory_root.hpp"

namespace kiln::cache {

std::variant<std::unique_ptr<Root>, Failure> open_root(const std::filesystem::path& path,
                                                       const std::filesystem::path& public_key) {
  // What lies there may change before it is opened; each way of opening refuses what the other is
  // for.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (!public_key.empty())
      return Failure{path.string() + " is a directory, and a directory cannot be signed",
                     "turn it into a signed bundle, or require no signature"};
    return make_directory_root(path);
  }
  auto bundle = Bundle::open(path, public_key);
  if (auto* failure = std::get_if<Failure>(&bundle)) return std::move(*failure);
  return std::unique_ptr<Root>(std::get<std::unique_ptr<Bundle>>(std::move(bundle)));
}

}  // namespace kiln::cache
