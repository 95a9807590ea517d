// Faults 8, 9, 10 and 16: where the directory lies, whose it is, and what is in its place.
#include <cerrno>
#include <cstring>
#include <optional>

#include <dlfcn.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "cache/bundle.hpp"
#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "program.hpp"

namespace {

// What the user database says of this process's user; the test may replace it.
enum class Database { real, unknown, home };
Database database = Database::real;
char home_in_database[512];

}  // namespace

/// Replaces the C library's function, for Kiln as well.
extern "C" int getpwuid_r(uid_t uid, passwd* entry, char* buffer, size_t size, passwd** result) {
  if (database == Database::real) {
    static const auto real =
        reinterpret_cast<decltype(&getpwuid_r)>(::dlsym(RTLD_NEXT, "getpwuid_r"));
    return real(uid, entry, buffer, size, result);
  }
  *result = nullptr;
  if (database == Database::unknown) return 0;
  *entry = {};
  entry->pw_uid = uid;
  entry->pw_dir = home_in_database;
  *result = entry;
  return 0;
}

namespace kiln::faults {
namespace {

using nlohmann::json;
using test::Call;
using test::FaultyFileSystem;

constexpr uid_t kNobody = 65534, kSomeone = 54321;

/// Leaves root for good. Only in a process of its own.
bool become(uid_t user) { return ::setgid(user) == 0 && ::setresuid(user, user, user) == 0; }

void set_mode_below(const fs::path& directory, mode_t directories, mode_t files) {
  std::vector<fs::path> all{directory};
  for (const auto& item : fs::recursive_directory_iterator(directory)) all.push_back(item.path());
  for (auto path = all.rbegin(); path != all.rend(); ++path)
    ::chmod(path->c_str(), fs::is_directory(*path) ? directories : files);
}

/// The program runs, and its binary is kept in memory. One warning says so.
void check_binary_in_memory(Trial& trial, const StoreOptions& options) {
  test::Log log;
  StoreOptions logged = options;
  logged.memory_bytes = 1 << 20;
  logged.log = log.sink();
  Program program(logged);
  program.runs(trial, 1);
  program.runs(trial, 1);
  trial.right(program.compiles() == 1, "what could not be written was not kept in memory");
  trial.right(program.store->stats().memory_only, "the store does not say that it is in memory");
  trial.right(log.warnings().size() == 1,
              std::to_string(log.warnings().size()) + " warnings instead of one");
}

/// The same with a record.
void check_in_memory(Trial& trial, const StoreOptions& options) {
  check_binary_in_memory(trial, options);
  test::Log log;
  StoreOptions logged = options;
  logged.memory_bytes = 1 << 20;
  logged.log = log.sink();
  const Program program(logged);
  const Key record = test::make_key("wanted", "record");
  program.store->put_record(record, 7);
  trial.right(program.store->find_record(record) == json(7), "the record kept in memory");
  trial.right(program.store->stats().memory_only, "the store does not say that it is in memory");
  trial.right(log.warnings().size() == 1,
              std::to_string(log.warnings().size()) + " warnings instead of one");
}

/// A wrong binary, well made, where the program's own would be.
void plant_wrong_entry(const fs::path& directory, int number) {
  const Program program(options_for(directory));
  const Key key = program.key(number);
  const Raw wrong(100);
  const fs::path path = test::binary_path(directory, key);
  fs::create_directories(path.parent_path());
  test::write_bytes(path, cache::encode_entry(key, wrong));
}

}  // namespace

void no_place(Trial& trial) {
  trial.next("a read-only directory");
  {
    const TemporaryDirectory root;
    ::chmod(root.path().c_str(), 0777);
    Processes::run(trial, [&] {
      if (is_root() && !become(kNobody)) throw std::runtime_error("setresuid");
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      Program(options_for(directory)).runs(trial, 2);
      set_mode_below(directory, 0500, 0400);
      const std::string before = snapshot(directory);
      Program hit(options_for(directory));
      hit.runs(trial, 2);
      trial.right(hit.compiles() == 0, "what was there was not found");
      check_in_memory(trial, options_for(directory));
      bystanders.whole(trial);
      trial.kept(snapshot(directory) == before, "a read-only directory was changed");
      set_mode_below(directory, 0700, 0600);
    });
  }
  trial.next("a directory that may not be entered");
  {
    const TemporaryDirectory root;
    ::chmod(root.path().c_str(), 0777);
    Processes::run(trial, [&] {
      if (is_root() && !become(kNobody)) throw std::runtime_error("setresuid");
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      ::chmod(directory.c_str(), 0000);
      check_in_memory(trial, options_for(directory));
      check_in_memory(trial, options_for(directory / "below"));
      ::chmod(directory.c_str(), 0700);
      bystanders.whole(trial);
    });
  }

  const auto without_home = [&](Database says, const std::string& home, bool memory,
                                const std::string& what) {
    trial.next(what);
    Processes::run(trial, [&] {
      for (const char* name : {"HOME", "XDG_CACHE_HOME", "KILN_CACHE_DIR"}) ::unsetenv(name);
      database = says;
      std::strncpy(home_in_database, home.c_str(), sizeof home_in_database - 1);
      if (memory) return check_in_memory(trial, {});
      Program(options_for({})).runs(trial, 1);
      Program again(options_for({}));
      again.runs(trial, 1);
      trial.right(again.compiles() == 0, "it was not kept");
    });
  };
  const TemporaryDirectory home;
  without_home(Database::home, home.path(), false, "HOME unset, the user database knows it");
  without_home(Database::home, "", true, "HOME unset, no home in the user database");
  without_home(Database::home, "/dev/null", true, "HOME unset, a home that is none");
  without_home(Database::home, "/proc/nowhere", true, "HOME unset, a home that cannot be made");
  without_home(Database::unknown, "", true, "HOME unset, a user that the database does not know");
  for (const char* value : {"", "relative", "/dev/null", "/proc/nowhere"}) {
    trial.next(std::string("HOME is '") + value + "'");
    Processes::run(trial, [&] {
      for (const char* name : {"XDG_CACHE_HOME", "KILN_CACHE_DIR"}) ::unsetenv(name);
      ::setenv("HOME", value, 1);
      database = Database::unknown;
      check_in_memory(trial, {});
    });
  }

  if (!is_root()) return trial.without("a real uid that has no passwd entry: needs root");
  trial.next("a uid without a passwd entry");
  Processes::run(trial, [&] {
    if (::getpwuid(kSomeone) != nullptr || !become(kSomeone)) throw std::runtime_error("setresuid");
    for (const char* name : {"HOME", "XDG_CACHE_HOME", "KILN_CACHE_DIR"}) ::unsetenv(name);
    check_in_memory(trial, {});
  });
}

void place_of_others(Trial& trial) {
  const std::string hex = Program(options_for("/nonexistent/kiln")).key(1).hex().substr(0, 2);
  for (const mode_t mode : {0777, 01777, 0720, 0702, 0770})
    for (const fs::path& part :
         {fs::path(), fs::path("v1"), fs::path("v1/binaries"), fs::path("v1/binaries") / hex}) {
      trial.next("mode " + std::to_string(mode) + " of /" + part.string());
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      plant_wrong_entry(directory, 1);
      set_mode_below(directory, 0700, 0600);
      ::chmod((directory / part).c_str(), mode);
      const bool all = part.empty() || part == "v1";  // else records have a place of their own
      const std::string before = snapshot(all ? directory : directory / part);
      StoreOptions options = options_for(directory);
      check_binary_in_memory(trial, options);
      if (all) check_in_memory(trial, options);
      options.disk = false;
      options.roots = {directory};
      Program rooted(options);
      rooted.runs(trial, 1);
      trial.kept(snapshot(all ? directory : directory / part) == before,
                 "something was changed in it");
      ::chmod((directory / part).c_str(), 0700);
      bystanders.whole(trial);
    }

  for (const mode_t mode : {0666, 0620, 0602}) {
    trial.next("an entry of mode " + std::to_string(mode));
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    plant_wrong_entry(directory, 1);
    set_mode_below(directory, 0700, 0600);
    ::chmod(test::binary_path(directory, Program(options_for(directory)).key(1)).c_str(), mode);
    Program(options_for(directory)).runs(trial, 1);
    Program again(options_for(directory));
    again.runs(trial, 1);
    trial.right(again.compiles() == 0, "it was not repaired");
    bystanders.whole(trial);
  }

  trial.next("root's own directory, asked by another user, or another user's by root");
  if (!is_root()) {
    check_in_memory(trial, options_for("/usr"));
    return trial.without("giving directories away: needs root");
  }
  for (const fs::path& part :
       {fs::path(), fs::path("v1"), fs::path("v1/binaries"), fs::path("v1/binaries") / hex}) {
    trial.next("another user's /" + part.string());
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    plant_wrong_entry(directory, 1);
    set_mode_below(directory, 0700, 0600);
    if (::chown((directory / part).c_str(), kNobody, kNobody) != 0)
      throw std::runtime_error("chown");
    const bool all = part.empty() || part == "v1";
    const std::string before = snapshot(all ? directory : directory / part);
    check_binary_in_memory(trial, options_for(directory));
    if (all) check_in_memory(trial, options_for(directory));
    trial.kept(snapshot(all ? directory : directory / part) == before,
               "something was changed in it");
    if (::chown((directory / part).c_str(), 0, 0) != 0) throw std::runtime_error("chown");
    bystanders.whole(trial);
  }
  trial.next("another user's entry");
  {
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    plant_wrong_entry(directory, 1);
    set_mode_below(directory, 0700, 0600);
    const fs::path path = test::binary_path(directory, Program(options_for(directory)).key(1));
    if (::chown(path.c_str(), kNobody, kNobody) != 0) throw std::runtime_error("chown");
    Program(options_for(directory)).runs(trial, 1);
  }
  trial.next("root's directory, as another user");
  {
    const TemporaryDirectory root;
    ::chmod(root.path().c_str(), 0755);
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    plant_wrong_entry(directory, 1);
    set_mode_below(directory, 0755, 0644);
    const std::string before = snapshot(directory);
    Processes::run(trial, [&] {
      if (!become(kNobody)) throw std::runtime_error("setresuid");
      check_in_memory(trial, options_for(directory));
    });
    trial.kept(snapshot(directory) == before, "something was changed in it");
    bystanders.whole(trial);
  }
}

namespace {

/// Things that are no files of Kiln's. Each makes itself under a name.
struct Plant {
  const char* name;
  void (*make)(const fs::path& at, const fs::path& wrong);
};

void make_socket(const fs::path& at, const fs::path&) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const fs::path old = fs::current_path();
  fs::current_path(at.parent_path());  // a socket's path has a hundred bytes
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, at.filename().c_str(), sizeof address.sun_path - 1);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
  }
  fs::current_path(old);
  ::close(fd);
}

