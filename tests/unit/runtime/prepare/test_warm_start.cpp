// A start whose manifest is in the store: how often files are opened, and what waits for what.
#include <atomic>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <sys/inotify.h>
#include <unistd.h>

#include "kiln_test.hpp"
#include "prepare_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

namespace {

/// Counts how often files below some folders are opened.
class Opened {
 public:
  explicit Opened(const std::vector<fs::path>& folders) : fd_(::inotify_init1(IN_NONBLOCK)) {
    if (fd_ < 0) throw std::runtime_error("inotify_init1");
    for (const fs::path& folder : folders) {
      watch(folder);
      for (const auto& item : fs::recursive_directory_iterator(folder))
        if (item.is_directory()) watch(item.path());
    }
  }
  ~Opened() { ::close(fd_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  /// Since the last time, by name.
  std::map<std::string, int> take() {
    std::map<std::string, int> opened;
    alignas(inotify_event) char buffer[1 << 14];
    for (ssize_t size; (size = ::read(fd_, buffer, sizeof buffer)) > 0;)
      for (const char* at = buffer; at < buffer + size;) {
        inotify_event event;
        std::memcpy(&event, at, sizeof event);
        if (event.len > 0 && (event.mask & IN_ISDIR) == 0) ++opened[at + sizeof event];
        at += sizeof event + event.len;
      }
    return opened;
  }

 private:
  void watch(const fs::path& folder) {
    if (::inotify_add_watch(fd_, folder.c_str(), IN_OPEN) < 0)
      throw std::runtime_error("inotify_add_watch");
  }

  const int fd_;
};

int most_of(const std::map<std::string, int>& opened, const std::string& extension) {
  int most = 0;
  for (const auto& [name, times] : opened)
    if (name.ends_with(extension)) most = std::max(most, times);
  return most;
}

int files_of(const std::map<std::string, int>& opened, const std::string& extension) {
  int files = 0;
  for (const auto& [name, times] : opened) files += name.ends_with(extension);
  return files;
}

}  // namespace

TEST_CASE("a warm start opens each entry and each source once", "[runtime][prepare]") {
  const Directory directory;
  const TemporaryDirectory sources;
  KernelDefinition kernel = doubling();
  kernel.source.file = sources.path() / "kernel.cuh";
  write_text(kernel.source.file, kernel.source.text);
  kernel.source.text.clear();
  const Manifest manifest = problems({50, 60, 70, 80, 90});
  {
    Process process(directory.path());
    process.of(8).seconds = 0.5e-3;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    REQUIRE(runtime.prepare(manifest).complete());
  }
  Process process(directory.path());
  const bool no_compiler = GENERATE(false, true);
  CAPTURE(no_compiler);
  if (no_compiler) process.options.mode = Mode::lookup_only;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  Opened files({directory.path(), sources.path()});
  const PrepareReport report = runtime.prepare(manifest);
  const std::map<std::string, int> opened = files.take();
  CHECK(report.count(known) == 5);
  CHECK(files_of(opened, ".json") == 5);
  CHECK(most_of(opened, ".json") == 1);
  // Without a compiler the index of keys has looked at the front of each. With one, each instance
  // is made of the source, too: the winner, and the default that is kept.
  CHECK(files_of(opened, ".kiln") == (no_compiler ? 4 : 2));
  CHECK(most_of(opened, ".kiln") == (no_compiler ? 2 : 1));
  CHECK(opened.at("kernel.cuh") <= (no_compiler ? 3 : 5));
}

TEST_CASE("what is in the store is loaded while other binaries are compiled",
          "[runtime][prepare]") {
  const Directory directory;
  tune_into(directory.path(), 50, 8);
  Process process(directory.path());
  KernelDefinition other = doubling();
  other.name = "other";
  other.source.text += "\n";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling()), second = runtime.tuned(other);
  std::atomic<bool> loaded = false;
  process.compiler->on_compile = [&](const codegen::Source&) {
    if (becomes([&] { return process.device->loads > 0; })) loaded = true;
  };
  Manifest manifest = problems({50});
  manifest.wanted.push_back({"other", {}, "generic", {{"n", 50}}, {}});
  const PrepareReport report = runtime.prepare(manifest, {.work = PrepareWork::compile});
  CHECK(states(report) == States{known, untuned});
  CHECK(report.compiled == 1);
  CHECK(loaded);
}

TEST_CASE("a binary that was found for a preparation is not kept for later loads",
          "[runtime][prepare]") {
  const Directory directory;
  tune_into(directory.path(), 50, 8);
  tune_into(directory.path(), 60, 8);
  Process process(directory.path());
  process.options.store.memory_bytes = 0;  // so that only the file holds it
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(states(runtime.prepare(problems({50}))) == States{known});
  write_text(entry_of(directory, "k<8, 0>"), "damaged");
  CHECK(launch(handle, 60));
  CHECK(process.compiler->compiles == 1);
  CHECK(handle.config({60}) == Values{8, 0});
}
