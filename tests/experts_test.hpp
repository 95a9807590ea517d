// GEMMs of experts whose weights are divided among ranks, on data whose results are exact.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "peer_gemm_test.hpp"

namespace kiln::test {

enum class Routing { balanced, skewed, lopsided };

/// Numbers are small integers, those of a rank times a factor (PeerData), so that rows of another
/// rank or an earlier round are wrong. Some choices of experts are dropped.
template <class T>
class ExpertsData {
 public:
  explicit ExpertsData(const templates::ExpertsProblem& p, Routing routing = Routing::balanced)
      : p_(p) {
    std::mt19937 random(11);
    const auto small = [&](std::size_t count) {
      std::vector<float> values(count);
      for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 3) - 1);
      return values;
    };
    const auto tokens = size(p.m, p.ranks), groups = std::size_t(p.groups);
    std::vector<std::vector<int>> choices(groups);  // of each expert
    for (std::size_t t = 0; t < tokens; ++t)
      for (int e = 0; e < p.top; ++e) {
        std::size_t expert = random() % groups;
        if (routing == Routing::skewed && random() % 2 == 0) expert = groups / 2;
        if (routing == Routing::lopsided) expert = groups - 1;
        weights_.push_back(static_cast<float>(random() % 4 + 1) / 4);
        places_.push_back(-1);
        if (random() % 16 != 0) choices[expert].push_back(static_cast<int>(places_.size()) - 1);
      }
    for (const std::vector<int>& its : choices) {
      for (const int choice : its) {
        places_[std::size_t(choice)] = static_cast<int>(tokens_.size());
        tokens_.push_back(choice / p.top);
        experts_.push_back(static_cast<int>(ends_.size()));
      }
      ends_.push_back(static_cast<int>(tokens_.size()));
    }
    used_ = tokens_.size();
    tokens_.resize(std::size_t(p.rows()), -1);
    a_ = small(size(std::max(p.rows(), p.m * p.ranks), p.k));
    b_ = small(size(p.groups * p.n, p.k));
    by_token_ = products([&](std::size_t row) { return std::size_t(tokens_[row]); });
    by_row_ = products([](std::size_t row) { return row; });
  }

  const templates::ExpertsProblem& problem() const { return p_; }
  const std::vector<int>& ends() const { return ends_; }
  const std::vector<int>& tokens() const { return tokens_; }
  const std::vector<int>& places() const { return places_; }
  const std::vector<float>& weights() const { return weights_; }
  std::vector<T> b() const { return {b_.begin(), b_.end()}; }
  std::vector<T> tokens_of(int rank, int round) const {
    return scaled(size(rank * p_.m, p_.k), size(p_.m, p_.k), factor(rank, round));
  }
  std::vector<T> rows_of(int rank, int round) const {
    return scaled(0, size(p_.rows(), p_.k), factor(rank, round));
  }

  bool gathered(const std::vector<T>& c, int round) const {
    for (std::size_t i = 0; i < used_; ++i)
      for (int j = 0; j < p_.n; ++j) {
        const std::size_t at = i * std::size_t(p_.n) + std::size_t(j);
        if (!same(c[at], T(by_token_[at] * factor(tokens_[i] / p_.m, round)))) return false;
      }
    return true;
  }
  bool combined(const std::vector<T>& c, int rank, int round) const {
    for (int i = 0; i < p_.m; ++i)
      for (int j = 0; j < p_.n; ++j) {
        float total = 0;
        for (int r = 0; r < p_.ranks; ++r) {
          float sum = 0;
          for (int e = 0; e < p_.top; ++e) {
            const std::size_t choice = size(rank * p_.m + i, p_.top) + std::size_t(e);
            if (places_[choice] < 0) continue;
            const std::size_t at = size(places_[choice], p_.n) + std::size_t(j);
            sum += weights_[choice] *
                   static_cast<float>(T(by_row_[at] * factor((rank + r) % p_.ranks, round)));
          }
          total += static_cast<float>(T(sum));
        }
        if (!same(c[size(i, p_.n) + std::size_t(j)], T(total))) return false;
      }
    return true;
  }

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  static float factor(int rank, int round) {
    return static_cast<float>(PeerData<T>::factor(rank, round));
  }
  static bool same(T got, T want) { return static_cast<float>(got) == static_cast<float>(want); }
  std::vector<T> scaled(std::size_t first, std::size_t count, float by) const {
    std::vector<T> values;
    for (std::size_t i = first; i < first + count; ++i) values.push_back(T(a_[i] * by));
    return values;
  }
  template <class Of>
  std::vector<float> products(const Of& of) const {
    std::vector<float> sums(used_ * std::size_t(p_.n));
    for (std::size_t i = 0; i < used_; ++i)
      for (int j = 0; j < p_.n; ++j)
        for (int l = 0; l < p_.k; ++l)
          sums[i * std::size_t(p_.n) + std::size_t(j)] +=
              a_[of(i) * std::size_t(p_.k) + std::size_t(l)] *
              b_[size(experts_[i] * p_.n + j, p_.k) + std::size_t(l)];
    return sums;
  }

  templates::ExpertsProblem p_;
  std::vector<int> ends_, tokens_, places_, experts_;
  std::vector<float> weights_, a_, b_, by_token_, by_row_;
  std::size_t used_;
};

