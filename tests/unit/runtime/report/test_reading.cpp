// Where a report's results come from: stores, bundles, files, whole or not.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <thread>

#include <sys/stat.h>

#include "cache/bundle.hpp"
#include "cache/record.hpp"
#include "cache/store.hpp"
#include "kiln/error.hpp"
#include "kiln/roofline.hpp"
#include "report_fixture.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

std::string record_text(const TuneResult& result) {
  return cache::encode_record(key_of(result), record_of(result));
}

/// Why a file was passed over; empty: it was not.
std::string passed_over(const Report& report, const std::string& name) {
  for (const auto& p : report.passed_over())
    if (p.path.filename() == name) return p.why;
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("What is printed reads back as it was", "[report]") {
  const TemporaryDirectory folder;
  TuneResult result = some_result();
  result.candidates[1].max_error = std::numeric_limits<double>::infinity();
  result.candidates[1].after_seconds = 3;
  result.wall_seconds = 10;
  result.warnings = {"the clock drifted"};
  result.left_out = {{"cublaslt", "not here"}};
  result.agreed = RankReport{.rank = 1, .size = 2, .plan_digest = "5ea1", .why = "", .measured = 3};
  const fs::path file = folder.path() / "result.json";
  Report added, read;
  added.add(result, file.string());
  const Roofline roof{.bytes_per_second = 1e11, .flops_per_second = 1e12, .device = "Abacus"};
  json printed = json::parse(to_json(result, &roof));
  write(file, printed.dump());
  read.read(file);
  json want = data_of(added), got = data_of(read);
  // Samples go through milliseconds.
  for (const char* column : {"low", "high", "seconds"})
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(got["problems"][0]["results"][0]["candidates"][column][i].get<double>() ==
            Approx(want["problems"][0]["results"][0]["candidates"][column][i].get<double>()));
  for (json* j : {&want, &got})
    for (const char* column : {"low", "high", "seconds"})
      (*j)["problems"][0]["results"][0]["candidates"].erase(column);
  CHECK(got == want);

  // Many at once, with weights and a roofline; and a list of entries of a store.
  printed["weight"] = 4;
  printed["roofline"] = {{"gb_per_s", 100}, {"fma_gflops", 1000}};
  write(file, json{{"results", {printed, printed}}, {"wall_s", 1}}.dump());
  Report several;
  several.read(file);
  CHECK(several.results() == 2);
  CHECK(data_of(several)["problems"][0]["weight"] == 8);
  CHECK(data_of(several)["devices"][0]["roofline"]["bytes_per_second"] == 1e11);
  write(file, json{{{"kind", "binary"}}, {{"kind", "record"}, {"result", printed}}}.dump());
  Report explained;
  explained.read(file);
  CHECK(explained.results() == 1);
  CHECK(explained.passed_over().empty());
}

TEST_CASE("A store is read, and its damage passed over", "[report]") {
  const TemporaryDirectory folder;
  {
    cache::Store store({.directory = folder.path() / "store"});
    for (const std::int64_t rows : {8, 16, 32})
      store.put_record(key_of(some_result(rows)), record_of(some_result(rows)));
  }
  const fs::path records = folder.path() / "store/v1/records";
  const std::string whole = record_text(some_result(64));
  write(records / "00/cut.json", whole.substr(0, whole.size() / 2));
  write(records / "00/empty.json", "");
  std::string flipped = whole;
  flipped[flipped.find("0.002")] = '1';
  write(records / "00/flipped.json", flipped);
  json old = record_of(some_result(64));
  old["schema"] = 3;
  write(records / "00/old.json", cache::encode_record(key_of(some_result(64)), old));
  write(records / "00/unlike.json", R"({"format": "kiln record", "version": "two"})");
  write(records / "00/.kiln-1-2.tmp", whole.substr(0, 100));
  write(records / "00/notes.txt", "no record");
  fs::create_symlink(records / "00/gone.json", records / "00/dangling.json");
  fs::create_directory(records / "00/folder.json");
  REQUIRE(::mkfifo((records / "00/pipe.json").c_str(), 0600) == 0);
  // Beside the records anything may lie.
  write(folder.path() / "store/other.json", "no record");

  Report report;
  report.read(folder.path() / "store");
  CHECK(report.results() == 3);
  for (const auto& p : report.passed_over()) INFO(p.path << ": " << p.why);
  CHECK(report.passed_over().size() == 5);
  CHECK(contains(passed_over(report, "cut.json"), "cut off"));
  CHECK(contains(passed_over(report, "empty.json"), "empty"));
  CHECK(contains(passed_over(report, "flipped.json"), "damaged"));
  CHECK(contains(passed_over(report, "old.json"), "another version"));
  CHECK(contains(passed_over(report, "unlike.json"), "damaged"));
  const json all = data_of(report);
  REQUIRE(all["devices"].size() == 1);
  CHECK(all["devices"][0]["name"] == "host: Abacus, threads 2");
  CHECK(all["problems"][0]["problem"] == json::parse(R"([["rows", 8], ["columns", 1024]])"));
  CHECK(all["passed_over"].size() == 5);

  // A result that does not say which hardware it is of belongs to the only one of its kind.
  report.add(some_result(8));
  CHECK(data_of(report)["devices"].size() == 1);
  CHECK(data_of(report)["problems"][0]["results"].size() == 2);
}

TEST_CASE("A store that is being written gives whole records", "[report]") {
  const TemporaryDirectory folder;
  cache::Store store({.directory = folder.path()});
  store.put_record(key_of(some_result(1)), record_of(some_result(1)));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::int64_t i = 0; !stop; ++i) {
      const TuneResult result = some_result(1 + i % 40);
      store.put_record(key_of(result), record_of(result));
    }
  });
  std::size_t most = 0, passed = 0;
  for (int i = 0; i < 15; ++i) {
    Report report;
    report.read(folder.path());
    most = std::max(most, report.results());
    passed += report.passed_over().size();
  }
  stop = true;
  writer.join();
  CHECK(most >= 1);
  CHECK(passed == 0);
}

