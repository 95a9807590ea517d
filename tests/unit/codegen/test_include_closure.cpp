#include <atomic>
#include <thread>

#include "codegen/include_closure.hpp"
#include "kiln_test.hpp"
#include "scratch.hpp"

using namespace kiln;
using namespace kiln::codegen;

namespace {

struct Tree : Scratch {
  IncludeCache cache;
  IncludeContext context;

  Tree() { context.include_dirs = {path("inc")}; }

  IncludeClosure close(std::string_view text) { return include_closure(text, context, cache); }
  Digest digest(std::string_view text) { return close(text).digest; }

  // The names of what was found, one word each: = read, ? absent, ! external.
  std::string show(std::string_view text) {
    std::string out;
    for (const IncludedFile& f : close(text).files) {
      out += f.kind == IncludedFile::Kind::file     ? '='
             : f.kind == IncludedFile::Kind::absent ? '?'
                                                    : '!';
      out += f.name + ' ';
    }
    return out;
  }
};

}  // namespace

TEST_CASE("an edited header changes the closure; undoing it restores it", "[codegen][closure]") {
  Tree t;
  t.write("inc/a.h", "#include \"b.h\"\n");
  t.write("inc/b.h", "#include <deep/c.h>\n");
  t.write("inc/deep/c.h", "int one;\n");
  const std::string text = "#include <a.h>\n";
  for (bool aged : {false, true}) {
    if (aged) {
      t.age("inc/deep/c.h");
      t.age("inc/b.h");
    }
    const Digest before = t.digest(text);
    CHECK(t.show(text) == "=<a.h> =\"b.h\" =<deep/c.h> ");
    t.write("inc/deep/c.h", "int two;\n");  // the same length
    const Digest after = t.digest(text);
    CHECK(after != before);
    t.write("inc/deep/c.h", "int one;\n");
    CHECK(t.digest(text) == before);
  }
  CHECK(t.digest(text + " ") != t.digest(text));
}

TEST_CASE("the closure does not depend on where the files are", "[codegen][closure]") {
  Tree one, two;
  for (Tree* t : {&one, &two}) {
    t->write("inc/a.h", "#include \"b.h\"\n#include <cstdint>\n");
    t->write("inc/b.h", "int b;\n");
  }
  CHECK(one.digest("#include <a.h>") == two.digest("#include <a.h>"));
  CHECK(one.close("#include <a.h>").files[0].path == one.path("inc/a.h"));
}

TEST_CASE("folders are searched as compilers do", "[codegen][closure]") {
  Tree t;
  t.context.include_dirs = {t.path("one"), t.path("two")};
  t.write("one/user.h", "#include \"x.h\"\n#include <x.h>\n");
  t.write("two/x.h", "int two;\n");
  t.write("two/only.h", "#include \"x.h\"\n");
  CHECK(t.close("#include <user.h>").files[1].path == t.path("two/x.h"));
  const Digest before = t.digest("#include <user.h>");
  t.write("one/x.h", "int one;\n");  // now it is found earlier
  CHECK(t.close("#include <user.h>").files[1].path == t.path("one/x.h"));
  CHECK(t.digest("#include <user.h>") != before);
  // Quotes look beside the including file first.
  CHECK(t.close("#include <only.h>").files[1].path == t.path("two/x.h"));
  // And beside the text itself.
  t.write("main/x.h", "int main_;\n");
  t.context.path = t.path("main/kernel.cu");
  CHECK(t.close("#include \"x.h\"").files[0].path == t.path("main/x.h"));
  CHECK(t.close("#include <x.h>").files[0].path == t.path("one/x.h"));
  CHECK(t.close("#include \"" + t.path("two/x.h") + "\"").files[0].path == t.path("two/x.h"));
}

TEST_CASE("which of two files of one name is meant is part of the digest", "[codegen][closure]") {
  Tree t;
  t.write("one/x.h", "int one;\n");
  t.write("two/x.h", "int two;\n");
  const std::string text = "#include \"" + t.path("one/x.h") + "\"\n#include \"" +
                           t.path("two/x.h") + "\"\n#include <x.h>\n";
  t.context.include_dirs = {t.path("one"), t.path("two")};
  const Digest before = t.digest(text);
  t.context.include_dirs = {t.path("two"), t.path("one")};
  CHECK(t.digest(text) != before);
}

