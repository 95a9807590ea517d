// What a hit costs, warm and cold, against compiling; whether 100 000 entries make hits slower; and
// how soon a bundle of 10 000 binaries gives its first.
#include "cache/store.hpp"

#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "cache/bundle.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/registry.hpp"
#include "perf.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/build/compilers.hpp"

namespace {

using kiln::EntryKind;
using kiln::Key;
using kiln::Target;
using kiln::cache::Store;
using kiln::runtime::Builder;

/// Filling a store is not what is measured here.
class WithoutSync : public kiln::cache::FileSystem {
  int sync(int) override { return 0; }
};

kiln::StoreOptions options_for(const std::filesystem::path& directory) {
  kiln::StoreOptions options;
  options.directory = directory;
  options.memory_bytes = 0;
  return options;
}

/// As long as a binary's key is.
Key key_of(std::int64_t number) {
  const std::vector<std::string> options{"-std=c++20", "--gpu-architecture=sm_90a", "-lineinfo"};
  return kiln::detail::KeyBuilder("binary", 2)
      .add("kernel", "benchmark")
      .add("entry", "benchmark<Config{.block = 256, .items = 8}, __nv_bfloat16>")
      .add("block", number)
      .add("target", "sm_90a")
      .add("options", options)
      .made_with()
      .add("source", kiln::sha256("source"))
      .add("compiler", "nvrtc 13.0.88")
      .finish();
}

std::vector<std::byte> payload_of(std::size_t size, std::uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 8);
  return bytes;
}

/// Takes a file out of the page cache.
void drop(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);  // what is not written back stays
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void report_ratio(const char* what, double ratio, const char* goal) {
  perf::report(what, ratio, "x", goal);
}

/// Hits on a real instance against compiling it, where there is such a compiler.
void measure_hits(const char* name, const Target& target) try {
  const kiln::KernelDefinition kernel = kiln::shipped_kernels().make("rmsnorm", "bf16");
  const kiln::Values config = kernel.space.default_config();
  const auto builder = [&](std::shared_ptr<Store> store) {
    auto made =
        std::make_unique<Builder>(std::move(store), kiln::runtime::make_compiler, nullptr, 1);
    made->compiler(target.kind);
    return made;
  };
  perf::ScratchFolder folder;
  const auto on_disk = [&] {
    return std::make_shared<Store>(options_for(folder.path() / "store"));
  };
  kiln::StoreOptions nowhere;
  nowhere.disk = false;

  const Key key = builder(on_disk())->build(kernel, config, target).key;  // libraries loaded
  const auto entry = on_disk()->explain(key.hex()).at(0);
  std::vector<double> compile, built, find, cold_find;
  for (int round = 0; round < 7; ++round) {
    auto compiling = builder(std::make_shared<Store>(nowhere)), reading = builder(on_disk());
    compile.push_back(perf::seconds([&] { compiling->build(kernel, config, target); }));
    built.push_back(perf::seconds([&] { reading->build(kernel, config, target); }));
    for (int i = 0; i < 20; ++i) {
      auto store = on_disk();
      find.push_back(perf::seconds([&] { store->find(key); }));
      drop(entry.path);
      store = on_disk();
      cold_find.push_back(perf::seconds([&] { store->find(key); }));
    }
  }
  std::printf("\n%s, rmsnorm, entry of %llu bytes\n", name,
              static_cast<unsigned long long>(entry.bytes));
  perf::report("  cold compile", perf::median(compile) * 1e3, "ms");
  perf::report("  hit, page cache warm", perf::median(find) * 1e6, "us");
  perf::report("  hit, page cache cold", perf::median(cold_find) * 1e6, "us");
  perf::report("  hit through the builder, key included", perf::median(built) * 1e6, "us");
  report_ratio("  cold compile against hit, warm", perf::median(compile) / perf::median(find),
               "goal >= 100");
  report_ratio("  cold compile against hit, cold", perf::median(compile) / perf::median(cold_find),
               "goal >= 100");
  report_ratio("  cold compile against hit through the builder",
               perf::median(compile) / perf::median(built), "");
} catch (const std::exception& error) {
  std::printf("\n%s: skipped: %s\n", name, error.what());
}

void fill(const std::filesystem::path& directory, int entries) {
  Store store(options_for(directory), std::make_shared<WithoutSync>());
  for (int i = 0; i < entries; ++i)
    store.put(key_of(i), payload_of(200, static_cast<std::uint32_t>(i)));
}

