// A folder of files for one test, removed at its end.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

#include "temporary_directory.hpp"

class Scratch {
 public:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    kiln::test::write_text(path(name), text);
  }

  // Makes a file look as if written long ago, so that caches trust its times.
  void age(const std::string& name, int seconds = 100) const {
    std::filesystem::last_write_time(
        path(name), std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }

  void remove(const std::string& name) const { std::filesystem::remove(path(name)); }

 private:
  const kiln::test::TemporaryDirectory folder_;
};
