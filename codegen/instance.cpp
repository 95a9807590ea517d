#include "codegen/instance.hpp"

#include <fstream>
#include <iterator>
#include <utility>

#include "codegen/entry_names.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/paths.hpp"
#include "kiln/version.hpp"

namespace kiln::codegen {

using kiln::detail::format;

namespace {

/// Raised when the key's meaning changes: other fields, or other rules for them.
constexpr std::int64_t kBinarySchema = 4;

std::string template_text(const KernelDefinition& kernel) {
  if (kernel.source.file.empty()) return kernel.source.text;
  std::error_code error;
  std::ifstream in(kernel.source.file, std::ios::binary);
  if (!in || std::filesystem::is_directory(kernel.source.file, error))  // which opens, too
    throw UserError(format("kernel {}: the template {} cannot be read", kernel.name,
                           kernel.source.file.string()));
  std::string text;
  for (char part[1 << 14]; in.read(part, sizeof part), in.gcount() > 0;)
    text.append(part, static_cast<std::size_t>(in.gcount()));
  return text;
}

std::string literal(const Parameter& parameter, const std::string& type_of, std::int64_t value) {
  switch (parameter.kind) {
    case FieldKind::boolean:
      return value ? "true" : "false";
    case FieldKind::enumeration:
      if (!type_of.empty()) return format("static_cast<decltype({})>({})", type_of, value);
      break;
    case FieldKind::integer:
      break;
  }
  return std::to_string(value);
}

std::string entry_expression(const KernelDefinition& kernel, const std::string& entry,
                             std::span<const std::int64_t> config) {
  std::string arguments;
  const auto& parameters = kernel.space.parameters();
  auto append = [&](const std::string& text) {
    arguments += (arguments.empty() ? "" : ", ") + text;
  };
  if (kernel.passing == Passing::config_struct) {
    std::string fields;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      fields += format("{}.{}={}", i ? ", " : "", p.name,
                       literal(p, kernel.config_type + "::" + p.name, config[i]));
    }
    append(format("{}{{{}}}", kernel.config_type, fields));
  } else if (kernel.passing == Passing::template_arguments) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      append(literal(parameters[i], "", config[i]));
  }
  for (const std::string& type : kernel.types) append(type);
  return arguments.empty() ? entry : format("{}<{}>", entry, arguments);
}

/// Parameters that reach the source as definitions before it, a line each.
std::vector<std::string> definitions(const KernelDefinition& kernel,
                                     std::span<const std::int64_t> config) {
  std::vector<std::string> lines;
  const auto& parameters = kernel.space.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const std::string value = literal(p, "", config[i]);
    const char* type = p.kind == FieldKind::boolean    ? "bool"
                       : std::in_range<int>(config[i]) ? "int"
                                                       : "long long";
    if (kernel.passing == Passing::constants)
      lines.push_back(format("constexpr {} {} = {};", type, p.name, value));
    else if (kernel.passing == Passing::macros)
      lines.push_back(format("#define {} {}", p.name, config[i] < 0 ? "(" + value + ")" : value));
  }
  return lines;
}

/// Goes behind the source. A macro with a parameter's name that the source defines replaces what is
/// passed, so that all configs would be the same code. Only the preprocessor knows for certain.
std::string check_of_macros(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  std::string text;
  const auto& parameters = kernel.space.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    if (kernel.passing == Passing::constants)
      text += format(
          "#ifdef {0}\n#error the source defines the macro {0}, which hides the constant that "
          "is passed: pass the parameters as macros (Passing::macros)\n#endif\n",
          name);
    else if (kernel.passing == Passing::macros)
      text += format(
          "#if defined({0}) && {0} != ({1})\n#error the source defines the macro {0} anew, "
          "whatever is passed: let it do so only `#ifndef {0}`\n#endif\n",
          name, literal(parameters[i], "", config[i]));
  }
  return text.empty() ? text : "\n#line 1 \"parameters of " + kernel.name + "\"\n" + text;
}

}  // namespace

