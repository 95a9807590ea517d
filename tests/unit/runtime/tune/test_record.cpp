#include <limits>

#include <nlohmann/json.hpp>

#include "kiln/report.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/result_json.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;
using nlohmann::json;

namespace {

const Values kProblem{100};
const std::vector<Version> kVersions{{"compiler", "nvrtc 13.0", Version::Rule::retune},
                                     {"driver", "580.65", Version::Rule::ignore}};

struct Made {
  Bench bench;
  KernelDefinition kernel = doubling();
  TuneResult result;
  json record;

  Made() {
    bench.seconds(8, 0.5e-3);
    bench.of(1).compile_log = "error: \"quoted\"\nline \xff two";
    result = test::tune_kernel(bench, kernel, kProblem);
    record = record_json(result, kernel, kVersions, bench.device->info());
  }
  std::optional<Recall> read(const json& j, const KernelDefinition& k) const {
    return recall_from(j, k, kProblem, bench.device->info(), kVersions);
  }
  std::optional<Recall> read(const json& j) const { return read(j, kernel); }
};

/// Calls `visit` with a copy of `whole` for each value in it, that one replaced by `with`.
void mutate(const json& whole, const json& with,
            const std::function<void(const json&, const std::string&)>& visit) {
  const json flat = whole.flatten();
  for (const auto& [path, value] : flat.items()) {
    // Every step of the path, so that objects and arrays are replaced, too.
    for (json::json_pointer at(path);; at = at.parent_pointer()) {
      json copy = whole;
      copy[at] = with;
      visit(copy, at.to_string());
      if (at.empty()) break;
    }
  }
}

}  // namespace

TEST_CASE("a record says without its kernel what was found", "[runtime][record][slow]") {
  Made m;
  const Key key = record_key(m.kernel, kProblem, m.bench.device->info(), {});
  const json text = json::parse(m.record.dump(-1, ' ', false, json::error_handler_t::replace));
  const auto read = result_in(text, key);
  REQUIRE(read);
  CHECK(read->kernel == "doubling");
  CHECK(read->problem_fields == m.kernel.problem_fields);
  CHECK(read->problem == kProblem);
  CHECK(read->candidates.size() == m.result.candidates.size());
  CHECK(read->winner().config == m.result.winner().config);
  CHECK(read->winner().seconds == m.result.winner().seconds);
  CHECK(read->default_candidate().config == m.result.default_candidate().config);
  CHECK(read->count(CandidateStatus::compile_failed) == 1);
  CHECK(read->from_store);
  for (const json& other : {json(), json(7), json("x"), json::array()})
    mutate(m.record, other, [&](const json& record, const std::string&) {
      CHECK_NOTHROW(result_in(record, key));  // whatever a record says
    });
  CHECK_FALSE(result_in(json::object(), key));
}

TEST_CASE("a record says what took no part; older records do not", "[runtime][record]") {
  Made m;
  const Key key = record_key(m.kernel, kProblem, m.bench.device->info(), {});
  TuneResult result = m.result;
  CHECK_FALSE(m.record.contains("left_out"));
  CHECK(result_in(m.record, key)->left_out.empty());
  result.left_out = {{"cublaslt", "not here"}, {"mine", "not today"}};
  json record = record_json(result, m.kernel, {}, m.bench.device->info());
  CHECK(result_in(record, key)->left_out == result.left_out);
  for (const json& wrong :
       {json(7), json::parse(R"([{"name": "mine"}])"), json::parse(R"(["mine"])"),
        json::parse(R"([{"name": "mine", "why": 7}])")}) {
    record["left_out"] = wrong;
    CHECK_FALSE(result_in(record, key));
  }
}

