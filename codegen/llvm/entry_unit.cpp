#include "codegen/llvm/entry_unit.hpp"

#include "codegen/host_abi.hpp"

namespace kiln::codegen::llvm_host {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

// Loads each parameter from the address the caller passed and calls the kernel.
constexpr const char* kCall = R"(
namespace kiln_entry_unit {
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
template <class A, class B> inline constexpr bool kernel_has_type = same<A, B>::value;
template <class T> struct argument { using type = T; };
template <class T> struct argument<const T> { using type = T; };
template <unsigned...> struct indices {};
template <class F> struct kernel;
template <class... P> struct kernel<void (*)(P...)> {
  static_assert(!(__is_reference(P) || ... || false), "a kernel's parameters are passed by value");
  static constexpr unsigned sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
  template <void (*function)(P...), unsigned... I>
  static inline __attribute__((always_inline)) void call(indices<I...>*) {
    function(*static_cast<typename argument<P>::type*>(__kiln_argument(I))...);
  }
};
template <class... P> struct kernel<void (*)(P...) noexcept> : kernel<void (*)(P...)> {};
template <class T, T... I> struct sequence { using type = indices<I...>; };
template <class... P> constexpr unsigned arity(void (*)(P...)) { return sizeof...(P); }
template <auto function> inline __attribute__((always_inline)) void call() {
  using list = typename __make_integer_seq<sequence, unsigned, arity(function)>::type;
  kernel<decltype(function)>::template call<function>(static_cast<list*>(nullptr));
}
}  // namespace kiln_entry_unit
)";

std::string generated_entry(const std::string& entry, const std::string& signature,
                            const std::string& suffix) {
  std::string unit;
  const std::string function = "(&" + entry + ")";
  if (!signature.empty()) {
    unit += "static_assert(kiln_entry_unit::kernel_has_type<decltype(" + function +
            "), __typeof__(" + signature + ")*>, " +
            quoted("the launch expects " + entry + " to be a " + signature) + ");\n";
  }
  unit += "extern \"C\" __attribute__((used)) constexpr const unsigned* " +
          (kParameterSizes + suffix) + " = kiln_entry_unit::kernel<decltype(" + function +
          ")>::sizes;\n";
  unit += "extern \"C\" __attribute__((used)) void " + (kEntryFunction + suffix) +
          "() { kiln_entry_unit::call<" + function + ">(); }\n";
  return unit;
}

}  // namespace

std::string entry_unit(const Source& source) {
  std::string unit = "#include <cuda_runtime.h>\n#line 1 " + quoted(source.path) + "\n" +
                     source.text + "\n#line 1 \"<kiln entry>\"\n" + kCall +
                     "#line 1 \"<kiln entry name>\"\n";
  unit += generated_entry(source.entry, source.signature, "");
  for (std::size_t step = 0; step < source.steps.size(); ++step)
    unit += generated_entry(source.steps[step], source.signature, host_entry_suffix(step + 1));
  return unit;
}

}  // namespace kiln::codegen::llvm_host