DynamicSpace space_of_one(const DynamicSpace& space, std::span<const std::int64_t> config) {
  DynamicSpace one;
  const auto& parameters = space.parameters();
  for (std::size_t i = 0; i < config.size(); ++i) {
    const Parameter& p = parameters[i];
    std::vector<std::string> names;
    if (!p.names.empty()) names.push_back(p.show(config[i]));
    one.parameter(p.name, {config[i]}, config[i], p.kind, std::move(names));
  }
  return one;
}

KernelDefinition definition_of_one(const KernelDefinition& kernel,
                                   std::span<const std::int64_t> config) {
  KernelDefinition one;
  one.name = kernel.name;
  one.source = kernel.source;
  one.entry = kernel.entry;
  one.passing = kernel.passing;
  one.config_type = kernel.config_type;
  one.types = kernel.types;
  one.arguments = kernel.arguments;
  one.space = space_of_one(kernel.space, config);
  for (const MapRule& rule : kernel.maps)
    if (rule.applies(config)) one.maps.push_back({.argument = rule.argument});
  if (kernel.workspace.applies(config))
    one.workspace.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{}; };
  for (const KernelStep& step : kernel.steps)
    if (step.applies(config)) one.steps.push_back({.entry = step.entry});
  return one;
}

std::string describe_instance(const KernelDefinition& kernel,
                              std::span<const std::int64_t> config) {
  std::string types;
  for (const std::string& type : kernel.types) types += (types.empty() ? "" : ", ") + type;
  return kernel.name + (types.empty() ? "" : "<" + types + ">") + "{" +
         kernel.space.describe(config) + "}";
}

namespace {

std::vector<std::string> own_folders(const KernelDefinition& kernel) {
  std::vector<std::string> dirs;
  if (!kernel.source.file.empty()) {
    const auto folder = kernel.source.file.parent_path();
    dirs.push_back(folder.empty() ? "." : folder.string());
  }
  for (const auto& dir : kernel.source.include_dirs) dirs.push_back(dir.string());
  return dirs;
}

/// Messages and keys name the file, not its folder: a moved tree keeps its entries. A text gets a
/// name that no file has: NVRTC takes an include of the program's own name for the program.
std::string shown_path(const KernelDefinition& kernel) {
  return kernel.source.file.empty() ? "<" + kernel.name + ">"
                                    : kernel.source.file.filename().string();
}

IncludeContext own_context(const KernelDefinition& kernel, const Source& source,
                           IncludeContext context) {
  context.path = kernel.source.file.empty() ? source.path : kernel.source.file.string();
  apply_options(source.options, context);
  context.include_dirs.insert(context.include_dirs.begin(), source.include_dirs.begin(),
                              source.include_dirs.end());
  return context;
}

detail::KeyBuilder wanted_fields(const Source& source, const Target& target) {
  detail::KeyBuilder key("binary", kBinarySchema);
  // A binary holds code of Kiln's own headers, which are not among the kernel's files.
  key.add("kiln", KILN_VERSION)
      .add("kernel", source.kernel)
      .add("config", source.config)
      .add("entry", source.entry)
      .add("steps", std::span<const std::string>(source.steps))
      .add("signature", source.signature)
      .add("path", source.path)
      .add("target", target.arch)
      .add("definitions", std::span<const std::string>(source.definitions))
      .add("kernel options", std::span<const std::string>(source.options));
  return key;
}

/// The signature with maps in place of the pointers that this config makes maps of, and with the
/// workspace behind them.
std::string entry_signature(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  KernelDefinition entry;
  entry.arguments = kernel.arguments;
  for (const MapRule& rule : kernel.maps)
    if (rule.applies(config)) entry.arguments.at(rule.argument) = "kiln::hopper::TensorMap";
  if (kernel.workspace.applies(config)) entry.arguments.emplace_back("kiln::Workspace");
  return entry.signature();
}

/// Fills in everything that needs no file to be read.
Source describe_source(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  Source source;
  source.path = shown_path(kernel);
  source.entry = entry_expression(kernel, kernel.entry, config);
  for (const KernelStep& step : kernel.steps)
    if (step.applies(config)) source.steps.push_back(entry_expression(kernel, step.entry, config));
  if (!kernel.arguments.empty()) source.signature = entry_signature(kernel, config);
  source.label = describe_instance(kernel, config);
  source.kernel = kernel.name;
  source.config = kernel.space.describe(config);
  source.values.assign(config.begin(), config.end());
  source.definitions = definitions(kernel, config);
  source.options = kernel.source.options;
  source.include_dirs = own_folders(kernel);
  source.include_dirs.push_back(include_dir().string());
  return source;
}

}  // namespace

