// T4 results files to recorded spaces, in one pass over the text.
#pragma once

#include <filesystem>
#include <memory>

#include "kiln/recorded.hpp"

namespace kiln::runtime {

/// See RecordedSpace's constructor.
std::shared_ptr<const RecordedSpace::Data> read_t4(const std::filesystem::path& file);

}  // namespace kiln::runtime
