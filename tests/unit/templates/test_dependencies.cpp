// What the keys of the shipped kernels cover: every header of Kiln that a preprocessor reads for
// them, wherever the tree stands.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "codegen/llvm_plugin.hpp"
#include "kiln/paths.hpp"
#include "kiln/registry.hpp"
#include "nvrtc_test.hpp"
#include "temporary_directory.hpp"

using namespace nvrtc_test;
namespace fs = std::filesystem;

namespace {

/// A kernel as one compiler would read it.
struct Reading {
  KernelDefinition kernel;
  Target target;
  const Compiler* compiler;
};

/// A copy of Kiln's headers and of the shipped kernels' device halves.
class Tree {
 public:
  Tree() {
    for (const auto& [from, to] : moved_) fs::copy(from, to, fs::copy_options::recursive);
  }
  fs::path moved(const fs::path& file) const {
    for (const auto& [from, to] : moved_)
      if (is_below(file, from)) return to / file.lexically_normal().lexically_relative(from);
    return file;
  }
  static bool is_below(const fs::path& file, const fs::path& folder) {
    const fs::path relative = file.lexically_normal().lexically_relative(folder);
    return !relative.empty() && *relative.begin() != "..";
  }
  bool has(const fs::path& file) const { return is_below(file, folder_.path()); }
  const fs::path& folder() const { return folder_.path(); }

 private:
  const kiln::test::TemporaryDirectory folder_;
  const std::map<fs::path, fs::path> moved_{
      {include_dir().lexically_normal(), folder_.path() / "include"},
      {templates_dir().lexically_normal(), folder_.path() / "templates"}};
};

/// What the compiler is given: the text, and where it looks.
struct Given {
  std::string text;
  std::vector<std::string> options;
  IncludeContext context;

  IncludeClosure closure(IncludeCache& cache) const {
    return include_closure(text, context, FilesSeen(cache));
  }
};

Given given(const Reading& reading, IncludeCache& cache) {
  const Values config = reading.kernel.space.default_config(reading.target);
  const Source source =
      make_source(reading.kernel, config, reading.target, *reading.compiler, FilesSeen(cache));
  CHECK(source.cacheable);
  Given result{source.text, source.options, reading.compiler->includes(reading.target)};
  result.context.path = reading.kernel.source.file.string();
  apply_options(source.options, result.context);
  auto& folders = result.context.include_dirs;
  folders.insert(folders.begin(), source.include_dirs.begin(), source.include_dirs.end());
  CHECK(result.closure(cache).digest == source.closure);  // it is what keys have
  return result;
}

Given in_the_copy(Given of, const Tree& tree) {
  of.context.path = tree.moved(of.context.path);
  for (std::string& folder : of.context.include_dirs) folder = tree.moved(folder);
  return of;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The files of the copy that the C++ compiler's preprocessor reads, as its dependency list says.
std::set<fs::path> preprocessed(const Given& of, const Tree& tree) {
  const fs::path text = fs::path(of.context.path).parent_path() / "text.cpp";
  const fs::path list = tree.folder() / "list.d";
  std::ofstream(text) << of.text;
  // What is not there, such as headers that a compiler has in itself, is taken for generated.
  std::string command = "c++ -std=c++20 -nostdinc -M -MG -w";
  for (const auto& [name, value] : of.context.macros.defined)
    command += " '-D" + name + "=" + value + "'";
  for (const std::string& name : of.context.macros.undefined) command += " -U" + name;
  for (const std::string& folder : of.context.include_dirs) command += " -I'" + folder + "'";
  command += " -MF '" + list.string() + "' '" + text.string() + "'";
  CAPTURE(command);
  REQUIRE(std::system(command.c_str()) == 0);
  std::istringstream words(text_of(list));
  std::set<fs::path> files;
  for (std::string word; words >> word;)
    if (const fs::path file = fs::path(word).lexically_normal(); tree.has(file) && file != text)
      files.insert(file);
  fs::remove(text);
  return files;
}

/// Each text once: the variants of one kernel that read the same.
std::vector<Given> all_given(const Tree& tree, IncludeCache& cache) {
  static const std::unique_ptr<Compiler> host =
      host_compiler_obstacle().empty() ? make_host_compiler() : nullptr;
  std::vector<Reading> readings;
  const Registry shipped = shipped_kernels();
  for (const RegisteredKernel& kernel : shipped.kernels()) {
    const KernelDefinition made = shipped.make(kernel.name);
    readings.push_back({made, Target::parse("sm_90a"), nvrtc()});
    if (host) readings.push_back({made, Target::this_host(), host.get()});
  }
  std::vector<Given> all;
  std::set<std::pair<std::string, Digest>> seen;
  for (const Reading& reading : readings) {
    Given next = given(reading, cache);
    if (seen.emplace(reading.target.arch, next.closure(cache).digest).second)
      all.push_back(in_the_copy(std::move(next), tree));
  }
  return all;
}

}  // namespace

TEST_CASE("the keys of shipped kernels cover every header that a preprocessor reads for them",
          "[templates][keys]") {
  KILN_NEEDS_NVRTC(probe());
  const Tree tree;
  IncludeCache cache;
  const std::vector<Given> all = all_given(tree, cache);
  REQUIRE(all.size() > 20);
  std::vector<Digest> before;
  std::map<fs::path, std::set<std::size_t>> readers;  // by header
  for (std::size_t i = 0; i < all.size(); ++i) {
    const IncludeClosure closure = all[i].closure(cache);
    before.push_back(closure.digest);
    std::set<fs::path> covered;
    for (const IncludedFile& file : closure.files)
      if (file.kind == IncludedFile::Kind::file)
        covered.insert(fs::path(file.path).lexically_normal());
    for (const fs::path& header : preprocessed(all[i], tree)) {
      CAPTURE(header, all[i].context.path);
      CHECK(covered.contains(header));
      readers[header].insert(i);
    }
  }
  CHECK(readers.size() > 40);

  // An edit of any of them changes the keys of all that read it, and an edit that is undone none.
  for (const auto& [header, by] : readers) {
    CAPTURE(header);
    const std::string text = text_of(header);
    std::ofstream(header, std::ios::binary) << text << "\n// edited\n";
    for (const std::size_t i : by) CHECK(all[i].closure(cache).digest != before[i]);
    std::ofstream(header, std::ios::binary) << text;
    CHECK(all[*by.begin()].closure(cache).digest == before[*by.begin()]);
  }
}

TEST_CASE("the keys of shipped kernels do not depend on where the tree stands",
          "[templates][keys]") {
  KILN_NEEDS_NVRTC(probe());
  const Tree tree, other;
  IncludeCache cache;
  const std::vector<Given> here = all_given(tree, cache), there = all_given(other, cache);
  REQUIRE(here.size() == there.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    CAPTURE(here[i].context.path, there[i].context.path);
    CHECK(here[i].context.path != there[i].context.path);
    CHECK(here[i].closure(cache).digest == there[i].closure(cache).digest);
  }
}
