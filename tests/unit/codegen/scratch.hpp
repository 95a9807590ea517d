// A folder of files for one test, removed at its end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <sys/stat.h>

class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kiln-test-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const { return (root_ / name).string(); }

  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }

  // As if written long ago, so that caches trust the file's times.
  void age(const std::string& name, int seconds = 100) const {
    std::filesystem::last_write_time(root_ / name, std::filesystem::file_time_type::clock::now() -
                                                       std::chrono::seconds(seconds));
  }

  void remove(const std::string& name) const { std::filesystem::remove(root_ / name); }

 private:
  std::filesystem::path root_;
};
