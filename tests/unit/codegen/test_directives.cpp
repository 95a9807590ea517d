#include "codegen/directives.hpp"
#include "kiln_test.hpp"

using namespace kiln::codegen;

namespace {

// One word per directive: enough to say what was found and in which order.
std::string show(std::string_view text) {
  std::string out;
  for (const Directive& d : find_directives(text)) {
    using Kind = Directive::Kind;
    switch (d.kind) {
      case Kind::include:
        out += std::string("include") + d.delimiter + d.name;
        break;
      case Kind::include_next:
        out += std::string("next") + d.delimiter + d.name;
        break;
      case Kind::computed:
        out += "computed " + d.name;
        break;
      case Kind::condition:
        out += "if " + d.name;
        break;
      case Kind::elif:
        out += "elif " + d.name;
        break;
      case Kind::otherwise:
        out += "else";
        break;
      case Kind::end:
        out += "endif";
        break;
      case Kind::define:
        out += "define " + d.name + "=" + d.value;
        break;
      case Kind::undefine:
        out += "undef " + d.name;
        break;
      case Kind::probe:
        out += "probe " + d.name;
        break;
    }
    out += "; ";
  }
  return out;
}

}  // namespace

TEST_CASE("includes in all their spellings", "[codegen][directives]") {
  CHECK(show("#include <a.h>\n") == "include<a.h; ");
  CHECK(show("#include \"a/b.h\"") == "include\"a/b.h; ");
  CHECK(show("  #  include<a.h> // why") == "include<a.h; ");
  CHECK(show("/* c */ # /* d */ include /* e */ <a.h>") == "include<a.h; ");
  CHECK(show("%:include <a.h>") == "include<a.h; ");
  CHECK(show("#include <a//b.h>\n#include <c.h>") == "include<a//b.h; include<c.h; ");
  CHECK(show("#inc\\\nlude \"a\\\n.h\"\n") == "include\"a.h; ");
  CHECK(show("#include \\\r\n <a.h>\r\n#include <b.h>\r\n") == "include<a.h; include<b.h; ");
  CHECK(show("#include_next <a.h>") == "next<a.h; ");
  CHECK(show("#include HEADER(x)  // y") == "computed HEADER(x); ");
  CHECK(show("int x;\n#include <a.h>") == "include<a.h; ");
}

TEST_CASE("what only looks like a directive", "[codegen][directives]") {
  CHECK(show("// #include <a.h>") == "");
  CHECK(show("// \\\n#include <a.h>\n") == "");
  CHECK(show("/*\n#include <a.h>\n*/") == "");
  CHECK(show("int x; #include <a.h>") == "");
  CHECK(show("int x = y; \\\n#include <a.h>") == "");
  CHECK(show("int x = y \\ \t\n#include <a.h>") == "");
  CHECK(show("#define A \\\n#include <a.h>\n") == "define A=; ");
  CHECK(show("auto s = R\"(\n#include <a.h>\n)\";") == "");
  CHECK(show("auto s = u8R\"x(\n#include <a.h>\n)\" )x\";\n#include <b.h>") == "include<b.h; ");
  CHECK(show("auto s = R\"(\\\n)\";\n#include <b.h>") == "include<b.h; ");
  CHECK(show("#includes <a.h>\n#pragma include <b.h>\n#error #include <c.h>") == "");
  CHECK(show("#include\n#include <b.h>") == "include<b.h; ");
}

TEST_CASE("literals and comments do not swallow what follows", "[codegen][directives]") {
  for (const char* before : {"char c = '\"';",
                             "char c = '\\'';",
                             "auto s = \"/*\";",
                             "auto s = \"\\\"/*\";",
                             "int n = 1'000'000;",
                             "int n = 0x1'f;",
                             "auto s = \"//\";",
                             "// it's",
                             "/* \" */",
                             "/* // */",
                             "// /*",
                             "auto s = \"unterminated",
                             "char c = 'u",
                             "float f = 1.e+5f;",
                             "auto s = \"a\\\nb\";",
                             "#error it's \"bad",
                             "#define Q \"/*\"",
                             "#define P '\"'",
                             "auto R = 1; R\"(/*)\";",
                             "x = a /b/ c;",
                             "/**/",
                             "/***/",
                             "/*/ */",
                             "#pragma once",
                             "auto s = FOO_R\"not(raw\";",
                             "x = 1e+R\"(\";",
                             "x = .5p-u8R\"(\";",
                             "x = a\\\n+ '\"';",
                             "/* *\\\n/",
                             "/*\\\n/ */",
                             "#define X 1 /* two\nlines */",
                             "#if 1 /* two\nlines */\n#endif"}) {
    CAPTURE(before);
    const std::string found = show(std::string(before) + "\n#include <after.h>\n");
    CHECK(found.find("include<after.h; ") != std::string::npos);
  }
}

TEST_CASE("conditions and definitions", "[codegen][directives]") {
  CHECK(show("#ifdef A\n#elifndef B\n#elifdef C\n#elif D /* x */ > 1 // y\n#else\n#endif") ==
        "if defined(A); elif !defined(B); elif defined(C); elif D > 1; else; endif; ");
  CHECK(show("#if A \\\n && B\n#ifndef C\n") == "if A && B; if !defined(C); ");
  CHECK(show("#define A <x.h>\n#define B \"y.h\"\n#define C A\n#define D 3\n#define E(x) A\n#undef "
             "A") ==
        "define A=<x.h>; define B=\"y.h\"; define C=A; define D=; define E=; undef A; ");
  CHECK(show("#define H __has_include(<x.h>)") ==
        "probe __has_include(<x.h>); define H=__has_include(<x.h>); ");
}

TEST_CASE("no text makes the scanner run away", "[codegen][directives]") {
  const char* const pieces[] = {"#",   "include", "<", "\"", "/*", "*/", "//", "\\", "\n",  "R\"(",
                                ")\"", "'",       "a", " ",  "\r", "if", "%:", "1'", "\\\n"};
  unsigned state = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) {
      state = state * 1664525u + 1013904223u;
      text += pieces[(state >> 16) % std::size(pieces)];
    }
    CHECK(find_directives(text).size() <= text.size());
  }
  CHECK(find_directives(std::string(100, '\0')).empty());
}
