#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "build_all.hpp"
#include "kiln_test.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using kiln::test::Bench;
using kiln::test::build_all;
using kiln::test::doubling;
using kiln::test::TemporaryDirectory;
using kiln::test::write_text;

namespace {

const Target kTarget{Target::Kind::host, "generic"};

std::vector<Values> configs(int count) {
  std::vector<Values> all;
  for (int i = 0; i < count; ++i) all.push_back({i + 1, 0});
  return all;
}

}  // namespace

TEST_CASE("several threads build different configs at once", "[runtime][builder]") {
  Bench bench;
  std::atomic<int> inside{0};
  bench.compiler->on_compile = [&](const codegen::Source&) {
    // The first four wait for each other: they can only be met by four threads at once.
    ++inside;
    while (inside < 4) std::this_thread::yield();
  };
  const auto all = configs(40);
  const auto builds = build_all(bench.builder, doubling(), all, kTarget);
  for (std::size_t i = 0; i < builds.size(); ++i) {
    REQUIRE(builds[i].binary());
    const auto& code = builds[i].binary()->code;
    CHECK(std::string(reinterpret_cast<const char*>(code.data()), code.size()) ==
          "k<" + std::to_string(i + 1) + ", 0>");
    CHECK(builds[i].compiled);
  }
  CHECK(bench.builder.compiled() == 40);

  SECTION("and the second time from the store") {
    for (const auto& b : build_all(bench.builder, doubling(), all, kTarget))
      CHECK_FALSE(b.compiled);
    CHECK(bench.compiler->compiles == 40);
  }
}

TEST_CASE("a refused source is a value and is not kept", "[runtime][builder]") {
  Bench bench;
  bench.of(2).compile_log = "error: no";
  const auto all = configs(3);
  for (int round = 0; round < 2; ++round) {
    const auto builds = build_all(bench.builder, doubling(), all, kTarget);
    CHECK(builds[0].binary());
    CHECK_FALSE(builds[1].binary());
    const auto& failure = std::get<CompileFailure>(builds[1].outcome);
    CHECK(failure.log == "error: no");
    CHECK(failure.kernel == "doubling{a=2,b=0}");
    CHECK(builds[2].binary());
  }
  // It is not compiled again while it is the same.
  CHECK(bench.compiler->compiles == 3);
  bench.builder.build(doubling(), all[1], {Target::Kind::host, "other"});
  CHECK(bench.compiler->compiles == 4);
  bench.builder.forget_failures();
  CHECK_FALSE(bench.builder.build(doubling(), all[1], kTarget).binary());
  CHECK(bench.compiler->compiles == 5);
}

TEST_CASE("an exception of the compiler reaches the caller and is not kept", "[runtime][builder]") {
  Bench bench;
  bench.compiler->on_compile = [](const codegen::Source&) {
    throw EnvironmentError("the compiler died");
  };
  const Values config{3, 0};
  CHECK_THROWS_WITH(bench.builder.build(doubling(), config, kTarget), "the compiler died");
  bench.compiler->on_compile = {};
  CHECK(bench.builder.build(doubling(), config, kTarget).binary());
}

TEST_CASE("what is in a key, and what is not", "[runtime][builder]") {
  Bench bench;
  const Values config{2, 0};
  bench.builder.build(doubling(), config, kTarget);
  const auto hit = [&](const KernelDefinition& k) {
    return !bench.builder.build(k, config, kTarget).compiled;
  };
  CHECK(hit(doubling()));
  KernelDefinition k = doubling();
  SECTION("the space is not") {
    k = doubling({2, 4}, 4);
    CHECK(hit(k));
  }
  SECTION("nor the name of the record") {
    k.name = "other";
    k.reference = nullptr;
    // The file's name is in messages and in __FILE__: a text's is the kernel's.
    CHECK_FALSE(hit(k));
  }
  SECTION("the source is") {
    k.source.text += " ";
    CHECK_FALSE(hit(k));
  }
  SECTION("the signature is") {
    k.arguments[2] = "long";
    CHECK_FALSE(hit(k));
  }
  SECTION("options are") {
    k.source.options = {"-DX=1"};
    CHECK_FALSE(hit(k));
  }
  SECTION("the compiler's version is") {
    bench.compiler->version = "2";
    CHECK_FALSE(hit(k));
  }
  SECTION("the target is") {
    CHECK(bench.builder.build(k, config, {Target::Kind::host, "x86-64-v3"}).compiled);
  }
}

TEST_CASE("a source that is edited while it is compiled leaves no binary in the store",
          "[runtime][builder]") {
  const TemporaryDirectory folder;
  KernelDefinition k = doubling();
  const std::string original = std::exchange(k.source.text, {});
  k.source.file = folder.path() / "doubling.cuh";
  write_text(k.source.file, original);
  Bench bench;
  bench.compiler->on_compile = [&](const codegen::Source&) {
    write_text(k.source.file, original + " // edited");
  };
  const runtime::Build build = bench.builder.build(k, Values{2, 0}, kTarget);
  CHECK(build.binary());
  CHECK_FALSE(build.keepable);
  bench.compiler->on_compile = {};
  write_text(k.source.file, original);
  CHECK(bench.builder.build(k, Values{2, 0}, kTarget).compiled);
  CHECK_FALSE(bench.builder.build(k, Values{2, 0}, kTarget).compiled);
}

