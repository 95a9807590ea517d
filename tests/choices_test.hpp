// What tests of choices share: problems of GEMMs, two ways of doing one thing timed side by side,
// whether two processes came to the same, and records that somebody has changed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/record.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/device/cache_flush.hpp"
#include "runtime/device/device.hpp"
#include "runtime/measure/finals.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/measure/statistics.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {

/// `$KILN_TEST_SHAPES`, else `all`, which is also the most.
inline std::size_t shapes_to_test(std::size_t all) {
  const char* const text = std::getenv("KILN_TEST_SHAPES");
  const std::size_t asked = text ? std::strtoul(text, nullptr, 10) : 0;
  return asked == 0 ? all : std::min(asked, all);
}

/// m, n and k of `count` GEMMs, each once: tokens from 1 to 8192, and the widths of transformers.
/// The same ones in each process, so that the first few of them are of all sizes.
inline std::vector<std::array<int, 3>> gemm_shapes(std::size_t count) {
  constexpr std::array kWidths{512,  1024, 1536, 2048, 2560, 3072,  3584,
                               4096, 5120, 6144, 7168, 8192, 11008, 14336};
  constexpr double kMostWork = 5e11;  // m * n * k
  std::uint64_t state = 0;
  const auto below = [&](std::uint64_t limit) {  // SplitMix64
    std::uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % limit;
  };
  std::vector<std::array<int, 3>> shapes;
  while (shapes.size() < count) {
    // A power of two, or anything up to the next one.
    const int base = 1 << below(14);
    const int m = std::min(8192, below(2) ? base : base + static_cast<int>(below(1 + base)));
    const int n = kWidths[below(kWidths.size())], k = kWidths[below(kWidths.size())];
    const std::array shape{m, n, k};
    if (double{1} * m * n * k <= kMostWork && std::ranges::find(shapes, shape) == shapes.end())
      shapes.push_back(shape);
  }
  return shapes;
}

/// Times two ways of doing the same in turn, on a device's tuning stream. Launches of one sample
/// have a copy of the data each, and all samples find the last-level cache full of something else.
class SideBySide {
 public:
  /// Puts one launch on the stream, on the data that has this number.
  using Work = std::function<void(Stream, std::size_t copy)>;

  explicit SideBySide(std::shared_ptr<runtime::Device> device)
      : device_(std::move(device)), flush_(device_) {}

  /// The number of copies of `bytes` that are worth having.
  std::size_t copies_of(std::size_t bytes) const {
    const auto cache =
        static_cast<std::size_t>(std::max<std::int64_t>(device_->info().limits.l2_bytes, 0));
    return std::clamp<std::size_t>(cache / std::max<std::size_t>(bytes, 1), 1, 32);
  }

  /// The logarithm of how many times as long `a` takes as `b`. A bound is wrong once in 3000.
  runtime::Interval behind(const Work& a, const Work& b, std::size_t copies, int rounds = 31) {
    constexpr double kDeviations = 3.4;
    Sampled of_a = prepare(a, copies), of_b = prepare(b, copies);
    std::vector<double> logs;
    for (int round = 0; round < rounds; ++round) {
      const bool first = round % 2 == 0;
      const double one = sample(first ? of_a : of_b), other = sample(first ? of_b : of_a);
      logs.push_back(first ? std::log(one / other) : std::log(other / one));
    }
    return runtime::hodges_lehmann(logs, kDeviations);
  }

 private:
  struct Sampled {
    Work work;
    std::size_t launches = 1;
    std::unique_ptr<runtime::Replay> replay{};
  };

  Sampled prepare(const Work& work, std::size_t copies) {
    constexpr double kSample = 3e-4;
    Sampled made{work};
    double fastest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) fastest = std::min(fastest, sample(made));
    made.launches = runtime::launches_for(fastest, kSample, copies);
    made.replay = device_->capture(device_->tuning_stream(), [&] { launch(made); });
    sample(made);  // the first replay pays for its upload
    return made;
  }
  void launch(const Sampled& what) {
    for (std::size_t i = 0; i < what.launches; ++i) what.work(device_->tuning_stream(), i);
  }
  /// Seconds per launch.
  double sample(Sampled& what) {
    const Stream stream = device_->tuning_stream();
    flush_.run(stream);
    const double seconds = runtime::timed(*device_, stream, [&] {
      if (what.replay)
        what.replay->run(stream);
      else
        launch(what);
    });
    return seconds / static_cast<double>(what.launches);
  }

  const std::shared_ptr<runtime::Device> device_;
  runtime::CacheFlush flush_;
};

/// What became of the choices of two processes that knew nothing of each other.
struct Comparison {
  std::size_t tried = 0;
  std::size_t slower = 0;  ///< certainly, than the first alternative's first candidate
  std::size_t same = 0;    ///< both chose the same
  std::size_t tied = 0;    ///< they did not, but their times are not certainly outside the tie band

  /// @param behind_first how far the pick is behind the first candidate; null: it is that
  /// @param apart how far the picks of both are apart; null: they are the same
  void add(const runtime::Interval* behind_first, const runtime::Interval* apart) {
    const double band = std::log1p(runtime::FinalsOptions{}.tie_band);
    ++tried;
    slower += behind_first && behind_first->low > band ? 1 : 0;
    same += apart ? 0 : 1;
    tied += apart && apart->low <= band && apart->high >= -band ? 1 : 0;
  }
  bool agreed() const { return same + tied >= 0.95 * static_cast<double>(tried); }
  std::string summary() const {
    return detail::format(
        "choices tried {}, certainly slower {}, agreed {} of {} ({} by the pick, {} within the tie "
        "band)",
        tried, slower, same + tied, tried, same, tied);
  }
};

/// Has `change` change the records in a store's folder. Returns how many it has changed, as it
/// says.
inline std::size_t change_records(const std::filesystem::path& folder,
                                  const std::function<bool(nlohmann::json& record)>& change) {
  std::size_t changed = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(folder)) {
    if (!item.is_regular_file() || item.path().extension() != ".json") continue;
    cache::DecodedRecord read = cache::decode_record(read_text(item.path()));
    if (read.status != cache::DecodeStatus::valid || !change(read.record)) continue;
    write_text(item.path(), cache::encode_record(read.key, read.record));
    ++changed;
  }
  return changed;
}

/// Changes one parameter of all candidates of a choice's records that are of an alternative: those
/// that have another parameter of it which is not 0.
inline bool change_candidates(nlohmann::json& record, const std::string& choice,
                              const std::string& alternative, const std::string& parameter,
                              const std::function<void(nlohmann::json& value)>& change) {
  if (record.value("kernel", "") != choice) return false;
  bool changed = false;
  const auto visit = [&](nlohmann::json& config) {
    bool own = false;
    for (const auto& [name, value] : config.items())
      own = own || (name.starts_with(alternative + ".") && value != 0);
    if (!own || !config.contains(parameter)) return;
    change(config[parameter]);
    changed = true;
  };
  for (nlohmann::json& candidate : record["candidates"]) visit(candidate["config"]);
  for (const char* which : {"default", "winner"}) visit(record[which]);
  return changed;
}

}  // namespace kiln::test