TEST_CASE("enumerators are shown by their names", "[runtime][record]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  DynamicSpace named;
  for (const Parameter& p : kernel.space.parameters())
    named.parameter(p.name, p.values, p.values.front(), p.kind,
                    p.name == "b" ? std::vector<std::string>(p.values.size(), "plain")
                                  : std::vector<std::string>{});
  kernel.space = named;
  const TuneResult result = test::tune_kernel(bench, kernel, kProblem);
  CHECK(result.describe(result.winner()).find(",b=plain") != std::string::npos);
  const auto read = result_in(record_json(result, kernel, {}, bench.device->info()),
                              record_key(kernel, kProblem, bench.device->info(), {}));
  REQUIRE(read);
  CHECK(read->describe(read->winner()) == result.describe(result.winner()));
}

TEST_CASE("a record reads back as it was", "[runtime][record]") {
  Made m;
  // As the store does it: through text.
  const json text = json::parse(m.record.dump(-1, ' ', false, json::error_handler_t::replace));
  const auto recall = m.read(text);
  REQUIRE(recall);
  CHECK(recall->same_space);
  const TuneResult& r = recall->result;
  CHECK(r.from_store);
  CHECK(r.complete);
  CHECK(r.kernel == "doubling");
  CHECK(r.problem == kProblem);
  CHECK(r.parameters == m.result.parameters);
  CHECK(r.winner().config == Values{8, 0});
  CHECK(r.winner().seconds == m.result.winner().seconds);
  // No more than the first 64 samples of a candidate are kept.
  std::vector<double> samples = m.result.winner().samples;
  samples.resize(std::min<std::size_t>(samples.size(), 64));
  CHECK(r.winner().samples == samples);
  CHECK(r.strategy == m.result.strategy);
  CHECK(r.end == m.result.end);
  CHECK(r.space.allowed == 4);
  CHECK(r.default_candidate().config == Values{2, 0});
  CHECK(r.speedup() == m.result.speedup());
  REQUIRE(r.candidates.size() == m.result.candidates.size());
  for (std::size_t i = 0; i < r.candidates.size(); ++i) {
    CHECK(r.candidates[i].config == m.result.candidates[i].config);
    CHECK(r.candidates[i].status == m.result.candidates[i].status);
  }
  bool log_kept = false;
  for (const Candidate& c : r.candidates)
    log_kept = log_kept || c.reason.find("error: \"quoted\"\nline ") == 0;
  CHECK(log_kept);
  CHECK(r.versions.size() == 2);
}

TEST_CASE("a result's JSON reads back as it was", "[runtime][record]") {
  Made m;
  m.result.space.rejected = {{"z comes first", 2}, {"a comes last", 1}};
  const auto written = [](const TuneResult& result) {
    return json::parse(result_json(result).dump(-1, ' ', false, json::error_handler_t::replace));
  };
  const json text = written(m.result);
  const TuneResult back = result_from(text, m.result.problem_fields);
  CHECK(result_json(back) == text);
  CHECK(back.problem == kProblem);
  CHECK(back.winner().samples == m.result.winner().samples);
  CHECK(back.flops == m.result.flops);
  CHECK(back.bytes == m.result.bytes);
  m.result.bytes = std::numeric_limits<double>::infinity();  // which JSON cannot hold
  CHECK(result_from(written(m.result), m.result.problem_fields).bytes == 0);
  REQUIRE(back.space.rejected.size() == 2);
  CHECK(back.space.rejected[0].reason == "z comes first");
  CHECK(back.space.rejected[1].count == 1);
}

TEST_CASE("a record of numbers by reason is read, too", "[runtime][record]") {
  Made m;
  m.record["count"]["rejected"] = {{"a tile fits", 3}};
  const auto recall = m.read(m.record);
  REQUIRE(recall);
  REQUIRE(recall->result.space.rejected.size() == 1);
  CHECK(recall->result.space.rejected[0].reason == "a tile fits");
  CHECK(recall->result.space.rejected[0].count == 3);
}

