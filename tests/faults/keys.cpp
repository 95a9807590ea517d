// Fault 12: whatever may change a binary changes its key.
#include <fstream>

#include "kiln/detail/key_builder.hpp"
#include "program.hpp"

namespace kiln::faults {
namespace {

/// One input of the key, and another value for it.
struct Change {
  const char* name;
  void (*make)(Program& program, const fs::path& headers);
};

void write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

const std::string kShape =
    "struct Shape { int m, n; };\n#include \"deeper.hpp\"\n#include <vendor.hpp>\n";
const std::string kDeeper = "constexpr int depth = 3;\n";
const std::string kVendor = "constexpr int vendor = 1;\n";

const Change kChanges[] = {
    {"a byte of a header",
     [](Program&, const fs::path& headers) {
       std::string text = kShape;
       text[15] = 'M';
       write(headers / "shape.hpp", text);
     }},
    {"a byte of a header's header",
     [](Program&, const fs::path& headers) {
       write(headers / "deeper.hpp", "constexpr int depth = 4;\n");
     }},
    {"a byte of a header of the compiler's",
     [](Program& p, const fs::path&) {
       write(fs::path(p.compiler->own_headers) / "vendor.hpp", "constexpr int vendor = 2;\n");
     }},
    {"an option that the compiler adds",
     [](Program& p, const fs::path&) { p.compiler->own_options = {"--fmad=false"}; }},
    {"a byte of the source", [](Program& p, const fs::path&) { p.kernel.source.text += ' '; }},
    {"an option", [](Program& p, const fs::path&) { p.kernel.source.options = {"-O3", "-DX=2"}; }},
    {"one option more",
     [](Program& p, const fs::path&) { p.kernel.source.options.push_back("-G"); }},
    {"options cut elsewhere",
     [](Program& p, const fs::path&) { p.kernel.source.options = {"-O3 -DX=1"}; }},
    {"the order of options",
     [](Program& p, const fs::path&) { p.kernel.source.options = {"-DX=1", "-O3"}; }},
    {"NVRTC's version", [](Program& p, const fs::path&) { p.compiler->version = "13.1"; }},
    {"NVRTC's build", [](Program& p, const fs::path&) { p.compiler->build = "b2"; }},
    {"the compiler", [](Program& p, const fs::path&) { p.compiler->name = "clang"; }},
    {"the architecture's suffix", [](Program& p, const fs::path&) { p.target.arch = "sm_90a"; }},
    {"the architecture's family", [](Program& p, const fs::path&) { p.target.arch = "sm_90f"; }},
    {"the architecture", [](Program& p, const fs::path&) { p.target.arch = "sm_80"; }},
    {"a type", [](Program& p, const fs::path&) { p.kernel.types = {"double"}; }},
    {"one type more", [](Program& p, const fs::path&) { p.kernel.types = {"float", "float"}; }},
    {"an argument's type",
     [](Program& p, const fs::path&) { p.kernel.arguments = {"float*", "long"}; }},
    {"the entry", [](Program& p, const fs::path&) { p.kernel.entry = "kk"; }},
    {"how values are passed",
     [](Program& p, const fs::path&) { p.kernel.passing = Passing::macros; }},
};

/// The same fields under the next schema.
Key with_schema(const Key& key, std::int64_t step) {
  detail::KeyBuilder builder("binary", std::stoll(key.fields.at(1).value) + step);
  for (std::size_t i = 2; i < key.fields.size(); ++i) {
    if (i == key.portable_fields) builder.made_with();
    const KeyField& field = key.fields[i];
    if (field.type == 'i')
      builder.add(field.name, static_cast<std::int64_t>(std::stoll(field.value)));
    else
      builder.add(field.name, field.value);
  }
  return builder.finish();
}

}  // namespace

void key_inputs(Trial& trial) {
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache", headers = root.path() / "include",
                 vendor = root.path() / "vendor";
  fs::create_directory(headers);
  fs::create_directory(vendor);
  const Bystanders bystanders(directory);
  const auto restore = [&] {
    write(headers / "shape.hpp", kShape);
    write(headers / "deeper.hpp", kDeeper);
    write(vendor / "vendor.hpp", kVendor);
  };
  const auto prepare_in = [](Program& program, const fs::path& place) {
    program.kernel = wanted_kernel(place / "include");
    program.kernel.source.options = {"-O3", "-DX=1"};
    program.compiler->own_headers = place / "vendor";
  };
  const auto prepare = [&](Program& program) { prepare_in(program, root.path()); };
  // Both a store that has it and one whose read-only root has it are asked.
  StoreOptions rooted = options_for(root.path() / "own");
  rooted.roots = {directory};

  restore();
  trial.next("nothing changed");
  {
    Program first(options_for(directory));
    prepare(first);
    first.runs(trial, 1);
    trial.right(first.compiles() == 1, "the first is no miss");
  }
  for (const Change& change : kChanges) {
    trial.next(change.name);
    {
      Program changed(options_for(directory));
      prepare(changed);
      change.make(changed, headers);
      changed.runs(trial, 1);
      trial.right(changed.compiles() == 1, "a changed input is no miss");
      changed.runs(trial, 1);
      trial.right(changed.compiles() == 1, "the changed one is not kept");
    }
    restore();
    Program restored(options_for(directory));
    prepare(restored);
    restored.runs(trial, 1);
    trial.right(restored.compiles() == 0, "restored, it is no hit");
    Program below(rooted);
    prepare(below);
    below.runs(trial, 1);
    trial.right(below.compiles() == 0, "restored, it is no hit in a root");
  }

  trial.next("sources, headers and store moved");
  {
    const fs::path elsewhere = root.path() / "elsewhere";
    fs::create_directory(elsewhere);
    for (const fs::path& folder : {directory, headers, vendor})
      fs::rename(folder, elsewhere / folder.filename());
    for (const bool in_root : {false, true}) {
      StoreOptions options = options_for(in_root ? fs::path() : elsewhere / "cache");
      options.disk = !in_root;
      if (in_root) options.roots = {elsewhere / "cache"};
      Program moved(options);
      prepare_in(moved, elsewhere);
      moved.runs(trial, 1);
      trial.right(moved.compiles() == 0, "moved, it is no hit");
    }
    for (const fs::path& folder : {directory, headers, vendor})
      fs::rename(elsewhere / folder.filename(), folder);
  }

  trial.next("the schema");
  Program program(options_for(directory));
  prepare(program);
  const Key key = program.key(1);
  trial.right(program.store->find(key).has_value(), "its own key is no hit");
  for (const std::int64_t step : {-1, 1, 1000}) {
    const Key other = with_schema(key, step);
    trial.right(!program.store->find(other), "another schema's key is a hit");
    trial.right(other.digest != key.digest && other.portable != key.portable,
                "another schema has the same digest");
  }
  trial.next("the value of a parameter");
  program.runs(trial, 2);
  trial.right(program.compiles() == 1, "another value is no miss");
  program.runs(trial, 1);
  trial.right(program.compiles() == 1, "restored, it is no hit");

  // In a root alone, what another compiler made of the same source may be taken; nothing else may.
  const TemporaryDirectory fresh;
  for (const Change& change : kChanges) {
    trial.next(std::string(change.name) + ", in a root");
    const fs::path only = fresh.path() / "only";
    Program maker(options_for(only));
    prepare(maker);
    maker.runs(trial, 1);
    const Raw made = maker.reference(1);
    StoreOptions options = options_for({});
    options.disk = false;
    options.roots = {only};
    Program changed(options);
    prepare(changed);
    change.make(changed, headers);
    const std::string what = change.name;
    const bool compiler_alone = what.starts_with("NVRTC") || what.find("compiler") != what.npos;
    const Raw output = changed.output(1);
    trial.right(output == changed.reference(1) || (compiler_alone && output == made),
                "the program's output is not the reference");
    restore();
    fs::remove_all(only);
  }
  bystanders.whole(trial);
}

}  // namespace kiln::faults
