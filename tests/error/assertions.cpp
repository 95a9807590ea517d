// What tests/catch_session.cpp has to tell apart; tests/error/assertions.py runs each case alone.
#include <thread>

#include "kiln_test.hpp"

TEST_CASE("right here") {
  int seen = 0;
  std::thread([&seen] { seen = 1; }).join();
  CHECK(seen == 1);
}

TEST_CASE("wrong here") { CHECK(false); }

TEST_CASE("right elsewhere") {
  std::thread([] { CHECK(true); }).join();
}

TEST_CASE("wrong elsewhere") {
  std::thread([] { CHECK(false); }).join();
}