TEST_CASE("programs are told what a record says", "[runtime][record]") {
  Made m;
  const json record = json::parse(m.record.dump(-1, ' ', false, json::error_handler_t::replace));
  const json told = json::parse(to_json(m.result));
  for (const char* name : {"kernel", "types", "problem", "device", "parameters", "enumerators",
                           "strategy", "complete", "end", "flops", "bytes"}) {
    INFO(name);
    CHECK(told.at(name) == record.at(name));
  }
  CHECK(told.at("space") == record.at("count"));
  CHECK(told.at("winner").at("config") == record.at("winner"));
  CHECK(told.at("default").at("config") == record.at("default"));
  REQUIRE(told.at("candidates").size() == record.at("candidates").size());
  for (std::size_t i = 0; i < record.at("candidates").size(); ++i) {
    json there = told["candidates"][i], here = record["candidates"][i];
    if (here.contains("seconds")) {
      CHECK(there["time_ms"].get<double>() == here["seconds"].get<double>() * 1e3);
      CHECK(there["samples_ms"][0].get<double>() == here["samples"][0].get<double>() * 1e3);
    }
    for (const char* name : {"seconds", "samples", "launch"}) here.erase(name);
    for (const auto& [name, value] : here.items()) {
      INFO(name);
      CHECK(there.at(name) == value);
    }
  }
}

TEST_CASE("damaged records are ignored, whatever is wrong", "[runtime][record][slow]") {
  Made m;
  int ignored = 0, total = 0;
  for (const json& with :
       {json(), json("text"), json(-1), json(1e308), json(true), json::array(), json::object(),
        json(std::numeric_limits<std::int64_t>::min()),
        json(std::numeric_limits<std::uint64_t>::max()), json::array({1, 2, 3}), json(0.5)})
    mutate(m.record, with, [&](const json& damaged, const std::string& path) {
      INFO(path << " <- " << with.dump());
      std::optional<Recall> recall;
      REQUIRE_NOTHROW(recall = m.read(damaged));
      ++total;
      ignored += !recall;
      if (!recall) return;
      // What passes is an answer that can be used.
      const TuneResult& r = recall->result;
      REQUIRE(r.winner_index < r.candidates.size());
      REQUIRE(r.winner().status == CandidateStatus::measured);
      REQUIRE(r.winner().seconds > 0);
      REQUIRE(r.default_candidate().config == m.kernel.space.default_config());
      for (const Candidate& c : r.candidates)
        for (std::size_t i = 0; i < c.config.size(); ++i) {
          const auto& values = m.kernel.space.parameters()[i].values;
          REQUIRE(std::find(values.begin(), values.end(), c.config[i]) != values.end());
        }
    });
  CHECK(total > 500);
  CHECK(ignored > total / 2);
}

TEST_CASE("each missing field is noticed", "[runtime][record]") {
  Made m;
  for (const char* name : {"schema", "kernel", "types", "problem", "space", "default", "winner",
                           "complete", "versions", "candidates", "strategy", "end", "count"}) {
    json copy = m.record;
    copy.erase(name);
    INFO(name);
    CHECK_FALSE(m.read(copy));
  }
}

TEST_CASE("particular lies", "[runtime][record]") {
  Made m;
  json j = m.record;
  SECTION("another schema") { j["schema"] = GENERATE(1, 3); }
  SECTION("another kernel's") { j["kernel"] = "tripling"; }
  SECTION("another type's") { j["types"] = {"double"}; }
  SECTION("another problem's") { j["problem"]["n"] = 101; }
  SECTION("a winner that was never tried") { j["winner"]["a"] = 4000; }
  SECTION("a winner that did not compile") { j["winner"]["a"] = 1; }
  SECTION("a winner between two values") { j["winner"]["a"] = 8.5; }
  SECTION("another default") { j["default"]["a"] = 4; }
  SECTION("a parameter more") {
    for (json& c : j["candidates"]) c["config"]["stages"] = 2;
  }
  SECTION("a parameter less") {
    for (json& c : j["candidates"]) c["config"].erase("b");
  }
  SECTION("a clock that went back") {
    for (json& c : j["candidates"]) c["seconds"] = -1.0;
  }
  SECTION("no samples") {
    for (json& c : j["candidates"]) c["samples"] = json::array();
  }
  SECTION("a status of its own") { j["candidates"][0]["status"] = "excellent"; }
  SECTION("no candidates") { j["candidates"] = json::array(); }
  SECTION("not an object") { j = 7; }
  SECTION("nothing") { j = json(); }
  CHECK_FALSE(m.read(j));
}