TEST_CASE("the source's digest follows the source alone", "[runtime][builder]") {
  Bench bench;
  const auto digest = bench.builder.kernel_source(doubling());
  REQUIRE(digest);
  CHECK(bench.builder.kernel_source(doubling({2, 64}, 64)) == digest);
  KernelDefinition k = doubling();
  k.passing = Passing::macros;
  CHECK(bench.builder.kernel_source(k) == digest);
  k.source.text += "\n// edited";
  CHECK(bench.builder.kernel_source(k) != digest);
  CHECK(bench.compiler->compiles == 0);
}

TEST_CASE("threads that want one instance wait for one compile", "[runtime][builder]") {
  Bench bench;
  std::atomic<bool> go{false};
  bench.compiler->on_compile = [&](const codegen::Source& source) {
    // The first instance is held until another one has come through.
    if (source.entry == "k<1, 0>")
      while (!go) std::this_thread::yield();
  };
  std::vector<runtime::Build> builds(8);
  std::vector<std::jthread> threads;
  std::atomic<int> begun{0};
  for (auto& build : builds)
    threads.emplace_back([&] {
      ++begun;
      build = bench.builder.build(doubling(), Values{1, 0}, kTarget);
    });
  while (begun < 8) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most of them wait by now
  CHECK(bench.builder.build(doubling(), Values{2, 0}, kTarget).binary());
  CHECK_FALSE(bench.builder.build(doubling(), Values{2, 0}, kTarget).compiled);
  go = true;
  threads.clear();
  CHECK(bench.compiler->compiles == 2);
  for (const auto& build : builds) {
    REQUIRE(build.binary());
    CHECK(build.bytes == builds[0].bytes);
    CHECK(build.key == builds[0].key);
  }
  CHECK(std::ranges::count_if(builds, &runtime::Build::compiled) == 1);
}

TEST_CASE("threads that wait for a failed compile share the failure", "[runtime][builder]") {
  Bench bench;
  std::atomic<int> inside{0};
  bench.of(1).compile_log = "error: no";
  bench.compiler->on_compile = [&](const codegen::Source&) {
    ++inside;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    throw EnvironmentError("the compiler died");
  };
  std::atomic<int> thrown{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        try {
          bench.builder.build(doubling(), Values{1, 0}, kTarget);
        } catch (const EnvironmentError&) {
          ++thrown;
        }
      });
  }
  CHECK(thrown == 4);
  // Nobody is left waiting for a flight that crashed.
  bench.compiler->on_compile = nullptr;
  CHECK(std::holds_alternative<CompileFailure>(
      bench.builder.build(doubling(), Values{1, 0}, kTarget).outcome));
}

TEST_CASE("a compiler is made once, and its absence is told", "[runtime][builder]") {
  Bench bench;
  int made = 0;
  runtime::Builder builder(
      bench.store,
      [&](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
        if (++made == 1) throw EnvironmentError("libnvrtc is missing");
        return bench.compiler;
      },
      {}, 2);
  const Values config{2, 0};
  CHECK_THROWS_AS(builder.build(doubling(), config, kTarget), EnvironmentError);
  CHECK(builder.build(doubling(), config, kTarget).binary());
  CHECK(builder.build(doubling(), config, kTarget).binary());
  CHECK(made == 2);
}

TEST_CASE("a compiler's warnings go to the log, each once for a kernel", "[runtime][builder]") {
  Bench bench;
  std::mutex mutex;
  std::vector<std::string> said;
  runtime::Builder builder(
      bench.store, [&](Target::Kind) { return bench.compiler; },
      [&](LogLevel level, std::string_view text) {
        std::lock_guard lock(mutex);
        if (level == LogLevel::warning) said.emplace_back(text);
      },
      2);
  bench.of(1).warnings = "k.cu(3): warning: 1 is odd";
  bench.of(2).warnings = "k.cu(4): warning: 2 is odd";
  bench.of(3).warnings = "k.cu(3): warning: something else";
  build_all(builder, doubling(), configs(4), kTarget);
  REQUIRE(said.size() == 2);
  std::sort(said.begin(), said.end(),
            [](const auto& a, const auto& b) { return a.back() < b.back(); });
  CHECK(said[1] == "compiling doubling{a=3,b=0}:\nk.cu(3): warning: something else");
  CHECK(said[0].find("is odd") != std::string::npos);
  // Another kernel's are its own.
  KernelDefinition other = doubling();
  other.name = "other";
  builder.build(other, Values{1, 0}, kTarget);
  REQUIRE(said.size() == 3);
  CHECK(said[2] == "compiling other{a=1,b=0}:\nk.cu(3): warning: 1 is odd");
  // From the store nothing is compiled, so nothing is said.
  build_all(builder, doubling(), configs(4), kTarget);
  CHECK(said.size() == 3);
}
