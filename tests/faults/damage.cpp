// Faults 1, 2, 11 and 13: entries that are not what they should be.
#include <algorithm>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "program.hpp"

namespace kiln::faults {
namespace {

using nlohmann::json;
using test::FaultyFileSystem;
using test::make_key;

const json kDamagedRecord{{"kernel", "wanted"}, {"ms", {1.5, 0.125}}, {"complete", true}};

fs::path path_of(const fs::path& directory, EntryKind kind, const Key& key) {
  return kind == EntryKind::binary ? test::binary_path(directory, key)
                                   : test::record_path(directory, key);
}

/// A directory with a program's binary, a record, and bystanders; and a way to damage the two.
class DamageScene {
 public:
  explicit DamageScene(Trial& trial)
      : trial_(trial), directory_(root_.path() / "cache"), bystanders_(directory_) {
    Program program(options_for(directory_), system_);
    program.runs(trial_, 1);
    binary_ = program.key(1);
    program.store->put_record(record_, kDamagedRecord);
    whole_[0] = test::read_bytes(path_of(directory_, EntryKind::binary, binary_));
    whole_[1] = test::read_bytes(path_of(directory_, EntryKind::record, record_));
    trial_.right(!whole_[0].empty() && !whole_[1].empty(), "the entries are not where they belong");
  }

  const Raw& whole(EntryKind kind) const { return whole_[static_cast<std::size_t>(kind)]; }
  /// Everything before a binary's payload, or before the record proper.
  std::size_t header_size(EntryKind kind) const {
    if (kind == EntryKind::binary) return cache::decode_entry(whole(kind)).payload_offset;
    const std::string text(reinterpret_cast<const char*>(whole(kind).data()), whole(kind).size());
    return text.find("\"record\": ");
  }
  const Key& key(EntryKind kind) const { return kind == EntryKind::binary ? binary_ : record_; }
  const fs::path& directory() const { return directory_; }

  /// With `file` for an entry: the program runs as if nothing was there, and leaves it whole.
  void check_damaged(EntryKind kind, const Raw& file) {
    const fs::path path = path_of(directory_, kind, key(kind));
    test::write_bytes(path, file);
    Program program(options_for(directory_), system_);
    if (kind == EntryKind::binary) {
      trial_.right(!program.store->find(binary_), "the damaged entry was found");
      program.runs(trial_, 1);
      trial_.right(program.compiles() == 1, "the damaged entry was used");
    } else {
      trial_.right(!program.store->find_record(record_), "the damaged record was used");
      program.store->put_record(record_, kDamagedRecord);
    }
    trial_.right(test::read_bytes(path) == whole(kind), "the entry was not repaired");
    bystanders_.whole(trial_);
  }

  /// The same with the directory as a read-only root.
  void check_damaged_root(EntryKind kind, const Raw& file) {
    const fs::path path = path_of(directory_, kind, key(kind));
    test::write_bytes(path, file);
    const TemporaryDirectory own;
    StoreOptions options = options_for(own.path() / "own");
    options.roots = {directory_};
    Program program(options, system_);
    program.runs(trial_, 1);
    const auto record = program.store->find_record(record_);
    trial_.right(!record || *record == kDamagedRecord, "the damaged record was used");
    trial_.right(test::read_bytes(path) == file, "the root was written to");
    bystanders_.whole_in(trial_, options);
    test::write_bytes(path, whole(kind));
  }

 private:
  Trial& trial_;
  const TemporaryDirectory root_;
  const fs::path directory_;
  const Bystanders bystanders_;
  const std::shared_ptr<FaultyFileSystem> system_ = std::make_shared<FaultyFileSystem>();
  Key binary_;
  const Key record_ = make_key("wanted", "record");
  Raw whole_[2];
};

std::string name(EntryKind kind) { return kind == EntryKind::binary ? "binary" : "record"; }

Raw cut(const Raw& file, std::size_t size) {
  return {file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)};
}

Raw flipped(Raw file, std::size_t byte, std::size_t bit) {
  file[byte] ^= static_cast<std::byte>(1u << bit);
  return file;
}

Raw text(const std::string& name) {
  std::ifstream file(std::string(KILN_GOLDEN_DIRECTORY) + "/" + name, std::ios::binary);
  return raw(std::string{std::istreambuf_iterator<char>(file), {}});
}

Raw from_hex(const Raw& digits) {
  Raw bytes;
  int high = -1;
  for (const std::byte b : digits) {
    const char c = static_cast<char>(b);
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) continue;
    if (high >= 0) bytes.push_back(static_cast<std::byte>(16 * high + digit));
    high = high >= 0 ? -1 : digit;
  }
  return bytes;
}

