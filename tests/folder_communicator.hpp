// Ranks that are processes and share a folder: each gather is a file per rank. For tests of what
// ranks do without MPI.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicator.hpp"

namespace kiln::test {

class FolderCommunicator final : public Communicator {
 public:
  FolderCommunicator(std::filesystem::path folder, int rank, int size)
      : folder_(std::move(folder)), rank_(rank), size_(size) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    if (broken_) return broken_;
    const int round = round_++;
    publish(file(round, rank_), {reinterpret_cast<const char*>(mine.data()), mine.size()});
    RankFailure late{RankFailure::Kind::timeout, {}, "gather was not joined in time"};
    for (int r = 0; r < size_; ++r) {
      while (!std::filesystem::exists(file(round, r))) {
        if (std::filesystem::exists(folder_ / "aborted"))
          return broken_ = RankFailure{RankFailure::Kind::aborted, {}, read(folder_ / "aborted")};
        if (std::chrono::steady_clock::now() >= deadline) {
          late.ranks.push_back(r);
          break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!late.ranks.empty()) continue;
      const std::string part = read(file(round, r));
      if (part.size() != mine.size())
        return broken_ = RankFailure{RankFailure::Kind::mismatch, {r}, "another size"};
      std::copy_n(reinterpret_cast<const std::byte*>(part.data()), part.size(),
                  all.begin() + r * static_cast<std::ptrdiff_t>(part.size()));
    }
    if (!late.ranks.empty()) broken_ = late;
    return broken_;
  }
  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    const std::vector<float> mine(values.begin(), values.end());
    std::vector<float> all(mine.size() * static_cast<std::size_t>(size_));
    if (auto failure = gather(std::as_bytes(std::span(mine)),
                              std::as_writable_bytes(std::span(all)), deadline))
      return failure;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      float total = all[i];
      for (std::size_t at = i + mine.size(); at < all.size(); at += mine.size())
        total = op == Reduction::max ? std::max(total, all[at]) : total + all[at];
      values[i] = op == Reduction::mean ? total / static_cast<float>(size_) : total;
    }
    return {};
  }
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    std::vector<std::byte> all(bytes.size() * static_cast<std::size_t>(size_));
    if (auto failure = gather(bytes, all, deadline)) return failure;
    std::copy_n(all.begin() + root * std::ssize(bytes), bytes.size(), bytes.begin());
    return {};
  }
  Failure split(int, std::unique_ptr<Communicator>&, Deadline) override { return no("groups"); }
  void abort(const RankFailure& why) noexcept override {
    try {
      publish(folder_ / "aborted", why.describe());
    } catch (...) {
    }
  }

 private:
  static Failure no(const char* what) {
    return RankFailure{RankFailure::Kind::system, {}, std::string("a folder has no ") + what};
  }
  std::filesystem::path file(int round, int rank) const {
    return folder_ / (std::to_string(round) + "." + std::to_string(rank));
  }
  /// There as a whole or not at all.
  void publish(const std::filesystem::path& path, const std::string& bytes) const {
    const std::filesystem::path draft = path.string() + ".draft" + std::to_string(rank_);
    std::ofstream(draft, std::ios::binary) << bytes;
    std::filesystem::rename(draft, path);
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::filesystem::path folder_;
  const int rank_, size_;
  int round_ = 0;
  Failure broken_;
};

}  // namespace kiln::test