TEST_CASE("cycles and repeated includes end", "[codegen][closure]") {
  Tree t;
  t.write("inc/a.h", "#include \"b.h\"\n#include \"a.h\"\n");
  t.write("inc/b.h", "#pragma once\n#include \"a.h\"\n#include \"../inc/b.h\"\n");
  t.write("inc/sub/grow.h", "#include \"../sub/grow.h\"\n");
  CHECK(t.show("#include <a.h>\n#include <a.h>\n#include <sub/grow.h>") ==
        "=<a.h> =\"b.h\" =<sub/grow.h> ");
  CHECK(t.close("#include <sub/grow.h>").complete);
}

TEST_CASE("missing files are values", "[codegen][closure]") {
  Tree t;
  CHECK(t.show("#include \"gone.h\"\n#include <cuda/gone>\n#include \"gone.h\"") ==
        "?\"gone.h\" !<cuda/gone> ");
  const Digest before = t.digest("#include \"gone.h\"");
  CHECK(t.close("#include \"gone.h\"").complete);
  t.write("inc/gone.h", "");
  CHECK(t.digest("#include \"gone.h\"") != before);
  t.remove("inc/gone.h");
  CHECK(t.digest("#include \"gone.h\"") == before);
  std::filesystem::create_directories(t.path("inc/gone.h"));  // a folder is not a header
  CHECK(t.digest("#include \"gone.h\"") == before);
  CHECK(t.show("#include <>\n#include \"\"") == "!<> ?\"\" ");
}

TEST_CASE("headers built into the compiler are not looked for", "[codegen][closure]") {
  Tree t;
  t.write("inc/cstdint", "#include <nonsense>\n");
  CHECK(t.show("#include <cstdint>") == "=<cstdint> !<nonsense> ");
  t.context.builtin_headers = {"cstdint"};
  CHECK(t.show("#include <cstdint>\n#include \"cstdint\"") == "!<cstdint> !\"cstdint\" ");
}

TEST_CASE("only branches that are certainly dead are skipped", "[codegen][closure]") {
  Tree t;
  for (const char* name : {"a", "b", "c", "d"}) t.write(std::string("inc/") + name, "");
  t.context.macros.defined = {{"DEVICE", "1"}};
  t.context.macros.undefined = {"HOST"};
  CHECK(t.show("#ifdef HOST\n#include <a>\n#else\n#include <b>\n#endif") == "=<b> ");
  CHECK(t.show("#ifdef DEVICE\n#include <a>\n#else\n#include <b>\n#endif") == "=<a> ");
  CHECK(t.show("#ifdef OTHER\n#include <a>\n#else\n#include <b>\n#endif") == "=<a> =<b> ");
  CHECK(t.show("#if HOST\n#include <a>\n#elif OTHER\n#include <b>\n#elif DEVICE\n#include <c>\n"
               "#else\n#include <d>\n#endif") == "=<b> =<c> ");
  CHECK(t.show("#if OTHER\n#include <a>\n#elif DEVICE\n#include <b>\n#elif MORE\n#include <c>\n"
               "#endif\n#include <d>") == "=<a> =<b> =<d> ");
  CHECK(t.show("#ifdef HOST\n#ifdef OTHER\n#include <a>\n#else\n#include <b>\n#endif\n#else\n"
               "#include <c>\n#endif") == "=<c> ");
  CHECK(t.show("#if 0\n#include <a>\n#endif\n#include <b>") == "=<b> ");
  CHECK(t.show("#endif\n#else\n#include <a>\n#if 0\n#include <b>") == "=<a> ");
  // Within a dead branch a definition does not count.
  CHECK(t.show("#ifdef HOST\n#undef DEVICE\n#endif\n#ifndef DEVICE\n#include <a>\n#endif") == "");
}

