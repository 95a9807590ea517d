// What a worker and its program say to each other survives the way; what is damaged is noticed.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <unistd.h>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/worker/messages.hpp"
#include "runtime/worker/shared_data.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

template <class Bytes = std::vector<std::byte>>
Bytes bytes_of(const std::vector<int>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

KernelData draw(double weight) {
  KernelData data;
  data.trial = std::make_shared<TrialData>();
  data.trial->subject = "kernel add for n=3";
  data.trial->tolerance = {.relative = 0.5, .absolute = 0.25, .mismatches = 0.125};
  data.trial->weight = weight;
  data.trial->arguments = {
      {DataType::i32, Direction::out, true, 3, 4, bytes_of<detail::HostArray>({-1, -1, -1})},
      {DataType::i32, Direction::in, true, 3, 4, bytes_of<detail::HostArray>({1, 2, 3})},
      {DataType::i32, Direction::in_out, true, 6, 4,
       bytes_of<detail::HostArray>({0, 0, 0, 0, 0, 0}), true, 3, 2},
      {DataType::i32, Direction::in, false, 1, 4, bytes_of<detail::HostArray>({3})}};
  return data;
}

Trial some_trial() {
  codegen::Binary binary;
  binary.target = Target::parse("sm_90a");
  binary.symbol = "_Z3add";
  binary.code = std::vector<std::byte>(1000, std::byte{7});
  binary.steps = {{"_Z4more", {}}};
  Trial trial{.code = std::make_shared<const codegen::Binary>(binary),
              .config = {3, -1},
              .text = "tile 3, stages any"};
  trial.plan.launch = {{1, 2, 3}, {4, 5, 6}, 7, {2, 1, 1}, true, true, 50};
  trial.plan.steps = {{{9}, {8}, 0}};
  trial.plan.step_names = {"more"};
  trial.plan.workspace = WorkspaceSize{100, 3};
  detail::PlannedMap map;
  map.argument = 1;
  map.map.rank = 2;
  map.map.box = {64, 8};
  trial.plan.maps = {map};
  trial.variables = {{"filter", bytes_of({1, 2})}};
  trial.further.push_back({{{"filter", bytes_of({3})}}, nullptr});
  return trial;
}

std::vector<std::byte> packed(const Trial& trial) {
  FieldWriter writer;
  put_trial(writer, trial);
  return writer.finish();
}

Trial unpacked(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  Trial trial = get_trial(reader);
  reader.finish();
  return trial;
}

}  // namespace

TEST_CASE("a trial is the same at the other end", "[runtime][worker]") {
  const Trial sent = some_trial();
  const auto bytes = packed(sent);
  const Trial got = unpacked(bytes);
  CHECK(got.config == Values{3, -1});
  CHECK(got.text == "tile 3, stages any");
  CHECK(got.plan == sent.plan);
  const auto& binary = *std::get<0>(got.code);
  CHECK(binary.symbol == "_Z3add");
  CHECK(binary.steps == std::get<0>(sent.code)->steps);
  CHECK(binary.code.view().size() == 1000);
  REQUIRE(got.variables.size() == 1);
  CHECK(got.variables[0].name == "filter");
  CHECK(got.variables[0].bytes == bytes_of({1, 2}));
  REQUIRE(got.further.size() == 1);
  CHECK(got.further[0].variables[0].bytes == bytes_of({3}));
  // Cut off anywhere, it is no trial.
  for (std::size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 97) {
    FieldReader cut{std::span<const std::byte>(bytes).first(size)};
    CHECK_THROWS_AS(get_trial(cut), BrokenFrame);
  }
}

TEST_CASE("a trial of an implementation is plain data, too", "[runtime][worker]") {
  Trial sent = some_trial();
  sent.code = Implementation{"cublaslt", false, "in order"};
  const Trial got = unpacked(packed(sent));
  const auto& called = std::get<Implementation>(got.code);
  CHECK(called.name == "cublaslt");
  CHECK(got.config == sent.config);
  CHECK(got.text == sent.text);
  CHECK_FALSE(called.recordable);
  CHECK(called.numerics == "in order");
  CHECK(got.variables[0].bytes == bytes_of({1, 2}));
}

