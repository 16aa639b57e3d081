// SPDX-License-Identifier: Apache-2.0
// TensorFlow's Event message, as far as event files hold it: fields as TensorFlow's documentation
// of event.proto, summary.proto and tensor.proto numbers them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::interchange {

/// An event that says which version the file is of; the first of every file.
std::string VersionEvent(double wall_time_s);
std::string ScalarEvent(double wall_time_s, std::int64_t step, std::string_view tag, double value);

/// Counts of bins: the i-th ends at limits[i], the first begins at `min`.
struct EventHistogram {
  double min = 0;
  double max = 0;
  double number = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};
std::string HistogramEvent(double wall_time_s, std::int64_t step, std::string_view tag,
                           const EventHistogram& histogram);

/// TensorFlow's DataType, those that can be stored.
enum class TfType : std::int32_t {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kQint8 = 11,
  kQuint8 = 12,
  kQint32 = 13,
  kBfloat16 = 14,
  kQint16 = 15,
  kQuint16 = 16,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

/// One value of an event's summary; views into the event.
struct EventValue {
  std::string_view tag;
  std::optional<double> simple;  ///< A scalar.
  bool is_tensor = false;
  std::int32_t type = 0;  ///< TfType, or what a later TensorFlow has.
  std::vector<std::int64_t> shape;
  std::string_view content;  ///< C order, this machine's byte order.
  std::vector<std::string_view> texts;
};
struct Event {
  double wall_time_s = 0;
  std::int64_t step = 0;
  std::vector<EventValue> values;
};
/// Code::kUnusable where the bytes are no event.
Result<Event> ParseEvent(std::string_view bytes);

}  // namespace telltale::interchange
