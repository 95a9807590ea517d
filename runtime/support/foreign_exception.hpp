// What is said of an exception that has no words of its own.
#pragma once

namespace kiln::runtime {

inline constexpr const char* kForeignException =
    "a callback threw an object that is not derived from std::exception";

}  // namespace kiln::runtime
