#include <algorithm>
#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "bundle_fixture.hpp"
#include "cache/bundle_manifest.hpp"
#include "kiln/detail/key_builder.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A key that lies where a test wants it.
Key placed_key(unsigned first, unsigned last, unsigned portable = 0) {
  Key key;
  key.digest[0] = static_cast<std::byte>(first);
  key.digest[31] = static_cast<std::byte>(last);
  key.portable[0] = static_cast<std::byte>(portable);
  key.fields = {{"name", std::to_string(first) + "." + std::to_string(last), 's'}};
  key.portable_fields = 1;
  return key;
}

std::vector<std::string> keys_of(Bundle& bundle, EntryKind kind) {
  std::vector<std::string> keys;
  bundle.each_key(kind, [&](const Key& key) {
    keys.push_back(key.hex());
    return true;
  });
  return keys;
}

}  // namespace

TEST_CASE("what is put into a bundle is found in it, and nothing else", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a.kiln";
  const auto contents = small_contents();
  write_bundle(path, contents);
  const auto bundle = open_bundle(path);

  CHECK(bundle->path() == path);
  CHECK(bundle->count(EntryKind::binary) == 3);
  CHECK(bundle->count(EntryKind::record) == 1);
  for (const Content& c : contents) {
    const auto entry = bundle->find(c.kind, c.key);
    REQUIRE(entry);
    CHECK(entry->key.digest == c.key.digest);
    CHECK(entry->key.portable == c.key.portable);
    CHECK(entry->key.portable_fields == c.key.portable_fields);
    CHECK(entry->key.fields == c.key.fields);
    CHECK(equal(entry->payload, c.payload));
    // A mapped cubin is loaded where it lies.
    if (!c.payload.empty())
      CHECK(reinterpret_cast<std::uintptr_t>(entry->payload.data()) % 64 == 0);
    const auto other = c.kind == EntryKind::binary ? EntryKind::record : EntryKind::binary;
    CHECK_FALSE(bundle->find(other, c.key));
    CHECK(bundle->find_portable(other, c.key.portable).empty());
  }
  CHECK_FALSE(bundle->find(EntryKind::binary, target_key("gemm", "sm_100a", 128)));
  CHECK_FALSE(bundle->find(EntryKind::binary, target_key("gemm", "sm_90", 128)));
  CHECK(bundle->find_portable(EntryKind::binary, target_key("gemm", "sm_100a", 128).portable)
            .empty());

  Key same_digest = contents[0].key;  // fields are compared, not only the digest
  same_digest.fields.back().value = "12.9";
  CHECK_FALSE(bundle->find(EntryKind::binary, same_digest));
}

TEST_CASE("what is wanted finds every way it was made, in a fixed order", "[cache][bundle]") {
  const TemporaryDirectory folder;
  std::vector<Content> contents;
  for (const char* compiler : {"12.6", "12.9", "13.0", "13.1"})
    for (const char* target : {"sm_80", "sm_90a"})
      contents.push_back({EntryKind::binary, target_key("gemm", target, 1, "binary", compiler),
                          to_buffer(std::string(compiler) + target)});
  write_bundle(folder.path() / "a", contents);
  const auto bundle = open_bundle(folder.path() / "a");
  const Key wanted = target_key("gemm", "sm_90a", 1, "binary", "unknown");
  CHECK_FALSE(bundle->find(EntryKind::binary, wanted));
  const auto entries = bundle->find_portable(EntryKind::binary, wanted.portable);
  REQUIRE(entries.size() == 4);
  std::set<std::string> compilers;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    CHECK(entries[i].key.portable == wanted.portable);
    CHECK(entries[i].key.fields[4].value == "sm_90a");
    compilers.insert(entries[i].key.fields[5].value);
    if (i > 0) CHECK(entries[i - 1].key.digest < entries[i].key.digest);
  }
  CHECK(compilers.size() == 4);
}

TEST_CASE("keys are listed by kind, in the order of digests, until told to stop",
          "[cache][bundle]") {
  const TemporaryDirectory folder;
  const auto contents = small_contents();
  write_bundle(folder.path() / "a", contents);
  const auto bundle = open_bundle(folder.path() / "a");
  const auto binaries = keys_of(*bundle, EntryKind::binary);
  CHECK(binaries.size() == 3);
  CHECK(std::ranges::is_sorted(binaries));
  CHECK(keys_of(*bundle, EntryKind::record) == std::vector{contents[3].key.hex()});
  std::size_t seen = 0;
  bundle->each_key(EntryKind::binary, [&](const Key&) { return ++seen < 2; });
  CHECK(seen == 2);
}

