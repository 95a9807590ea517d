// Fault 15: bundles that are not whole, not signed, or for another device.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/bundle.hpp"
#include "cache/bundle_layout.hpp"
#include "program.hpp"

namespace kiln::faults {
namespace {

using cache::BundleHeader;
using cache::BundleWriter;
using nlohmann::json;

const Key kBundledKey = test::make_key("wanted", "record");
const json kMeasured{{"ms", {1.0, 2.0}}};

using PrivatePem = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

/// A fresh pair of keys as `openssl genpkey` and `openssl pkey -pubout` would write them.
void make_keys(const fs::path& secret, const fs::path& open) {
  const PrivatePem key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free);
  const File to_secret(std::fopen(secret.c_str(), "w"), std::fclose);
  const File to_open(std::fopen(open.c_str(), "w"), std::fclose);
  if (!key || !to_secret || !to_open ||
      PEM_write_PrivateKey(to_secret.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1 ||
      PEM_write_PUBKEY(to_open.get(), key.get()) != 1)
    throw std::runtime_error("no Ed25519 keys");
  ::chmod(secret.c_str(), 0600);
}

/// What a release job ships: three instances for a target, and a record. With `wrong`, other code
/// lies under the right keys.
void ship(Trial& trial, const fs::path& bundle, const Target& target, const fs::path& secret = {},
          bool wrong = false) {
  const TemporaryDirectory root;
  Program program(options_for(root.path() / "cache"));
  program.target = target;
  BundleWriter writer;
  for (int i = 0; i < 3; ++i) {
    program.runs(trial, i);
    const Key key = program.key(i);
    Raw payload = raw(*program.store->find(key));
    if (wrong) payload.back() ^= std::byte{1};
    writer.add(EntryKind::binary, key, std::move(payload));
  }
  writer.add(EntryKind::record, kBundledKey, raw(kMeasured.dump()));
  const auto failure = writer.write(bundle, "the fault suite", secret);
  if (failure) throw std::runtime_error(failure->what);
}

class BundleScene {
 public:
  explicit BundleScene(Trial& trial)
      : path_(root_.path() / "shipped.kiln"), own_(root_.path() / "cache"), trial_(trial) {
    ship(trial, path_, Program(options_for(own_)).target);
    whole_ = test::read_bytes(path_);
    bystanders_ = std::make_unique<Bystanders>(own_);
    ::chmod(path_.c_str(), 0644);
  }

  const Raw& whole() const { return whole_; }
  const fs::path& path() const { return path_; }
  fs::path folder() const { return root_.path(); }

  StoreOptions options(const fs::path& public_key = {}) const {
    StoreOptions options = options_for(own_);
    options.roots = {path_};
    options.bundle_key = public_key;
    return options;
  }

  /// The program's three instances come out right whatever the bundle holds. How many were
  /// compiled.
  int compiles(const StoreOptions& options) {
    StoreOptions read_only = options;
    read_only.disk = false;  // so that nothing is kept from one case to the next
    Program program(read_only);
    for (int i = 0; i < 3; ++i) program.runs(trial_, i);
    const auto record = program.store->find_record(kBundledKey);
    trial_.right(!record || *record == kMeasured, "a damaged record was used");
    return program.compiles();
  }

  void check(const Raw& bytes, bool harmless = false) {
    test::write_bytes(path_, bytes);
    const int compiled = compiles(options());
    bool sound = false;
    try {
      sound = verify_bundle(path_).ok();
    } catch (const Error&) {
    }
    trial_.right(harmless || !sound, "verify finds nothing wrong");
    trial_.right(!sound || compiled == 0, "a bundle without problems is not used");
    bystanders_->whole_in(trial_, options());
  }

  void use(const fs::path& public_key, bool used, const std::string& what) {
    const Program program(options(public_key));
    trial_.right(compiles(options(public_key)) == (used ? 0 : 3), what);
    trial_.right(program.store->root_problems().empty() == used, what + ": what the store says");
  }

