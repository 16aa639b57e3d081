// SPDX-License-Identifier: Apache-2.0
// The table of what leaves as metrics. Names and labels are a contract: docs/guide/metrics-out.md
// lists them, alert rules and dashboard are made of them.
#pragma once
#include <array>

#include "telemetry/metric_set.h"

namespace telltale::telemetry {

inline constexpr FamilyDesc kRunInfo{
    "telltale_run_info", Kind::kGauge, "1", false,
    "Always 1: what a run is called and where it runs (name, host, version)."};
inline constexpr FamilyDesc kRunState{
    "telltale_run_state", Kind::kGauge, "1", true,
    "1 for the state that the run is in (running, finished, failed, killed, lost), 0 for others."};
inline constexpr FamilyDesc kRunStart{"telltale_run_start_time_seconds", Kind::kGauge, "s", false,
                                      "When the run began, Unix time."};
inline constexpr FamilyDesc kRunAttempts{"telltale_run_attempts", Kind::kGauge, "1", false,
                                         "Attempts of the run so far."};
inline constexpr FamilyDesc kLastRecord{"telltale_last_record_time_seconds", Kind::kGauge, "s",
                                        false, "Time of the newest record, Unix time."};
inline constexpr FamilyDesc kSteps{"telltale_steps_total", Kind::kCounter, "1", false,
                                   "Steps of a mode and rank."};
inline constexpr FamilyDesc kStepTime{"telltale_step_time_seconds_total", Kind::kCounter, "s",
                                      false, "Time of these steps together."};
inline constexpr FamilyDesc kPhaseTime{
    "telltale_step_phase_time_seconds_total", Kind::kCounter, "s", false,
    "Time of these steps by phase; the phases sum to the time of the steps."};
inline constexpr FamilyDesc kSamples{"telltale_samples_total", Kind::kCounter, "1", false,
                                     "Samples of these steps, where the batch size is known."};
inline constexpr FamilyDesc kSkipped{"telltale_skipped_steps_total", Kind::kCounter, "1", false,
                                     "Steps in which a gradient scaler skipped the optimizer."};
inline constexpr FamilyDesc kProbeTime{"telltale_probe_time_seconds_total", Kind::kCounter, "s",
                                       false, "Part of these steps' time inside Telltale's probe."};
inline constexpr FamilyDesc kStep{"telltale_step", Kind::kGauge, "1", false,
                                  "Number of the newest step."};
inline constexpr FamilyDesc kStepSeconds{
    "telltale_step_seconds", Kind::kGauge, "s", true,
    "Mean time of the steps of the last minute, or of the newest."};
inline constexpr FamilyDesc kPhaseSeconds{"telltale_step_phase_seconds", Kind::kGauge, "s", true,
                                          "The same by phase."};
inline constexpr FamilyDesc kStepRate{
    "telltale_steps_per_second", Kind::kGauge, "1/s", true,
    "Steps of the last minute by its length: falls to 0 where a training hangs."};
inline constexpr FamilyDesc kSampleRate{"telltale_samples_per_second", Kind::kGauge, "1/s", true,
                                        "Samples of the last minute by its length."};
inline constexpr FamilyDesc kStepAge{"telltale_last_step_age_seconds", Kind::kGauge, "s", true,
                                     "Time since the newest step ended."};
inline constexpr FamilyDesc kLoss{"telltale_loss", Kind::kGauge, "1", true,
                                  "The newest scalar 'loss' of a mode and rank."};
inline constexpr FamilyDesc kScalar{"telltale_scalar", Kind::kGauge, "1", false,
                                    "The newest value of each scalar that the training logs."};
inline constexpr FamilyDesc kLedgerLoss{
    "telltale_ledger_loss_total", Kind::kCounter, "1", false,
    "What was lost of the recording, by the ledger's counter and its unit."};
inline constexpr FamilyDesc kOwnCpu{"telltale_own_cpu_seconds_total", Kind::kCounter, "s", false,
                                    "Processor time of Telltale's agent and watcher."};
inline constexpr FamilyDesc kRuleState{
    "telltale_rule_state", Kind::kGauge, "1", false,
    "1 for the status that a rule has, 0 for the others; of a rule that finds something the "
    "status is IssuesFound."};
inline constexpr FamilyDesc kFinding{
    "telltale_finding", Kind::kGauge, "1", false,
    "1 while a finding of this rule, subject and severity lasts, 0 once it is over."};
inline constexpr FamilyDesc kFindings{"telltale_findings", Kind::kGauge, "1", true,
                                      "Findings by severity and state (open, closed)."};
inline constexpr FamilyDesc kFindingCost{"telltale_finding_cost_seconds", Kind::kGauge, "s", false,
                                         "Time that findings of this rule and subject have cost."};
inline constexpr FamilyDesc kLeftOut{
    "telltale_series_left_out", Kind::kGauge, "1", false,
    "Series of the run that are not exported since there are too many."};
inline constexpr FamilyDesc kRuns{"telltale_runs", Kind::kGauge, "1", false,
                                  "Runs in this answer."};
inline constexpr FamilyDesc kRunsLeftOut{"telltale_runs_left_out", Kind::kGauge, "1", false,
                                         "Runs that go on and are not in this answer."};

/// Every family but those of the machine, whose names are made of docs/metrics.md: SystemFamily.
inline constexpr auto kFamilies = std::to_array<FamilyDesc>(
    {kRunInfo,   kRunState,   kRunStart, kRunAttempts, kLastRecord, kSteps,       kStepTime,
     kPhaseTime, kSamples,    kSkipped,  kProbeTime,   kStep,       kStepSeconds, kPhaseSeconds,
     kStepRate,  kSampleRate, kStepAge,  kLoss,        kScalar,     kLedgerLoss,  kOwnCpu,
     kRuleState, kFinding,    kFindings, kFindingCost, kLeftOut,    kRuns,        kRunsLeftOut});

/// What names a metric of the machine: disk.read_bytes_rate in bytes/s is
/// telltale_system_disk_read_bytes_per_second.
struct SystemFamily {
  std::string name, unit, help;
  FamilyDesc desc(bool brief) const { return {name, Kind::kGauge, unit, brief, help}; }
};
SystemFamily SystemFamilyOf(std::string_view metric, std::string_view unit);

}  // namespace telltale::telemetry