TEST_CASE("versions: each by its rule", "[runtime][record]") {
  Made m;
  const auto with = [&](const char* compiler, const char* driver) {
    const std::vector<Version> today{{"compiler", compiler, Version::Rule::retune},
                                     {"driver", driver, Version::Rule::ignore}};
    return recall_from(m.record, m.kernel, kProblem, m.bench.device->info(), today).has_value();
  };
  CHECK(with("nvrtc 13.0", "580.65"));
  CHECK(with("nvrtc 13.0", "590.01"));
  CHECK_FALSE(with("nvrtc 13.1", "580.65"));
  // A version that the record does not know of yet.
  std::vector<Version> more = kVersions;
  more.push_back({"toolkit", "13", Version::Rule::ignore});
  CHECK(recall_from(m.record, m.kernel, kProblem, m.bench.device->info(), more));
  more.back().rule = Version::Rule::retune;
  CHECK_FALSE(recall_from(m.record, m.kernel, kProblem, m.bench.device->info(), more));
}

TEST_CASE("spaces change", "[runtime][record]") {
  Made m;
  SECTION("a value more") {
    const auto recall = m.read(m.record, doubling({1, 2, 4, 8, 16}));
    REQUIRE(recall);
    CHECK_FALSE(recall->same_space);
    CHECK(recall->result.candidates.size() == 4);
  }
  SECTION("a value less: its candidates are dropped") {
    const auto recall = m.read(m.record, doubling({2, 8}));
    REQUIRE(recall);
    CHECK_FALSE(recall->same_space);
    CHECK(recall->result.candidates.size() == 2);
    CHECK(recall->result.winner().config == Values{8, 0});
    CHECK(recall->result.default_candidate().config == Values{2, 0});
  }
  SECTION("without the winner") { CHECK_FALSE(m.read(m.record, doubling({1, 2, 4}))); }
  SECTION("with another default") { CHECK_FALSE(m.read(m.record, doubling({1, 2, 4, 8}, 4))); }
  SECTION("a constraint more") {
    KernelDefinition k = doubling();
    k.space.where("new", [](auto, auto, const auto&) { return true; });
    const auto recall = m.read(m.record, k);
    REQUIRE(recall);
    CHECK_FALSE(recall->same_space);
  }
  SECTION("a list of the author's") {
    KernelDefinition k = doubling();
    std::vector<Values> list{{2, 0}, {8, 0}};
    k.configs = [&](auto, const auto&) { return list; };
    const auto same_space = [&](const json& record) {
      const auto recall = m.read(record, k);
      REQUIRE(recall);
      CHECK(recall->result.candidates.size() == 4);  // whatever the list says, results are kept
      return recall->same_space;
    };
    CHECK_FALSE(same_space(m.record));
    const json of_list = record_json(m.result, k, kVersions, m.bench.device->info());
    CHECK(same_space(of_list));
    list = {{8, 0}, {2, 0}, {8, 0}};  // the same set
    CHECK(same_space(of_list));
    list.push_back({4, 0});
    CHECK_FALSE(same_space(of_list));
    list = {{2, 0}};
    CHECK_FALSE(same_space(of_list));
    list.clear();
    CHECK_FALSE(same_space(of_list));
    CHECK(same_space(m.record));
  }
  SECTION("a parameter more") {
    KernelDefinition k = doubling();
    k.space.parameter("stages", {1, 2}, 1);
    CHECK_FALSE(m.read(m.record, k));
  }
}

