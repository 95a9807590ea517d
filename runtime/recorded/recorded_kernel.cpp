#include "runtime/recorded/recorded_kernel.hpp"

#include <cctype>
#include <charconv>

namespace kiln {

namespace {

constexpr int kElements = 16;

std::string identifier(const std::string& name) {
  std::string result = "recorded_";
  for (char c : name) result += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return result;
}

}  // namespace

std::string runtime::recorded_mark(const RecordedSpace& space) {
  return "recorded space " + to_hex(space.digest());
}

std::optional<std::size_t> runtime::recorded_index(const RecordedSpace& space,
                                                   std::string_view entry) {
  constexpr std::string_view kBegin = "recorded<";
  if (!entry.starts_with(kBegin) || !entry.ends_with('>')) return {};
  entry = entry.substr(kBegin.size(), entry.size() - kBegin.size() - 1);
  Values config;
  while (true) {
    const std::string_view item = entry.substr(0, entry.find(", "));
    std::int64_t value = item == "true";
    if (item != "true" && item != "false") {
      const char* end = item.data() + item.size();
      const auto [stop, error] = std::from_chars(item.data(), end, value);
      if (error != std::errc{} || stop != end) return {};
    }
    config.push_back(value);
    if (item.size() == entry.size()) break;
    entry.remove_prefix(item.size() + 2);
  }
  return space.find(config);
}

KernelDefinition recorded_kernel(const RecordedSpace& space) {
  KernelDefinition kernel;
  kernel.name = identifier(space.name());
  std::string parameters;
  for (std::size_t i = 0; i < space.parameters().size(); ++i)
    parameters += (i ? ", auto p" : "auto p") + std::to_string(i);
  kernel.source.text = "// " + runtime::recorded_mark(space) + "\ntemplate <" + parameters +
                       "> __global__ void recorded(float* out, int count);\n";
  kernel.entry = "recorded";
  kernel.arguments = {"float*", "int"};
  kernel.space = space.dynamic();
  kernel.launch = [](std::span<const std::int64_t>, std::span<const std::int64_t>) {
    return Launch{};
  };
  kernel.workload = [](std::span<const std::int64_t>, Workload& w) {
    w.output<float>(kElements).scalar<int>(kElements);
  };
  kernel.reference = [](std::span<const std::int64_t>, std::span<void* const> args) {
    auto* out = static_cast<float*>(args[0]);
    for (std::size_t i = 0; i < kElements; ++i) out[i] = runtime::recorded_output(i);
  };
  return kernel;
}

}  // namespace kiln
