#include "runtime/tune/record_book.hpp"

#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/error.hpp"
#include "kiln/version.hpp"

namespace kiln::runtime {

RecordBook::RecordBook(std::shared_ptr<cache::Store> store, std::shared_ptr<Device> device,
                       Builder& builder, bool may_compile)
    : store_(std::move(store)),
      device_(std::move(device)),
      builder_(builder),
      may_compile_(may_compile),
      starting_points_(store_) {}

Key RecordBook::key(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                    const std::optional<Digest>& source) const {
  return record_key(kernel, problem, device_->info(), source);
}

Key RecordBook::key(const KernelDefinition& kernel, std::span<const std::int64_t> problem) {
  return key(kernel, problem, builder_.kernel_source(kernel));
}

std::vector<Version> RecordBook::versions() {
  std::vector<Version> versions{{"kiln", KILN_VERSION, Version::Rule::ignore}};
  if (may_compile_) try {
      const codegen::CompilerIdentity id =
          builder_.compiler(device_->info().target.kind).identity();
      versions.push_back(
          {"compiler", id.name + " " + id.version + " " + id.build, Version::Rule::retune});
    } catch (const EnvironmentError&) {
      // Without a compiler there is no better record to be had.
    }
  for (const KeyField& f : device_->info().software)
    versions.push_back({f.name, f.value, Version::Rule::ignore});
  return versions;
}

std::optional<Recall> RecordBook::recall(const KernelDefinition& kernel,
                                         std::span<const std::int64_t> problem) {
  const auto source = builder_.kernel_source(kernel);
  const Key key = this->key(kernel, problem, source);
  if (source)
    if (const auto record = store_->find_record(key))
      if (auto known = from_json(*record, kernel, problem, device_->info(), versions()))
        return known;
  // What was shipped with the program was tuned for it, whatever compiler is here.
  const auto same_source = [&](const Key& found) { return !source || found == key; };
  if (const auto found =
          store_->find_portable(EntryKind::record, key.portable, !source, same_source)) {
    const auto text = found->payload.view();
    const auto record = nlohmann::json::parse(
        std::string_view(reinterpret_cast<const char*>(text.data()), text.size()), nullptr, false);
    return from_json(record, kernel, problem, device_->info(), {});
  }
  return {};
}

void RecordBook::remember(const Key& key, const KernelDefinition& kernel, const TuneResult& result,
                          std::span<const Version> versions) {
  const nlohmann::json record = to_json(result, kernel, versions);
  store_->put_record(key, record);
  starting_points_.add(key, record);
}

std::vector<Values> RecordBook::starting_points(const KernelDefinition& kernel,
                                                std::span<const std::int64_t> problem,
                                                std::size_t count) {
  return starting_points_.nearest(kernel, problem, device_->info(), count);
}

}  // namespace kiln::runtime