TEST_CASE("Results that are no whole results are passed over", "[report]") {
  const TemporaryDirectory folder;
  const json good = json::parse(to_json(some_result()));
  const auto with = [&](const char* member, json value) {
    json j = good;
    j[json::json_pointer(member)] = std::move(value);
    return j;
  };
  const std::vector<json> bad{
      with("/candidates", 7),
      with("/candidates/0/config", json::object()),
      with("/candidates/0/config/body", "no such name"),
      with("/candidates/0/samples_ms", json::array()),
      with("/candidates/0/samples_ms/0", -1),
      with("/candidates/0/time_ms", "fast"),
      with("/candidates/0/status", "splendid"),
      with("/winner/config/block", 7),
      with("/problem", 3),
      with("/problem/rows", "many"),
      with("/versions", {{"kiln", 7}}),
      with("/enumerators", 7),
      json(),
      7,
      "text",
      json::array({1, json::array({good})}),
      json::parse(R"({"error": {"kind": "user", "message": "no such kernel"}})"),
      json::parse(R"({"error": 7})"),
      json::parse(R"({"error": {"message": 3}})"),
      json::parse(R"({"error": {}})"),
      json::object(),
      json::array()};
  for (std::size_t i = 0; i < bad.size(); ++i)
    write(folder.path() / (std::to_string(i) + ".json"), bad[i].dump());
  write(folder.path() / "deep.json", std::string(100000, '['));
  write(folder.path() / "bytes.json", "\xff\xfe\x00");
  write(folder.path() / "below/good.json", good.dump());
  Report report;
  report.read(folder.path());
  CHECK(report.results() == 1);
  for (std::size_t i = 0; i + 1 < bad.size(); ++i) {  // an empty list has nothing to pass over
    INFO(bad[i].dump().substr(0, 200));
    CHECK(!passed_over(report, std::to_string(i) + ".json").empty());
  }
  CHECK(contains(passed_over(report, "16.json"), "no such kernel"));
}

TEST_CASE("A file of many other entries is passed over once", "[report]") {
  const TemporaryDirectory folder;
  const json good = json::parse(to_json(some_result())), other{{"file", "a.cpp"}};
  json broken = good;
  broken["candidates"] = 7;
  write(folder.path() / "others.json", json(300, other).dump());
  write(folder.path() / "t4.json", json{{"results", json(300, other)}}.dump());
  write(folder.path() / "mixed.json", json{broken, good, other}.dump());
  Report report;
  report.read(folder.path());
  CHECK(report.results() == 1);
  CHECK(report.passed_over().size() == 3);
  CHECK(contains(passed_over(report, "others.json"), "300 of its 300 entries"));
  CHECK(contains(passed_over(report, "t4.json"), "300 of its 300 entries"));
  CHECK(contains(passed_over(report, "mixed.json"), "2 of its 3 entries"));
  CHECK(contains(passed_over(report, "mixed.json"), "it is not a whole result"));
}

