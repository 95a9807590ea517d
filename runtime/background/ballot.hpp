// What ranks say of their problems at a commit, and what follows from it: the same on all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kiln/background.hpp"
#include "kiln/key.hpp"

namespace kiln::runtime {

using Named = std::map<std::string, std::int64_t>;

/// A change and its kernel: kernels of one name may differ in what makes their results.
struct KernelChange {
  CommitReport::Change change;
  std::string definition;  ///< RecordBook::definition, in hex
  bool operator==(const KernelChange&) const = default;
};

/// By the kernel and the problem, in the order of reports; configs are not compared.
struct PlaceOrder {
  bool operator()(const KernelChange& a, const KernelChange& b) const;
};
using Places = std::set<KernelChange, PlaceOrder>;

/// What a rank says of a problem that is unsettled there.
struct Entry {
  KernelChange place;  ///< without a config
  std::optional<Named> found{};
  std::optional<Named> in_use{};  ///< nothing: a launch is about to put it there
  bool given_up = false;          ///< nothing was found, and nothing is looked for any more
  bool agreed = false;            ///< all ranks have agreed on `found` in a commit before
};

nlohmann::json to_json(const Entry& entry);
/// @throws nlohmann::json::exception
Entry entry_from(const nlohmann::json& j);

/// What the ranks make of a problem.
struct Choice {
  KernelChange place;             ///< without a config
  std::optional<Named> found{};   ///< nothing: all that looked for one have given up
  std::optional<Named> in_use{};  ///< what stays where that is not used
};

struct Choices {
  std::vector<Choice> found, given_up;  ///< in the order of reports
  std::vector<KernelChange> open;       ///< without configs: a rank still looks for one
};

/// For each problem what was agreed on before, or else the config that most ranks have found, and
/// of several the least. Nothing is chosen where none has found one and a rank still looks, nor
/// where something was agreed on and the program has decided since, on all ranks. The order of the
/// entries does not matter.
Choices choose(std::span<const Entry> entries);

Digest digest_of(const CommitReport& report);
/// Of all that a commit of ranks decides. `kept`: what stays as it is. `pending`: what a later
/// commit publishes.
Digest digest_of(const CommitReport& report, std::span<const Choice> kept,
                 std::span<const KernelChange> open, std::span<const KernelChange> pending);

}  // namespace kiln::runtime
