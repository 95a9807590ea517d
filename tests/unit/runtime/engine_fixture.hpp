// Runtimes on a fake device that share a directory, as processes one after the other would.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fake_kernel.hpp"
#include "kiln/runtime.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {

namespace fs = std::filesystem;

class Directory : public TemporaryDirectory {
 public:
  /// The files of Kiln's entries with this extension (`.kiln`, `.json`).
  std::vector<fs::path> entries(const std::string& extension) const {
    std::vector<fs::path> found;
    for (const auto& item : fs::recursive_directory_iterator(path()))
      if (item.path().extension() == extension) found.push_back(item.path());
    return found;
  }
};

/// One process: a device, a compiler, and a Runtime on `directory`.
struct Process {
  std::shared_ptr<Script> script = std::make_shared<Script>();
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>(script);
  std::shared_ptr<FakeCompiler> compiler = std::make_shared<FakeCompiler>(script);
  RuntimeOptions options;

  explicit Process(const fs::path& directory) {
    options.store.directory = directory;
    options.compile_threads = 2;
    options.log = [this](LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      if (level == LogLevel::warning) warnings_.emplace_back(text);
    };
    device->compute = compute_doubling;
  }

  Behaviour& of(int a, int b = 0) {
    return (*script)["k<" + std::to_string(a) + ", " + std::to_string(b) + ">"];
  }
  Runtime runtime() {
    return detail::Access::runtime(
        runtime::make_engine(options, device, [this](Target::Kind) { return compiler; }));
  }
  std::vector<std::string> warnings() const {
    std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
};

}  // namespace kiln::test
