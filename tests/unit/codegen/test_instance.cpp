#include "codegen/instance.hpp"
#include "kiln_test.hpp"
#include "scratch.hpp"

using namespace kiln;
using namespace kiln::codegen;

namespace {

struct NoCompiler final : Compiler {
  CompilerIdentity id{"none", "1", "a"};
  CompilerIdentity identity() const override { return id; }
  IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const Source& source, const Target&) const override {
    return source.options;
  }
  CompileResult compile(const Source&, const Target&) override { return CompileFailure{}; }
};

KernelDefinition scale() {
  KernelDefinition k;
  k.name = "scale";
  k.source.text = "template <int block, bool swap, class T> __global__ void scale(T* x);";
  k.entry = "scale";
  k.types = {"float"};
  k.arguments = {"float*"};
  k.space.parameter("block", {64, -128, std::int64_t{1} << 40}, 64)
      .parameter("swap", {0, 1}, 1, FieldKind::boolean);
  k.launch = [](auto, auto) { return Launch{}; };
  return k;
}

const Target kTarget{Target::Kind::cuda, "sm_90a"};

Source source_of(const KernelDefinition& k, const Values& config = {64, 1}) {
  IncludeCache cache;
  return make_source(k, config, kTarget, NoCompiler{}, cache);
}

std::string key_of(const Source& source, const Target& target = kTarget,
                   const NoCompiler& compiler = {}) {
  return binary_key(source, target, compiler, std::nullopt).hex();
}

}  // namespace

TEST_CASE("parameters as template arguments", "[codegen][instance]") {
  const Source s = source_of(scale());
  CHECK(s.entry == "scale<64, true, float>");
  CHECK(s.text == scale().source.text);
  CHECK(s.signature == "void(float*)");
  CHECK(s.label == "scale<float>{block=64,swap=1}");
  CHECK(s.path == "<scale>");
  CHECK(s.cacheable);
  CHECK(source_of(scale(), {-128, 0}).entry == "scale<-128, false, float>");
  KernelDefinition plain = scale();
  plain.space = {};
  plain.types.clear();
  plain.arguments.clear();
  const Source p = source_of(plain, {});
  CHECK(p.entry == "scale");
  CHECK(p.signature.empty());
}

TEST_CASE("parameters as a config struct", "[codegen][instance]") {
  KernelDefinition k = scale();
  k.passing = Passing::config_struct;
  k.config_type = "ns::Scale";
  k.space.parameter("order", {0, 3}, 3, FieldKind::enumeration);
  CHECK(source_of(k, {64, 1, 3}).entry ==
        "scale<ns::Scale{.block=64, .swap=true, "
        ".order=static_cast<decltype(ns::Scale::order)>(3)}, float>");
}

TEST_CASE("parameters as constants", "[codegen][instance]") {
  KernelDefinition k = scale();
  k.passing = Passing::constants;
  k.types.clear();
  const Source s = source_of(k);
  CHECK(s.entry == "scale");
  CHECK(s.text.rfind("constexpr int block = 64;\nconstexpr bool swap = true;\n"
                     "#line 1 \"<scale>\"\ntemplate",
                     0) == 0);
  // An int would cut it.
  CHECK(source_of(k, {std::int64_t{1} << 40, 0})
            .text.rfind("constexpr long long block = 1099511627776;", 0) == 0);
}

TEST_CASE("parameters as macros", "[codegen][instance]") {
  KernelDefinition k = scale();
  k.passing = Passing::macros;
  CHECK(source_of(k).text.rfind("#define block 64\n#define swap true\n#line 1", 0) == 0);
  // `3-block` must not become `3--128`.
  CHECK(source_of(k, {-128, 0}).text.rfind("#define block (-128)\n", 0) == 0);
}

