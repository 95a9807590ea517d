// A program that has an Asio and a JSON library of its own, as large programs do: the same names as
// those inside Kiln, with other layouts. Each must keep to its own, which they do only while Kiln
// exports neither.
#define BOOST_ASIO_DISABLE_EPOLL
#define JSON_DIAGNOSTICS 1  // one pointer more in each value
#define NLOHMANN_JSON_NAMESPACE nlohmann::JSON_ABI
#define NLOHMANN_JSON_NAMESPACE_BEGIN \
  namespace nlohmann {                \
  inline namespace JSON_ABI {
#define NLOHMANN_JSON_NAMESPACE_END \
  }                                 \
  }

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>

#include "kiln/error.hpp"
#include "kiln/manifest.hpp"

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}

/// Kiln's JSON: writes and parses.
void kiln_has_its_own(const std::filesystem::path& folder) {
  kiln::Manifest manifest;
  for (int i = 0; i < 50; ++i)
    manifest.wanted.push_back({.kernel = "kernel " + std::to_string(i),
                               .types = {"f32", "bf16"},
                               .target = "sm_90a",
                               .problem = {{"m", i}, {"n", 2 * i}},
                               .config = {{"block", 64}}});
  const std::filesystem::path file = folder / "manifest.json";
  manifest.write(file);
  expect(kiln::Manifest::read(file).wanted == manifest.wanted, "a manifest came back changed");

  // This program's library reads the same text.
  std::FILE* text = std::fopen(file.c_str(), "r");
  const nlohmann::json read = nlohmann::json::parse(text);
  std::fclose(text);
  expect(read.dump().find("kernel 49") != std::string::npos, "the program's JSON library");
}

void errors_cross(const std::filesystem::path& folder) {
  bool caught = false;
  try {
    kiln::Manifest::read(folder / "missing.json");
  } catch (const kiln::UserError&) {
    caught = true;
  }
  expect(caught, "an error of Kiln's was not caught by its type");
}

void program_has_its_own() {
  boost::asio::io_context context;
  boost::asio::steady_timer timer(context, std::chrono::milliseconds(1));
  int rang = 0;
  timer.async_wait([&](const boost::system::error_code& error) { rang += error ? 0 : 1; });
  context.run();
  expect(rang == 1, "the program's timer");

  const nlohmann::json value = {{"list", {1, 2, 3}}};
  bool caught = false;
  try {
    value.at("list").at(0).get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    caught = std::string(error.what()).find("/list/0") != std::string::npos;
  }
  expect(caught, "the program's JSON library does not say where");
}

}  // namespace

int main() {
  std::string name = (std::filesystem::temp_directory_path() / "kiln-neighbour-XXXXXX").string();
  if (!::mkdtemp(name.data())) return 2;
  program_has_its_own();
  kiln_has_its_own(name);
  errors_cross(name);
  std::filesystem::remove_all(name);
  return failures == 0 ? 0 : 1;
}