Source make_source(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                   const Target& target, const Compiler& compiler, const FilesSeen& files) {
  Source source = describe_source(kernel, config);
  for (const std::string& line : source.definitions) source.text += line + "\n";
  if (!source.text.empty()) source.text += format("#line 1 \"{}\"\n", source.path);
  source.text += template_text(kernel) + check_of_macros(kernel, config);
  const IncludeClosure closure =
      include_closure(source.text, own_context(kernel, source, compiler.includes(target)), files);
  source.closure = closure.digest;
  source.cacheable = closure.complete;
  return source;
}

std::optional<KernelSource> read_kernel_source(const KernelDefinition& kernel,
                                               const FilesSeen& files) try {
  Source source;
  source.path = shown_path(kernel);
  source.options = kernel.source.options;
  source.include_dirs = own_folders(kernel);
  IncludeClosure closure =
      include_closure(template_text(kernel), own_context(kernel, source, {}), files);
  KernelSource read{closure.digest};
  if (!closure.complete) read.unfollowed = std::move(closure.unresolved.front());
  return read;
} catch (const UserError&) {  // the template is not here
  return std::nullopt;
}

std::optional<Digest> kernel_source(const KernelDefinition& kernel, const FilesSeen& files) {
  const auto read = read_kernel_source(kernel, files);
  return read ? std::optional(read->digest) : std::nullopt;
}

const char* to_string(Passing passing) noexcept {
  switch (passing) {
    case Passing::config_struct:
      return "config struct";
    case Passing::template_arguments:
      return "template arguments";
    case Passing::constants:
      return "constants";
    case Passing::macros:
      break;
  }
  return "macros";
}

std::string unknown_entry(const KernelDefinition& kernel, const FilesSeen& files) try {
  Source source;
  source.options = kernel.source.options;
  source.include_dirs = own_folders(kernel);
  source.include_dirs.push_back(include_dir().string());
  std::string text = template_text(kernel);
  const IncludeClosure closure = include_closure(text, own_context(kernel, source, {}), files);
  for (const IncludedFile& file : closure.files) {
    if (file.kind != IncludedFile::Kind::file) continue;
    std::ifstream in(file.path, std::ios::binary);
    text.append("\n").append(std::istreambuf_iterator<char>(in), {});
  }
  std::string unknown = unknown_entry(kernel.entry, text, shown_path(kernel));
  for (const KernelStep& step : kernel.steps)
    if (unknown.empty()) unknown = unknown_entry(step.entry, text, shown_path(kernel));
  return unknown;
} catch (const UserError&) {  // the template is not here
  return {};
}

Key wanted_key(const KernelDefinition& kernel, std::span<const std::int64_t> config,
               const Target& target) {
  return wanted_fields(describe_source(kernel, config), target).finish();
}

Key binary_key(const Source& source, const Target& target, const Compiler& compiler,
               const std::optional<Digest>& kernel_source) {
  const CompilerIdentity identity = compiler.identity();
  detail::KeyBuilder key = wanted_fields(source, target);
  key.made_with();
  if (kernel_source) key.add(kKernelSourceField, *kernel_source);
  return key.add("source", source.closure)
      .add("options", compiler.options(source, target))
      .add("compiler", identity.name)
      .add("compiler version", identity.version)
      .add("compiler build", identity.build)
      .finish();
}

}  // namespace kiln::codegen
