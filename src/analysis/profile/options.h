// SPDX-License-Identifier: Apache-2.0
// The options of a profile, under the names that tfprof gave them. docs/guide/profile.md.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/profile/tree.h"
#include "base/status.h"

namespace telltale::analysis::profile {

/// As the user writes them; lists are separated by commas.
struct OptionTexts {
  std::int64_t max_depth = 4;
  double min_bytes = 0;
  double min_peak_bytes = 0;
  double min_residual_bytes = 0;
  double min_output_bytes = 0;
  double min_micros = 0;
  double min_accelerator_micros = 0;
  double min_cpu_micros = 0;
  double min_params = 0;
  double min_float_ops = 0;
  double min_occurrence = 0;
  std::string order_by = "micros";
  std::string account_type_regexes = ".*";
  std::string start_name_regexes = ".*";
  std::string trim_name_regexes;
  std::string show_name_regexes = ".*";
  std::string hide_name_regexes = R"(IsVariableInitialized_[0-9]+,save\/.*,^zeros[0-9_]*)";
  bool account_displayed_op_only = false;
  std::string select = "micros,occurrence";
};

/// Regular expressions of which one has to match a whole name.
class Regexes {
 public:
  Regexes();
  ~Regexes();
  Regexes(Regexes&&) noexcept;
  Regexes& operator=(Regexes&&) noexcept;

  /// Code::kUsage names the option and the expression that is none.
  static Result<Regexes> Parse(std::string_view option, std::string_view list);
  /// It is ".*" alone: nobody asked for anything.
  bool all() const { return all_; }
  bool Match(std::string_view name) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  bool all_ = false;
};

/// What is printed of a node, in tfprof's order.
enum class Column {
  kParams,
  kFloatOps,
  kBytes,
  kPeakBytes,
  kResidualBytes,
  kOutputBytes,
  kMicros,
  kAcceleratorMicros,
  kCpuMicros,
  kDevice,
  kOpTypes,
  kOccurrence,
  kInputShapes,
  kTensorValue,
};

struct Options {
  OptionTexts texts;  ///< The numbers and the flag; the rest is below.
  Regexes account;
  Regexes start;
  Regexes trim;
  Regexes show;
  Regexes hide;
  std::vector<Column> select;
  /// What siblings are sorted by, the largest first; nullptr: by name.
  double (*order_by)(const Stats&) = nullptr;

  bool Selects(Column column) const;

  /// Code::kUsage: an unknown word or a bad expression, with those there are.
  static Result<Options> Parse(const OptionTexts& texts);
};

/// Where the result goes: tfprof's `stdout`, `file:outfile=F`, `timeline:outfile=F`,
/// `pprof:outfile=F` or `none`.
struct Output {
  enum class Kind { kStdout, kFile, kTimeline, kPprof, kNone } kind = Kind::kStdout;
  std::string file;

  static Result<Output> Parse(std::string_view text);
};

}  // namespace telltale::analysis::profile
