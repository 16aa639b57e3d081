// SPDX-License-Identifier: Apache-2.0
// What a rule is: a small class that reads records in order and reports incidents. One rule a file
// in builtin/; the registry there is the only other place that knows it.
//
// Deterministic: a rule may use nothing but the records, their times and its parameters; no clock,
// no randomness, no thread. A gap in the data is "no data", never "bad data".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rules/series.h"
#include "store/reader.h"

namespace telltale::rules {

enum class Severity : std::uint8_t { kInfo, kLow, kMedium, kHigh };
std::string_view Name(Severity severity);

struct ParameterDesc {
  std::string_view name;
  double default_value;
  std::string_view unit;
  std::string_view doc;
  /// The default of a parameter that is text (a regular expression, a list); null: it is a number.
  const char* text = nullptr;
  /// What SageMaker Debugger's released code has where its documentation says otherwise: the
  /// preset "source". The default above is the documentation's.
  std::optional<double> source = std::nullopt;
};

/// What a rule reads of tensors: what makes the capture plan where the rule is enabled.
struct CaptureNeed {
  /// As capture plans name it: a built-in collection, or a name of the rule's own for `include`;
  /// "{parameter}": those that the text of that parameter names, separated by commas. Empty: what
  /// `include` finds, in a collection of the rule's name, and nothing where that is empty.
  std::string_view collection;
  std::string_view take;  ///< As they say it: "statistics", "histogram", "values", "shape".
  /// TRAIN steps between two captures that serve the rule well.
  std::uint32_t interval = 100;
  /// RE2, found anywhere in the tensor's name, in SageMaker's spelling or ours (tensor_pattern.h);
  /// "{parameter}": the text of that parameter. Empty: what the collection's name says.
  std::string_view include = {};
  std::uint32_t eval_interval = 0;  ///< The same of EVAL steps; 0: it needs none of them.
  /// Only where somebody names the rule: it costs more than a default may, and the rule judges
  /// what is recorded in any case without it.
  bool asked_only = false;
};

/// Which of SageMaker Debugger's lists a rule comes from, or our own.
enum class Family : std::uint8_t { kModel, kTree, kProfiler, kOwn };
std::string_view Name(Family family);

/// What findings of several rules may be about together. Findings of one theme that overlap in time
/// are shown as one (groups.h).
enum class Theme : std::uint8_t {
  kNone,      ///< Each finding stands by itself.
  kEnd,       ///< How the run ended: always the first of a list.
  kInput,     ///< The device waits for its data.
  kRanks,     ///< Ranks wait for each other.
  kPauses,    ///< Single steps take long.
  kMemory,    ///< Memory grows.
  kNumbers,   ///< Values leave the range of numbers.
  kLayers,    ///< Layers do not learn.
  kFit,       ///< The model fits the training data alone.
  kLearning,  ///< The loop does not train the model as it should.
  kDrift,     ///< Steps take longer and longer.
};

/// What a run may lack of what a rule must see before it can judge, the most basic first
/// (missing.h). Tensors are not here: CaptureNeed says them.
enum class Datum : std::uint8_t {
  kSamples,     ///< The machine, at any time.
  kGpu,         ///< Any figure of a GPU.
  kGpuLoad,     ///< Its utilization.
  kGpuMemory,   ///< How full its memory is.
  kSteps,       ///< TRAIN steps.
  kRanks,       ///< More than one.
  kLoss,        ///< A scalar that the rule wants.
  kEvaluation,  ///< The same in mode EVAL.
};
template <class... Data>
constexpr std::uint32_t DataMask(Data... data) {
  return ((1U << static_cast<unsigned>(data)) | ... | 0U);
}

/// Where the findings of a rule stand in the list of all findings.
struct Standing {
  Theme theme = Theme::kNone;
  int order = 0;           ///< Within the theme: the lower explains the higher.
  bool all_ranks = false;  ///< It names one rank as the cause, and all ranks lose the time.
};

/// What the docs page, `rules list|show` and the registry know of a rule.
struct RuleDesc {
  std::string_view name;
  std::string_view summary;  ///< One line.
  std::string_view formula;  ///< What is computed, in words and symbols.
  std::string_view how_to_fix;
  std::uint32_t table_mask;  ///< Tables it reads.
  bool wrong_result;         ///< What it finds makes the result wrong, not only slow.
  std::span<const ParameterDesc> parameters;
  std::span<const CaptureNeed> captures = {};  ///< None: it reads what is recorded in any case.
  Family family = Family::kOwn;
  /// Runs where nobody asked. Off: it needs parameters or tensors that only the user can name, or
  /// can judge nothing without what costs more than a default may (CaptureNeed::asked_only).
  bool by_default = true;
  /// A training that has it, in a sentence or a few lines of code; for the page of the rule.
  std::string_view example = {};
  Standing standing = {};
  /// The findings are about time alone: how severe they are follows from the share of the run's
  /// time that they cost (lifecycle.h), and the rule's own word counts for nothing but kInfo.
  bool severity_by_cost = false;
  /// What must be there before it can judge; what is not is said where it has not judged.
  std::uint32_t data_mask = 0;
};

/// The present state of an incident, as the rule sees it. The engine numbers revisions, writes
/// records and drops reports that say nothing new.
struct Incident {
  std::string subject;  ///< With the rule's name, the identity of the incident while it is open.
  Severity severity = Severity::kLow;
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::string message;
  std::string evidence;  ///< JSON object.
  std::string cause;
  double cost_seconds = 0;
  /// Of the cost, the seconds that the cause explains; negative: all of them. Where the cause
  /// explains too little the engine says so in the cause (lifecycle.h).
  double explained_seconds = -1;
  std::string advice;
  double confidence = 1;
};

/// Where a rule reports to.
class Reporter {
 public:
  virtual ~Reporter() = default;
  /// Opens the incident, or updates it where it is open.
  virtual void Report(const Incident& incident) = 0;
  /// Closes it with its last state. Where the record that is being read ends its process, or none
  /// follows, it lasted until then.
  virtual void Close(const Incident& incident) = 0;
  /// Closes it since it is over, though the record that shows this may end its process too.
  virtual void Recover(const Incident& incident) = 0;
};

/// A record and whose it is.
struct Record : store::OrderedRecord {
  /// Of a record of `metrics`, `spans`, `scalars`, `statistics`, `tensors` or `histograms`: the id
  /// of its series, a small number that counts up; else kNoSeries.
  std::uint32_t series = kNoSeries;
};

/// Some hundred records that follow each other, and which of them a rule is given.
struct RecordRun {
  std::span<const Record> records;
  std::span<const std::uint32_t> share;  ///< Their indices, rising.
  std::uint32_t* at = nullptr;           ///< To be set to the index before its record is looked at.
};

/// Reads the values of a record of `tensors`.
class TensorValues {
 public:
  virtual ~TensorValues() = default;
  /// Elements in C order as doubles, at most `limit` of them (the first). kUsage: only the shape
  /// was taken; kUnusable, kPartial: they are gone or damaged.
  virtual Result<std::vector<double>> Read(const Record& record, std::size_t limit) = 0;
};

/// What the engine lends to a rule for its life.
struct RuleContext {
  TensorValues* values = nullptr;  ///< Null where there are none (a rule script without values).
  /// Folder of the run; empty in scripts and tests.
  std::string run;
};

/// Thrown by a rule of the user's that did what no rule may (it loops, eats memory, has ended): it
/// is given nothing more, and its status is kSuspended with these words.
class Suspended : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Rule {
 public:
  virtual ~Rule() = default;
  /// Once, before everything else.
  virtual void Bind(const RuleContext& context) { static_cast<void>(context); }
  /// Once for each series, before its first record. The records of a series that the rule does not
  /// want never come, which is what keeps a rule cheap where there are millions.
  virtual bool Wants(const Series& series) {
    static_cast<void>(series);
    return true;
  }
  /// A rule may be some hundred records ahead of another, and what it reports is said when all have
  /// seen the record; it is given each in order.
  virtual void OnRecord(const Record& record, Reporter* reporter) = 0;
  /// OnRecord of each of them. A rule of very many records may have the loop as its own, so that
  /// the compiler sees both; it does nothing else.
  virtual void OnRun(const RecordRun& run, Reporter* reporter) {
    for (const std::uint32_t at : run.share) {
      *run.at = at;
      OnRecord(run.records[at], reporter);
    }
  }
  /// The run has ended and no record follows: say the last word, close what is open.
  virtual void OnEnd(Reporter* reporter) = 0;
  /// False while the rule has not seen what it needs (status NoData).
  virtual bool has_data() const = 0;
  /// False where the run is none that the rule is about (status NotApplicable), once the run has
  /// ended and nothing was found: no GPU, no workers, one rank.
  virtual bool applies() const { return true; }
  /// What was missing, in the words of missing.h, where the rule knows better than these. Asked
  /// where has_data() or applies() is false.
  virtual std::string Missing() const { return {}; }
  /// What the report shows of a rule that only reports (OverallSystemUsage): a JSON object, empty
  /// where there is nothing. Valid at any time; asked seldom.
  virtual std::string Summary() const { return {}; }
};

/// A rule whose OnRun is its own. `Own`: the rule, which is final.
template <class Own>
class LoopedRule : public Rule {
 public:
  void OnRun(const RecordRun& run, Reporter* reporter) final {
    Own* const own = static_cast<Own*>(this);
    for (const std::uint32_t at : run.share) {
      *run.at = at;
      own->Own::OnRecord(run.records[at], reporter);
    }
  }
};

}  // namespace telltale::rules
