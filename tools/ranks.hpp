// --ranks and what goes with it: how the processes of a job tune together.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "kiln/communicator.hpp"
#include "kiln/ranks.hpp"

namespace kiln::tools {

struct RankRequest {
  std::string transport;             ///< empty: this process tunes for itself
  std::filesystem::path rendezvous;  ///< where NCCL's ranks meet; empty: as the launcher says
  std::filesystem::path settle_in;   ///< a folder that all ranks see; empty: none
  std::filesystem::path logs;        ///< a folder for a file per rank; empty: none
  RankOptions options;
};

void add_rank_options(CLI::App& command, RankRequest& request);

/// Null when no transport was asked for. Collective. @throws EnvironmentError
std::shared_ptr<Communicator> open_ranks(const RankRequest& request, const std::string& device);

/// Of `auto` and `cuda`, the device of this process among those of its host; else `device`.
std::string rank_device(const RankRequest& request, const std::string& device);

}  // namespace kiln::tools