TEST_CASE("a macro that a file touches is no longer known", "[codegen][closure]") {
  Tree t;
  t.write("inc/a", "");
  t.write("inc/b", "");
  t.write("inc/define", "#define HOST 1\n");
  t.write("inc/use", "#ifdef HOST\n#include <a>\n#endif\n");
  t.context.macros.undefined = {"HOST"};
  CHECK(t.show("#include <use>") == "=<use> ");
  CHECK(t.show("#include <define>\n#include <use>") == "=<define> =<use> =<a> ");
  // The file is followed again after the definition.
  CHECK(t.show("#include <use>\n#include <define>\n#include <use>") == "=<use> =<define> =<a> ");
  CHECK(t.show("#if OTHER\n#define HOST\n#endif\n#include <use>") == "=<use> =<a> ");
}

TEST_CASE("what __has_include finds is part of the digest", "[codegen][closure]") {
  Tree t;
  t.write("inc/a", "");
  const std::string text = "#if __has_include(<x.h>)\n#include <a>\n#else\n#define NO_X\n#endif\n";
  const Digest before = t.digest(text);
  CHECK(t.show(text) == "=<a> ");
  t.write("inc/x.h", "");
  CHECK(t.digest(text) != before);
  t.remove("inc/x.h");
  CHECK(t.digest(text) == before);

  const std::string hidden = "#define HAS __has_include(\"x.h\")\n#if HAS\nint x;\n#endif\n";
  const Digest without = t.digest(hidden);
  t.write("inc/x.h", "");
  CHECK(t.digest(hidden) != without);
  CHECK_FALSE(t.close("#if __has_include(NAME)\n#endif").complete);

  const std::string wrapped = "#define HAS(x) __has_include(x)\n#if HAS(<x.h>)\nint x;\n#endif\n";
  CHECK(t.close(wrapped).complete);
  const Digest with = t.digest(wrapped);
  t.remove("inc/x.h");
  CHECK(t.digest(wrapped) != with);
}

TEST_CASE("an include of a macro follows every value it is given", "[codegen][closure]") {
  Tree t;
  t.write("inc/a", "");
  t.write("inc/b", "");
  t.write("inc/config", "#define HEADER ALIAS\n#define ALIAS <b>\n");
  CHECK(t.show("#define HEADER \"a\"\n#include HEADER\n") == "=\"a\" ");
  CHECK(t.show("#define HEADER \"a\"\n#include <config>\n#include HEADER\n") ==
        "=<config> =\"a\" =<b> ");
  t.context.macros.defined = {{"HEADER", "<b>"}};
  CHECK(t.show("#include HEADER") == "=<b> ");
  CHECK(t.close("#include HEADER").complete);
}

TEST_CASE("an include that cannot be understood is reported", "[codegen][closure]") {
  Tree t;
  for (const char* text :
       {"#include HEADER", "#define HEADER(x) x\n#include HEADER(<a>)",
        "#define HEADER 3\n#include HEADER", "#define HEADER HEADER\n#include HEADER",
        "#define HEADER <a> <b>\n#include HEADER",
        "#define HEADER <a>\n#define HEADER JOIN(x)\n#include HEADER"}) {
    CAPTURE(text);
    const IncludeClosure c = t.close(text);
    CHECK_FALSE(c.complete);
    REQUIRE(c.unresolved.size() == 1);
    CHECK(c.unresolved[0].find("HEADER") != std::string::npos);
  }
  // In a dead branch it does not matter.
  t.context.macros.undefined = {"HOST"};
  CHECK(t.close("#ifdef HOST\n#include HEADER\n#endif").complete);
}

TEST_CASE("a chain deeper than compilers follow is incomplete", "[codegen][closure]") {
  Tree t;
  for (int i = 0; i < 300; ++i) {
    t.write("inc/h" + std::to_string(i), "#include <h" + std::to_string(i + 1) + ">\n");
  }
  CHECK_FALSE(t.close("#include <h0>").complete);
  CHECK(t.close("#include <h150>").complete);
}

TEST_CASE("include_next goes on after the folder of the including file", "[codegen][closure]") {
  Tree t;
  t.context.include_dirs = {t.path("one"), t.path("two")};
  t.write("one/x.h", "#include_next <x.h>\n");
  t.write("two/x.h", "int two;\n");
  const auto files = t.close("#include <x.h>").files;
  REQUIRE(files.size() == 2);
  CHECK(files[1].path == t.path("two/x.h"));
}

