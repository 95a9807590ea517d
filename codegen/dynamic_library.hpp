// Owner of a shared library opened at run time. Kiln links no CUDA, NVRTC or LLVM: it opens them.
#pragma once

#include <initializer_list>
#include <string>

namespace kiln::codegen {

/// Move-only. A library that is missing is an ordinary outcome: see `OpenResult`.
class DynamicLibrary {
 public:
  /// What happens when the owner goes away.
  enum class Lifetime {
    unload,   ///< the library is closed
    process,  ///< it stays: for libraries whose own threads or exit handlers outlive any owner
  };
  struct OpenResult;

  /// `name` is a path, or a bare name for the loader's search path.
  static OpenResult open(const std::string& name, Lifetime lifetime);

  DynamicLibrary() = default;
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
  ~DynamicLibrary();

  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// Address of an exported symbol; null when there is none.
  void* symbol(const char* name) const noexcept;

  /// The loaded file, as the loader resolved it; empty when it cannot be told.
  std::string path() const;

  /// The linker's GNU build id in hexadecimal: equal ids are equal builds. Empty when there is
  /// none.
  std::string build_id() const;

 private:
  DynamicLibrary(void* handle, Lifetime lifetime) : handle_(handle), lifetime_(lifetime) {}

  void* handle_ = nullptr;
  Lifetime lifetime_ = Lifetime::unload;
};

struct DynamicLibrary::OpenResult {
  DynamicLibrary library;
  std::string error;  ///< the loader's words when `library` is empty
};

}  // namespace kiln::codegen