TEST_CASE("Weights of a file's entries add up, those of ranks do not", "[report]") {
  const TemporaryDirectory folder;
  const auto printed = [](double weight, int rank) {
    TuneResult result = some_result();
    result.agreed =
        RankReport{.rank = rank, .size = 3, .plan_digest = "5ea1", .why = "", .measured = 3};
    json j = json::parse(to_json(result));
    j["weight"] = weight;
    return j;
  };
  const auto weight_in = [](const fs::path& path) {
    Report report;
    report.read(path);
    return data_of(report)["problems"][0]["weight"].get<double>();
  };
  for (int rank = 0; rank < 3; ++rank)
    write(folder.path() / "ranks" / (std::to_string(rank) + ".json"), printed(5, rank).dump());
  CHECK(weight_in(folder.path() / "ranks") == 5);
  write(folder.path() / "one.json", json{{"results", {printed(5, 0), printed(7, 0)}}}.dump());
  CHECK(weight_in(folder.path() / "one.json") == 12);
  json all = json::array();
  for (int rank = 0; rank < 3; ++rank) all.push_back(printed(5, rank));
  write(folder.path() / "all.json", all.dump());
  CHECK(weight_in(folder.path() / "all.json") == 5);
}

TEST_CASE("A folder that cannot be read does not end the walk", "[report]") {
  const TemporaryDirectory folder;
  for (const char* name : {"a", "z"})
    write(folder.path() / name / "good.json", to_json(some_result()));
  // Too long a path to be opened, even by root.
  fs::path deep = folder.path() / "deep", rest = folder.path() / "rest";
  for (int i = 0; i < 12; ++i)
    for (fs::path* path : {&deep, &rest}) *path /= std::string(200, 'x');
  fs::create_directories(deep);
  fs::create_directories(rest);
  fs::rename(folder.path() / "rest", deep / "rest");
  fs::create_directory_symlink(folder.path(), folder.path() / "loop");
  Report report;
  report.read(folder.path());
  CHECK(report.results() == 2);
  REQUIRE(report.passed_over().size() == 2);
  CHECK(contains(report.passed_over()[0].why, "too long"));
  CHECK(contains(passed_over(report, "loop"), "link"));
}

TEST_CASE("A path without any result is the caller's mistake", "[report]") {
  const TemporaryDirectory folder;
  Report report;
  CHECK_THROWS_AS(report.read(folder.path() / "absent"), EnvironmentError);
  CHECK_THROWS_AS(report.read("/dev/null"), EnvironmentError);
  CHECK_THROWS_AS(report.read(folder.path()), UserError);
  write(folder.path() / "notes.txt", "no record");
  CHECK_THROWS_AS(report.read(folder.path() / "notes.txt"), UserError);
  write(folder.path() / "cut.json", record_text(some_result()).substr(0, 300));
  try {
    report.read(folder.path());
    FAIL("it was read");
  } catch (const UserError& error) {
    CHECK(contains(error.what(), "cut.json"));
    CHECK(contains(error.what(), "cut off"));
  }
  CHECK(report.results() == 0);
}

TEST_CASE("What is nested too deeply is passed over", "[report]") {
  const TemporaryDirectory folder;
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  write(folder.path() / "good.json", record_text(some_result(8)));
  write(folder.path() / "deep.json", "{\"format\": " + deep + "}");
  Report report;
  report.read(folder.path());
  CHECK(report.results() == 1);
  CHECK(contains(passed_over(report, "deep.json"), "nested too deeply"));

  const fs::path file = folder.path() / "kernels.kiln";
  cache::BundleWriter writer;
  const auto add = [&](const Key& key, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    writer.add(EntryKind::record, key, std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  add(key_of(some_result(8)), deep);
  add(key_of(some_result(16)), cache::record_text(record_of(some_result(16))));
  REQUIRE(!writer.write(file, "kiln 0.1.0"));
  report.read(file);
  CHECK(report.results() == 2);
  CHECK(contains(passed_over(report, "kernels.kiln"), "nested too deeply"));
}

TEST_CASE("A bundle's records are read", "[report]") {
  const TemporaryDirectory folder;
  const fs::path file = folder.path() / "kernels.kiln";
  cache::BundleWriter writer;
  for (const std::int64_t rows : {8, 16}) {
    const std::string text = cache::record_text(record_of(some_result(rows)));
    writer.add(EntryKind::record, key_of(some_result(rows)),
               detail::Bytes(std::vector<std::byte>(
                   reinterpret_cast<const std::byte*>(text.data()),
                   reinterpret_cast<const std::byte*>(text.data()) + text.size())));
  }
  REQUIRE(!writer.write(file, "kiln 0.1.0"));
  Report report;
  report.read(file);
  CHECK(report.results() == 2);
  CHECK(data_of(report)["devices"][0]["name"] == "host: Abacus, threads 2");

  std::string bytes = read_text(file);
  write(folder.path() / "cut.kiln", bytes.substr(0, bytes.size() / 2));
  CHECK_THROWS_AS(report.read(folder.path() / "cut.kiln"), UserError);
}
