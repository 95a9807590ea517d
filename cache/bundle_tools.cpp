#include <algorithm>
#include <optional>
#include <utility>

#include "cache/bundle.hpp"
#include "cache/record.hpp"
#include "cache/signature.hpp"
#include "cache/store.hpp"
#include "kiln/bundle.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

using cache::Bundle;
using cache::Failure;

[[noreturn]] void raise(const Failure& failure) {
  const std::string text = failure.what + (failure.advice.empty() ? "" : "; " + failure.advice);
  if (failure.code != 0) throw EnvironmentError(text);
  throw UserError(text);
}

template <class T>
T value_or_raise(std::variant<T, Failure> result) {
  if (const auto* failure = std::get_if<Failure>(&result)) raise(*failure);
  return std::get<T>(std::move(result));
}

std::unique_ptr<Bundle> open(const std::filesystem::path& path) {
  return value_or_raise(Bundle::open(path));
}

}  // namespace

BundleInfo bundle_info(const std::filesystem::path& bundle) {
  return value_or_raise(open(bundle)->info());
}

std::vector<StoreEntry> bundle_entries(const std::filesystem::path& bundle) {
  return value_or_raise(open(bundle)->entries());
}

VerifyReport verify_bundle(const std::filesystem::path& bundle,
                           const std::filesystem::path& public_key) {
  std::optional<cache::PublicKey> key;
  if (!public_key.empty()) key = value_or_raise(cache::PublicKey::load(public_key));

  auto opened = Bundle::open(bundle);
  if (const auto* failure = std::get_if<Failure>(&opened)) {
    if (failure->code != 0) raise(*failure);
    VerifyReport report;
    report.problems.push_back({bundle, failure->what});
    return report;
  }
  const auto& whole = std::get<std::unique_ptr<Bundle>>(opened);
  VerifyReport report = whole->verify();
  if (key)
    if (auto failure = whole->distrust(*key)) report.problems.push_back({bundle, failure->what});
  return report;
}

std::size_t extract_bundle(const std::filesystem::path& bundle,
                           const std::filesystem::path& directory) {
  if (directory.empty()) throw UserError("extracting a bundle: the name of the directory is empty");
  const auto opened = open(bundle);
  // All of it or nothing: what is damaged is known before the first entry is written.
  if (const VerifyReport report = opened->verify(); !report.ok())
    throw UserError(bundle.string() + ": " + report.problems.front().reason +
                    "; make the bundle again");

  StoreOptions options;
  options.directory = directory;
  options.memory_bytes = 0;
  options.max_bytes = ~std::uint64_t{0};  // what was there must not be evicted to make room
  cache::Store store(options);
  std::size_t entries = 0;
  const auto failure = opened->each_entry([&](EntryKind kind, cache::StoredEntry entry) {
    if (kind == EntryKind::binary) {
      store.put(entry.key, std::move(entry.payload));
    } else {
      const auto record = cache::parse_record(entry.payload);
      if (!record)
        throw UserError(bundle.string() + ": record " + entry.key.hex() +
                        " is not JSON, or is nested too deeply; make the bundle again");
      store.put_record(entry.key, *record);
    }
    ++entries;
  });
  if (failure) raise(*failure);
  if (const StoreStatistics stats = store.stats(); stats.failed_writes > 0)
    throw EnvironmentError("extracting " + bundle.string() + " to " + directory.string() + ": " +
                           std::to_string(stats.failed_writes) + " of " + std::to_string(entries) +
                           " entries could not be written: " + stats.reason);
  return entries;
}

BundleInfo merge_bundles(std::span<const std::filesystem::path> inputs,
                         const std::filesystem::path& output,
                         const std::filesystem::path& private_key) {
  if (inputs.empty()) throw UserError("merging needs at least one bundle");
  cache::BundleWriter writer;
  std::vector<std::string> makers;
  for (const std::filesystem::path& input : inputs) {
    const auto bundle = open(input);
    const std::string maker = value_or_raise(bundle->info()).made_by;
    if (std::ranges::find(makers, maker) == makers.end()) makers.push_back(maker);
    const auto failure = bundle->each_entry([&](EntryKind kind, cache::StoredEntry entry) {
      writer.add(kind, entry.key, std::move(entry.payload));
    });
    if (failure) raise(*failure);
  }
  std::string made_by;
  for (const std::string& maker : makers) made_by += (made_by.empty() ? "" : ", ") + maker;
  if (const auto failure = writer.write(output, made_by, private_key)) raise(*failure);
  return bundle_info(output);
}

}  // namespace kiln
