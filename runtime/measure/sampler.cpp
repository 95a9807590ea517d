#include "runtime/measure/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/support/rank_meeting.hpp"

namespace kiln::runtime {

double timed(Device& device, Stream stream, const std::function<void()>& enqueue) {
  const double seconds = device.time(stream, enqueue);
  if (seconds > 0 && std::isfinite(seconds)) return seconds;
  throw EnvironmentError(detail::format(
      "the device's clock did not advance over a launch: it shows {} seconds", seconds));
}

void wait_for_ranks(Device& device, Stream stream) {
  if (!RankMeeting::here()) return;
  device.synchronize(stream);
  RankMeeting::hold();
}

WarmUp warm_up(const std::function<double()>& once, double tolerance, int most,
               const std::function<bool(double, int)>& enough) {
  WarmUp result{once(), 1, false};
  while (!result.stable && result.launches < most && !enough(result.seconds, result.launches)) {
    const double next = once();
    result.stable = std::abs(std::log(next / result.seconds)) <= tolerance;
    result.seconds = next;
    ++result.launches;
  }
  return result;
}

std::size_t launches_for(double once, double sample_seconds, std::size_t most) {
  const double wanted = std::ceil(sample_seconds / once);
  return static_cast<std::size_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
}

namespace {

/// Whether the bench is as before, and the same may succeed another time.
bool is_refusal(const Error& error) {
  return !dynamic_cast<const TrialFault*>(&error) && !dynamic_cast<const TrialCut*>(&error) &&
         !dynamic_cast<const BenchLost*>(&error);
}

}  // namespace

Sampler::Sampler(TrialBench& bench, const RaceOptions& options) : bench_(bench), options_(options) {
  bench_.keep_cold(options.cold_cache, options.deadline);
  bench_.let_overlap(options.overlap_launches);
}

void Sampler::start(Contestant& c, const Hopeless& hopeless) {
  c.samples.clear();
  c.launches = 1;
  bench_.forget_recording(*c.rig);
  try {
    // Without a graph the host's work for a call would count as the launch's time. The contestant
    // might leave at once, or get samples of one launch, which are not replayed.
    if (options_.graph_replay && c.rig->is_call()) bench_.record(*c.rig, 1);
    double fastest = std::numeric_limits<double>::infinity();
    bool asked = !hopeless;
    const auto enough = [&](double seconds, int launches) {
      fastest = std::min(fastest, seconds);
      const bool is_long = seconds >= options_.warm_up_below;
      // One launch says little of a short kernel.
      if (!asked && (is_long || launches > 1)) {
        asked = true;
        c.active = !hopeless(fastest);
      }
      return is_long || !c.active || options_.deadline.passed();
    };
    const WarmUp warm = warm_up([&] { return take(c, 1); }, options_.warm_up_tolerance,
                                options_.warm_up_launches, enough);
    fastest = std::min(fastest, warm.seconds);
    if (!asked) c.active = !hopeless(fastest);
    if (c.active && c.rig->is_call() && c.host_seconds == 0 && !options_.deadline.passed())
      c.host_seconds = bench_.host_seconds(*c.rig);
    if (c.active)
      c.launches = launches_for(fastest, options_.sample_seconds, bench_.most_launches(*c.rig));
    // A launch timed alone and a sample of several are different measures.
    if (options_.deadline.passed()) c.launches = 1;
    if (c.launches == 1) return c.samples.push_back(warm.seconds);
    if (options_.graph_replay && bench_.record(*c.rig, c.launches))
      take(c, c.launches);  // the first replay pays for its upload
    c.samples.push_back(take(c, c.launches));
  } catch (const Error& error) {
    fail(c, error);
  }
}

void Sampler::sample(Contestant& c) {
  try {
    c.samples.push_back(take(c, c.launches));
  } catch (const Error& error) {
    fail(c, error);
  }
}

double Sampler::probe(Contestant& c) {
  try {
    return take(c, 1);
  } catch (const Error& error) {
    if (bench_.lost() || !is_refusal(error)) fail(c, error);
    return std::numeric_limits<double>::infinity();
  }
}

double Sampler::take(Contestant& c, std::size_t launches) {
  const double seconds = bench_.time(*c.rig, launches);
  c.spent += seconds;
  return seconds / static_cast<double>(launches);
}

void Sampler::fail(Contestant& c, const Error& error) {
  if (dynamic_cast<const BenchLost*>(&error)) throw;
  c.active = false;
  if (const auto* cut = dynamic_cast<const TrialCut*>(&error)) {
    c.cut = *cut;
    return;
  }
  c.failure = error.what();
  if (const auto* fault = dynamic_cast<const TrialFault*>(&error)) c.failed_as = fault->status();
  if (dynamic_cast<const OutOfMemory*>(&error)) c.failed_as = CandidateStatus::not_tried;
  if (bench_.lost())
    throw DeviceLost(error.what());  // the others would fail, too, through no fault of theirs
}

}  // namespace kiln::runtime