const Plant kPlants[] = {
    {"link to a wrong entry",
     [](const fs::path& at, const fs::path& wrong) { fs::create_symlink(wrong, at); }},
    {"dangling link",
     [](const fs::path& at, const fs::path& wrong) {
       fs::create_symlink(wrong.parent_path() / "nothing", at);
     }},
    {"link to itself", [](const fs::path& at, const fs::path&) { fs::create_symlink(at, at); }},
    {"link to a device",
     [](const fs::path& at, const fs::path&) { fs::create_symlink("/dev/zero", at); }},
    {"link to a directory",
     [](const fs::path& at, const fs::path& wrong) {
       fs::create_directory_symlink(wrong.parent_path(), at);
     }},
    {"FIFO", [](const fs::path& at, const fs::path&) { ::mkfifo(at.c_str(), 0600); }},
    {"directory", [](const fs::path& at, const fs::path&) { ::mkdir(at.c_str(), 0700); }},
    {"directory with a file in it",
     [](const fs::path& at, const fs::path&) {
       ::mkdir(at.c_str(), 0700);
       test::write_bytes(at / "file", Raw(3));
     }},
    {"socket", make_socket},
    {"device",
     [](const fs::path& at, const fs::path&) {
       if (::mknod(at.c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0 && is_root())
         throw std::runtime_error("mknod");
     }},
};

}  // namespace

