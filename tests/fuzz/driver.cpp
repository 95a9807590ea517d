// Runs a fuzz target without libFuzzer: every kept input, and mutations of them that are the same
// each time.
//
//   fuzz_entry CORPUS [--mutations N] [--seed N]
//
// Exit: 0 when the target came back from all of them.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace {

namespace fs = std::filesystem;
using Input = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

/// What is being tried: named in the report of a crash.
char at[512];

void tell() {
  std::fprintf(stderr, "fuzz: while trying %s\n", at);
  std::fflush(stderr);
}

extern "C" void __sanitizer_set_death_callback(void (*)(void)) __attribute__((weak));

void on_signal(int signal) {
  tell();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Hexadecimal digits, with `XX*N` for N times the same byte and `#` to the end of a line.
Input from_hex(const std::string& text) {
  Input input;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
      ++i;
    } else if (text[i] == '*' && !input.empty()) {
      char* end = nullptr;
      const auto count = std::strtoull(text.c_str() + i + 1, &end, 10);
      const std::uint8_t last = input.back();
      input.pop_back();
      input.insert(input.end(), count, last);
      i = static_cast<std::size_t>(end - text.c_str());
    } else {
      if (i + 1 >= text.size() || digit(text[i]) < 0 || digit(text[i + 1]) < 0)
        throw std::runtime_error("not hexadecimal at " + std::to_string(i));
      input.push_back(static_cast<std::uint8_t>(16 * digit(text[i]) + digit(text[i + 1])));
      i += 2;
    }
  }
  return input;
}

Input read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (path.extension() == ".hex") return from_hex(text);
  return {text.begin(), text.end()};
}

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit);
}

void put_number(Input& input, Random& random) {
  constexpr std::uint64_t kNumbers[] = {0,          1,          0x7f,       0xff,
                                        0x7fff,     0xffff,     0x7fffffff, 0xffffffff,
                                        1ull << 32, 1ull << 40, 1ull << 63, ~0ull};
  std::uint64_t number = kNumbers[below(random, std::size(kNumbers))];
  if (below(random, 3) == 0) number = input.size() - below(random, 40);
  const std::size_t size = std::size_t{1} << below(random, 4);
  if (input.size() < size) return;
  const std::size_t place = below(random, input.size() - size + 1);
  for (std::size_t i = 0; i < size; ++i)
    input[place + i] = static_cast<std::uint8_t>(number >> (8 * i));
}

/// A piece of one input, put into or over another.
void splice(Input& input, const Input& other, Random& random) {
  const std::size_t from = below(random, other.size());
  const std::size_t size = below(random, std::min<std::size_t>(other.size() - from, 200)) + 1;
  if (from + size > other.size()) return;
  const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
  const std::size_t place = below(random, input.size() + 1);
  const auto to = input.begin() + static_cast<std::ptrdiff_t>(place);
  if (random() % 2 == 0)
    input.insert(to, begin, begin + static_cast<std::ptrdiff_t>(size));
  else
    std::copy_n(begin, std::min(size, input.size() - place), to);
}

Input mutated(const std::vector<Input>& corpus, Random& random) {
  Input input = corpus[below(random, corpus.size())];
  for (std::size_t steps = 1 + below(random, 4); steps > 0; --steps) {
    const std::size_t place = below(random, input.size());
    switch (below(random, 8)) {
      case 0:
      case 1:
        if (!input.empty()) input[place] ^= static_cast<std::uint8_t>(1u << below(random, 8));
        break;
      case 2:
        if (!input.empty()) input[place] = static_cast<std::uint8_t>(random());
        break;
      case 3:
        put_number(input, random);
        break;
      case 4:
        input.resize(below(random, input.size() + 1));
        break;
      case 5: {
        const std::size_t size = std::min(input.size() - place, 1 + below(random, 40));
        const auto begin = input.begin() + static_cast<std::ptrdiff_t>(place);
        input.erase(begin, begin + static_cast<std::ptrdiff_t>(size));
        break;
      }
      default:
        splice(input, corpus[below(random, corpus.size())], random);
    }
  }
  return input;
}

}  // namespace

int main(int count, char** arguments) {
  std::uint64_t mutations = 10'000, seed = 1;
  fs::path folder;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--mutations" && i + 1 < count)
      mutations = std::strtoull(arguments[++i], nullptr, 10);
    else if (name == "--seed" && i + 1 < count)
      seed = std::strtoull(arguments[++i], nullptr, 10);
    else
      folder = name;
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(tell);

  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const fs::path& file : files) {
    corpus.push_back(read(file));
    std::snprintf(at, sizeof at, "%s", file.c_str());
    LLVMFuzzerTestOneInput(corpus.back().data(), corpus.back().size());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s holds no input\n", folder.c_str());
    return 1;
  }
  for (std::uint64_t i = 0; i < mutations; ++i) {
    Random random(seed + i);
    const Input input = mutated(corpus, random);
    std::snprintf(at, sizeof at, "--seed %llu --mutations 1",
                  static_cast<unsigned long long>(seed + i));
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu kept inputs, %llu mutations\n", corpus.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}