TEST_CASE("what is launched otherwise today was not measured", "[runtime][record]") {
  Made m;
  KernelDefinition k = doubling();
  REQUIRE(m.read(m.record, k));
  const auto launched = [&](std::int64_t a, const std::function<void(Launch&)>& change) {
    k.launch = [a, change](auto config, auto problem) {
      Launch g = doubling().launch(config, problem, {});
      if (config[0] == a) change(g);
      return g;
    };
    return m.read(m.record, k);
  };
  for (const std::int64_t a : {8, 2}) {  // the winner, the default
    INFO(a);
    CHECK_FALSE(launched(a, [](auto& g) { g.shared_bytes = 16; }));
    CHECK_FALSE(launched(a, [](auto& g) { g.grid.x += 1; }));
    CHECK_FALSE(launched(a, [](auto& g) { g.grid.z = 2; }));
    CHECK_FALSE(launched(a, [](auto& g) { g.block.y = 2; }));
    CHECK(launched(a, [](auto&) {}));
  }
  const auto other = launched(4, [](auto& g) { g.shared_bytes = 16; });
  REQUIRE(other);
  CHECK(other->result.candidates.size() == 3);
  // A default that is refused today is not used, and its launch not asked for.
  k = doubling();
  k.space.where("not 8", [](auto c, auto, const DeviceLimits&) { return c[0] != 8; });
  CHECK_FALSE(m.read(m.record, k));
}

TEST_CASE("what makes a record's key", "[runtime][record]") {
  Bench bench;
  const KernelDefinition k = doubling();
  const Digest source = sha256("source");
  DeviceInfo device = bench.device->info();
  const auto key = [&](const KernelDefinition& kernel, const Values& problem) {
    return record_key(kernel, problem, device, {source}).hex();
  };
  const std::string base = key(k, kProblem);
  CHECK(key(doubling({2, 4, 16}, 4), kProblem) == base);  // the record keeps the space itself
  CHECK(key(k, {101}) != base);
  CHECK(record_key(k, kProblem, device, {sha256("edited")}).hex() != base);
  // Where the source cannot be read, the rest finds it.
  const Key whole = record_key(k, kProblem, device, {source});
  CHECK(record_key(k, kProblem, device, {}).digest == whole.portable);
  CHECK(record_key(k, kProblem, device, {sha256("edited")}).portable == whole.portable);
  KernelDefinition other = doubling();
  other.name = "tripling";
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.types = {"double"};
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.entry = "k2";
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.source.options = {"-DFAST"};
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.passing = Passing::constants;
  const std::string constants = key(other, kProblem);
  CHECK(constants != base);
  other.passing = Passing::macros;
  CHECK(key(other, kProblem) != base);
  CHECK(key(other, kProblem) != constants);
  other = doubling();
  other.config_type = "Doubling";
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.arguments[2] = "unsigned int";
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.tolerance.relative *= 2;
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.tolerance.absolute *= 2;
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.tolerance.mismatches = 0.01;
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.check = [](auto, auto, auto) { return std::string(); };
  CHECK(key(other, kProblem) != base);
  other = doubling();
  other.data_version = "sparse";
  CHECK(key(other, kProblem) != base);
  other = doubling();  // template arguments go by place
  other.space = {};
  other.space.parameter("b", {0}, 0).parameter("a", {1, 2, 4, 8}, 2);
  CHECK(key(other, kProblem) != base);
  other.space = {};  // `false` is not `0`
  other.space.parameter("a", {1, 2, 4, 8}, 2).parameter("b", {0}, 0, FieldKind::boolean);
  CHECK(key(other, kProblem) != base);
  device.id = "fake:1";
  device.software[0].value = "2.0";
  CHECK(key(k, kProblem) == base);  // an equal device beside it, after a driver update
  device.fingerprint[0].value = "Fake 2000";
  CHECK(key(k, kProblem) != base);
  device = bench.device->info();
  device.target.arch = "sm_90a";
  CHECK(key(k, kProblem) != base);
}
