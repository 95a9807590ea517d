#include "codegen/resource_report.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <cxxabi.h>
#include <elf.h>

namespace kiln::codegen {
namespace {

// Attributes of .nv.info sections: format, attribute, then a 16-bit value or the length of a
// payload. In .nv.info itself the payload begins with a symbol's index.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kMaxThreads = 0x05;
constexpr std::uint8_t kFrameSize = 0x11;
constexpr std::uint8_t kMinStackSize = 0x12;
constexpr std::uint8_t kRegisterCount = 0x2f;

// From sm_90 on each block that uses shared memory has this much more, for the system.
constexpr std::uint64_t kReservedShared = 1024;

class Elf {
 public:
  explicit Elf(std::span<const std::byte> bytes) : bytes_(bytes) {
    Elf64_Ehdr header;
    if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
      return;
    }
    sections_.resize(header.e_shnum);
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (!read(header.e_shoff + i * sizeof(Elf64_Shdr), sections_[i])) {
        sections_.clear();
        return;
      }
    }
    names_ = header.e_shstrndx;
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
  const Elf64_Shdr* find(std::string_view wanted) const {
    for (const Elf64_Shdr& s : sections_) {
      if (name(s) == wanted) return &s;
    }
    return nullptr;
  }
  std::span<const std::byte> content(const Elf64_Shdr& s) const {
    if (s.sh_type == SHT_NOBITS || s.sh_offset > bytes_.size() ||
        s.sh_size > bytes_.size() - s.sh_offset) {
      return {};
    }
    return bytes_.subspan(s.sh_offset, s.sh_size);
  }
  std::string_view text(std::size_t section, std::uint64_t offset) const {
    if (section >= sections_.size()) return {};
    const auto strings = content(sections_[section]);
    if (offset >= strings.size()) return {};
    const char* begin = reinterpret_cast<const char*>(strings.data()) + offset;
    return {begin, ::strnlen(begin, strings.size() - offset)};
  }

