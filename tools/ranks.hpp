// --ranks and what goes with it: how the processes of a job tune together.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "kiln/ranks.hpp"
#include "tools/rank_end.hpp"

namespace kiln::tools {

struct RankRequest {
  std::string transport;             ///< empty: this process tunes for itself
  std::filesystem::path rendezvous;  ///< where NCCL's ranks meet; empty: as the launcher says
  std::filesystem::path settle_in;   ///< a folder that all ranks see; empty: none
  std::filesystem::path logs;        ///< a folder for a file per rank; empty: none
  RankOptions options;
};

void add_rank_options(CLI::App& command, RankRequest& request);

/// Collective; the ranks do not settle yet (see `RankEnd::begin`).
/// @throws EnvironmentError; UserError on seconds that are none
std::unique_ptr<RankEnd> open_ranks(const RankRequest& request, const std::string& device);

/// For `auto` and `cuda`, this process's device among those of its host; else `device`.
std::string rank_device(const RankRequest& request, const std::string& device);

/// As the launcher says; 0 without a launcher.
int launched_rank(const RankRequest& request);

}  // namespace kiln::tools