void measure_crowd() {
  constexpr int kFew = 100, kMany = 100'000, kProbes = 100;
  perf::ScratchFolder folder;
  const auto few = folder.path() / "few", many = folder.path() / "many";
  fill(few, kFew);
  const double filled = perf::seconds([&] { fill(many, kMany); });
  std::mt19937 random(7);
  std::vector<double> few_hits, many_hits, few_misses, many_misses;
  Store in_few(options_for(few)), in_many(options_for(many));
  for (int round = 0; round < 40; ++round)
    for (int probe = 0; probe < kProbes; ++probe) {
      const Key common = key_of(static_cast<int>(random() % kFew)),
                one = key_of(static_cast<int>(random() % kMany)),
                none = key_of(kMany + static_cast<int>(random() % kMany));
      // Looked at once before: the page cache of the crowd must not be what is compared.
      in_few.find(common);
      in_many.find(one);
      few_hits.push_back(perf::seconds([&] { in_few.find(common); }));
      many_hits.push_back(perf::seconds([&] { in_many.find(one); }));
      few_misses.push_back(perf::seconds([&] { in_few.find(none); }));
      many_misses.push_back(perf::seconds([&] { in_many.find(none); }));
    }
  Store writer(options_for(many), std::make_shared<WithoutSync>());
  const double first_write = perf::seconds([&] { writer.put(key_of(-1), payload_of(200, 0)); });
  const double second_write = perf::seconds([&] { writer.put(key_of(-2), payload_of(200, 0)); });
  std::printf("\n%d entries against %d\n", kMany, kFew);
  perf::report("  hit among few", perf::median(few_hits) * 1e6, "us");
  perf::report("  hit among many", perf::median(many_hits) * 1e6, "us");
  report_ratio("  hit, many against few", perf::median(many_hits) / perf::median(few_hits),
               "goal: no slower");
  perf::report("  miss among few", perf::median(few_misses) * 1e6, "us");
  perf::report("  miss among many", perf::median(many_misses) * 1e6, "us");
  perf::report("  put, without fsync", filled / kMany * 1e6, "us");
  perf::report("  a process's first put among many (looks at the size)", first_write * 1e6, "us");
  perf::report("  its second", second_write * 1e6, "us");
}

void measure_bundle() {
  constexpr int kBinaries = 10'000, kRounds = 31;
  constexpr std::size_t kBytes = 8192;
  perf::ScratchFolder folder;
  const auto path = folder.path() / "kernels.kiln";
  kiln::cache::BundleWriter writer;
  for (int i = 0; i < kBinaries; ++i)
    writer.add(EntryKind::binary, key_of(i), payload_of(kBytes, static_cast<std::uint32_t>(i)));
  const double written = perf::seconds([&] {
    if (const auto failure = writer.write(path, "benchmark"))
      throw std::runtime_error(failure->what);
  });
  std::mt19937 random(7);
  std::vector<double> open, first, next, cold_open, cold_first;
  const auto round = [&](std::vector<double>& opens, std::vector<double>& hits) {
    std::unique_ptr<kiln::cache::Bundle> bundle;
    opens.push_back(perf::seconds([&] {
      auto result = kiln::cache::Bundle::open(path);
      if (auto* found = std::get_if<std::unique_ptr<kiln::cache::Bundle>>(&result))
        bundle = std::move(*found);
    }));
    if (!bundle) throw std::runtime_error("the bundle cannot be opened");
    const auto hit = [&] {
      const Key key = key_of(static_cast<int>(random() % kBinaries));
      return perf::seconds([&] {
        if (!bundle->find(EntryKind::binary, key)) throw std::runtime_error("not found");
      });
    };
    hits.push_back(hit());
    next.push_back(hit());
  };
  for (int i = 0; i < kRounds; ++i) round(open, first);  // just written: in the page cache
  const double second = perf::median(next);
  for (int i = 0; i < kRounds; ++i) {
    drop(path);
    round(cold_open, cold_first);
  }
  std::printf("\na bundle of %d binaries of %zu bytes, written in %.2g s\n", kBinaries, kBytes,
              written);
  perf::report("  open and map", perf::median(open) * 1e6, "us");
  perf::report("  first hit", perf::median(first) * 1e6, "us", "goal <= 1000");
  perf::report("  second hit", second * 1e6, "us");
  perf::report("  open and map, page cache cold", perf::median(cold_open) * 1e6, "us");
  perf::report("  first hit, page cache cold", perf::median(cold_first) * 1e6, "us");
}

}  // namespace

int main() {
  measure_hits("nvrtc sm_90a", Target::parse("sm_90a"));
  measure_hits("host", Target::this_host());
  measure_crowd();
  measure_bundle();
}
