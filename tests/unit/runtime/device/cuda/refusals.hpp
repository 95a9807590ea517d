// Each call of the driver refused, one after the other.
#pragma once

#include <string>

#include "fake_driver.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"

/// Calls `use(driver)` again and again, and refuses one call further on each time, until none is
/// left to refuse. Whatever is refused, nothing leaks and the thread is left as it was. `judge` is
/// called with the name of the call, what the EnvironmentError said (empty: none was thrown) and
/// the driver.
template <class Use, class Judge>
void refuse_each_call(const Use& use, const Judge& judge) {
  for (int n = 0;; ++n) {
    FakeDriver fake;
    fake.fail_at = n;
    std::string message;
    try {
      use(fake);
    } catch (const kiln::EnvironmentError& error) {
      message = error.what();
    }
    CAPTURE(n, fake.failed_call, message);
    CHECK_FALSE(fake.leaks());
    CHECK(fake.misuse.empty());
    CHECK(fake.depth() == 0);
    CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (fake.failed_call.empty()) {
      CHECK(message.empty());
      return;
    }
    judge(fake.failed_call, message, fake);
    REQUIRE(n < 1000);
  }
}