TEST_CASE("a source that defines its parameters itself is refused by the preprocessor",
          "[codegen][instance]") {
  KernelDefinition k = scale();
  CHECK(source_of(k).text.find("#error") == std::string::npos);
  k.passing = Passing::constants;
  const std::string constants = source_of(k).text;
  CHECK(constants.find("void scale(T* x);\n#line 1 \"parameters of scale\"\n"
                       "#ifdef block\n#error the source defines the macro block, ") !=
        std::string::npos);
  CHECK(constants.find("#ifdef swap\n") != std::string::npos);
  k.passing = Passing::macros;
  CHECK(source_of(k, {-128, 0}).text.find("#if defined(block) && block != (-128)\n#error ") !=
        std::string::npos);
}

TEST_CASE("everything that changes the bytes changes the key", "[codegen][instance]") {
  const std::string base = key_of(source_of(scale()));
  CHECK(key_of(source_of(scale())) == base);
  CHECK(key_of(source_of(scale(), {64, 0})) != base);
  CHECK(key_of(source_of(scale()), {Target::Kind::cuda, "sm_80"}) != base);
  const auto changed = [&](const std::function<void(KernelDefinition&)>& change) {
    KernelDefinition k = scale();
    change(k);
    return key_of(source_of(k)) != base;
  };
  CHECK(changed([](auto& k) { k.types = {"double"}; }));
  CHECK(changed([](auto& k) { k.arguments = {"double*"}; }));
  CHECK(changed([](auto& k) { k.entry = "other"; }));
  CHECK(changed([](auto& k) { k.source.text += "\n"; }));
  CHECK(changed([](auto& k) { k.source.options = {"-lineinfo"}; }));
  CHECK(changed([](auto& k) { k.passing = Passing::constants; }));
  CHECK_FALSE(changed([](auto& k) { k.problem_fields = {"n"}; }));
  CHECK_FALSE(changed([](auto& k) { k.tolerance = {1, 1}; }));
  NoCompiler other;
  other.id.version = "2";
  CHECK(key_of(source_of(scale()), kTarget, other) != base);
  other.id = {"none", "1", "b"};
  CHECK(key_of(source_of(scale()), kTarget, other) != base);
  // Constants and macros of one value differ in text alone.
  KernelDefinition constants = scale(), macros = scale();
  constants.passing = Passing::constants;
  macros.passing = Passing::macros;
  CHECK(key_of(source_of(constants)) != key_of(source_of(macros)));
}

TEST_CASE("what is wanted can be told without a compiler", "[codegen][instance]") {
  IncludeCache cache;
  const KernelDefinition k = scale();
  const Key wanted = wanted_key(k, Values{64, 1}, kTarget);
  const auto whole = [&](const KernelDefinition& kernel, const NoCompiler& compiler) {
    const Source source = make_source(kernel, Values{64, 1}, kTarget, compiler, cache);
    return binary_key(source, kTarget, compiler, source_digest(kernel, cache));
  };
  const Key made = whole(k, {});
  CHECK(made.portable == wanted.digest);
  CHECK(wanted.portable == wanted.digest);
  CHECK(made.digest != made.portable);
  REQUIRE(made.portable_fields == wanted.fields.size());
  CHECK(std::equal(wanted.fields.begin(), wanted.fields.end(), made.fields.begin()));

  NoCompiler other;
  other.id.version = "2";
  CHECK(whole(k, other).portable == made.portable);
  CHECK(whole(k, other).digest != made.digest);
  KernelDefinition edited = k;
  edited.source.text += "// edited";
  CHECK(whole(edited, {}).portable == made.portable);
  CHECK(whole(edited, {}).digest != made.digest);

  const auto changed = [&](const std::function<void(KernelDefinition&)>& change) {
    KernelDefinition c = scale();
    change(c);
    return wanted_key(c, Values{64, 1}, kTarget).digest != wanted.digest;
  };
  CHECK(changed([](auto& c) { c.types = {"double"}; }));
  CHECK(changed([](auto& c) { c.arguments = {"double*"}; }));
  CHECK(changed([](auto& c) { c.entry = "other"; }));
  CHECK(changed([](auto& c) { c.source.options = {"-DX"}; }));
  const auto passed = [&](Passing passing) {
    KernelDefinition c = scale();
    c.passing = passing;
    return wanted_key(c, Values{64, 1}, kTarget).digest;
  };
  CHECK(passed(Passing::constants) != wanted.digest);
  CHECK(passed(Passing::constants) != passed(Passing::macros));
  CHECK(wanted_key(k, Values{64, 0}, kTarget).digest != wanted.digest);
  CHECK(wanted_key(k, Values{64, 1}, {Target::Kind::cuda, "sm_90"}).digest != wanted.digest);
  // Where the values are not in the entry they still count.
  KernelDefinition macros = scale();
  macros.passing = Passing::macros;
  CHECK(wanted_key(macros, Values{64, 0}, kTarget).digest !=
        wanted_key(macros, Values{64, 1}, kTarget).digest);
}

