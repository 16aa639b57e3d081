// SPDX-License-Identifier: Apache-2.0
#include "rules/expression_rule.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "base/units.h"
#include "format/records.gen.h"
#include "rules/builtin/numbers.h"
#include "rules/expression/evaluator.h"
#include "rules/expression/parser.h"
#include "store/reader.h"

namespace telltale::rules {
namespace {

using expression::Call;
using expression::Expression;
using expression::Moment;
using expression::Selector;
using expression::Source;
using nlohmann::ordered_json;

/// Samples that judging may look at for each record that came: with it the work for a record is
/// bounded, however long the windows are.
constexpr std::size_t kSamplesARecord = 256;

bool Matches(const std::string& glob, std::string_view text) {
  return glob == "*" || glob == text || ::fnmatch(glob.c_str(), std::string(text).c_str(), 0) == 0;
}

/// True where the selector has no such label.
bool LabelMatches(const Selector& selector, const char* label, std::string_view value) {
  const auto found = selector.labels.find(label);
  return found == selector.labels.end() || Matches(found->second, value);
}

std::optional<double> FieldOf(const format::StatisticRow& row, std::string_view field) {
  if (field == "count") return static_cast<double>(row.count);
  if (field == "min") return row.min;
  if (field == "max") return row.max;
  if (field == "mean") return row.mean;
  if (field == "std") return row.std;
  if (field == "l1") return row.l1;
  if (field == "l2") return row.l2;
  if (field == "nan_count") return static_cast<double>(row.nan_count);
  if (field == "inf_count") return static_cast<double>(row.inf_count);
  if (field == "zero_count") return static_cast<double>(row.zero_count);
  if (!row.more) return std::nullopt;
  if (field == "abs_min") return row.abs_min;
  if (field == "abs_std") return row.abs_std;
  return row.prod;
}

std::optional<double> FieldOf(const format::StepRow& row, std::string_view field) {
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e9; };
  if (field == "duration") return seconds(row.duration_ns);
  if (field == "data_wait") return seconds(row.data_wait_ns);
  if (field == "forward") return seconds(row.forward_ns);
  if (field == "backward") return seconds(row.backward_ns);
  if (field == "optimizer") return seconds(row.optimizer_ns);
  if (field == "comm_wait") return seconds(row.comm_wait_ns);
  if (field == "other") return seconds(row.other_ns);
  if (field == "probe") return seconds(row.probe_ns);
  if (row.batch_size <= 0) return std::nullopt;  // Not known.
  return static_cast<double>(row.batch_size);
}

class ExpressionRule final : public Rule {
 public:
  ExpressionRule(const RuleSpec& spec, Expression parsed)
      : spec_(spec), expression_(std::move(parsed)), evaluator_(&expression_) {
    for (const Call& call : expression_.calls) {
      table_mask_ |= store::MaskOf(TableOf(call.selector.source));
    }
    // The newest step, restarts, and a clock that goes on while a training hangs.
    table_mask_ |=
        store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kMetrics);
    summary_ = fmt::format("A rule of yours: {}", Printable(expression_.text));
    formula_ = expression_.text;
    advice_ = spec.advice.empty() ? "Look at what the expression reads." : spec.advice;
  }

  /// Its texts are those of this rule, which outlives it.
  std::unique_ptr<RuleDesc> Describe() const {
    auto desc = std::make_unique<RuleDesc>();
    desc->name = spec_.name;
    desc->summary = summary_;
    desc->formula = formula_;
    desc->how_to_fix = advice_;
    desc->table_mask = table_mask_;
    desc->wrong_result = false;
    return desc;
  }

