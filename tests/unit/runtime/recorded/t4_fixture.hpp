// Small T4 files, made by the tests.
#pragma once

#include <string>
#include <vector>

#include <zlib.h>

#include "kiln/recorded.hpp"
#include "unit/runtime/engine_fixture.hpp"

namespace kiln::test {

/// One entry: its configuration as JSON, and everything after it.
inline std::string t4_entry(const std::string& configuration, const std::string& runtimes,
                            const std::string& invalidity = "correct",
                            const std::string& compilation = "100") {
  return R"({"configuration":)" + configuration + R"(,"times":{"compilation":)" + compilation +
         R"(,"runtimes":[)" + runtimes + R"(]},"invalidity":")" + invalidity +
         R"(","correctness":1,"measurements":[{"name":"time","value":7,"unit":"ms"}]})";
}

inline std::string t4(const std::vector<std::string>& entries,
                      const std::string& metadata = R"({"timeunit":"miliseconds"})") {
  std::string list;
  for (const std::string& e : entries) list += (list.empty() ? "" : ",\n") + e;
  return R"({"schema_version":"1.0.0","metadata":)" + metadata + R"(,"results":[)" + list + "]}";
}

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// Spaces in files of their own.
class T4Files {
 public:
  fs::path write(const std::string& content, const std::string& name = "space.t4.json") const {
    write_text(directory_.path() / name, content);
    return directory_.path() / name;
  }
  RecordedSpace read(const std::string& content) const { return RecordedSpace(write(content)); }
  /// What refusing it says; empty when it is read.
  std::string refusal(const std::string& content) const {
    try {
      read(content);
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  }
  const fs::path& path() const { return directory_.path(); }

 private:
  Directory directory_;
};

/// block 16..128 by items 1..8: 16 configs. Time 1 ms at block=64, items=4, more with each step
/// away from it, +-1 % noise; block=128 does not compile with items=8 and fails to run with
/// items=1.
inline std::string bowl() {
  std::vector<std::string> entries;
  const int blocks[] = {16, 32, 64, 128}, items[] = {1, 2, 4, 8};
  for (int b = 0; b < 4; ++b)
    for (int i = 0; i < 4; ++i) {
      const double ms = 1 + (b - 2) * (b - 2) + 0.5 * (i - 2) * (i - 2);
      const char* word = b == 3 && i == 3 ? "compile" : b == 3 && i == 0 ? "runtime" : "correct";
      std::string runtimes;
      for (double noise : {0.99, 1.0, 1.01})
        runtimes.append(runtimes.empty() ? "" : ",").append(std::to_string(ms * noise));
      std::string config = "{\"block\":";
      config.append(std::to_string(blocks[b]))
          .append(",\"items\":")
          .append(std::to_string(items[i]));
      config += ",\"fixed\":15}";
      entries.push_back(t4_entry(config, std::string(word) == "correct" ? runtimes : "", word));
    }
  return t4(entries);
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kiln::test