/// Version and checksum keep their places in every version.
Raw with_version(Raw entry, std::uint32_t version) {
  for (unsigned i = 0; i < 4; ++i) entry[8 + i] = static_cast<std::byte>(version >> (8 * i));
  const Digest checksum = sha256(std::span(entry).first(entry.size() - sizeof(Digest)));
  std::copy(checksum.begin(), checksum.end(), entry.end() - sizeof(Digest));
  return entry;
}

Raw record_with_version(const Raw& record, const std::string& version) {
  std::string body(reinterpret_cast<const char*>(record.data()), record.size());
  const std::string old = "\"version\": " + std::to_string(cache::kRecordVersion);
  if (const auto at = body.find(old); at != body.npos)
    body.replace(at, old.size(), "\"version\": " + version);
  body.resize(body.rfind(",\n  \"sha256\""));
  return raw(body + ",\n  \"sha256\": \"" + to_hex(sha256(body)) + "\"\n}\n");
}

/// Puts `file` where `key` belongs; nothing but a put of that key may change it.
void check_left_alone(Trial& trial, const fs::path& directory, EntryKind kind, const Key& key,
                      const Raw& file) {
  const fs::path path = path_of(directory, kind, key);
  fs::create_directories(path.parent_path());
  for (fs::path p = path.parent_path(); p != directory; p = p.parent_path())
    fs::permissions(p, fs::perms::owner_all);
  test::write_bytes(path, file);
  cache::Store store(options_for(directory));
  if (kind == EntryKind::binary)
    (void)store.find(key);
  else
    (void)store.find_record(key);
  store.put(make_key("another"), Raw(10));
  (void)store.stats();
  (void)store.verify();
  (void)store.list();
  (void)store.trim(std::uint64_t{1} << 40);
  trial.kept(test::read_bytes(path) == file, "an entry of another version did not stay");
}

}  // namespace

void truncated(Trial& trial) {
  trial.next("whole");
  DamageScene scene(trial);
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    const Raw& whole = scene.whole(kind);
    const std::size_t header = scene.header_size(kind);
    for (std::size_t size = 0; size < whole.size(); size += size < header ? 1 : 7) {
      trial.next(name(kind) + " cut to " + std::to_string(size) + " bytes");
      scene.check_damaged(kind, cut(whole, size));
    }
    for (std::size_t size = 0; size < whole.size(); size += 13) {
      trial.next(name(kind) + " in a root cut to " + std::to_string(size) + " bytes");
      scene.check_damaged_root(kind, cut(whole, size));
    }
    trial.next(name(kind) + " with bytes after its end");
    Raw longer = whole;
    longer.resize(longer.size() + 17);
    scene.check_damaged(kind, longer);
  }
}

void bit_flipped(Trial& trial) {
  trial.next("whole");
  DamageScene scene(trial);
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    const Raw& whole = scene.whole(kind);
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
      const std::size_t bit = 5 * byte % 8;
      trial.next("bit " + std::to_string(bit) + " of byte " + std::to_string(byte) + " of the " +
                 name(kind));
      scene.check_damaged(kind, flipped(whole, byte, bit));
    }
    for (std::size_t byte = 0; byte < whole.size(); byte += 13) {
      trial.next("byte " + std::to_string(byte) + " of the " + name(kind) + " in a root");
      scene.check_damaged_root(kind, flipped(whole, byte, byte % 8));
    }
  }
}

void under_another_name(Trial& trial) {
  trial.next("whole");
  DamageScene scene(trial);
  const fs::path& directory = scene.directory();
  Program other(options_for(directory));
  other.runs(trial, 2);
  const Raw others = test::read_bytes(test::binary_path(directory, other.key(2)));

  trial.next("a program's other binary");
  scene.check_damaged(EntryKind::binary, others);
  trial.next("a program's other binary, in a root");
  scene.check_damaged_root(EntryKind::binary, others);
  for (const Key& key : Bystanders::binaries()) {
    trial.next("a bystander's binary");
    scene.check_damaged(EntryKind::binary, test::read_bytes(test::binary_path(directory, key)));
  }
  for (const Key& key : Bystanders::records()) {
    trial.next("a bystander's record");
    scene.check_damaged(EntryKind::record, test::read_bytes(test::record_path(directory, key)));
  }
  trial.next("a record as a binary");
  scene.check_damaged(EntryKind::binary, scene.whole(EntryKind::record));
  trial.next("a binary as a record");
  scene.check_damaged(EntryKind::record, scene.whole(EntryKind::binary));

  // The entry is made so that the name and the digest fit, and only the fields differ.
  Key liar = other.key(2);
  liar.digest = scene.key(EntryKind::binary).digest;
  trial.next("another binary's fields under this digest");
  scene.check_damaged(EntryKind::binary, cache::encode_entry(liar, other.reference(2)));
  trial.next("another binary's fields under this digest, in a root");
  scene.check_damaged_root(EntryKind::binary, cache::encode_entry(liar, other.reference(2)));
  liar = make_key("liar", "record");
  liar.digest = scene.key(EntryKind::record).digest;
  trial.next("another record's fields under this digest");
  scene.check_damaged(EntryKind::record, raw(cache::encode_record(liar, json(7))));
  trial.right(Program(options_for(directory)).runs(trial, 2), "the other binary");
}

