#include "kiln/manifest.hpp"

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <span>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "cache/atomic_file.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "kiln manifest";
constexpr int kVersion = 1;

std::map<std::string, std::int64_t> integers(const json& object, const char* name) {
  std::map<std::string, std::int64_t> values;
  if (!object.is_object()) throw UserError(detail::format("`{}` is not an object", name));
  for (const auto& [field, value] : object.items()) {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      throw UserError(detail::format("`{}.{}` is not an integer", name, field));
    values[field] = value;
  }
  return values;
}

WantedInstance instance_from(const json& item) {
  WantedInstance wanted;
  if (!item.is_object()) throw UserError("it is not an object");
  const auto text = [&](const char* name) {
    const auto field = item.find(name);
    if (field == item.end() || !field->is_string())
      throw UserError(detail::format("`{}` is not a string", name));
    return field->get<std::string>();
  };
  wanted.is_choice = item.contains("choice");
  if (wanted.is_choice && item.contains("kernel"))
    throw UserError("it has both `kernel` and `choice`");
  wanted.kernel = text(wanted.is_choice ? "choice" : "kernel");
  wanted.target = text("target");
  const auto types = item.find("types");
  if (types == item.end() || !types->is_array()) throw UserError("`types` is not a list");
  for (const json& type : *types) {
    if (!type.is_string()) throw UserError("`types` holds something that is not a string");
    wanted.types.push_back(type);
  }
  wanted.problem = integers(item.value("problem", json()), "problem");
  if (item.contains("config") && wanted.is_choice) throw UserError("a choice has no `config`");
  if (item.contains("config")) wanted.config = integers(item["config"], "config");
  if (const auto launches = item.find("launches"); launches != item.end()) {
    if (!launches->is_number_unsigned()) throw UserError("`launches` is no number of launches");
    wanted.launches = *launches;
  }
  return wanted;
}

}  // namespace

Manifest Manifest::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::error_code error;
  if (!in || std::filesystem::is_directory(file, error))  // which opens, too
    throw UserError(detail::format("manifest {} cannot be read", file.string()));
  // What lies deeper is dropped unread: the library recurses when such values are copied.
  constexpr int kDepth = 16;
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth < kDepth; };
  const json document = json::parse(in, shallow, false);
  if (!document.is_object() || document.value("format", json()) != kFormat)
    throw UserError(detail::format("{} is not a Kiln manifest", file.string()));
  if (document.value("version", json()) != kVersion)
    throw UserError(
        detail::format("{} is a manifest whose version is not {}", file.string(), kVersion));
  const json list = document.value("wanted", json());
  if (!list.is_array())
    throw UserError(detail::format("manifest {}: `wanted` is not a list", file.string()));
  Manifest manifest;
  for (std::size_t i = 0; i < list.size(); ++i) try {
      manifest.wanted.push_back(instance_from(list[i]));
    } catch (const UserError& problem) {
      throw UserError(
          detail::format("manifest {}, entry {}: {}", file.string(), i, problem.what()));
    }
  return manifest;
}

void Manifest::write(const std::filesystem::path& file) const {
  json list = json::array();
  for (const WantedInstance& w : wanted) {
    json item{{w.is_choice ? "choice" : "kernel", w.kernel},
              {"types", w.types},
              {"target", w.target},
              {"problem", w.problem}};
    if (!w.config.empty()) item["config"] = w.config;
    if (w.launches > 0) item["launches"] = w.launches;
    list.push_back(std::move(item));
  }
  const json document{{"format", kFormat}, {"version", kVersion}, {"wanted", list}};
  const std::string text = document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const auto folder = file.has_parent_path() ? file.parent_path() : ".";
  const cache::UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw EnvironmentError(cache::call_failure("open", folder.string(), errno).what);
  cache::FileSystem system;
  cache::AtomicFile out(system, directory.get(), file.filename().string());
  if (!out.write(std::as_bytes(std::span(text))) || !out.commit())
    throw EnvironmentError(detail::format("manifest {}: {}; {}", file.string(), out.failure().what,
                                          out.failure().advice));
}

}  // namespace kiln