TEST_CASE("the first and last places of the index are found", "[cache][bundle]") {
  const TemporaryDirectory folder;
  std::vector<Content> contents;
  for (const unsigned first : {0u, 1u, 127u, 128u, 254u, 255u})
    for (const unsigned last : {0u, 1u, 2u, 255u}) {
      contents.push_back({EntryKind::binary, placed_key(first, last, last), make_bytes(3, first)});
      contents.push_back({EntryKind::record, placed_key(first, last, last), to_buffer("[]")});
    }
  write_bundle(folder.path() / "a", contents);
  const auto bundle = open_bundle(folder.path() / "a");
  for (const Content& c : contents) {
    const auto entry = bundle->find(c.kind, c.key);
    REQUIRE(entry);
    CHECK(equal(entry->payload, c.payload));
  }
  for (const unsigned portable : {0u, 1u, 2u, 255u})
    CHECK(bundle->find_portable(EntryKind::record, placed_key(0, 0, portable).portable).size() ==
          6);
  CHECK_FALSE(bundle->find(EntryKind::binary, placed_key(255, 254)));
  CHECK_FALSE(bundle->find(EntryKind::binary, placed_key(2, 0)));
  CHECK(bundle->find_portable(EntryKind::binary, placed_key(0, 0, 3).portable).empty());
  CHECK(bundle->verify().ok());
}

