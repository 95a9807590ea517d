#include <cmath>
#include <limits>

#include "kiln_test.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/ranks/plan.hpp"

using namespace kiln::runtime::ranks;

namespace {}

TEST_CASE("the default stays unless clearly beaten", "[ranks]") {
  CHECK(select(Times{1.0F, 0.999F, 2}, 0.005F).candidate == 0);
  CHECK(select(Times{1.0F, 0.9F, 2}, 0.005F) == Pick{1, 0.9F});
  CHECK(select(Times{kFailed, 3, 2}, 0).candidate == 2);
}

TEST_CASE("ties go to the first of the list", "[ranks]") {
  CHECK(select(Times{9, 1.003F, 1.0F, 1.001F}, 0.005F).candidate == 1);
}

TEST_CASE("when all failed, the default is named as failed", "[ranks]") {
  const Pick pick = select(Times{kFailed, kFailed}, 0.005F);
  CHECK(pick.candidate == 0);
  CHECK(std::isinf(pick.seconds));
}

TEST_CASE("what was not come to is not chosen, whatever failed", "[ranks]") {
  CHECK(select(std::vector{kFailed, kUntried, kUntried / 3}, 0.0F) == Pick{0, kFailed});
  CHECK(select(std::vector{kUntried, 3.0F, kUntried}, 0.0F) == Pick{1, 3.0F});
  CHECK(finalists(std::vector{kUntried, 3.0F, kFailed, 2.0F}, 3) == std::vector<std::size_t>{1, 3});
  CHECK_FALSE(Record{{kUntried, 1}, 0}.answers(2));
}

TEST_CASE("finalists are the best and the default, without those that failed", "[ranks]") {
  const Times times{5, 4, kFailed, 1, 3, 2};
  CHECK(finalists(times, 2) == std::vector<std::size_t>{0, 3, 5});
  CHECK(finalists(times, 99) == std::vector<std::size_t>{0, 1, 3, 4, 5});
  CHECK(finalists(Times{kFailed, kFailed}, 3).empty());
}

TEST_CASE("a record is read back, and what makes no sense answers nothing", "[ranks]") {
  const Record record{{2, 1, kFailed}, 1};
  CHECK(decode_record(encode_record(record)) == record);
  CHECK(record.answers(3));
  CHECK_FALSE(record.answers(2));
  CHECK_FALSE(Record{{2, 1}, 2}.answers(2));
  CHECK_FALSE(Record{{2, kFailed}, 1}.answers(2));
  CHECK_FALSE(Record{{2, std::nanf("")}, 0}.answers(2));
  CHECK_FALSE(Record{{2, -1}, 0}.answers(2));
  CHECK_FALSE(Record{{2, 0}, 0}.answers(2));
  CHECK_FALSE(decode_record({}).answers(1));
  CHECK_FALSE(decode_record(std::vector<std::byte>(7)).answers(0));
}

TEST_CASE("a plan's digest covers choices, usability and what was asked", "[ranks]") {
  const Identity identity{1, 2, 3, 4, 5, 6};
  const std::vector<Pick> a{{1, 0.5F}}, slower{{1, 0.6F}}, b{{2, 0.5F}}, failed{{1, kFailed}};
  CHECK(plan_digest(identity, a) == plan_digest(identity, slower));
  CHECK(plan_digest(identity, a) != plan_digest(identity, b));
  CHECK(plan_digest(identity, a) != plan_digest(identity, failed));
  CHECK(plan_digest(identity, a) != plan_digest({1, 2, 3, 4, 7, 6}, a));
  CHECK(plan_digest(identity, a) == plan_digest({1, 2, 3, 4, 5, 7}, a));  // another device
}

TEST_CASE("times that cannot be sent become failures", "[ranks]") {
  CHECK(sanitized(1.5F) == 1.5F);
  for (const float bad : {0.0F, -1.0F, kFailed, -kFailed, std::nanf("")})
    CHECK(sanitized(bad) == kFailed);
}

TEST_CASE("a rank that differs from most is named, with the first difference", "[ranks]") {
  std::vector<DigestMessage> m(5);
  const auto find = [&](bool like = false) {
    return find_difference(std::as_bytes(std::span(m)), 5, like);
  };
  CHECK(find().what.empty());
  m[3].identity.candidates = 9;
  CHECK(find().ranks == std::vector<int>{3});
  CHECK(find().what == "another candidate list");
  m[1].identity.build = 9;  // explains other differences, so it is named first
  CHECK(find().ranks == std::vector<int>{1});
  m[0].magic = 1;
  CHECK(find().ranks == std::vector<int>{0});
}

TEST_CASE("the model of device matters only where one device speaks for another", "[ranks]") {
  std::vector<DigestMessage> m(3);
  m[2].identity.device = 1;
  CHECK(find_difference(std::as_bytes(std::span(m)), 3, false).what.empty());
  CHECK(find_difference(std::as_bytes(std::span(m)), 3, true).ranks == std::vector<int>{2});
}

TEST_CASE("a reason of any length fits its message", "[ranks]") {
  CompareMessage m;
  m.reason.set("out of\nmemory");
  CHECK(m.reason.get() == "out of memory");
  m.reason.set(std::string(1000, 'x'));
  CHECK(m.reason.get() == std::string(88, 'x'));
}
