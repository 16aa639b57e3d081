// SPDX-License-Identifier: Apache-2.0
// What a rule is: a small class that reads records in order and reports incidents. One rule a file
// in builtin/; the registry there is the only other place that knows it.
//
// Deterministic: a rule may use nothing but the records, their times and its parameters; no clock,
// no randomness, no thread. A gap in the data is "no data", never "bad data".
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/reader.h"

namespace telltale::rules {

enum class Severity : std::uint8_t { kInfo, kLow, kMedium, kHigh };
std::string_view Name(Severity severity);

struct ParameterDesc {
  std::string_view name;
  double default_value;
  std::string_view unit;
  std::string_view doc;
};

/// What a rule reads of tensors, in TRAIN: what makes the capture plan where the rule is enabled.
struct CaptureNeed {
  std::string_view collection;  ///< As capture plans name it.
  std::string_view take;        ///< As they say it: "statistics".
  std::uint32_t interval;       ///< Steps between two captures that serve the rule well.
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
  std::span<const CaptureNeed> captures;  ///< None: it reads what is recorded in any case.
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

class Rule {
 public:
  virtual ~Rule() = default;
  virtual void OnRecord(const store::OrderedRecord& record, Reporter* reporter) = 0;
  /// The run has ended and no record follows: say the last word, close what is open.
  virtual void OnEnd(Reporter* reporter) = 0;
  /// False while the rule has not seen what it needs (status NoData).
  virtual bool has_data() const = 0;
};

}  // namespace telltale::rules
