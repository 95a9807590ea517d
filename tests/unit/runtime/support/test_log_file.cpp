// Kiln's own log sinks.
#include <algorithm>
#include <regex>
#include <thread>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/support/log_file.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

TEST_CASE("a log file has a line for each message of its level", "[runtime][log]") {
  const Directory directory;
  const auto file = directory.path() / "kiln.log";
  {
    const LogSink log = log_to_file(file, LogLevel::warning);
    log(LogLevel::info, "not this");
    log(LogLevel::warning, "this");
  }
  log_to_file(file, LogLevel::debug)(LogLevel::error, "and this");
  const std::string text = read_text(file);
  const std::regex lines(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z kiln\[\d+\] warning: this\n)"
                         R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z kiln\[\d+\] error: and this\n)");
  INFO(text);
  CHECK(std::regex_match(text, lines));
}

TEST_CASE("messages of several writers stay whole", "[runtime][log][threads]") {
  const Directory directory;
  const auto file = directory.path() / "kiln.log";
  const std::string message(500, 'x');
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        const LogSink log = log_to_file(file, LogLevel::info);
        for (int i = 0; i < 50; ++i) log(LogLevel::info, message);
      });
  }
  const std::string text = read_text(file);
  CHECK(std::count(text.begin(), text.end(), '\n') == 200);
  std::size_t whole = 0;
  for (std::size_t at = 0; (at = text.find(": " + message + "\n", at)) != std::string::npos; ++at)
    ++whole;
  CHECK(whole == 200);
}

TEST_CASE("a log file that cannot be opened is named", "[runtime][log]") {
  CHECK_THROWS_AS(log_to_file("/nonexistent/kiln.log", LogLevel::info), EnvironmentError);
  CHECK_THROWS_WITH(log_to_file("/nonexistent/kiln.log", LogLevel::info),
                    Catch::Contains("/nonexistent/kiln.log"));
}

TEST_CASE("a full disk loses messages, and nothing else", "[runtime][log]") {
  if (!std::filesystem::exists("/dev/full")) KILN_SKIP("there is no /dev/full");
  log_to_file("/dev/full", LogLevel::info)(LogLevel::error, "lost");
}
