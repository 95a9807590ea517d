// Answers, to standard output.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace kiln::tools {

void print(const std::string& text);
/// Indented, with a line's end; bytes that are no UTF-8 are replaced.
void print_json(const nlohmann::json& answer);

}  // namespace kiln::tools
