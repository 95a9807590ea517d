// The program that the faults must not lead astray: it asks a builder for instances of a kernel.
// And the entries beside its own, which must outlast whatever happens to them.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "codegen/compiler.hpp"
#include "kiln/definition.hpp"
#include "runtime/build/builder.hpp"
#include "trial.hpp"
#include "unit/cache/store_fixture.hpp"

namespace kiln::faults {

namespace fs = std::filesystem;
using Raw = std::vector<std::byte>;
using test::TemporaryDirectory;

Raw raw(const detail::Bytes& bytes);
Raw raw(const std::string& text);

/// A store's options for faults: nothing in memory unless asked for, so that the disk is met.
StoreOptions options_for(const fs::path& directory, std::size_t memory_bytes = 0);

/// Its code follows from everything that may change a compiler's output, and from nothing else.
class ReferenceCompiler final : public codegen::Compiler {
 public:
  codegen::CompilerIdentity identity() const override { return {name, version, build}; }
  codegen::IncludeContext includes(const Target&) const override;
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override;
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override;

  std::string name = "nvrtc", version = "13.0", build = "b1";
  std::vector<std::string> own_options;  ///< besides the kernel's
  std::string own_headers;               ///< a folder; empty: none
  std::size_t code_bytes = 400;
  std::atomic<int> compiles{0};
  std::function<void()> on_compile;
};

/// What a program wants. `header_folder`: the folder of shape.hpp, which the kernel then includes.
KernelDefinition wanted_kernel(const std::string& header_folder = {});

/// One process's runtime, as far as the store is concerned.
class Program {
 public:
  /// `system`: null: the system's, without fsync, since no power is lost here.
  explicit Program(StoreOptions options, std::shared_ptr<cache::FileSystem> system = nullptr);

  /// The code of instance `number`; empty when there is none.
  Raw output(int number);
  /// What output() must be, whatever the store says.
  Raw reference(int number) const;
  /// output() is reference(): else a wrong result.
  bool runs(Trial& trial, int number);

  /// The entry that holds instance `number`.
  Key key(int number) const;

  int compiles() const { return compiler->compiles; }

  std::shared_ptr<ReferenceCompiler> compiler = std::make_shared<ReferenceCompiler>();
  KernelDefinition kernel = wanted_kernel();
  Target target{Target::Kind::cuda, "sm_90"};
  std::shared_ptr<cache::Store> store;

 private:
  runtime::Builder builder_;
};

/// Entries of all kinds and sizes that no fault is aimed at.
class Bystanders {
 public:
  /// Puts them there.
  explicit Bystanders(const fs::path& directory);
  /// Each is found and equal, by a store that has seen nothing yet: else lost.
  bool whole(Trial& trial) const;
  bool whole_in(Trial& trial, const StoreOptions& options) const;

  static std::vector<Key> binaries();
  static std::vector<Key> records();

 private:
  fs::path directory_;
};

/// Every file below, with its bytes, mode and owner: to see that nothing was touched.
std::string snapshot(const fs::path& directory);

/// Whether this process may take other users' identities.
bool is_root();

/// The order's faults.
void truncated(Trial&);
void bit_flipped(Trial&);
void writer_killed(Trial&);
void many_on_one_cold_key(Trial&);
void lock_holder_gone(Trial&);
void evictor_against_others(Trial&);
void writes_fail(Trial&);
void no_place(Trial&);
void place_of_others(Trial&);
void planted(Trial&);
void under_another_name(Trial&);
void key_inputs(Trial&);
void other_formats(Trial&);
void clock_moved(Trial&);
void bad_bundles(Trial&);
void shared_root(Trial&);
void directory_removed(Trial&);
void no_descriptors(Trial&);
void look_ups(Trial&);

}  // namespace kiln::faults