void other_formats(Trial& trial) {
  trial.next("whole");
  DamageScene scene(trial);
  const fs::path& directory = scene.directory();
  const Raw binary = scene.whole(EntryKind::binary), record = scene.whole(EntryKind::record);
  const Key binary_key = scene.key(EntryKind::binary), record_key = scene.key(EntryKind::record);

  for (std::uint32_t version = 0; version < cache::kEntryVersion; ++version) {
    trial.next("a binary of version " + std::to_string(version));
    check_left_alone(trial, directory, EntryKind::binary, binary_key,
                     with_version(binary, version));
    Program(options_for(directory)).runs(trial, 1);
    trial.right(test::read_bytes(test::binary_path(directory, binary_key)) == binary,
                "the older binary was not replaced");
  }
  for (const std::uint32_t version :
       {cache::kEntryVersion + 1, cache::kEntryVersion + 256, std::uint32_t{0xffffffff}}) {
    trial.next("a binary of version " + std::to_string(version));
    const Raw newer = with_version(binary, version);
    check_left_alone(trial, directory, EntryKind::binary, binary_key, newer);
    Program program(options_for(directory, 1 << 20));
    program.runs(trial, 1);
    program.runs(trial, 1);
    trial.right(program.compiles() == 1, "what could not be written was not kept in memory");
    trial.kept(test::read_bytes(test::binary_path(directory, binary_key)) == newer,
               "a newer binary was replaced");
    trial.right(program.store->verify().newer == 1, "verify does not tell of a newer binary");
  }
  test::write_bytes(test::binary_path(directory, binary_key), binary);

  for (const std::string version : {"0", "-1", "1.5", "\"1\"", "null"}) {
    trial.next("a record of version " + version);
    scene.check_damaged(EntryKind::record, record_with_version(record, version));
  }
  for (const std::string version : {"4000", "4294967295"}) {
    trial.next("a record of version " + version);
    const Raw newer = record_with_version(record, version);
    check_left_alone(trial, directory, EntryKind::record, record_key, newer);
    cache::Store store(options_for(directory, 1 << 20));
    trial.right(!store.find_record(record_key), "a newer record was read");
    store.put_record(record_key, kDamagedRecord);
    trial.right(store.find_record(record_key) == kDamagedRecord, "the record kept in memory");
    trial.kept(test::read_bytes(test::record_path(directory, record_key)) == newer,
               "a newer record was replaced");
  }
  test::write_bytes(test::record_path(directory, record_key), record);

  // Entries as earlier versions wrote them are read right, or skipped.
  const auto golden = [&](const std::string& file, EntryKind kind) {
    trial.next(file);
    const Raw bytes = kind == EntryKind::binary ? from_hex(text(file)) : text(file);
    const std::string body(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Key key = make_key("golden");
    if (kind == EntryKind::binary)
      std::copy_n(bytes.begin() + 12, key.digest.size(), key.digest.begin());
    else
      key.digest = [&] {
        Digest digest{};
        const Raw hex = from_hex(raw(json::parse(body).at("digest").get<std::string>()));
        std::copy_n(hex.begin(), std::min(hex.size(), digest.size()), digest.begin());
        return digest;
      }();
    check_left_alone(trial, directory, kind, key, bytes);
    fs::remove(path_of(directory, kind, key));
  };
  int files = 0;
  for (const auto& item : fs::directory_iterator(KILN_GOLDEN_DIRECTORY)) {
    const std::string file = item.path().filename().string();
    if (file.starts_with("binary_v")) golden(file, EntryKind::binary), ++files;
    if (file.starts_with("record_v")) golden(file, EntryKind::record), ++files;
  }
  trial.right(files >= 2, "the golden files are not there");
  Program(options_for(directory)).runs(trial, 1);
}

}  // namespace kiln::faults