TEST_CASE("a setup is the same at the other end, and its data lie in the memory file",
          "[runtime][worker]") {
  std::vector<KernelData> draws{draw(1), draw(3)};
  draws[1].trial->expected_known = true;
  SharedData data(draws);
  CHECK(data.descriptor() > 2);
  const WorkerSetup sent{.device = {false, "0000:1b:00", 4, 5000},
                         .expects = true,
                         .draws = draws,
                         .places = data.places()};
  for (const KernelData& each : draws)  // the worker reads them from the file
    for (auto& argument : each.trial->arguments) argument.bytes.clear();
  const auto bytes = sent.pack();
  const WorkerSetup got = WorkerSetup::unpack(bytes);
  CHECK_FALSE(got.device.host);
  CHECK(got.device.place == "0000:1b:00");
  CHECK(got.device.reserved_multiprocessors == 4);
  CHECK(got.device.reserve_bytes == 5000);
  CHECK(got.expects);
  CHECK_FALSE(got.checks);
  REQUIRE(got.draws.size() == 2);
  const TrialData& second = *got.draws[1].trial;
  CHECK(second.subject == "kernel add for n=3");
  CHECK(second.weight == 3);
  CHECK(second.expected_known);
  CHECK_FALSE(got.draws[0].trial->expected_known);
  CHECK(second.tolerance.mismatches == 0.125);
  REQUIRE(second.arguments.size() == 4);
  const Workload::Argument& rows = second.arguments[2];
  CHECK((rows.zeroed && rows.leading == 3 && rows.columns == 2 && rows.bytes.size() == 24));
  CHECK_FALSE(second.arguments[3].pointer);
  std::vector<std::byte> read(12);
  read_all(data.descriptor(), got.places[1][1].given, read);
  CHECK(read == bytes_of({1, 2, 3}));
  data.write(data.places()[1][0].expected, bytes_of({4, 5, 6}));
  read_all(data.descriptor(), got.places[1][0].expected, read);
  CHECK(read == bytes_of({4, 5, 6}));
  data.read(data.places()[1][0].given, read);
  CHECK(read == bytes_of({-1, -1, -1}));
  // A process that has only the descriptor cannot write.
  CHECK(::pwrite(data.descriptor(), "x", 1, 0) == -1);
  CHECK_THROWS_AS(read_all(data.descriptor(), data.bytes(), read), EnvironmentError);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(WorkerSetup::unpack(std::span(bytes).first(size)), BrokenFrame);
}

TEST_CASE("a worker of another build is one, whatever else it says", "[runtime][worker]") {
  const bool passes = GENERATE(false, true);
  const std::string obstacle = GENERATE("", "no memory");
  const auto hear = [&](const std::string& identity) {
    return WorkerGreeting::heard(WorkerGreeting{obstacle, passes, identity, true}.pack(), "it");
  };
  for (const char* other : {"", "older"}) {
    CHECK(hear(other).obstacle == std::string("it is of another build: ") + other);
    CHECK_FALSE(hear(other).passes);
  }
  CHECK(hear(worker_identity()).obstacle == obstacle);
  CHECK(hear(worker_identity()).passes == passes);
  CHECK(WorkerGreeting::heard({}, "it").obstacle.starts_with("its greeting is "));
}

TEST_CASE("a greeting and a verdict are the same at the other end", "[runtime][worker]") {
  const WorkerGreeting greeting =
      WorkerGreeting::unpack(WorkerGreeting{"no device", true, worker_identity(), true}.pack());
  CHECK(greeting.obstacle == "no device");
  CHECK(greeting.passes);
  CHECK(greeting.identity == worker_identity());
  CHECK(greeting.shares_cpu);
  FieldWriter writer;
  put_verdict(writer, {false, 2.5, "element 3 differs", 0.25});
  const auto bytes = writer.finish();
  FieldReader reader(bytes);
  const Verdict verdict = get_verdict(reader);
  CHECK_FALSE(verdict.right);
  CHECK(verdict.max_error == 2.5);
  CHECK(verdict.norm_error == 0.25);
  CHECK(verdict.why == "element 3 differs");
}
