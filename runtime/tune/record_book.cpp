#include "runtime/tune/record_book.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "cache/plain_json.hpp"
#include "cache/record.hpp"
#include "cache/substitute.hpp"
#include "kiln/detail/function_core.hpp"
#include "kiln/error.hpp"
#include "kiln/version.hpp"

namespace kiln::runtime {

using detail::Tunable;

namespace {

/// The other kernel whose results are trusted, if there is one.
const KernelDefinition* other_reference(const Tunable& subject) {
  const KernelDefinition* kernel = subject.kernel();
  return kernel && kernel->device_reference ? kernel->device_reference->kernel.get() : nullptr;
}

/// Whether a record's sources are these, as far as these can be read.
bool may_be_of(const Key& key, const SourceDigests& sources) {
  const auto same = [&](const char* field, const std::optional<Digest>& source) {
    return !source || key.value(field) == to_hex(*source);
  };
  return same(codegen::kKernelSourceField, sources.kernel) &&
         same(kReferenceSourceField, sources.reference);
}

}  // namespace

RecordBook::RecordBook(std::shared_ptr<cache::Store> store, std::shared_ptr<Device> device,
                       Builder& builder, bool may_compile)
    : store_(std::move(store)),
      device_(std::move(device)),
      builder_(builder),
      may_compile_(may_compile),
      starting_points_(store_) {}

SourceDigests RecordBook::source_digests_of(const Tunable& subject) {
  SourceDigests sources;
  const auto read = [&](const KernelDefinition* kernel, std::optional<Digest>& digest) {
    auto source = kernel ? builder_.read_source_digest(*kernel) : std::nullopt;
    if (!source) return;
    digest = source->digest;
    if (sources.unfollowed.empty()) sources.unfollowed = std::move(source->unfollowed);
  };
  read(subject.kernel(), sources.kernel);
  read(other_reference(subject), sources.reference);
  return sources;
}

Key RecordBook::key(const Tunable& subject, std::span<const std::int64_t> problem) {
  return record_key(subject, problem, device_->info(), source_digests_of(subject));
}

Digest RecordBook::definition(const Tunable& subject) {
  return definition_digest(subject, source_digests_of(subject));
}

std::vector<Version> RecordBook::versions(const Tunable& subject) {
  const DeviceInfo& device = device_->info();
  std::vector<Version> versions{{"kiln", KILN_VERSION, Version::Rule::ignore}};
  if (may_compile_ && subject.kernel()) try {
      const codegen::CompilerIdentity id = builder_.compiler(device.target.kind).identity();
      versions.push_back(
          {"compiler", id.name + " " + id.version + " " + id.build, Version::Rule::retune});
    } catch (const EnvironmentError&) {
      // Without a compiler no better record can be made.
    }
  for (const KeyField& f : device.software)
    versions.push_back({f.name, f.value, Version::Rule::ignore});
  if (const auto* function = subject.function()) {
    versions.push_back({"device", device.name, Version::Rule::ignore});
    for (const KeyField& f : function->versions)
      versions.push_back({f.name, f.value, Version::Rule::ignore});
  }
  return versions;
}

std::optional<Recall> RecordBook::recall(const Tunable& subject,
                                         std::span<const std::int64_t> problem,
                                         const std::optional<MeasuringPolicy>& asked,
                                         const SourceDigests& sources) {
  const bool own_key = (sources.kernel || subject.function()) &&  // else a source is not readable
                       (sources.reference || !other_reference(subject));
  const Key key = record_key(subject, problem, device_->info(), sources);
  const auto is_final = [&](const Recall& recall) {
    return recall.same_space && recall.result.complete && (!asked || recall.policy == *asked);
  };
  std::optional<Recall> known;
  const auto take = [&](const nlohmann::json& record) {
    known = recall_from(record, subject, problem, device_->info(), versions(subject));
    return known.has_value();
  };
  if (!sources.unfollowed.empty()) {
    const std::lock_guard lock(unkept_mutex_);
    const auto found = unkept_.find(key.digest);
    if (found != unkept_.end()) take(nlohmann::json::parse(found->second));
    return known;
  }
  if (auto record = own_key ? store_->find_record(key, take) : std::nullopt) {
    cache::discard(*record);
    if (is_final(*known)) return known;
  }
  // What was shipped with the program was tuned for it, whatever compiler is here.
  const auto take_shipped = [&](const cache::StoredEntry& entry) {
    const auto record = cache::parse_record(entry.payload);
    if (!record) return false;
    auto found = recall_from(*record, subject, problem, device_->info(), {});
    if (!found) return false;
    const bool ends = is_final(*found);
    if (ends || !known) known = std::move(found);
    return ends;
  };
  const std::function<bool(const Key&)> same_source = [&](const Key& found) {
    return own_key ? found == key : may_be_of(found, sources);
  };
  using Where = cache::Store::Where;
  cache::SubstituteSearch search{.kind = EntryKind::record,
                                 .portable = key.portable,
                                 .where = own_key ? Where::roots : Where::anywhere,
                                 .may_be_of = same_source,
                                 .take = take_shipped};
  if (!own_key)
    search.unread_source = [](const Key& found) {
      return found.value(codegen::kKernelSourceField) + ' ' + found.value(kReferenceSourceField);
    };
  cache::find_substitute(*store_, search);
  return known;
}

std::string RecordBook::why_not_kept(const Tunable& subject) {
  const std::string include = source_digests_of(subject).unfollowed;
  if (include.empty()) return {};
  return "what is found is used by this process alone, because only a compiler can tell which "
         "files the kernel includes: " +
         include;
}

void RecordBook::remember(const Key& key, const Tunable& subject, const TuneResult& result,
                          std::span<const Version> versions, const MeasuringPolicy& policy,
                          bool faulted) {
  nlohmann::json record = record_json(result, subject, versions, device_->info(), policy);
  if (faulted) record[kFaulted] = true;
  if (source_digests_of(subject).unfollowed.empty()) {
    store_->put_record(key, record);
  } else {
    const std::lock_guard lock(unkept_mutex_);
    unkept_.insert_or_assign(key.digest, cache::record_text(record));
  }
  starting_points_.add(key, record);
}

std::vector<Values> RecordBook::in_use(const Tunable& subject) {
  std::vector<Values> configs;
  std::vector<std::string> parameters;
  for (const Parameter& p : subject.space().parameters()) parameters.push_back(p.name);
  store_->each_record([&](const Key& key, const nlohmann::json& record) {
    const auto result = result_in(record, key);
    if (!result || result->kernel != subject.name() || result->types != subject.types() ||
        result->parameters != parameters)
      return;
    configs.push_back(result->winner().config);
    configs.push_back(result->default_candidate().config);
  });
  return configs;
}

std::vector<Values> RecordBook::starting_points(const Tunable& subject,
                                                std::span<const std::int64_t> problem,
                                                std::size_t count) {
  return starting_points_.nearest(subject, problem, device_->info(), count);
}

std::optional<Values> RecordBook::nearest_winner(const Tunable& subject,
                                                 std::span<const std::int64_t> problem) {
  return starting_points_.nearest_winner(subject, problem, device_->info(), key(subject, problem));
}

std::vector<Evidence> RecordBook::evidence(const Tunable& subject,
                                           std::span<const std::int64_t> problem,
                                           std::size_t count) {
  return starting_points_.evidence(subject, problem, device_->info(), key(subject, problem), count);
}

}  // namespace kiln::runtime
