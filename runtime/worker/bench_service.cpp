#include "runtime/worker/bench_service.hpp"

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/driver.hpp"
#include "runtime/device/cuda/sharing.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/draws_bench.hpp"
#include "runtime/support/rank_meeting.hpp"
#include "runtime/worker/isolation.hpp"
#include "runtime/worker/messages.hpp"
#include "runtime/worker/shared_data.hpp"

namespace kiln::runtime {

namespace {

constexpr int kData = 3;

/// When memory runs out, the kernel ends this process rather than one of the user's.
void offer_to_the_memory_killer() {
  if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "we")) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

class Desk {
 public:
  explicit Desk(OpenDevice open) : open_(std::move(open)) {}

  std::vector<std::byte> begin(std::span<const std::byte> bytes) {
    WorkerGreeting greeting;
    greeting.identity = worker_identity();
    try {
      offer_to_the_memory_killer();
      WorkerSetup setup = WorkerSetup::unpack(bytes);
      device_ = open_(setup.device);
      device_->set_reserve(setup.device.reserve_bytes);
      greeting.shares_cpu = device_->shares_cpu();
      outputs_.resize(setup.draws.size());
      for (std::size_t draw = 0; draw < setup.draws.size(); ++draw) prepare(setup, draw);
      if (setup.in_step)
        setup_ = std::move(setup);
      else
        bench_ = std::make_unique<DrawsBench>(std::move(setup.draws), device_);
    } catch (const CannotIsolate& error) {
      greeting.obstacle = error.what();
    } catch (const std::exception& error) {
      greeting.obstacle = *error.what() ? error.what() : "it has failed";
      greeting.passes = true;
    }
    return greeting.pack();
  }

  std::vector<std::byte> answer(std::span<const std::byte> request) {
    FieldWriter answer;
    try {
      FieldReader fields(request);
      const Ask ask = static_cast<Ask>(fields.integer());
      if (!bench_ && ask != Ask::share && ask != Ask::reach && ask != Ask::is_there)
        throw BrokenFrame("a request to a worker that has no bench");
      answer.integer(static_cast<std::uint64_t>(AnswerKind::done));
      do_as_asked(ask, fields, answer);
      fields.finish();
      return answer.finish();
    } catch (const Refused& refused) {
      return FieldWriter()
          .integer(static_cast<std::uint64_t>(AnswerKind::refused))
          .integer(static_cast<std::uint64_t>(refused.refusal.status))
          .text(refused.refusal.reason)
          .finish();
    } catch (const OutOfMemory& error) {
      return failure(AnswerKind::no_memory, error);
    } catch (const std::bad_alloc& error) {
      return failure(AnswerKind::no_memory, error);
    } catch (const std::exception& error) {
      return failure(AnswerKind::failed, error);
    }
  }

 private:
  struct Refused {
    Refusal refusal;
  };

  std::vector<std::byte> failure(AnswerKind kind, const std::exception& error) const {
    if (device_ && device_->lost()) kind = AnswerKind::lost;
    return FieldWriter().integer(static_cast<std::uint64_t>(kind)).text(error.what()).finish();
  }

  /// Reads a draw's data, and says how its results are judged.
  void prepare(WorkerSetup& setup, std::size_t draw) {
    KernelData& data = setup.draws[draw];
    std::vector<Workload::Argument>& arguments = data.trial->arguments;
    const std::vector<ArgumentPlace> places = setup.places[draw];
    for (std::size_t i = 0; i < arguments.size(); ++i)
      read_all(kData, places[i].given, arguments[i].bytes);
    // The bench learns by its reference what is right: then it also chooses what outputs hold
    // before.
    if (std::exchange(data.trial->expected_known, false) || setup.expects)
      data.judge.reference = [trial = data.trial, places](std::span<void* const>) {
        for (std::size_t i = 0; i < places.size(); ++i)
          if (trial->arguments[i].direction != Direction::in)
            read_all(kData, places[i].expected, trial->arguments[i].bytes);
      };
    if (setup.checks)
      data.judge.check = [this, draw, trial = data.trial](std::span<void* const> got,
                                                          std::span<void* const>) {
        return keep_outputs(draw, *trial, got);
      };
  }

  /// Keeps outputs that the program judges. It asks for them by the text that this returns.
  std::string keep_outputs(std::size_t draw, const TrialData& trial, std::span<void* const> got) {
    auto& kept = outputs_[draw];
    kept.assign(got.size(), {});
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (trial.arguments[i].direction == Direction::in) continue;
      const auto* const bytes = static_cast<const std::byte*>(got[i]);
      kept[i].assign(bytes, bytes + trial.arguments[i].bytes.size());
    }
    std::string name = "outputs " + std::to_string(++kept_count_);
    kept_names_.emplace(name, kept_count_);
    return name;
  }