 private:
  const TemporaryDirectory root_;
  const fs::path path_, own_;
  Trial& trial_;
  Raw whole_;
  std::unique_ptr<Bystanders> bystanders_;
};

}  // namespace

void bad_bundles(Trial& trial) {
  trial.next("whole");
  BundleScene scene(trial);
  const Raw whole = scene.whole();
  scene.check(whole, true);
  trial.right(scene.compiles(scene.options()) == 0, "a whole bundle is not used");

  for (std::size_t size = 0; size < whole.size(); size += size < 300 ? 1 : 101) {
    trial.next("cut to " + std::to_string(size) + " bytes");
    scene.check({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
  }
  trial.next("cut by its last byte");
  scene.check({whole.begin(), whole.end() - 1});
  trial.next("longer by a byte");
  Raw longer = whole;
  longer.push_back(std::byte{0});
  scene.check(longer);

  // Every byte that says something, and some bytes of the two tables, which are mostly empty.
  for (std::size_t at = 0; at < whole.size(); at += at < 256 || at > 20'800 ? 1 : 37) {
    trial.next("bit " + std::to_string(at % 8) + " of byte " + std::to_string(at));
    Raw tampered = whole;
    tampered[at] ^= static_cast<std::byte>(1u << (at % 8));
    scene.check(tampered);
  }
  for (const std::size_t at : {8u, 16u, 24u, 32u, 40u, 48u}) {
    trial.next("all bits of the number at " + std::to_string(at));
    Raw tampered = whole;
    for (std::size_t i = 0; i < 8; ++i) tampered[at + i] = std::byte{0xff};
    scene.check(tampered);
  }

  test::write_bytes(scene.path(), whole);
  const fs::path secret = scene.folder() / "key.pem", open = scene.folder() / "pub.pem";
  const fs::path other_secret = scene.folder() / "other.pem", other = scene.folder() / "opub.pem";
  make_keys(secret, open);
  make_keys(other_secret, other);
  const Target target = Program(scene.options()).target;

  trial.next("unsigned where a signature is required");
  scene.use(open, false, "an unsigned bundle");
  trial.next("unsigned where none is required");
  scene.use({}, true, "an unsigned bundle");
  const Raw other_content = [&] {
    ship(trial, scene.folder() / "other.kiln", target, {}, true);
    return test::read_bytes(scene.folder() / "other.kiln");
  }();
  ship(trial, scene.path(), target, secret);
  const Raw with_signature = test::read_bytes(scene.path());
  trial.next("signed, by the key required");
  scene.use(open, true, "a signed bundle");
  trial.next("signed, where no signature is required");
  scene.use({}, true, "a signed bundle");
  trial.next("signed by another key");
  scene.use(other, false, "another's bundle");
  trial.next("the key required is not there");
  scene.use(scene.folder() / "nothing.pem", false, "a bundle without the key");
  trial.next("the key required is none");
  scene.use(scene.path(), false, "a bundle without a key");
  trial.next("the key required is a private one's file, writable by all");
  ::chmod(other.c_str(), 0666);
  scene.use(other, false, "a bundle with a key that others may write");
  trial.next("a directory where a signature is required");
  {
    const TemporaryDirectory plain;
    Program(options_for(plain.path() / "cache")).runs(trial, 1);
    StoreOptions options = scene.options(open);
    options.roots = {plain.path() / "cache"};
    trial.right(scene.compiles(options) == 3, "an unsigned directory was used");
  }

  // A forger without the key cannot get another entry used, even if all checksums fit.
  const auto refuse = [&](BundleHeader header, const Raw& rest, const std::string& what) {
    trial.next(what);
    Raw forged = encode(header);
    forged.insert(forged.end(), rest.begin() + BundleHeader::kSize, rest.end());
    test::write_bytes(scene.path(), forged);
    trial.right(scene.compiles(scene.options(open)) == 3, "a forged bundle was taken");
  };
  BundleHeader right, forged;
  (void)decode(with_signature, right);
  (void)decode(other_content, forged);
  refuse(forged, other_content, "unsigned, of other content");
  forged.key_id = right.key_id;
  refuse(forged, other_content, "with the signer's name and no signature");
  forged.signature = right.signature;
  refuse(forged, other_content, "with another bundle's signature");
  for (std::size_t i = 0; i < right.signature.size(); ++i) {
    BundleHeader changed = right;
    changed.signature[i] ^= std::byte{4};
    refuse(changed, with_signature, "byte " + std::to_string(i) + " of the signature changed");
  }
  BundleHeader unsigned_again = right;
  unsigned_again.key_id = {};
  unsigned_again.signature = {};
  refuse(unsigned_again, with_signature, "the signature taken away");
  test::write_bytes(scene.path(), with_signature);
  for (std::size_t at = 0; at < 256; ++at) {
    trial.next("signed, byte " + std::to_string(at) + " tampered with");
    Raw tampered = with_signature;
    tampered[at] ^= std::byte{0x10};
    test::write_bytes(scene.path(), tampered);
    trial.right(scene.compiles(scene.options(open)) == 3, "a tampered header was taken");
  }

  for (const char* arch : {"sm_80", "sm_90a", "sm_90f", "sm_100a"}) {
    trial.next(std::string("for ") + arch);
    fs::remove(scene.path());
    ship(trial, scene.path(), {Target::Kind::cuda, arch});
    trial.right(scene.compiles(scene.options()) == 3, "another architecture's binary was used");
    Program program(scene.options());
    program.target = {Target::Kind::cuda, arch};
    program.runs(trial, 1);
    trial.right(program.compiles() == 0, "its own architecture's binary was not used");
  }

  // Where it lies, and what lies there.
  test::write_bytes(scene.path(), whole);
  for (const mode_t mode : {0666, 0664, 0646}) {
    trial.next("mode " + std::to_string(mode));
    ::chmod(scene.path().c_str(), mode);
    scene.use({}, false, "a bundle that others may write");
  }
  ::chmod(scene.path().c_str(), 0644);
  trial.next("a bundle beside one that is not whole");
  {
    const fs::path torn = scene.folder() / "torn.kiln";
    test::write_bytes(torn, {whole.begin(), whole.begin() + 5000});
    StoreOptions options = scene.options();
    options.roots = {torn, "/nonexistent/bundle", scene.path(), "/dev/null", "/dev/zero", "/"};
    trial.right(scene.compiles(options) == 0, "a whole bundle beside others is not used");
  }
  trial.next("replaced by another while it is mapped");
  {
    Program program(scene.options());
    program.runs(trial, 0);
    const fs::path next = scene.folder() / "next.kiln";
    ship(trial, next, {Target::Kind::cuda, "sm_80"});
    fs::rename(next, scene.path());
    program.runs(trial, 1);
    program.runs(trial, 2);
    trial.right(program.compiles() == 0, "a bundle that was mapped is not used any more");
    test::write_bytes(next, whole);
    fs::rename(next, scene.path());
  }
  for (const char* planted : {"FIFO", "link to itself", "directory"}) {
    trial.next(std::string("a ") + planted + " in its place");
    fs::remove_all(scene.path());
    if (*planted == 'F')
      ::mkfifo(scene.path().c_str(), 0644);
    else if (*planted == 'l')
      fs::create_symlink(scene.path(), scene.path());
    else
      fs::create_directory(scene.path());
    trial.right(scene.compiles(scene.options()) == 3, "something was found in it");
  }
}

}  // namespace kiln::faults
