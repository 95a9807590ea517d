#include "runtime/worker/messages.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/version.hpp"

namespace kiln::runtime {

namespace {

constexpr int kProtocol = 4;

/// What an argument is, apart from its bytes.
struct ArgumentShape {
  DataType type;
  Direction direction;
  bool pointer, zeroed;
  std::uint64_t count, element_bytes, bytes, leading, columns;
};

/// Elements of a list. @throws BrokenFrame when there cannot be as many
std::uint64_t get_count(FieldReader& fields) {
  const std::uint64_t count = fields.integer();
  if (count > kMostPayload / 8) throw BrokenFrame("a list that is too long");
  return count;
}

template <class T>
void put_list(FieldWriter& fields, const std::vector<T>& list) {
  fields.integer(list.size());
  for (const T& each : list) put(fields, each);
}
template <class T>
std::vector<T> get_list(FieldReader& fields) {
  std::vector<T> list;
  for (std::uint64_t left = get_count(fields); left > 0; --left) list.push_back(get<T>(fields));
  return list;
}

void put_argument(FieldWriter& fields, const Workload::Argument& a, std::uint64_t bytes) {
  put(fields, ArgumentShape{a.type, a.direction, a.pointer, a.zeroed, a.count, a.element_bytes,
                            bytes, a.leading, a.columns});
}

Workload::Argument get_argument(FieldReader& fields) {
  const auto shape = get<ArgumentShape>(fields);
  Workload::Argument a{shape.type,   shape.direction,     shape.pointer,
                       shape.count,  shape.element_bytes, {},
                       shape.zeroed, shape.leading,       shape.columns};
  a.bytes.resize(shape.bytes);
  return a;
}

void put_plan(FieldWriter& fields, const detail::LaunchPlan& plan) {
  put(fields, plan.launch);
  put_list(fields, plan.maps);
  fields.integer(plan.workspace ? 1 : 0);
  put(fields, plan.workspace.value_or(WorkspaceSize{}));
  put_list(fields, plan.steps);
  fields.texts(plan.step_names);
}

detail::LaunchPlan get_plan(FieldReader& fields) {
  detail::LaunchPlan plan;
  plan.launch = get<Launch>(fields);
  plan.maps = get_list<detail::PlannedMap>(fields);
  const bool has_workspace = fields.integer() != 0;
  const auto workspace = get<WorkspaceSize>(fields);
  if (has_workspace) plan.workspace = workspace;
  plan.steps = get_list<Launch>(fields);
  plan.step_names = fields.texts();
  return plan;
}

void put_variables(FieldWriter& fields, const std::vector<VariableData>& variables) {
  fields.integer(variables.size());
  for (const VariableData& variable : variables) fields.text(variable.name).bytes(variable.bytes);
}

std::vector<VariableData> get_variables(FieldReader& fields) {
  std::vector<VariableData> variables;
  for (std::uint64_t left = get_count(fields); left > 0; --left) {
    VariableData& variable = variables.emplace_back();
    variable.name = fields.text();
    const auto bytes = fields.bytes();
    variable.bytes.assign(bytes.begin(), bytes.end());
  }
  return variables;
}

}  // namespace

std::string worker_identity() {
  return detail::format("kiln {}, protocol {}, {} {} {} {} {}", KILN_VERSION, kProtocol,
                        sizeof(Launch), sizeof(detail::PlannedMap), sizeof(WorkspaceSize),
                        sizeof(ArgumentShape), sizeof(Tolerance));
}

std::vector<std::byte> WorkerSetup::pack() const {
  FieldWriter fields;
  fields.integer(device.host ? 1 : 0).text(device.place);
  put(fields, device.reserved_multiprocessors);
  fields.integer(device.reserve_bytes);
  fields.integer(expects ? 1 : 0).integer(checks ? 1 : 0).integer(draws.size());
  for (std::size_t draw = 0; draw < draws.size(); ++draw) {
    const TrialData& trial = *draws[draw].trial;
    fields.text(trial.subject);
    put(fields, trial.tolerance);
    put(fields, trial.weight);
    fields.integer(trial.expected_known ? 1 : 0).integer(trial.arguments.size());
    for (std::size_t i = 0; i < trial.arguments.size(); ++i) {
      const Workload::Argument& a = trial.arguments[i];
      put_argument(fields, a, a.count * a.element_bytes);
      put(fields, places[draw][i]);
    }
  }
  fields.integer(in_step ? 1 : 0);
  put_list(fields, groups);
  return fields.finish();
}

WorkerSetup WorkerSetup::unpack(std::span<const std::byte> bytes) {
  FieldReader fields(bytes);
  WorkerSetup setup;
  setup.device.host = fields.integer() != 0;
  setup.device.place = fields.text();
  setup.device.reserved_multiprocessors = get<int>(fields);
  setup.device.reserve_bytes = fields.integer();
  setup.expects = fields.integer() != 0;
  setup.checks = fields.integer() != 0;
  for (std::uint64_t left = get_count(fields); left > 0; --left) {
    auto& places = setup.places.emplace_back();
    TrialData& trial = *(setup.draws.emplace_back().trial = std::make_shared<TrialData>());
    trial.subject = fields.text();
    trial.tolerance = get<Tolerance>(fields);
    trial.weight = get<double>(fields);
    trial.expected_known = fields.integer() != 0;
    for (std::uint64_t more = get_count(fields); more > 0; --more) {
      trial.arguments.push_back(get_argument(fields));
      places.push_back(get<ArgumentPlace>(fields));
    }
  }
  setup.in_step = fields.integer() != 0;
  setup.groups = get_list<PeerShape>(fields);
  fields.finish();
  if (setup.draws.empty()) throw BrokenFrame("a problem without data");
  return setup;
}

std::vector<std::byte> WorkerGreeting::pack() const {
  return FieldWriter()
      .text(obstacle)
      .integer(passes ? 1 : 0)
      .text(identity)
      .integer(shares_cpu ? 1 : 0)
      .finish();
}

WorkerGreeting WorkerGreeting::unpack(std::span<const std::byte> bytes) {
  FieldReader fields(bytes);
  WorkerGreeting greeting;
  greeting.obstacle = fields.text();
  greeting.passes = fields.integer() != 0;
  greeting.identity = fields.text();
  greeting.shares_cpu = fields.integer() != 0;
  fields.finish();
  return greeting;
}

WorkerGreeting WorkerGreeting::heard(std::span<const std::byte> bytes,
                                     const std::string& executable) {
  WorkerGreeting useless;
  try {
    WorkerGreeting greeting = unpack(bytes);
    if (greeting.identity == worker_identity()) return greeting;
    // Whatever else it says may mean something else.
    useless.obstacle = executable + " is of another build: " + greeting.identity;
  } catch (const BrokenFrame& broken) {
    useless.obstacle = std::string("its greeting is ") + broken.what();
  }
  return useless;
}

void put_trial(FieldWriter& fields, const Trial& trial) {
  if (const auto* called = std::get_if<Implementation>(&trial.code)) {
    fields.integer(1).text(called->name).integer(called->recordable ? 1 : 0);
    fields.text(called->numerics);
  } else {
    const auto& binary = *std::get<std::shared_ptr<const codegen::Binary>>(trial.code);
    fields.integer(0).bytes(codegen::serialize(binary));
  }
  put_list(fields, trial.config);
  fields.text(trial.text);
  put_plan(fields, trial.plan);
  put_variables(fields, trial.variables);
  fields.integer(trial.further.size());
  for (const Trial::Draw& draw : trial.further) put_variables(fields, draw.variables);
}

namespace {

Implementation get_implementation(FieldReader& fields) {
  Implementation called;
  called.name = fields.text();
  called.recordable = fields.integer() != 0;
  called.numerics = fields.text();
  return called;
}

std::shared_ptr<const codegen::Binary> get_binary(FieldReader& fields) {
  const auto bytes = fields.bytes();
  auto binary = codegen::parse_binary(std::vector<std::byte>(bytes.begin(), bytes.end()));
  if (!binary) throw BrokenFrame("a binary that is damaged");
  return std::make_shared<const codegen::Binary>(*std::move(binary));
}

}  // namespace

Trial get_trial(FieldReader& fields) {
  Trial trial;
  if (fields.integer() != 0)
    trial.code = get_implementation(fields);
  else
    trial.code = get_binary(fields);
  trial.config = get_list<std::int64_t>(fields);
  trial.text = fields.text();
  trial.plan = get_plan(fields);
  trial.variables = get_variables(fields);
  for (std::uint64_t left = get_count(fields); left > 0; --left)
    trial.further.push_back({get_variables(fields), nullptr});
  return trial;
}

void put_verdict(FieldWriter& fields, const Verdict& verdict) {
  fields.integer(verdict.right ? 1 : 0);
  put(fields, verdict.max_error);
  put(fields, verdict.norm_error);
  fields.text(verdict.why);
}

Verdict get_verdict(FieldReader& fields) {
  Verdict verdict;
  verdict.right = fields.integer() != 0;
  verdict.max_error = get<double>(fields);
  verdict.norm_error = get<double>(fields);
  verdict.why = fields.text();
  return verdict;
}

}  // namespace kiln::runtime
