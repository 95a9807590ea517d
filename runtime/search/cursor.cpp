#include "runtime/search/cursor.hpp"

#include <limits>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

Cursor::Cursor(const DynamicSpace& space)
    : space_(space), point_(space.parameters().size(), 0), values_(point_.size()) {
  constexpr std::size_t kMost = std::size_t{std::numeric_limits<std::uint16_t>::max()} + 1;
  for (const Parameter& p : space.parameters())
    if (p.values.size() > kMost)
      throw UserError(
          detail::format("space: parameter '{}' has {} values, but a search takes at most {}",
                         p.name, p.values.size(), kMost));
  for (std::size_t d = 0; d < point_.size(); ++d) set(d, 0);
}

}  // namespace kiln::runtime
