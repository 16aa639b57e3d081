// SPDX-License-Identifier: Apache-2.0
// Metrics on their way out: families of points with labels, as every exporter reads them. Text from
// a training may hold any bytes; here it becomes valid UTF-8 of bounded length, and no two points
// of a family have the same labels, so that no receiver refuses the whole for the sake of one.
//
// Thread safety: none. Memory: what is added.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace telltale::telemetry {

enum class Kind : std::uint8_t {
  kGauge,
  kCounter,  ///< Only grows; its name ends in _total.
};

/// A family as the table in families.h has it.
struct FamilyDesc {
  std::string_view name;
  Kind kind;
  std::string_view unit;  ///< UCUM, as OTLP has it: s, By, %, 1/s, 1.
  /// Goes to receivers that are paid by the metric, too (CloudWatch).
  bool brief;
  std::string_view help;
};

using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

struct Point {
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
  std::int64_t start_ns = 0;  ///< Of a counter: since when it counts; Unix time.
  std::int64_t time_ns = 0;   ///< What it is the value of; Unix time.
  bool brief = false;
};

struct Family {
  Kind kind = Kind::kGauge;
  std::string unit, help;
  std::map<std::string, Point> points;  ///< By their labels, written as one text.
};

class MetricSet {
 public:
  static constexpr std::size_t kMaxLabelBytes = 200;

  /// Added to every point that follows, before its own labels; and its times.
  void Begin(std::string_view run, std::int64_t start_ns, std::int64_t time_ns);
  void Add(const FamilyDesc& desc, const Labels& labels, double value) {
    Add(desc, labels, value, desc.brief);
  }
  void Add(const FamilyDesc& desc, const Labels& labels, double value, bool brief);

  /// By name.
  const std::map<std::string, Family>& families() const { return families_; }
  std::size_t points() const { return points_; }

 private:
  std::map<std::string, Family> families_;
  std::size_t points_ = 0;
  std::string run_;
  std::int64_t start_ns_ = 0;
  std::int64_t time_ns_ = 0;
};

/// Valid UTF-8 of at most kMaxLabelBytes, cut between characters.
std::string LabelText(std::string_view text);
/// What of the name is no letter, digit or underscore becomes one; never begins with a digit.
std::string MetricName(std::string_view name);

}  // namespace telltale::telemetry