void planted(Trial& trial) {
  const TemporaryDirectory outside;
  const Program pure(options_for("/nonexistent/kiln"));
  const Key key = pure.key(1), record = test::make_key("wanted", "record");
  // What a program that follows links would read: whole entries of the right key, wrong content.
  const fs::path wrong = outside.path() / "wrong.kiln",
                 wrong_record = outside.path() / "wrong.json";
  test::write_bytes(wrong, cache::encode_entry(key, Raw(100)));
  test::write_bytes(wrong_record, raw(cache::encode_record(record, "wrong")));
  const std::string hex = key.hex();

  const auto check = [&](const fs::path& directory) {
    const std::string before = snapshot(outside.path());
    for (int round = 0; round < 2; ++round) {
      StoreOptions options = options_for(directory);
      options.lock_deadline = 0.2;
      Program program(options);
      program.runs(trial, 1);
      const auto found = program.store->find_record(record);
      trial.right(!found || *found == json(7), "a planted record was read");
      program.store->put_record(record, 7);
      (void)program.store->stats();
      (void)program.store->verify();
      (void)program.store->list();
      try {
        program.store->trim(std::uint64_t{1} << 40);
      } catch (const EnvironmentError&) {
      }
      program.runs(trial, 2);
      options.disk = false;
      options.roots = {directory};
      Program(options).runs(trial, 1);
    }
    trial.kept(snapshot(outside.path()) == before, "something outside was changed");
  };

  for (const Plant& plant : kPlants) {
    for (const std::string& place :
         {"v1/binaries/" + hex.substr(0, 2) + "/" + hex + ".kiln",
          "v1/records/" + record.hex().substr(0, 2) + "/" + record.hex() + ".json",
          "v1/locks/" + hex + ".lock", std::string("v1/locks"), "v1/binaries/" + hex.substr(0, 2),
          std::string("v1/binaries"), std::string("v1/records"), std::string("v1"),
          std::string()}) {
      trial.next(std::string(plant.name) + " planted as /" + place);
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache",
                     at = place.empty() ? directory : directory / place;
      const bool file = at.has_extension();
      const bool all = place.empty() || place == "v1";  // nothing else can be there
      std::optional<Bystanders> bystanders;
      if (!all) {
        bystanders.emplace(directory);
        if (fs::exists(at) && !file) fs::rename(at, root.path() / "aside");
      }
      fs::create_directories(at.parent_path());
      if (!all || place == "v1") set_mode_below(directory, 0700, 0600);
      const bool of_record = at.extension() == ".json";
      plant.make(at, of_record ? wrong_record : wrong);
      check(directory);
      if (file) bystanders->whole(trial);
    }

    trial.next(std::string(plant.name) + " planted as the next temporary file");
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    class Planting final : public cache::FileSystem {
     public:
      std::function<void(const fs::path&)> plant;
      int left = 3;
      int create(int parent, const char* name) override {
        if (left-- > 0) plant(fs::read_symlink("/proc/self/fd/" + std::to_string(parent)) / name);
        return FileSystem::create(parent, name);
      }
    };
    const auto system = std::make_shared<Planting>();
    system->plant = [&](const fs::path& at) { plant.make(at, wrong); };
    const std::string before = snapshot(outside.path());
    Program program(options_for(directory), system);
    program.runs(trial, 1);
    program.store->put_record(record, 7);
    Program again(options_for(directory));
    again.runs(trial, 1);
    trial.right(again.compiles() == 0, "it was not kept");
    trial.kept(snapshot(outside.path()) == before, "something outside was changed");
    check(directory);
    bystanders.whole(trial);
  }
}

