#include "runtime/support/type_names.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace kiln::runtime {

std::string canonical_type(const std::string& type) {
  std::vector<std::string> words;
  const std::size_t stars = static_cast<std::size_t>(std::count(type.begin(), type.end(), '*'));
  for (std::size_t i = 0; i < type.size();) {
    const std::size_t end = std::min(type.find_first_of(" *", i), type.size());
    if (end > i) words.push_back(type.substr(i, end - i));
    i = end + 1;
  }
  const bool read_only = std::erase(words, "const") != 0;
  std::erase(words, "__restrict__");
  std::string name;
  for (const std::string& word : words) name += (name.empty() ? "" : " ") + word;
  static const std::map<std::string, std::string> kSpellings{
      {"unsigned", "unsigned int"},
      {"half", "__half"},
      {"nv_bfloat16", "__nv_bfloat16"},
      {"size_t", "unsigned long"},
      {"int8_t", "signed char"},
      {"uint8_t", "unsigned char"},
      {"int16_t", "short"},
      {"uint16_t", "unsigned short"},
      {"int32_t", "int"},
      {"uint32_t", "unsigned int"},
      {"int64_t", "long"},
      {"uint64_t", "unsigned long"},
      {"long long", "long"},
      {"unsigned long long", "unsigned long"}};
  if (const auto known = kSpellings.find(name); known != kSpellings.end()) name = known->second;
  return (read_only ? "const " : "") + name + std::string(stars, '*');
}

std::optional<DataType> element_type(const std::string& canonical) {
  static const std::map<std::string, DataType> kTypes{{"bool", DataType::boolean},
                                                      {"char", DataType::i8},
                                                      {"signed char", DataType::i8},
                                                      {"unsigned char", DataType::u8},
                                                      {"short", DataType::i16},
                                                      {"unsigned short", DataType::u16},
                                                      {"int", DataType::i32},
                                                      {"unsigned int", DataType::u32},
                                                      {"long", DataType::i64},
                                                      {"unsigned long", DataType::u64},
                                                      {"__half", DataType::f16},
                                                      {"__nv_bfloat16", DataType::bf16},
                                                      {"float", DataType::f32},
                                                      {"double", DataType::f64},
                                                      {"__nv_fp8_e4m3", DataType::fp8_e4m3},
                                                      {"__nv_fp8_e5m2", DataType::fp8_e5m2}};
  const std::size_t begin = canonical.rfind("const ", 0) == 0 ? 6 : 0;
  const auto known = kTypes.find(canonical.substr(begin, canonical.find('*') - begin));
  if (known == kTypes.end()) return std::nullopt;
  return known->second;
}

}  // namespace kiln::runtime
