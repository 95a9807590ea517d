#include "runtime/measure/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

/// On a CPU, copies of the arguments that together exceed its last-level cache are hundreds of
/// megabytes: making them takes about as long. With less time left the caches stay warm.
constexpr double kSecondsForCopies = 0.5;
/// Whether the kernel changes variables that it must find as they were.
bool refilled(const Contestant& c) { return c.data && c.data->changes(); }

}  // namespace

double timed(Device& device, Stream stream, const std::function<void()>& enqueue) {
  const double seconds = device.time(stream, enqueue);
  if (seconds > 0 && std::isfinite(seconds)) return seconds;
  throw EnvironmentError(detail::format(
      "the device's clock did not advance over a launch: it shows {} seconds", seconds));
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

Sampler::Sampler(Device& device, DeviceWorkload& workload, const RaceOptions& options)
    : device_(device), workload_(workload), options_(options), stream_(device.tuning_stream()) {
  const bool time_for_copies = !device.shares_cpu() || options.deadline.left() >= kSecondsForCopies;
  workload_.keep_cold(options.cold_cache && time_for_copies);
}

void Sampler::start(Contestant& c, const Hopeless& hopeless) {
  c.samples.clear();
  c.replay.reset();
  c.launches = 1;
  try {
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
    if (c.active)
      c.launches = launches_for(fastest, options_.sample_seconds,
                                refilled(c) ? 1 : workload_.most_launches());
    // A launch timed alone and a sample of several are different measures.
    if (options_.deadline.passed()) c.launches = 1;
    if (c.launches == 1) return c.samples.push_back(warm.seconds);
    if (options_.graph_replay) make_replay(c);
    c.samples.push_back(take(c, c.launches));
  } catch (const Error& error) {
    fail(c, error.what());
  }
}

void Sampler::sample(Contestant& c) {
  try {
    c.samples.push_back(take(c, c.launches));
  } catch (const Error& error) {
    fail(c, error.what());
  }
}

double Sampler::probe(Contestant& c) {
  try {
    return take(c, c.launches);
  } catch (const Error& error) {
    if (device_.lost()) fail(c, error.what());
    return std::numeric_limits<double>::infinity();
  }
}

void Sampler::make_replay(Contestant& c) {
  c.first_copy = workload_.take(c.launches);
  c.replay = device_.capture(stream_, [&] { enqueue(c, c.first_copy, c.launches); });
  if (c.replay) take(c, c.launches);  // the first replay pays for its upload
}

double Sampler::take(Contestant& c, std::size_t launches) {
  Replay* const replay = launches == c.launches ? c.replay.get() : nullptr;
  const std::size_t first = replay ? c.first_copy : workload_.take(launches);
  if (refilled(c)) c.data->fill();
  workload_.prepare(stream_, first, launches);
  const double seconds = timed(device_, stream_, [&] {
    if (replay)
      replay->run(stream_);
    else
      enqueue(c, first, launches);
  });
  c.spent += seconds;
  return seconds / static_cast<double>(launches);
}

void Sampler::enqueue(const Contestant& c, std::size_t first, std::size_t launches) {
  for (std::size_t i = 0; i < launches; ++i)
    device_.launch(*c.kernel, c.geometry, stream_, workload_.arguments(first + i));
}

void Sampler::fail(Contestant& c, const char* why) {
  c.failure = why;
  c.active = false;
  if (device_.lost())
    throw DeviceLost(why);  // the others would fail, too, through no fault of theirs
}

}  // namespace kiln::runtime
