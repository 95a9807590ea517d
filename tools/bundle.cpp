#include "kiln/bundle.hpp"

#include <memory>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "tools/commands.hpp"
#include "tools/entries.hpp"
#include "tools/output.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

struct BundleRequest {
  std::vector<std::string> files;
  std::string output, key;
  bool entries = false;
};

/// One file's object as it is, several as a list.
void print_list(const BundleRequest& request, const json& list) {
  print_json(request.files.size() == 1 ? list[0] : list);
}

int show(const Context& context, const BundleRequest& request) {
  json list = json::array();
  for (const std::string& file : request.files) {
    const BundleInfo info = bundle_info(file);
    if (context.json)
      list.push_back(to_json(info));
    else
      print(describe(info));
    if (!request.entries) continue;
    json entries = json::array();
    for (const StoreEntry& entry : bundle_entries(file)) {
      if (context.json)
        entries.push_back(to_json(entry));
      else
        print("  " + describe(entry));
    }
    if (context.json) list.back()["entries"] = std::move(entries);
  }
  if (context.json) print_list(request, list);
  return kDone;
}

int verify(const Context& context, const BundleRequest& request) {
  const std::filesystem::path key =
      request.key.empty() ? context.store.bundle_key : std::filesystem::path(request.key);
  json list = json::array();
  bool whole = true;
  for (const std::string& file : request.files) {
    const VerifyReport report = verify_bundle(file, key);
    whole = whole && report.ok();
    if (context.json) {
      list.push_back(to_json(report));
      list.back()["path"] = file;
      list.back()["signature_checked"] = !key.empty();
      continue;
    }
    for (const auto& p : report.problems)
      print(format("damaged: {}: {}\n", p.path.string(), p.reason));
    print(format("{}: {} entries checked, {} problems; the signature was {}checked\n", file,
                 report.checked, report.problems.size(), key.empty() ? "not " : ""));
  }
  if (context.json) print_list(request, list);
  return whole ? kDone : kEnvironmentError;
}

int extract(const Context& context, const BundleRequest& request) {
  std::size_t entries = 0;
  for (const std::string& file : request.files) entries += extract_bundle(file, request.output);
  if (context.json)
    print_json(json{{"directory", request.output}, {"entries", entries}});
  else
    print(format("{} entries into {}\n", entries, request.output));
  return kDone;
}

int merge(const Context& context, const BundleRequest& request) {
  const std::vector<std::filesystem::path> inputs(request.files.begin(), request.files.end());
  const BundleInfo info = merge_bundles(inputs, request.output, request.key);
  if (context.json)
    print_json(to_json(info));
  else
    print(describe(info));
  return kDone;
}

int sign(const Context& context, BundleRequest request) {
  if (request.output.empty()) request.output = request.files[0];
  return merge(context, request);
}

}  // namespace

void add_bundle(CLI::App& app, Context& context) {
  auto* bundle = app.add_subcommand("bundle", "Inspect, check, merge, extract and sign bundles");
  bundle->require_subcommand(1);
  auto add = [&](const char* name, const char* help, auto options, auto function) {
    auto* command = bundle->add_subcommand(name, help);
    const auto request = std::make_shared<BundleRequest>();
    auto* files = command->add_option("file", request->files, "Bundles")->required();
    options(*command, *request, *files);
    command->add_flag("--json", context.json, "Print JSON");
    command->callback([&context, request, function] {
      context.run = [&context, request, function] { return function(context, *request); };
    });
  };
  using Command = CLI::App;
  using Files = CLI::Option;
  add(
      "show", "Show what they contain, by kernel and target",
      [](Command& c, BundleRequest& r, Files&) {
        c.add_flag("--entries", r.entries, "List every entry as well");
      },
      show);
  add(
      "verify", "Read all of them; exit code 2 if anything is damaged or not signed by the key",
      [](Command& c, BundleRequest& r, Files&) {
        c.add_option("--public-key", r.key,
                     "PEM file of the Ed25519 key that must have signed them (default: "
                     "--bundle-key; none: signatures are not checked)");
      },
      verify);
  add(
      "extract", "Copy their entries into a cache directory",
      [](Command& c, BundleRequest& r, Files&) {
        c.add_option("-o,--output", r.output, "The directory")->required();
      },
      extract);
  add(
      "merge",
      "Write one bundle with the entries of several; where entries are equal, the first file's is "
      "kept",
      [](Command& c, BundleRequest& r, Files&) {
        c.add_option("-o,--output", r.output, "The file, replaced as a whole")->required();
        c.add_option("--sign", r.key, "PEM file of an Ed25519 private key; none: not signed");
      },
      merge);
  add(
      "sign", "Sign a bundle",
      [](Command& c, BundleRequest& r, Files& files) {
        files.expected(1);
        c.add_option("--key", r.key, "PEM file of an Ed25519 private key")->required();
        c.add_option("-o,--output", r.output, "Default: the bundle itself, replaced as a whole");
      },
      sign);
}

}  // namespace kiln::tools