  bool Wants(const Series& series) override {
    std::uint32_t calls = 0;
    for (std::size_t i = 0; i < expression_.calls.size(); ++i) {
      if (Selects(expression_.calls[i].selector, series)) calls |= 1U << i;
    }
    const bool clock = series.table == format::TableId::kMetrics && IsClock(series);
    if (calls == 0 && !clock) return false;
    if (calls_of_.size() <= series.id) calls_of_.resize(series.id + 1);
    calls_of_[series.id] = calls;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    // What came at one time is judged together, once time goes on.
    if (record.ord_ns > now_.ns) {
      if (Due(record.ord_ns)) Judge(reporter);
      now_.ns = record.ord_ns;
    }
    ++records_;
    if (const auto* row = record.As<format::MetricRow>()) {
      Take(record.series, [row](const Selector&) { return row->value; });
    } else if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnRow(record.series, *scalar, [&](const Selector&) { return scalar->value; });
    } else if (const auto* statistic = record.As<format::StatisticRow>()) {
      OnRow(record.series, *statistic,
            [&](const Selector& selector) { return FieldOf(*statistic, selector.field); });
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnRow(record.series, *span,
            [&](const Selector&) { return static_cast<double>(span->duration_ns) / 1e9; });
    }
  }

  void OnEnd(Reporter* reporter) override {
    Judge(reporter);
    if (open_) reporter->Close(incident_);
    open_ = false;
  }

  bool has_data() const override { return has_data_; }

 private:
  static format::TableId TableOf(Source source) {
    switch (source) {
      case Source::kScalar:
        return format::TableId::kScalars;
      case Source::kStatistic:
        return format::TableId::kStatistics;
      case Source::kStep:
        return format::TableId::kSteps;
      case Source::kSpan:
        return format::TableId::kSpans;
      case Source::kMetric:
        break;
    }
    return format::TableId::kMetrics;
  }

  static bool Selects(const Selector& selector, const Series& series) {
    if (TableOf(selector.source) != series.table || !Matches(selector.name, series.name)) {
      return false;
    }
    if (selector.source == Source::kMetric) {
      return Matches(selector.subject, series.collection) &&
             LabelMatches(selector, "node", series.mode);
    }
    return LabelMatches(selector, "mode", series.mode) &&
           LabelMatches(selector, "rank", std::to_string(series.rank)) &&
           LabelMatches(selector, "collection", series.collection) &&
           LabelMatches(selector, "category", series.collection);
  }

  /// One metric of the machine is enough to know what time it is.
  bool IsClock(const Series& series) {
    if (clock_.empty()) clock_ = series.name + '\x1f' + series.collection;
    return clock_ == series.name + '\x1f' + series.collection;
  }

  bool Due(std::int64_t next_ns) const {
    if (records_ == 0) return false;
    return records_ * kSamplesARecord >= evaluator_.cost() ||
           next_ns / kSecond != judged_ns_ / kSecond;
  }

  /// False where the row is of an attempt that is over. The first of a new one ends what was known
  /// of the one before.
  bool OfThisAttempt(std::uint32_t attempt) {
    if (attempt < attempt_) return false;
    if (attempt > attempt_) {
      if (attempt_ != 0) {
        for (std::size_t i = 0; i < expression_.calls.size(); ++i) {
          if (expression_.calls[i].selector.source != Source::kMetric) evaluator_.window(i).Clear();
        }
        evaluator_.Restart();
        now_.step = -1;
      }
      attempt_ = attempt;
    }
    return true;
  }

  void NoteStep(std::string_view mode, std::int64_t step) {
    if (mode == "TRAIN") now_.step = std::max(now_.step, step);
  }

  void OnStep(const format::StepRow& row) {
    if (!OfThisAttempt(row.attempt)) return;
    NoteStep(row.mode, row.step);
    for (std::size_t i = 0; i < expression_.calls.size(); ++i) {
      const Selector& selector = expression_.calls[i].selector;
      if (selector.source != Source::kStep || !LabelMatches(selector, "mode", row.mode) ||
          !LabelMatches(selector, "rank", std::to_string(row.rank))) {
        continue;
      }
      const auto value = FieldOf(row, selector.field);
      // Each rank is a series; there are no others of steps.
      if (value) evaluator_.window(i).Add(now_, static_cast<std::uint32_t>(row.rank), *value);
    }
  }

  template <class Row, class ValueOf>
  void OnRow(std::uint32_t series, const Row& row, ValueOf&& value_of) {
    if (!OfThisAttempt(row.attempt)) return;
    NoteStep(row.mode, row.step);
    Take(series, value_of);
  }

  /// `value_of(selector)`: a number, or an optional one.
  template <class ValueOf>
  void Take(std::uint32_t series, const ValueOf& value_of) {
    if (series >= calls_of_.size()) return;
    for (std::uint32_t left = calls_of_[series]; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      const std::optional<double> value = value_of(expression_.calls[i].selector);
      if (value) evaluator_.window(i).Add(now_, series, *value);
    }
  }

  void Judge(Reporter* reporter) {
    records_ = 0;
    judged_ns_ = now_.ns;
    const std::optional<bool> holds = evaluator_.Evaluate(now_);
    if (holds) has_data_ = true;
    if (holds && *holds) {
      if (!open_) Open();
      // While it lasts its numbers are not written down more often than anybody reads them.
      if (said_ns_ == 0 || now_.ns - said_ns_ >= kSecond) {
        Describe(&incident_);
        said_ns_ = now_.ns;
        reporter->Report(incident_);
      }
    } else if (open_) {
      open_ = false;
      incident_.end_ns = std::max(incident_.start_ns, now_.ns);
      incident_.last_step = std::max(incident_.first_step, now_.step);
      // Whether it is over nobody knows where there is no data.
      holds ? reporter->Recover(incident_) : reporter->Close(incident_);
    }
  }

  void Open() {
    open_ = true;
    said_ns_ = 0;
    incident_ = Incident();
    incident_.subject = "run";
    incident_.severity = spec_.severity;
    incident_.first_step = evaluator_.since().step;
    incident_.start_ns = evaluator_.since().ns;
    incident_.message = spec_.message.empty() ? spec_.name : spec_.message;
    incident_.advice = advice_;
  }

  void Describe(Incident* incident) const {
    incident->end_ns = now_.ns;
    incident->last_step = std::max(incident->first_step, now_.step);
    ordered_json values = ordered_json::object();
    std::string cause;
    for (std::size_t i = 0; i < expression_.calls.size(); ++i) {
      const auto& value = evaluator_.call_values()[i];
      const std::string& text = expression_.calls[i].text;
      if (value && std::isfinite(*value)) {
        values[text] = Rounded(*value);
      } else {
        values[text] = nullptr;
      }
      cause += fmt::format("{}{} = {}", cause.empty() ? "" : ", ", Printable(text),
                           value ? Figure(*value) : "no data");
    }
    const ordered_json evidence = {{"expression", expression_.text}, {"values", values}};
    incident->evidence = JsonText(evidence);
    incident->cause = cause;
  }

  const RuleSpec spec_;
  const Expression expression_;
  expression::Evaluator evaluator_;
  std::string summary_, formula_, advice_;
  std::uint32_t table_mask_ = 0;

  std::vector<std::uint32_t> calls_of_;  ///< By series: a bit for each call that reads it.
  std::string clock_;
  Moment now_;
  std::uint32_t attempt_ = 0;
  std::size_t records_ = 0;  ///< Since the newest judgement.
  std::int64_t judged_ns_ = 0;
  std::int64_t said_ns_ = 0;
  bool has_data_ = false;
  bool open_ = false;
  Incident incident_;
};

static_assert(expression::kMostCalls <= 32);

}  // namespace

Result<ForeignRule> MakeExpressionRule(const RuleSpec& spec) {
  TELLTALE_ASSIGN_OR_RETURN(Expression parsed, expression::Parse(spec.rule));
  auto rule = std::make_unique<ExpressionRule>(spec, std::move(parsed));
  ForeignRule out;
  out.desc = rule->Describe();
  out.rule = std::move(rule);
  return out;
}

}  // namespace telltale::rules
