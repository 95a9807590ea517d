// A kernel's entry that is misspelt, and what was probably meant. For messages: a guess at C++.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kiln::codegen {

/// Names of the `__global__` functions in a source, in order, each once; without namespaces.
std::vector<std::string> kernel_names(std::string_view text);

/// `scale.cuh has no function scael; did you mean scale?` where the name at the end of `entry`
/// occurs nowhere in `text`, not even as a part of a macro's; else empty.
/// @param path the file, as it is shown
std::string unknown_entry(std::string_view entry, std::string_view text, std::string_view path);

}  // namespace kiln::codegen
