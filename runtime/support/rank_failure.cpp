#include <algorithm>

#include "kiln/communicator.hpp"

namespace kiln {

namespace {

constexpr std::size_t kMostNamed = 8;

std::string name(const std::vector<int>& ranks) {
  if (ranks.empty()) return "a rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t shown = std::min(ranks.size(), kMostNamed);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (shown < ranks.size()) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

const char* verb(RankFailure::Kind kind, bool one) {
  switch (kind) {
    case RankFailure::Kind::timeout:
      return one ? "is late" : "are late";
    case RankFailure::Kind::aborted:
      return "gave up";
    case RankFailure::Kind::lost:
      return one ? "is gone" : "are gone";
    case RankFailure::Kind::mismatch:
      return one ? "differs" : "differ";
    case RankFailure::Kind::system:
      return "failed";
  }
  return "failed";
}

}  // namespace

std::string RankFailure::describe() const {
  std::string said = name(ranks) + " " + verb(kind, ranks.size() < 2);
  return text.empty() ? said : said + ": " + text;
}

}  // namespace kiln
