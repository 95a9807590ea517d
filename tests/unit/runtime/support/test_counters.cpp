// Counters, and the text that Prometheus reads.
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include "kiln/detail/runtime_metric_table.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "prometheus_format.hpp"
#include "runtime/support/counters.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

std::string text_of(const RuntimeMetrics& metrics) {
  std::ostringstream out;
  write_prometheus(out, metrics);
  return out.str();
}

RuntimeMetrics some() {
  Counters counters;
  counters.compiles.add("failed");
  counters.compile_seconds.add(0.02);
  counters.compile_seconds.add(5000);
  *counters.problems.of("a \"kernel\"\nwith \\ in it") = 3;
  const UnpreparedLaunches launches(counters, "a kernel");
  launches.add(true);
  launches.add(true);
  launches.add(false);
  counters.prepare_keys.add("waiting", 5);
  counters.prepare_keys.add("waiting", -2);
  counters.worker_restarts.add("late");
  counters.swaps = 6;
  RuntimeMetrics metrics;
  counters.read(metrics);
  metrics.generation = 8;
  metrics.provisional_graph_nodes = 9;
  metrics.build_info = {{{"0.1", "", "13.0"}, 1}};
  metrics.store_lookups_total = {{{"disk", "hit"}, 7}, {{"all", "miss"}, 2}};
  metrics.store_bytes = std::numeric_limits<std::uint64_t>::max();
  return metrics;
}

}  // namespace

TEST_CASE("metrics are written as Prometheus reads them", "[runtime][metrics]") {
  const PrometheusText read(text_of(some()));
  for (const std::string& problem : read.problems) UNSCOPED_INFO(problem);
  CHECK(read.problems.empty());
  CHECK(read.value("kiln_compiles_total", {{"result", "failed"}}) == 1);
  CHECK(read.value("kiln_compiles_total", {{"result", "compiled"}}) == 0);
  CHECK(read.value("kiln_compile_seconds_sum") == Approx(5000.02));
  CHECK(read.value("kiln_compile_seconds_bucket", {{"le", "0.03"}}) == 1);
  CHECK(read.value("kiln_compile_seconds_bucket", {{"le", "0.01"}}) == 0);
  CHECK(read.value("kiln_compile_seconds_bucket", {{"le", "1000"}}) == 1);
  CHECK(read.value("kiln_compile_seconds_bucket", {{"le", "+Inf"}}) == 2);
  CHECK(read.value("kiln_problems", {{"kernel", "a \"kernel\"\nwith \\ in it"}}) == 3);
  const auto unprepared = [&](const char* served) {
    return read.value("kiln_unprepared_launches_total",
                      {{"kernel", "a kernel"}, {"served", served}});
  };
  CHECK(unprepared("true") == 2);
  CHECK(unprepared("false") == 1);
  CHECK(read.value("kiln_prepare_keys", {{"state", "waiting"}}) == 3);
  CHECK(read.value("kiln_prepare_keys", {{"state", "missing"}}) == 0);
  CHECK(read.value("kiln_worker_restarts_total", {{"cause", "late"}}) == 1);
  CHECK(read.value("kiln_worker_restarts_total", {{"cause", "fault"}}) == 0);
  CHECK(read.value("kiln_swaps_total") == 6);
  CHECK(read.value("kiln_generation") == 8);
  CHECK(read.value("kiln_provisional_graph_nodes") == 9);
  CHECK(read.value("kiln_store_lookups_total", {{"level", "disk"}, {"result", "hit"}}) == 7);
  CHECK(read.value("kiln_build_info", {{"version", "0.1"}, {"nvrtc", ""}, {"driver", "13.0"}}) ==
        1);
  CHECK(text_of(some()).find("kiln_store_bytes 18446744073709551615\n") != std::string::npos);
}

TEST_CASE("the table of metrics is what is written", "[runtime][metrics]") {
  const PrometheusText read(text_of(some()));
  std::set<std::string> names;
  for (const auto& metric : detail::kRuntimeMetrics) {
    INFO(metric.name);
    CHECK(names.insert(metric.name).second);
    REQUIRE(read.families.contains(metric.name));
    CHECK(read.families.at(metric.name).type == detail::to_string(metric.type));
    const std::string name = metric.name, unit = metric.unit;
    CHECK(name.starts_with("kiln_"));
    CHECK((unit.empty() || name.ends_with("_" + unit)));
  }
  CHECK(read.families.size() == names.size());
}

