// Collects the entries of a T4 file and turns them into a recorded space, refusing what cannot be
// one. Knows nothing of JSON.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/recorded/space_data.hpp"

namespace kiln::runtime {

/// A parameter's value as the file has it.
using T4Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// Call in the order of the file: begin_entry, what the entry says, end_entry; then finish. All
/// functions throw UserError, naming file and entry.
class T4Builder {
 public:
  explicit T4Builder(std::filesystem::path file);

  void time_unit(std::string unit) { unit_ = std::move(unit); }

  void begin_entry();
  void configuration() { has_configuration_ = true; }
  void parameter(const std::string& name, T4Value value);
  void compilation(double time) { compilation_ = time; }
  void runtime(double time);
  void invalidity(std::string text) { invalidity_ = std::move(text); }
  void correctness(bool correct) { correct_ = correct; }
  /// One of the entry's measurements; `time` counts, else the first.
  struct Measurement {
    std::string name, unit;
    std::optional<double> value;
    std::string failure;  ///< a text in the place of the value
  };
  void measurement(Measurement measurement);
  void end_entry();

  std::shared_ptr<const RecordedSpace::Data> finish();
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Column {
    std::unordered_map<std::int64_t, std::uint16_t> integers;
    std::map<T4Value, std::uint16_t> others;
    std::vector<T4Value> values;  ///< in the order seen
  };

  std::uint16_t place(Column& column, T4Value value, const std::string& name);
  void check_configuration();
  void judge();
  void take_times(RecordedSpace::Data::Entry& entry);
  std::uint16_t invalidity_number();
  void order_values();
  void convert_times();
  void choose();
  void sign();

  std::shared_ptr<RecordedSpace::Data> data_;
  std::vector<Column> columns_;
  std::string unit_;
  /// Entries whose only time has a unit of its own, and that in seconds.
  std::vector<std::pair<std::size_t, double>> own_units_;
  bool in_entry_ = false;

  // Of the entry at hand.
  bool has_configuration_ = false;
  std::size_t given_ = 0, next_ = 0;
  std::vector<bool> seen_;
  double compilation_ = 0;
  std::string invalidity_;
  std::optional<Measurement> measurement_;
  std::optional<bool> correct_;
  std::vector<double> runtimes_;
};

}  // namespace kiln::runtime
