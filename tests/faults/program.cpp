#include "program.hpp"

#include <cstring>
#include <stdexcept>
#include <string_view>

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/instance.hpp"

namespace kiln::faults {
namespace {

nlohmann::json record_of(const Key& key) {
  return {{"kernel", "bystander"}, {"ms", {0.5, 0.25}}, {"key", key.hex()}};
}

/// Bytes that follow from a text, half of them such as compress well.
Raw expand(std::string_view text, std::size_t size) {
  Raw bytes;
  Digest digest = sha256(text);
  while (bytes.size() < size) {
    bytes.insert(bytes.end(), digest.begin(), digest.end());
    bytes.insert(bytes.end(), digest.size(), digest[0]);
    digest = sha256(digest);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

Raw raw(const detail::Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

Raw raw(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

StoreOptions options_for(const fs::path& directory, std::size_t memory_bytes) {
  StoreOptions options;
  options.directory = directory;
  options.memory_bytes = memory_bytes;
  return options;
}

codegen::IncludeContext ReferenceCompiler::includes(const Target&) const {
  codegen::IncludeContext context;
  if (!own_headers.empty()) context.include_dirs = {own_headers};
  return context;
}

std::vector<std::string> ReferenceCompiler::options(const codegen::Source& source,
                                                    const Target&) const {
  std::vector<std::string> all = source.options;
  all.insert(all.end(), own_options.begin(), own_options.end());
  return all;
}

codegen::CompileResult ReferenceCompiler::compile(const codegen::Source& source,
                                                  const Target& target) {
  ++compiles;
  if (on_compile) on_compile();
  std::string everything = name + '\0' + version + '\0' + build + '\0' + source.entry + '\0' +
                           source.signature + '\0' + to_hex(source.closure) + '\0' + target.arch;
  for (const std::string& option : options(source, target)) everything += '\0' + option;
  codegen::Binary binary;
  binary.target = target;
  binary.symbol = "k";
  binary.code = expand(everything, code_bytes);
  return binary;
}

KernelDefinition wanted_kernel(const std::string& header_folder) {
  KernelDefinition k;
  k.name = "wanted";
  k.source.text = "template <int number, class T> __global__ void k(T* y, int n);\n";
  if (!header_folder.empty()) {
    k.source.text = "#include \"shape.hpp\"\n" + k.source.text;
    k.source.include_dirs = {header_folder};
  }
  k.entry = "k";
  k.types = {"float"};
  k.arguments = {"float*", "int"};
  std::vector<std::int64_t> numbers(100);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  k.space.parameter("number", std::move(numbers), 0);
  return k;
}

Program::Program(StoreOptions options, std::shared_ptr<cache::FileSystem> system)
    : store(std::make_shared<cache::Store>(
          std::move(options),
          system ? std::move(system) : std::make_shared<test::FaultyFileSystem>())),
      builder_(store, [this](Target::Kind) { return compiler; }, {}, 1) {}

Raw Program::output(int number) {
  const Values config{number};
  const runtime::Build build = builder_.build(kernel, config, target);
  return build.binary() == nullptr ? Raw{} : raw(build.binary()->code);
}

Raw Program::reference(int number) const {
  ReferenceCompiler pure;
  pure.name = compiler->name;
  pure.version = compiler->version;
  pure.build = compiler->build;
  pure.own_options = compiler->own_options;
  pure.own_headers = compiler->own_headers;
  pure.code_bytes = compiler->code_bytes;
  codegen::IncludeCache includes;
  const auto source = codegen::make_source(kernel, Values{number}, target, pure, includes);
  const auto result = pure.compile(source, target);
  return raw(std::get<codegen::Binary>(result).code);
}

Key Program::key(int number) const {
  codegen::IncludeCache includes;
  const auto source = codegen::make_source(kernel, Values{number}, target, *compiler, includes);
  return codegen::binary_key(source, target, *compiler, codegen::source_digest(kernel, includes));
}

bool Program::runs(Trial& trial, int number) {
  return trial.right(output(number) == reference(number),
                     "the program's output is not the reference");
}

std::vector<Key> Bystanders::binaries() {
  std::vector<Key> keys;
  for (int i = 0; i < 4; ++i) keys.push_back(test::make_key("bystander" + std::to_string(i)));
  return keys;
}

std::vector<Key> Bystanders::records() {
  std::vector<Key> keys;
  for (int i = 0; i < 3; ++i)
    keys.push_back(test::make_key("bystander" + std::to_string(i), "record"));
  return keys;
}

Bystanders::Bystanders(const fs::path& directory) : directory_(directory) {
  cache::Store store(options_for(directory), std::make_shared<test::FaultyFileSystem>());
  std::size_t size = 0;
  for (const Key& key : binaries()) {
    store.put(key, expand(key.hex(), size));
    size = 3 * size + 500;
  }
  for (const Key& key : records()) store.put_record(key, record_of(key));
  if (store.stats().failed_writes != 0)
    throw std::runtime_error("the bystanders cannot be kept in " + directory.string());
}

bool Bystanders::whole(Trial& trial) const { return whole_in(trial, options_for(directory_)); }

bool Bystanders::whole_in(Trial& trial, const StoreOptions& options) const {
  cache::Store store(options);
  bool all = true;
  std::size_t size = 0;
  for (const Key& key : binaries()) {
    const auto found = store.find(key);
    all &= trial.kept(found && raw(*found) == expand(key.hex(), size), "a bystander's binary");
    size = 3 * size + 500;
  }
  for (const Key& key : records())
    all &= trial.kept(store.find_record(key) == record_of(key), "a bystander's record");
  return all;
}

std::string snapshot(const fs::path& directory) {
  std::string text;
  const auto add = [&](const fs::path& path) {
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) return;
    text +=
        path.string() + ' ' + std::to_string(status.st_mode) + ' ' + std::to_string(status.st_uid);
    if (S_ISREG(status.st_mode)) text += ' ' + to_hex(sha256(test::read_bytes(path)));
    if (S_ISLNK(status.st_mode)) text += " -> " + fs::read_symlink(path).string();
    text += '\n';
  };
  add(directory);
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (const auto& item : fs::recursive_directory_iterator(directory, ignored))
    paths.push_back(item.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) add(path);
  return text;
}

bool is_root() { return ::geteuid() == 0; }

}  // namespace kiln::faults
