// Where results are: stores, bundles, files.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/bundle.hpp"
#include "cache/bundle_layout.hpp"
#include "cache/record.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/report/reported.hpp"
#include "runtime/report/results_json.hpp"
#include "runtime/tune/record.hpp"

namespace kiln::runtime {

namespace {

namespace fs = std::filesystem;
using detail::format;
using nlohmann::json;

constexpr const char* kOtherVersion = "it is a record of another version of Kiln";

/// Finds what it is told to and says where it was found.
class Reading {
 public:
  Reading(const std::function<void(Reported)>& found,
          const std::function<void(Report::PassedOver)>& passed_over)
      : found_(found), passed_over_(passed_over) {}

  /// False: it cannot be opened, and errno tells why.
  bool file(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    if (!in) return false;
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (in.bad()) return passed_over_({path, "the disk failed to read it"}), true;
    std::error_code ignored;
    const auto written = fs::last_write_time(path, ignored);
    // What the command prints is nested no deeper than a record's file.
    const auto parsed = cache::parse_record(text, cache::kFrameDepth);
    if (!parsed) {
      passed_over_({path, text.empty() ? "it is empty"
                                       : "it is not JSON, or cut off, or nested too deeply"});
    } else if (parsed->is_object() && parsed->value("format", json()) == "kiln record") {
      const cache::DecodedRecord decoded = cache::decode_record(text);
      if (decoded.status == cache::DecodeStatus::valid)
        record(decoded.key, decoded.record, path, written);
      else
        passed_over_({path, decoded.status == cache::DecodeStatus::damaged
                                ? "the record is damaged: " + decoded.why
                                : kOtherVersion});
    } else {
      each_printed_result(
          *parsed, [&](Reported reported) { tell(std::move(reported), path, written); },
          [&](const std::string& why) { passed_over_({path, why}); });
    }
    return true;
  }

  /// Of a store only the records, since a folder above may hold anything. Files that appear or
  /// vanish meanwhile are met or not; temporary ones are no JSON files by name.
  void folder(const fs::path& path) const {
    std::error_code error;
    const fs::path records = path / "v1" / "records";
    const bool store = fs::is_directory(records, error);
    error = below(store ? records : path);
    if (error)
      throw EnvironmentError(format("{} cannot be read: {}", path.string(), error.message()));
  }

  void bundle(const fs::path& path) const {
    const auto opened = cache::Bundle::open(path);
    if (const auto* failure = std::get_if<cache::Failure>(&opened))
      return passed_over_({path, failure->what});
    std::error_code ignored;
    const auto written = fs::last_write_time(path, ignored);
    const auto failure = std::get<0>(opened)->each_entry([&](EntryKind kind, auto entry) {
      if (kind != EntryKind::record) return;
      if (const auto parsed = cache::parse_record(entry.payload))
        record(entry.key, *parsed, path, written);
      else
        passed_over_({path, "one of its records is not JSON, or nested too deeply"});
    });
    if (failure) passed_over_({path, failure->what});
  }

 private:
  /// What a folder has, and those in it. An error: it cannot be opened.
  std::error_code below(const fs::path& path) const {
    std::error_code error;
    std::vector<fs::directory_entry> entries;
    fs::directory_iterator at(path, error), end;
    if (error) return error;
    for (; !error && at != end; at.increment(error)) entries.push_back(*at);
    if (error) passed_over_({path, "it could not be read to its end: " + error.message()});
    std::sort(entries.begin(), entries.end());  // else in the disk's order
    for (const fs::directory_entry& each : entries) one(each);
    return {};
  }

  void one(const fs::directory_entry& entry) const {
    std::error_code error, ignored;
    const fs::path& path = entry.path();
    if (!entry.is_directory(ignored)) {
      if (path.extension() == ".json" && entry.is_regular_file(ignored) && !file(path))
        error.assign(errno, std::generic_category());
    } else if (entry.is_symlink(ignored)) {  // it may lead to where it is
      return passed_over_({path, "it is a link to a folder, and those are not followed"});
    } else {
      error = below(path);
    }
    if (error && error != std::errc::no_such_file_or_directory)
      passed_over_({path, error.message()});
  }

  void record(const Key& key, const json& record, const fs::path& path,
              fs::file_time_type written) const {
    auto result = result_in(record, key);
    if (!result) return passed_over_({path, kOtherVersion});
    Reported reported{.result = *std::move(result)};
    constexpr std::string_view kDevice = "device.";
    for (const KeyField& field : key.fields)
      if (field.name.starts_with(kDevice))
        reported.hardware.push_back({field.name.substr(kDevice.size()), field.value});
    tell(std::move(reported), path, written);
  }

  void tell(Reported reported, const fs::path& path, fs::file_time_type written) const {
    reported.source = path.string();
    reported.written = written;
    found_(std::move(reported));
  }

  const std::function<void(Reported)>& found_;
  const std::function<void(Report::PassedOver)>& passed_over_;
};

bool begins_like_a_bundle(const fs::path& path) {
  std::string front(cache::kBundleMagic.size(), '\0');
  std::ifstream in(path, std::ios::binary);
  return in.read(front.data(), static_cast<std::streamsize>(front.size())) &&
         front == cache::kBundleMagic;
}

}  // namespace

void read_reported(const fs::path& path, const std::function<void(Reported)>& found,
                   const std::function<void(Report::PassedOver)>& passed_over) {
  const Reading reading(found, passed_over);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return reading.folder(path);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw EnvironmentError(format("{} is neither a file nor a folder", path.string()));
  if (begins_like_a_bundle(path)) return reading.bundle(path);
  if (!reading.file(path))
    throw EnvironmentError(format("{} cannot be read: {}", path.string(), std::strerror(errno)));
}

}  // namespace kiln::runtime