/// One rank's part of the data, on its device.
template <class T>
class ExpertsRank {
 public:
  ExpertsRank(const Runtime& runtime, const SymmetricMemory& memory, const ExpertsData<T>& data)
      : runtime_(runtime),
        memory_(memory),
        data_(data),
        b_(runtime.array(data.b())),
        ends_(runtime.array(data.ends())),
        tokens_(runtime.array(data.tokens())),
        places_(runtime.array(data.places())),
        weights_(runtime.array(data.weights())),
        gathered_(
            runtime.array<T>(std::size_t(data.problem().rows()) * std::size_t(data.problem().n))),
        combined_(runtime.array<T>(std::size_t(data.problem().m) * std::size_t(data.problem().n))) {
    for (int round = 0; round < PeerData<T>::kFactors; ++round) {
      own_.push_back(runtime.array(data.tokens_of(memory.rank(), round)));
      rows_.push_back(runtime.array(data.rows_of(memory.rank(), round)));
    }
  }
  /// One round of each. `launch(c, a, b, tokens, ends)` and `launch(c, a, b, ends, places,
  /// weights)` launch on the default stream. Returns whether C is right.
  template <class Launch>
  bool gather(int round, Deadline deadline, const Launch& launch) {
    memory_.within(deadline, [&] {
      launch(gathered_.data(), own_[index(round)].data(), b_.data(), tokens_.data(), ends_.data());
      runtime_.synchronize();
    });
    return data_.gathered(gathered_.download(), round);
  }
  template <class Launch>
  bool combine(int round, Deadline deadline, const Launch& launch) {
    memory_.within(deadline, [&] {
      launch(combined_.data(), rows_[index(round)].data(), b_.data(), ends_.data(), places_.data(),
             weights_.data());
      runtime_.synchronize();
    });
    return data_.combined(combined_.download(), memory_.rank(), round);
  }

 private:
  // Factors repeat.
  static std::size_t index(int round) {
    return static_cast<std::size_t>(round % PeerData<T>::kFactors);
  }

  const Runtime& runtime_;
  const SymmetricMemory& memory_;
  const ExpertsData<T>& data_;
  std::vector<Array<T>> own_, rows_;
  Array<T> b_;
  Array<int> ends_, tokens_, places_;
  Array<float> weights_;
  Array<T> gathered_, combined_;
};

template <class T>
std::size_t expert_bytes(const templates::ExpertsProblem& p) {
  return std::max(templates::expert_gather_bytes<T>(p.m, p.k, p.top, p.ranks),
                  templates::expert_combine_bytes<T>(p.m, p.n, p.ranks));
}

}  // namespace kiln::test
