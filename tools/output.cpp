#include "tools/output.hpp"

#include <cstdio>

#include <nlohmann/json.hpp>

namespace kiln::tools {

using nlohmann::json;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void print_json(const json& answer) {
  print(answer.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace kiln::tools
