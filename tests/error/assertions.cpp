// What tests/catch_session.cpp has to tell apart; tests/error/assertions.py runs each case alone.
#include <thread>

#include "kiln_test.hpp"

TEST_CASE("on the test's thread") {
  int seen = 0;
  std::thread([&seen] { seen = 1; }).join();
  CHECK(seen == 1);
}

TEST_CASE("on another thread, right") {
  std::thread([] { CHECK(true); }).join();
}

TEST_CASE("on another thread, wrong") {
  std::thread([] { CHECK(false); }).join();
}

TEST_CASE("on the test's thread, wrong") { CHECK(false); }