TEST_CASE("ten thousand binaries for three architectures are all found", "[cache][bundle][slow]") {
  const TemporaryDirectory folder;
  const std::vector<std::string> targets{"sm_80", "sm_90a", "sm_100a"};
  std::vector<Content> contents;
  for (int i = 0; i < 10'000; ++i)
    contents.push_back({EntryKind::binary, target_key("gemm", targets[i % 3], i),
                        make_bytes(1 + i % 200, static_cast<unsigned>(i))});
  write_bundle(folder.path() / "a", contents);
  const auto bundle = open_bundle(folder.path() / "a");
  const Hits hits = look_up(*bundle, contents);
  CHECK(hits.found == 10'000);
  CHECK(hits.wrong == 0);
  const auto keys = keys_of(*bundle, EntryKind::binary);
  CHECK(std::set(keys.begin(), keys.end()).size() == 10'000);
  CHECK(bundle->verify().ok());
  CHECK(bundle->verify().checked == 10'000);
  const auto info = std::get<BundleInfo>(bundle->info());
  REQUIRE(info.parts.size() == 3);
  CHECK(info.parts[0].target == "sm_100a");
  CHECK(info.parts[0].binaries + info.parts[1].binaries + info.parts[2].binaries == 10'000);
}

TEST_CASE("of two equal keys the first entry stays", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const Key key = target_key("gemm", "sm_80", 1);
  write_bundle(folder.path() / "a", {{EntryKind::binary, key, make_bytes(5, 1)},
                                     {EntryKind::binary, key, make_bytes(5, 2)}});
  const auto bundle = open_bundle(folder.path() / "a");
  CHECK(bundle->count(EntryKind::binary) == 1);
  CHECK(equal(bundle->find(EntryKind::binary, key)->payload, make_bytes(5, 1)));
}

TEST_CASE("an empty bundle is one", "[cache][bundle]") {
  const TemporaryDirectory folder;
  write_bundle(folder.path() / "a", {});
  const auto bundle = open_bundle(folder.path() / "a");
  CHECK(bundle->count(EntryKind::binary) == 0);
  CHECK_FALSE(bundle->find(EntryKind::binary, target_key("gemm", "sm_80", 1)));
  CHECK(bundle->find_portable(EntryKind::binary, Digest{}).empty());
  CHECK(keys_of(*bundle, EntryKind::record).empty());
  CHECK(bundle->verify().ok());
  const auto info = std::get<BundleInfo>(bundle->info());
  CHECK(info.parts.empty());
  CHECK(info.made_by == "kiln 1.2.3");
  CHECK(info.signer.empty());
}

TEST_CASE("the same entries give the same bytes, in whatever order they came", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  auto contents = small_contents();
  write_bundle(folder.path() / "a", contents);
  write_bundle(folder.path() / "signed a", contents, keys.private_pem);
  std::ranges::reverse(contents);
  write_bundle(folder.path() / "b", contents);
  write_bundle(folder.path() / "signed b", contents, keys.private_pem);
  CHECK(read_bytes(folder.path() / "a") == read_bytes(folder.path() / "b"));
  CHECK(read_bytes(folder.path() / "signed a") == read_bytes(folder.path() / "signed b"));
}

TEST_CASE("a record's key that is not UTF-8 finds it as the store's would", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const Key key = detail::KeyBuilder("record", 1).add("kernel", "\xff\x80").finish();
  const Key as_stored = [&] {
    Key changed = key;
    changed.fields[2].value = "\xef\xbf\xbd\xef\xbf\xbd";
    return changed;
  }();
  write_bundle(folder.path() / "a", {{EntryKind::record, as_stored, to_buffer("1")}});
  write_bundle(folder.path() / "b", {{EntryKind::record, key, to_buffer("1")}});
  CHECK(open_bundle(folder.path() / "a")->find(EntryKind::record, key));
  CHECK(open_bundle(folder.path() / "b")->find(EntryKind::record, key));
  CHECK(open_bundle(folder.path() / "b")->verify().ok());
  CHECK(std::get<BundleInfo>(open_bundle(folder.path() / "b")->info()).parts[0].kernel ==
        as_stored.fields[2].value);
}

TEST_CASE("only a regular file that others may not write is opened", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a", there = folder.path() / "there";
  write_bundle(path, small_contents());
  const auto reason = [](const fs::path& p) { return why(Bundle::open(p)); };

  CHECK(reason(folder.path() / "none").find("No such file") != std::string::npos);
  CHECK(std::get<Failure>(Bundle::open(folder.path() / "none")).code == ENOENT);
  CHECK(reason(folder.path()).find("is a directory") != std::string::npos);
  CHECK(reason("/dev/null").find("is not a file") != std::string::npos);
  REQUIRE(::mkfifo(there.c_str(), 0600) == 0);
  CHECK(reason(there).find("is not a file") != std::string::npos);
  fs::remove(there);
  fs::create_symlink("nowhere", there);
  CHECK(std::get<Failure>(Bundle::open(there)).code == ENOENT);
  fs::remove(there);
  fs::create_symlink("a", there);  // a program that names a link means what it leads to
  CHECK(reason(there).empty());
  fs::remove(there);
  write_bytes(there, {});
  CHECK(reason(there).find("is not a bundle") != std::string::npos);

  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = (folder.path() / "s").string();
  REQUIRE(name.copy(address.sun_path, sizeof address.sun_path - 1) == name.size());
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(reason(folder.path() / "s").find("is not a file") != std::string::npos);
  ::close(socket);

  for (const mode_t mode : {0664, 0646, 0666, 0620}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(reason(path).find("writable by others") != std::string::npos);
  }
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  CHECK(reason(path).empty());
}

TEST_CASE("the file gets the mode of an output, never one that readers refuse", "[cache][bundle]") {
  const TemporaryDirectory folder;
  for (const auto& [mask, expected] : {std::pair{mode_t{0}, 0644u}, {mode_t{077}, 0600u}}) {
    const mode_t old = ::umask(mask);
    write_bundle(folder.path() / "a", small_contents());
    ::umask(old);
    struct stat status{};
    REQUIRE(::stat((folder.path() / "a").c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == expected);
    CHECK(why(Bundle::open(folder.path() / "a")).empty());
  }
}

TEST_CASE("a bundle that cannot be written leaves what was there", "[cache][bundle]") {
  const TemporaryDirectory folder;
  BundleWriter writer;
  CHECK(writer.write(folder.path() / "none" / "a", "")->code == ENOENT);
  CHECK(writer.write("", "")->code == 0);
  fs::create_directory(folder.path() / "empty");
  CHECK(writer.write(folder.path() / "empty", "")->code != 0);
  CHECK(fs::is_directory(folder.path() / "empty"));
  write_bundle(folder.path() / "a", small_contents());
  const auto before = read_bytes(folder.path() / "a");
  CHECK(writer.write(folder.path() / "a", "", folder.path() / "no key")->code == ENOENT);
  Key large = target_key("gemm", "sm_80", 1);
  large.fields.push_back({"large", std::string(1 << 20, 'x'), 's'});
  writer.add(EntryKind::binary, large, kiln::detail::Bytes());
  CHECK(writer.write(folder.path() / "a", "")->what.find("too large") != std::string::npos);
  CHECK(read_bytes(folder.path() / "a") == before);
  CHECK(files_below(folder.path()).size() == 1);
  // The disk is full.
  CHECK(in_child([&] {
          std::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{10'000, 10'000};
          if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
          const auto failure = BundleWriter().write(folder.path() / "a", "");
          return failure && failure->code == EFBIG ? 0 : 2;
        }) == 0);
  CHECK(read_bytes(folder.path() / "a") == before);
  CHECK(files_below(folder.path()).size() == 1);
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);
  CHECK(writer.write(folder.path() / "fifo", "")->code == EEXIST);
  CHECK(fs::is_fifo(folder.path() / "fifo"));
  // A link is replaced: what it leads to may be an input.
  fs::create_symlink("a", folder.path() / "link");
  write_bundle(folder.path() / "link", {});
  CHECK(fs::is_regular_file(fs::symlink_status(folder.path() / "link")));
  CHECK(read_bytes(folder.path() / "a") == before);
}

TEST_CASE("an opened bundle keeps no file descriptor", "[cache][bundle]") {
  const TemporaryDirectory folder;
  write_bundle(folder.path() / "a", small_contents());
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = descriptors();
  const auto bundle = open_bundle(folder.path() / "a");
  CHECK_FALSE(why(Bundle::open(folder.path())).empty());
  CHECK(descriptors() == before);
}

TEST_CASE("a bundle replaced while mapped goes on as it was", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a";
  const auto contents = small_contents();
  write_bundle(path, contents);
  auto bundle = open_bundle(path);
  const kiln::detail::Bytes payload = bundle->find(EntryKind::binary, contents[0].key)->payload;
  write_bundle(path, {{EntryKind::binary, contents[0].key, make_bytes(9, 9)}});
  const Hits hits = look_up(*bundle, contents);
  CHECK(hits.found == contents.size());
  CHECK(hits.wrong == 0);
  CHECK(bundle->verify().ok());
  bundle.reset();
  fs::remove(path);
  CHECK(equal(payload, contents[0].payload));  // the map lives as long as the bytes
}

TEST_CASE("a file overwritten in place gives misses, not the other's entries", "[cache][bundle]") {
  const TemporaryDirectory folder;
  auto contents = small_contents();
  write_bundle(folder.path() / "a", contents);
  const auto bundle = open_bundle(folder.path() / "a");
  auto others = contents;
  others[0].payload = make_bytes(70, 77);
  write_bundle(folder.path() / "b", others);
  const auto bytes = read_bytes(folder.path() / "b");
  REQUIRE(bytes.size() == fs::file_size(folder.path() / "a"));
  const int fd = ::open((folder.path() / "a").c_str(), O_WRONLY);  // no truncation
  REQUIRE(::pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  CHECK(look_up(*bundle, contents).wrong == 0);
  CHECK_FALSE(bundle->find(EntryKind::binary, contents[0].key));
  CHECK_FALSE(bundle->verify().ok());
}

TEST_CASE("many threads read one bundle while it is replaced again and again",
          "[cache][bundle][race]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a";
  std::vector<Content> contents;
  for (int i = 0; i < 200; ++i)
    contents.push_back({EntryKind::binary, target_key("gemm", "sm_80", i),
                        make_bytes(50, static_cast<unsigned>(i))});
  write_bundle(path, contents);
  const auto bundle = open_bundle(path);
  std::atomic<std::size_t> found{0}, wrong{0}, not_opened{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        Hits hits = look_up(*bundle, contents);
        found += hits.found;
        wrong += hits.wrong;
        if (t % 2 == 0) continue;
        const auto fresh = Bundle::open(path);
        if (const auto* whole = std::get_if<std::unique_ptr<Bundle>>(&fresh))
          wrong += look_up(**whole, contents).wrong;
        else
          ++not_opened;
      }
    });
  for (int i = 0; i < 20; ++i) write_bundle(path, contents);
  for (auto& thread : threads) thread.join();
  CHECK(found == 6 * 5 * 200);
  CHECK(wrong == 0);
  CHECK(not_opened == 0);
  CHECK(files_below(folder.path()).size() == 1);
}

TEST_CASE("a manifest is read or refused", "[cache][bundle]") {
  using cache::decode_manifest;
  const std::vector<BundleInfo::Part> parts{{"gemm", "sm_80", 2, 0}, {"gemm", "sm_90a", 3, 4}};
  const std::string text = cache::encode_manifest("kiln 1", parts);
  const auto info = decode_manifest(text);
  REQUIRE(info);
  CHECK(info->made_by == "kiln 1");
  CHECK(info->binaries == 5);
  CHECK(info->records == 4);
  CHECK(info->parts[1].target == "sm_90a");
  for (std::size_t size = 0; size < text.size(); ++size)
    CHECK_FALSE(decode_manifest(std::string_view(text).substr(0, size)));
  for (const char* wrong :
       {"[]", "1", R"({"made_by":1,"parts":[]})", R"({"made_by":"k"})",
        R"({"made_by":"k","parts":{}})", R"({"made_by":"k","parts":[1]})",
        R"({"made_by":"k","parts":[{"kernel":"","target":"","binaries":-1,"records":0}]})",
        R"({"made_by":"k","parts":[{"kernel":"","binaries":1,"records":0}]})"})
    CHECK_FALSE(decode_manifest(wrong));
  CHECK_FALSE(decode_manifest(std::string(100'000, '[')));
  CHECK_FALSE(decode_manifest(R"({"made_by":"k","parts":[],"x":)" + std::string(100'000, '[') +
                              std::string(100'000, ']') + "}"));
}
