#include "codegen/dynamic_library.hpp"

#include <cstring>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <link.h>

namespace kiln::codegen {
namespace {

// Notes are 4-byte aligned: two lengths and a type, then name and description, each padded.
std::string build_id_in(const char* note, std::size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, note, sizeof header);
    const std::size_t name = (std::size_t{header.n_namesz} + 3) & ~std::size_t{3};
    const std::size_t text = (std::size_t{header.n_descsz} + 3) & ~std::size_t{3};
    if (sizeof header + name + text > size) break;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(note + sizeof header, "GNU", 4) == 0) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      std::string id;
      for (std::size_t i = 0; i < header.n_descsz; ++i) {
        const auto byte = static_cast<unsigned char>(note[sizeof header + name + i]);
        id += kDigits[byte >> 4];
        id += kDigits[byte & 15];
      }
      return id;
    }
    note += sizeof header + name + text;
    size -= sizeof header + name + text;
  }
  return {};
}

struct BuildIdSearch {
  ElfW(Addr) base;
  std::string id;
};

int find_build_id(dl_phdr_info* info, std::size_t, void* context) {
  auto& search = *static_cast<BuildIdSearch*>(context);
  if (info->dlpi_addr != search.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* note = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    search.id = build_id_in(note, segment.p_memsz);
    if (!search.id.empty()) break;
  }
  return 1;
}

}  // namespace

DynamicLibrary::OpenResult DynamicLibrary::open(const std::string& name, Lifetime lifetime) {
  const int keep = lifetime == Lifetime::process ? RTLD_NODELETE : 0;
  if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | keep)) {
    return {DynamicLibrary(handle, lifetime), {}};
  }
  const char* error = ::dlerror();
  return {DynamicLibrary(), error ? error : name + " cannot be opened"};
}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), lifetime_(other.lifetime_) {}

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(lifetime_, other.lifetime_);
  return *this;
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ && lifetime_ == Lifetime::unload) ::dlclose(handle_);
}

void* DynamicLibrary::symbol(const char* name) const noexcept {
  return handle_ ? ::dlsym(handle_, name) : nullptr;
}

std::string DynamicLibrary::path() const {
  link_map* map = nullptr;
  if (!handle_ || ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || !map || !map->l_name) return {};
  return map->l_name;
}

std::string DynamicLibrary::build_id() const {
  link_map* map = nullptr;
  if (!handle_ || ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || !map) return {};
  BuildIdSearch search{map->l_addr, {}};
  ::dl_iterate_phdr(find_build_id, &search);
  return search.id;
}

}  // namespace kiln::codegen
