// Internal: how a key is made. No public header includes this.
//
//   KeyBuilder b("binary", 1);
//   b.add("target", "sm_90a").add("options", options_list).add("block", std::int64_t{256});
//   Key key = b.finish();  // key.hex() names the file; key.fields explain a miss
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/key.hpp"

namespace kiln::detail {

/// Collects fields. The digest covers kind, schema, and for each field its type, name and value,
/// each length-prefixed, so that no two different lists of fields share an encoding.
class KeyBuilder {
 public:
  KeyBuilder(std::string_view kind, std::int64_t schema);

  KeyBuilder& add(std::string_view name, std::string_view value);
  KeyBuilder& add(std::string_view name, const char* value) {
    return add(name, std::string_view(value));
  }
  KeyBuilder& add(std::string_view name, std::int64_t value);
  KeyBuilder& add(std::string_view name, std::span<const std::string> values);
  KeyBuilder& add(std::string_view name, const Digest& value);
  /// What is added from here on does not count for Key::portable.
  KeyBuilder& made_with();

  Key finish() const;

 private:
  void append(char type, std::string_view name, std::string_view encoded, std::string shown);

  std::string encoded_;
  std::size_t portable_size_ = 0, portable_fields_ = 0;  ///< 0: made_with() was not called
  std::vector<KeyField> fields_;
};

}  // namespace kiln::detail