  template <class T>
  bool read(std::uint64_t offset, T& out) const {
    if (bytes_.size() < sizeof(T) || offset > bytes_.size() - sizeof(T)) return false;
    std::memcpy(&out, bytes_.data() + offset, sizeof(T));
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::vector<Elf64_Shdr> sections_;
  std::size_t names_ = 0;
};

// Calls f(attribute, payload words) for each attribute with a payload.
template <class F>
void for_each_attribute(std::span<const std::byte> info, F&& f) {
  while (info.size() >= 4) {
    const auto format = std::to_integer<std::uint8_t>(info[0]);
    const auto attribute = std::to_integer<std::uint8_t>(info[1]);
    const std::size_t value =
        std::to_integer<std::size_t>(info[2]) | std::to_integer<std::size_t>(info[3]) << 8;
    info = info.subspan(4);
    if (format != kFormatSized) continue;
    if (value > info.size()) return;
    std::uint32_t words[3] = {};
    std::memcpy(words, info.data(), std::min(value, sizeof words));
    f(attribute, words, value / sizeof(std::uint32_t));
    info = info.subspan(value);
  }
}

int saturated(std::uint64_t value) {
  return static_cast<int>(std::min<std::uint64_t>(value, INT32_MAX));
}

// Calls f(index, symbol, name) for each symbol.
template <class F>
void for_each_symbol(const Elf& elf, F&& f) {
  const Elf64_Shdr* table = elf.find(".symtab");
  if (!table) return;
  const std::uint64_t count = elf.content(*table).size() / sizeof(Elf64_Sym);
  for (std::uint64_t i = 0; i < count; ++i) {
    Elf64_Sym entry;
    if (elf.read(table->sh_offset + i * sizeof entry, entry))
      f(static_cast<std::uint32_t>(i), entry, elf.text(table->sh_link, entry.st_name));
  }
}

std::optional<std::uint32_t> symbol_index(const Elf& elf, std::string_view symbol) {
  std::optional<std::uint32_t> found;
  for_each_symbol(elf, [&](std::uint32_t index, const Elf64_Sym& entry, std::string_view name) {
    if (!found && ELF64_ST_TYPE(entry.st_info) == STT_FUNC && name == symbol) found = index;
  });
  return found;
}

// As the source has it: what is static is in a namespace `_INTERNAL_<digest>_<file>` of NVRTC's.
std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 && readable ? readable.get() : symbol;
  if (const std::size_t end = name.find("::");
      name.starts_with("_INTERNAL_") && end != std::string::npos)
    name.erase(0, end + 2);
  return name;
}

// The number that ends just before `label` in `line`; 0 when the label is not there.
int number_before(std::string_view line, std::string_view label) {
  const std::size_t end = line.find(label);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

std::optional<ResourceUsage> read_cubin_resources(std::span<const std::byte> cubin,
                                                  std::string_view symbol) {
  const Elf elf(cubin);
  const std::string name(symbol);
  const auto index = symbol_index(elf, symbol);
  if (!index || !elf.find(".text." + name)) return std::nullopt;

  ResourceUsage usage;
  bool has_registers = false;
  if (const Elf64_Shdr* info = elf.find(".nv.info")) {
    for_each_attribute(elf.content(*info),
                       [&](int attribute, const std::uint32_t* w, std::size_t n) {
                         if (n < 2 || w[0] != *index) return;
                         if (attribute == kRegisterCount) {
                           usage.registers = saturated(w[1]);
                           has_registers = true;
                         } else if (attribute == kFrameSize || attribute == kMinStackSize) {
                           // The latter also counts the functions it calls, where that can be told.
                           usage.stack = std::max(usage.stack, saturated(w[1]));
                         }
                       });
  }
  if (const Elf64_Shdr* info = elf.find(".nv.info." + name)) {
    for_each_attribute(elf.content(*info),
                       [&](int attribute, const std::uint32_t* w, std::size_t n) {
                         if (attribute == kMaxThreads && n >= 3) {
                           usage.max_threads = saturated(std::uint64_t{w[0]} * w[1] * w[2]);
                         }
                       });
  }
  if (const Elf64_Shdr* shared = elf.find(".nv.shared." + name)) {
    const bool reserves = elf.find(".nv.shared.reserved.0") != nullptr;
    const std::uint64_t size = shared->sh_size;
    usage.static_shared =
        saturated(reserves && size >= kReservedShared ? size - kReservedShared : size);
  }
  if (!has_registers) return std::nullopt;
  return usage;
}

std::vector<CubinVariable> read_cubin_variables(std::span<const std::byte> cubin) {
  const Elf elf(cubin);
  std::vector<CubinVariable> variables;
  for_each_symbol(elf, [&](std::uint32_t, const Elf64_Sym& entry, std::string_view name) {
    if (ELF64_ST_TYPE(entry.st_info) != STT_OBJECT || entry.st_shndx >= elf.sections().size())
      return;
    const std::string_view section = elf.name(elf.sections()[entry.st_shndx]);
    // The rest is shared memory and the system's; with `$` begin texts, which have no name.
    if (!section.starts_with(".nv.global") && !section.starts_with(".nv.constant")) return;
    if (name.empty() || name.front() == '$' || name.front() == '.') return;
    const std::string symbol(name);
    variables.push_back({symbol, demangled(symbol), entry.st_size});
  });
  return variables;
}

PtxasLog split_ptxas_log(std::string_view log, std::string_view symbol) {
  PtxasLog result;
  ResourceUsage usage;
  const std::string entry = "Compiling entry function '" + std::string(symbol) + "'";
  bool inside =
      false;         // from our kernel's line to the next kernel's: the functions it calls follow
  bool own = false;  // the properties are the kernel's own
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size() - 1);
    const std::string_view line = log.substr(0, end + 1);
    log.remove_prefix(end + 1);
    if (!line.starts_with("ptxas info") && !line.starts_with("ptxas         .")) {
      result.messages += line;
      continue;
    }
    if (line.find("Compiling entry function") != std::string_view::npos) {
      inside = line.find(entry) != std::string_view::npos;
      if (inside) result.kernel = ResourceUsage{};
    } else if (!inside) {
      continue;
    } else if (line.find("Function properties for ") != std::string_view::npos) {
      std::string_view function = line.substr(line.find("for ") + 4);
      while (!function.empty() && function.back() <= ' ') function.remove_suffix(1);
      own = function == symbol;
    } else if (line.find("bytes stack frame") != std::string_view::npos) {
      if (own) result.kernel->stack = number_before(line, " bytes stack frame");
      result.kernel->spill_stores += number_before(line, " bytes spill stores");
      result.kernel->spill_loads += number_before(line, " bytes spill loads");
    } else if (line.find("Used ") != std::string_view::npos) {
      result.kernel->registers = number_before(line, " registers");
      result.kernel->static_shared = number_before(line, " bytes smem");
    }
  }
  while (!result.messages.empty() && result.messages.back() <= ' ') result.messages.pop_back();
  return result;
}

}  // namespace kiln::codegen