TEST_CASE("a kernel's own source", "[codegen][instance]") {
  const Scratch scratch;
  scratch.write("a/k.cuh", "#include <cuda_bf16.h>\n#include \"part.hpp\"\nvoid k();");
  scratch.write("a/part.hpp", "// one");
  scratch.write("toolkit/cuda_bf16.h", "// of a compiler");
  IncludeCache cache(0);
  KernelDefinition k = scale();
  k.source.text.clear();
  k.source.file = scratch.path("a/k.cuh");
  const auto first = source_digest(k, cache);
  REQUIRE(first);
  CHECK(source_digest(k, cache) == first);
  k.passing = Passing::macros;  // the values are not part of it
  CHECK(source_digest(k, cache) == first);

  SECTION("an edited include changes it") {
    scratch.write("a/part.hpp", "// two!");
    CHECK(source_digest(k, cache) != first);
  }
  SECTION("where the tree lies does not") {
    scratch.write("b/k.cuh", "#include <cuda_bf16.h>\n#include \"part.hpp\"\nvoid k();");
    scratch.write("b/part.hpp", "// one");
    k.source.file = scratch.path("b/k.cuh");
    CHECK(source_digest(k, cache) == first);
  }
  SECTION("nothing where it was not shipped") {
    k.source.file = scratch.path("gone/k.cuh");
    CHECK_FALSE(source_digest(k, cache));
  }
}

TEST_CASE("templates from files", "[codegen][instance]") {
  const Scratch scratch;
  scratch.write("a/scale.cuh", "#include \"part.hpp\"\n__global__ void scale();");
  scratch.write("a/part.hpp", "// one");
  KernelDefinition k = scale();
  k.source.text.clear();
  k.source.file = scratch.path("a/scale.cuh");
  const Source s = source_of(k);
  CHECK(s.path == "scale.cuh");
  REQUIRE_FALSE(s.include_dirs.empty());
  CHECK(s.include_dirs[0] == scratch.path("a"));
  const std::string base = key_of(s);

  SECTION("an edited include is another binary") {
    scratch.write("a/part.hpp", "// two");
    CHECK(key_of(source_of(k)) != base);
  }
  SECTION("an edited template is another binary") {
    scratch.write("a/scale.cuh", "#include \"part.hpp\"\n__global__ void scale() ;");
    CHECK(key_of(source_of(k)) != base);
  }
  SECTION("a moved tree is not") {
    scratch.write("b/scale.cuh", "#include \"part.hpp\"\n__global__ void scale();");
    scratch.write("b/part.hpp", "// one");
    k.source.file = scratch.path("b/scale.cuh");
    CHECK(key_of(source_of(k)) == base);
  }
  SECTION("an include that cannot be told beforehand is never kept") {
    scratch.write("a/scale.cuh", "#include HEADER\n__global__ void scale();");
    CHECK_FALSE(source_of(k).cacheable);
  }
  SECTION("a file that is not there is named") {
    k.source.file = scratch.path("a/scales.cuh");
    try {
      source_of(k);
      FAIL("nothing was thrown");
    } catch (const UserError& error) {
      CHECK(std::string(error.what()).find("scales.cuh") != std::string::npos);
    }
  }
  SECTION("a folder is not a template") {
    k.source.file = scratch.path("a");
    CHECK_THROWS_AS(source_of(k), UserError);
  }
}
