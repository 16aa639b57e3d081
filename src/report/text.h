// SPDX-License-Identifier: Apache-2.0
// Numbers and sentences as people read them, the same in the terminal and in the report: three
// significant digits, a space before the unit, durations in two parts, U+2212 for minus.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/load.h"

namespace telltale::report {

inline constexpr std::string_view kSpace = "\u202f";  ///< Narrow no-break, before a unit.

/// 548, 54.8, 5.48, 0.548; "—" where it is no number.
std::string Significant(double value, int digits = 3);
/// 78,112
std::string Thousands(std::int64_t value);
/// 5 h 42 m, 1 m 01 s, 12.3 s, 548 ms, 21 µs.
std::string Duration(double seconds);
/// 71.9 GiB (binary).
std::string Bytes(double bytes);
/// 41.2 MB/s (decimal).
std::string Rate(double bytes_per_second);
/// 18.3 %
std::string Percent(double share);
/// 2026-11-20 09:21:35 UTC
std::string Utc(std::int64_t ns);

/// "finished", "failed, exit 1", "killed, signal 9 (KILL)".
std::string StateWords(const store::RunState& state);

/// The step from which on the newest finding about speed lasts; 0 where there is none, or it has
/// lasted almost from the start. Phases before and after it are compared.
std::int64_t SlowSince(const RunData& data);

/// Spans of one name and category.
struct Operation {
  const std::string* category;
  const std::string* name;
  const analysis::SpanTotal* total;
};
/// Those that took longest together, at most 12; they point into the summary.
std::vector<Operation> LongestOperations(const analysis::Summary& summary);

/// The verdict of the run: one or two sentences.
std::string Verdict(const RunData& data);
/// "Stopped by the rule LossNotDecreasing: loss does not decrease." of the newest attempt; empty
/// where nobody has asked for its end.
std::string StoppedWords(const RunData& data);
/// "What happened after 2026-11-28 04:23:41 UTC was not recorded: the agent ended without its last
/// word, ..."; empty where the recording came to its end, or may still.
std::string UnrecordedWords(const RunData& data);
/// "6.02 s"; "≥ 956 ms" where nobody has seen the end.
std::string ElapsedWords(const RunData& data);
/// What these findings have set off: "Asked the training to stop. Would post to a webhook (dry
/// run)."; empty where nothing. `findings`: indexes, as Explanation has them.
std::string ActionWords(const RunData& data, const std::vector<std::size_t>& findings);
/// A part of the counter probe.skipped.
struct SkippedReason {
  std::string_view name;  ///< Points into the summary.
  std::uint64_t count;
};
/// Those that there are, the largest first.
std::vector<SkippedReason> SkippedReasons(const analysis::Summary& summary);
/// What the report cannot say: gaps, drops, no data, salvage; one sentence each.
std::vector<std::string> Unknowns(const RunData& data);
/// "Not for this run: HostSync: no GPU was seen.": rules that do not apply to the run, by reason.
std::vector<std::string> NotApplicableWords(const RunData& data);
/// "Initialization 2.10 s (12 %), training loop 14.0 s (80 %), finalization 1.40 s (8 %)."; empty
/// where nothing is known of it.
std::string WhereTheRunGoes(const RunData& data);
/// "The processor limits the speed: it is 97 % busy. The run takes 1.98 of 2 cores, ...": what
/// RightSize saw, one sentence or two a node; empty where it saw nothing.
std::vector<std::string> ResourceWords(const RunData& data);
/// "GPUs in the training loop: above 90 % in 61 % of the samples, ...": how the machine was used;
/// empty where no device and no core was measured.
std::string UsageWords(const RunData& data);
/// "Telltale accounts for 0.40 % of step time (budget 1 %), ...": its own measure of itself.
std::string OwnCost(const RunData& data);
/// "Capture: Telltale acted on its budget twice, last ...: ...", of what the governor took less of,
/// or that it could not keep the budget by that; empty where it did nothing and kept it.
std::string CaptureWords(const RunData& data);
/// "Of 5 h 42 m, 18 m 02 s (5.27 %) were lost."
std::string LostTime(const RunData& data);
/// What of the recording could not be read, in one sentence; empty where all could.
std::string Damage(const store::Salvage& salvage);
/// "from the start", "since step 18,400", "steps 3 to 90, closed"; empty where no step is known.
std::string SinceWords(const rules::Finding& finding);
/// "4 other rules: 3 quiet, 1 without data."
std::string RulesWords(const RunData& data);
inline constexpr std::string_view kOrderWords =
    "Order: lasting before closed; wrong results before slow ones; then by cost.";
/// "worker 0 (4711)" for proc:4711 of a node, "trainer, rank 1 (4701)" where there are several
/// ranks; empty where the subject is no process that registered.
std::string ProcessLabel(const analysis::Summary& summary, std::string_view node,
                         std::string_view subject);
/// Subject worth naming: empty for the only rank.
std::string SubjectOf(const RunData& data, const rules::Finding& finding);

}  // namespace telltale::report
