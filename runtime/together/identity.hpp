// What must be the same on all ranks that tune together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/ranks/messages.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// Texts that differ where values do.
inline std::string text_of(std::span<const std::int64_t> values) {
  std::string text;
  for (const std::int64_t value : values) text += std::to_string(value) + ",";
  return text;
}

inline std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += std::to_string(word.size()) + ":" + word;
  return text;
}

/// `lists`: the candidates of each subject.
ranks::Identity identity_of(Workshop& workshop, std::span<const Subject> subjects,
                            std::span<const CandidateList> lists, const TuneOptions& options);

}  // namespace kiln::runtime
