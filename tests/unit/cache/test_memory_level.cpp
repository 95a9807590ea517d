#include <thread>

#include "cache/memory_level.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::MemoryLevel;

TEST_CASE("the least recently used payload goes first", "[cache][memory_level]") {
  MemoryLevel level(300);
  const Key a = make_key("a"), b = make_key("b"), c = make_key("c"), d = make_key("d");
  level.put(a, make_bytes(100));
  level.put(b, make_bytes(100));
  level.put(c, make_bytes(100));
  REQUIRE(level.find(a.digest));
  level.put(d, make_bytes(100));
  CHECK(level.find(a.digest));
  CHECK_FALSE(level.find(b.digest));
  CHECK(level.find(c.digest));
  CHECK(level.find(d.digest));
  level.put(b, make_bytes(300));  // takes all
  CHECK(level.snapshot().size() == 1);
}

TEST_CASE("replacing counts once, and what is too large is not kept", "[cache][memory_level]") {
  MemoryLevel level(100);
  const Key a = make_key("a"), b = make_key("b");
  for (int i = 0; i < 10; ++i) level.put(a, make_bytes(60, static_cast<unsigned>(i)));
  CHECK(*level.find(a.digest) == make_bytes(60, 9));
  level.put(b, make_bytes(40));
  CHECK(level.find(a.digest));
  level.put(b, make_bytes(101));
  CHECK_FALSE(level.find(b.digest));  // not the older bytes either
  CHECK(level.find(a.digest));
  level.erase(a.digest);
  level.put(b, make_bytes(100));
  CHECK(level.find(b.digest));
  level.clear();
  CHECK(level.snapshot().empty());
}

TEST_CASE("threads find whole payloads while others replace them", "[cache][memory_level]") {
  MemoryLevel level(1000);
  std::vector<Key> keys;
  for (int i = 0; i < 8; ++i) keys.push_back(make_key(std::to_string(i)));
  std::atomic<int> wrong{0}, found{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 2000; ++i) {
        const Key& key = keys[(i + t) % keys.size()];
        if (i % 3 == 0) level.put(key, Buffer(200, static_cast<std::byte>(i)));
        if (const auto bytes = level.find(key.digest)) {
          ++found;
          wrong += *bytes != Buffer(200, *bytes->begin());
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(found > 0);
  CHECK(level.snapshot().size() <= 5);
}