TEST_CASE("compiler options say where and what", "[codegen][closure]") {
  IncludeContext c;
  c.include_dirs = {"last"};
  c.macros.undefined = {"HOST"};
  c.macros.defined = {{"GONE", "1"}};
  const std::vector<std::string> options = {"-Ia",         "-I",
                                            "b",           "--include-path=c",
                                            "-I=d",        "-I e",
                                            "-DHOST",      "-D",
                                            "N=3",         "--define-macro=M=x=y",
                                            "-UGONE",      "-include",
                                            "pre.h",       "-O3",
                                            "--std=c++20", "-I"};
  apply_options(options, c);
  CHECK(c.include_dirs == std::vector<std::string>{"a", "b", "c", "d", "e", "last"});
  CHECK(c.macros.defined ==
        std::map<std::string, std::string, std::less<>>{{"HOST", "1"}, {"M", "x=y"}, {"N", "3"}});
  CHECK(c.macros.undefined.empty());
  CHECK(c.pre_includes == std::vector<std::string>{"pre.h"});
}

TEST_CASE("what is read before the text belongs to it", "[codegen][closure]") {
  Tree t;
  t.write("inc/pre.h", "int pre;\n");
  const Digest before = t.digest("int x;");
  t.context.pre_includes = {"pre.h"};
  CHECK(t.show("int x;") == "=\"pre.h\" ");
  CHECK(t.digest("int x;") != before);
}

TEST_CASE("a cache shared by threads gives each the same answer", "[codegen][closure]") {
  Tree t;
  std::string text;
  for (int i = 0; i < 50; ++i) {
    const std::string name = "h" + std::to_string(i);
    t.write("inc/" + name, "#include <h" + std::to_string((i * 7 + 1) % 50) + ">\n");
    t.age("inc/" + name);
    text += "#include <" + name + ">\n";
  }
  const Digest expected = include_closure(text, t.context, t.cache).digest;
  std::atomic<int> wrong = 0;
  IncludeCache shared(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        wrong += include_closure(text, t.context, shared).digest != expected;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a remembered file that is replaced or edited is noticed", "[codegen][closure]") {
  Tree t;
  IncludeCache eager(0);  // remembers at once
  const auto digest = [&] { return include_closure("#include <a>", t.context, eager).digest; };
  t.write("inc/a", "int old;\n");
  t.age("inc/a");
  const Digest before = digest();
  CHECK(digest() == before);
  // Replaced by rename, with the old times and size.
  const auto times = std::filesystem::last_write_time(t.path("inc/a"));
  t.write("inc/new", "int new;\n");
  std::filesystem::last_write_time(t.path("inc/new"), times);
  std::filesystem::rename(t.path("inc/new"), t.path("inc/a"));
  const Digest replaced = digest();
  CHECK(replaced != before);
  t.write("inc/a", "int longer;\n");
  CHECK(digest() != replaced);
  t.remove("inc/a");
  CHECK(include_closure("#include <a>", t.context, eager).files[0].kind ==
        IncludedFile::Kind::external);
}

TEST_CASE("closures that share what was seen are of one moment", "[codegen][closure]") {
  Tree t;
  t.write("inc/a", "int old;\n");
  const std::string text = "#include <a>\n#include <b>\n";
  const FilesSeen files(t.cache);
  const Digest before = include_closure(text, t.context, files).digest;
  t.write("inc/a", "int edited;\n");
  t.write("inc/b", "int is_here_now;\n");
  CHECK(include_closure(text, t.context, files).digest == before);
  const Digest after = t.digest(text);
  CHECK(after != before);
  t.remove("inc/a");
  t.remove("inc/b");
  CHECK(t.digest(text) != after);
}

TEST_CASE("edits in quick succession are all noticed", "[codegen][closure]") {
  Tree t;
  const Digest digests[] = {[&] {
                              t.write("inc/a", "int one;\n");
                              return t.digest("#include <a>");
                            }(),
                            [&] {
                              t.write("inc/a", "int two;\n");
                              return t.digest("#include <a>");
                            }()};
  CHECK(digests[0] != digests[1]);
  int missed = 0;
  for (int i = 0; i < 400; ++i) {
    t.write("inc/a", i % 2 ? "int two;\n" : "int one;\n");
    missed += t.digest("#include <a>") != digests[i % 2];
  }
  CHECK(missed == 0);
}