  void do_as_asked(Ask ask, FieldReader& fields, FieldWriter& answer) {
    switch (ask) {
      case Ask::load:
        return load(fields, answer);
      case Ask::verify: {
        Rig& rig = rig_of(fields);
        Verdict verdict = bench_->verify(rig, fields.integer());
        const auto kept = kept_names_.find(verdict.why);
        put_verdict(answer, verdict);
        answer.integer(kept == kept_names_.end() ? 0 : kept->second);
        return;
      }
      case Ask::define: {
        Rig& rig = rig_of(fields);
        return put_verdict(answer, bench_->define(rig, fields.integer()));
      }
      case Ask::forget:
        return bench_->forget();
      case Ask::keep_cold: {
        const bool cold = fields.integer() != 0;
        const auto left = get<double>(fields);
        bench_->keep_cold(cold,
                          left > 0 ? TimeLimit(left, Clock::now()) : TimeLimit::already_passed());
        answer.texts(bench_->take_warnings());
        return;
      }
      case Ask::let_overlap:
        return bench_->let_overlap(fields.integer() != 0);
      case Ask::most_launches:
        answer.integer(bench_->most_launches(rig_of(fields)));
        return;
      case Ask::time: {
        Rig& rig = rig_of(fields);
        std::optional<RankMeeting> meeting;
        if (!parts_.empty()) meeting.emplace([this] { parts_.front().meet(); });
        return put(answer, bench_->time(rig, fields.integer()));
      }
      case Ask::record: {
        Rig& rig = rig_of(fields);
        answer.integer(bench_->record(rig, fields.integer()) ? 1 : 0);
        return;
      }
      case Ask::forget_recording:
        return bench_->forget_recording(rig_of(fields));
      case Ask::repair:
        answer.text(bench_->repair());
        return;
      case Ask::share:
        return share(answer);
      case Ask::reach:
        return reach(fields);
      case Ask::begin_in_step:
        for (PeerPart& part : parts_) part.reset();
        bench_->keep_in_step(&in_step_);
        return;
      case Ask::is_there:
        return;
      case Ask::outputs:
        return send_outputs(fields, answer);
    }
    throw BrokenFrame("a request of unknown kind");
  }

  void share(FieldWriter& answer) {
    for (const PeerShape& group : setup_.groups) {
      parts_.emplace_back(device_, group);
      put(answer, parts_.back().offer());
    }
  }

  void reach(FieldReader& fields) {
    for (std::size_t group = 0; group < parts_.size(); ++group) {
      std::vector<PeerOffer> offers;
      for (int rank = 0; rank < setup_.groups[group].ranks; ++rank)
        offers.push_back(get<PeerOffer>(fields));
      parts_[group].reach(offers);
    }
    for (std::size_t draw = 0; draw < setup_.draws.size(); ++draw)
      for (std::size_t i = 0; i < setup_.places[draw].size(); ++i) {
        const ArgumentPlace& place = setup_.places[draw][i];
        if (place.group < 0) continue;
        const void* const address =
            parts_.at(static_cast<std::size_t>(place.group)).address(place.in_group);
        detail::HostArray& bytes = setup_.draws[draw].trial->arguments[i].bytes;
        if (bytes.size() != sizeof address) throw BrokenFrame("an address of another size");
        std::memcpy(bytes.data(), &address, sizeof address);
      }
    bench_ = std::make_unique<DrawsBench>(std::exchange(setup_.draws, {}), device_);
  }

  void load(FieldReader& fields, FieldWriter& answer) {
    for (std::uint64_t left = fields.integer(); left > 0; --left) rigs_.erase(fields.integer());
    const Trial trial = get_trial(fields);
    if (trial.further.size() + 1 != bench_->draws()) throw BrokenFrame("a trial without its draws");
    auto loaded = bench_->load(trial);
    if (auto* refusal = std::get_if<Refusal>(&loaded)) throw Refused{std::move(*refusal)};
    rigs_.emplace(++rig_count_, std::get<std::shared_ptr<Rig>>(std::move(loaded)));
    answer.integer(rig_count_);
  }

  void send_outputs(FieldReader& fields, FieldWriter& answer) const {
    const std::uint64_t draw = fields.integer(), argument = fields.integer();
    const bool defined = fields.integer() != 0;
    const std::uint64_t offset = fields.integer(), count = fields.integer();
    const detail::HostArray& all = defined ? bench_->data(draw).trial->arguments.at(argument).bytes
                                           : outputs_.at(draw).at(argument);
    if (offset > all.size() || count > all.size() - offset)
      throw BrokenFrame("a request for outputs that are not there");
    answer.bytes(std::span(all).subspan(offset, count));
  }

  Rig& rig_of(FieldReader& fields) const {
    const auto found = rigs_.find(fields.integer());
    if (found == rigs_.end()) throw BrokenFrame("a request for a trial that is not loaded");
    return *found->second;
  }

  const OpenDevice open_;
  std::shared_ptr<Device> device_;
  WorkerSetup setup_;  ///< until there is a bench
  std::vector<PeerPart> parts_;
  std::unique_ptr<DrawsBench> bench_;
  GuardedLaunches in_step_;  ///< without a guard: this process is ended instead
  std::map<std::uint64_t, std::shared_ptr<Rig>> rigs_;
  std::uint64_t rig_count_ = 0, kept_count_ = 0;
  std::vector<std::vector<detail::HostArray>> outputs_;  ///< of the latest check, by draw
  std::map<std::string, std::uint64_t> kept_names_;
};

}  // namespace

std::shared_ptr<Device> open_for_trials(const WorkerDevice& wanted) {
  if (wanted.host) return make_host_device();
  const CudaProbe cuda = probe_cuda();
  for (int ordinal = 0; ordinal < cuda.devices; ++ordinal) {
    if (cuda_place(*cuda.driver, ordinal) != wanted.place) continue;
    if (const std::string why = cuda_sharing_obstacle(*cuda.driver, ordinal); !why.empty())
      throw CannotIsolate(why);
    return make_cuda_device(cuda.driver, ordinal, wanted.reserved_multiprocessors);
  }
  const std::string what =
      detail::format("the worker does not see the CUDA device at {}{}{}", wanted.place,
                     cuda.reason.empty() ? "" : ": ", cuda.reason);
  if (!cuda.reason.empty()) throw EnvironmentError(what);  // the program's driver works
  throw CannotIsolate(what);
}

Service bench_service(OpenDevice open) {
  const auto desk = std::make_shared<Desk>(std::move(open));
  return {[desk](std::span<const std::byte> setup) { return desk->begin(setup); },
          [desk](std::span<const std::byte> request) { return desk->answer(request); }};
}

}  // namespace kiln::runtime