TEST_CASE("the checker of Prometheus' format finds what is wrong", "[runtime][metrics]") {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  const auto finds = [](const std::string& text) { return !PrometheusText(text).problems.empty(); };
  CHECK_FALSE(finds(head + "a_total{b=\"c\"} 1\n"));
  CHECK(finds(head + "a_total{b=\"c\"} 1"));
  CHECK(finds(head + "a_total{b=\"c} 1\n"));
  CHECK(finds(head + "a_total{b=\"\\c\"} 1\n"));
  CHECK(finds(head + "a_total{b-c=\"c\"} 1\n"));
  CHECK(finds(head + "a_total one\n"));
  CHECK(finds(head + "a_total -1\n"));
  CHECK(finds(head + "a_total 1\na_total 2\n"));
  CHECK(finds(head + "a_total{b=\"c\"} 1\na_total{d=\"c\"} 1\n"));
  CHECK(finds(head + head + "a_total 1\n"));
  CHECK(finds("# TYPE a_total counter\na_total 1\n"));
  CHECK(finds("# HELP a x\n# TYPE a counter\na 1\n"));
  const std::string histogram = "# HELP h_seconds x\n# TYPE h_seconds histogram\n";
  const std::string sums = "h_seconds_sum 1\nh_seconds_count 2\n";
  CHECK_FALSE(
      finds(histogram + "h_seconds_bucket{le=\"1\"} 1\nh_seconds_bucket{le=\"+Inf\"} 2\n" + sums));
  CHECK(
      finds(histogram + "h_seconds_bucket{le=\"1\"} 3\nh_seconds_bucket{le=\"+Inf\"} 2\n" + sums));
  CHECK(finds(histogram + "h_seconds_bucket{le=\"1\"} 1\n" + sums));
  CHECK(finds(histogram + "h_seconds_bucket{le=\"+Inf\"} 2\nh_seconds_count 2\n"));
}

TEST_CASE("a value on the bound of a bucket is in it", "[runtime][metrics]") {
  Durations durations;
  durations.add(1.0);
  durations.add(0);
  const Histogram read = durations.read();
  REQUIRE(read.counts.size() == read.bounds.size() + 1);
  for (std::size_t i = 0; i < read.bounds.size(); ++i)
    CHECK(read.counts[i] == (i == 0 || read.bounds[i] == 1.0 ? 1U : 0U));
  CHECK(read.count() == 2);
}

TEST_CASE("a label has the values it was made for", "[runtime][metrics]") {
  Tally tally{"a", "b"};
  tally.add("b");
  CHECK(tally.read() == MetricSeries{{{"a"}, 0}, {{"b"}, 1}});
  CHECK_THROWS_AS(tally.add("c"), InternalError);
  tally.clear();
  CHECK(tally.read() == MetricSeries{{{"a"}, 0}, {{"b"}, 0}});
}

TEST_CASE("however many kernels there are, labels stay few", "[runtime][metrics]") {
  PerKernel problems;
  for (int i = 0; i < 2000; ++i) ++*problems.of("kernel " + std::to_string(i));
  const MetricSeries read = problems.read();
  CHECK(read.size() == PerKernel::kMost + 1);
  CHECK(read.at({"other"}) == 2000 - PerKernel::kMost);
  CHECK(read.at({"kernel 7"}) == 1);
}

TEST_CASE("counters lose nothing between threads", "[runtime][metrics][threads]") {
  Counters counters;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          counters.compiles.add("compiled");
          counters.compile_seconds.add(0.5);
          ++*counters.problems.of("k" + std::to_string(i % 3));
        }
      });
  }
  RuntimeMetrics metrics;
  counters.read(metrics);
  CHECK(metrics.compiles_total.at({"compiled"}) == 4000);
  CHECK(metrics.compile_seconds.count() == 4000);
  CHECK(metrics.compile_seconds.sum == Approx(2000));
  CHECK(metrics.problems.at({"k0"}) == 4 * 334);
}
