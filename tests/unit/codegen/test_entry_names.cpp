#include "codegen/entry_names.hpp"
#include "kiln_test.hpp"

using namespace kiln::codegen;
using Names = std::vector<std::string>;

TEST_CASE("the kernels of a source", "[codegen][entry]") {
  CHECK(kernel_names("").empty());
  CHECK(kernel_names("void f(); // __global__ void g();\n/* __global__ void h(); */").empty());
  CHECK(kernel_names("__global__ void a(int* p) { f(p); }") == Names{"a"});
  CHECK(kernel_names("template <Config c, class T>\n__global__ void __launch_bounds__(c.block, "
                     "(2))\nscale(T* x, int (*f)(int));") == Names{"scale"});
  CHECK(kernel_names("__launch_bounds__(64) __global__ void b(); extern \"C\" __global__\n"
                     "__attribute__((used)) void c /* name */ () {}\n__global__ void b() {}") ==
        Names{"b", "c"});
  CHECK(kernel_names("__global__").empty());
  CHECK(kernel_names("__global__ (").empty());
  CHECK(kernel_names("__global__ ) ) x(").empty());
}

TEST_CASE("a misspelt entry", "[codegen][entry]") {
  const std::string text = "__global__ void scale(); __global__ void reduce_rows();";
  CHECK(unknown_entry("scale", text, "k.cuh").empty());
  CHECK(unknown_entry("ns::scale<3, ns::T>", text, "k.cuh").empty());
  CHECK(unknown_entry("scael", text, "k.cuh") ==
        "k.cuh has no function scael; did you mean scale?");
  CHECK(unknown_entry("ns::reduce_row_s<ns::C{}>", text, "k.cuh") ==
        "k.cuh has no function reduce_row_s; did you mean reduce_rows?");
  CHECK(unknown_entry("transpose", text, "k.cuh") ==
        "k.cuh has no function transpose; its kernels: scale reduce_rows");
  CHECK(unknown_entry("scale", "int x;", "k.cuh") ==
        "k.cuh has no function scale, nor does it have any other kernel");
  CHECK(unknown_entry("", text, "k.cuh").empty());
}