void shared_root(Trial& trial) {
  if (!is_root()) trial.skip("taking two users' identities needs root");
  for (const std::string kind : {"directory", "bundle", "directory for its owner only"}) {
    trial.next("two users, a " + kind);
    const TemporaryDirectory shared, own;
    ::chmod(shared.path().c_str(), 0755);
    ::chmod(own.path().c_str(), 01777);
    const fs::path root = shared.path() / "root", bundle = shared.path() / "shared.kiln";
    const Bystanders bystanders(root);
    cache::BundleWriter writer;
    for (int i = 0; i < 5; ++i) {
      Program program(options_for(root));
      program.runs(trial, i);
      writer.add(EntryKind::binary, program.key(i), *program.store->find(program.key(i)));
    }
    if (kind == "bundle" && writer.write(bundle, "the fault suite"))
      throw std::runtime_error("no bundle");
    const bool readable = kind != "directory for its owner only";
    if (kind == "directory") set_mode_below(root, 0755, 0644);
    const std::string before = snapshot(shared.path());
    Shared<std::atomic<int>> ready;
    Processes processes(trial);
    for (const uid_t user : {kNobody, kSomeone})
      processes.start([&, user] {
        if (!become(user)) throw std::runtime_error("setresuid");
        ++*ready;
        await([&] { return *ready == 2; });
        StoreOptions options = options_for(own.path() / std::to_string(user));
        options.roots = {kind == "bundle" ? bundle : root};
        Program program(options);
        for (int i = 0; i < 10; ++i) program.runs(trial, i);
        trial.right(program.compiles() == (readable ? 5 : 10), "the root was not used");
        if (kind == "directory") bystanders.whole_in(trial, options);
        trial.right(program.store->verify().ok(), "a user's own store is damaged");
        options.disk = false;
        for (int i = 0; i < 5; ++i) Program(options).runs(trial, i);
      });
    processes.wait_all();
    trial.kept(snapshot(shared.path()) == before, "the root was changed");
    bystanders.whole(trial);
  }
}

}  // namespace kiln::faults
