// SPDX-License-Identifier: Apache-2.0
// What the rules of the training loop share. They read few events of each training process; what
// one finds lasts until the loop is as it should be, or its process ends.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/rule.h"

namespace telltale::rules {

/// "a, b and 5 more"; `count`: of all, where the texts are the first.
inline std::string Listed(const std::vector<std::string>& texts, std::size_t count,
                          std::size_t most = 3) {
  std::string all;
  const std::size_t shown = std::min(most, texts.size());
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) all += i + 1 == shown && shown >= count ? " and " : ", ";
    all += texts[i];
  }
  if (count > shown) all += fmt::format(" and {} more", count - shown);
  return all;
}

/// What a rule of the loop keeps of a process derives from it.
struct LoopProcess : TrainingProcess {
  std::int64_t steps = 0;                ///< TRAIN steps that have ended.
  std::int64_t end_ns = 0;               ///< Of the newest record.
  std::map<std::string, Incident> said;  ///< Open incidents, by what they are about.
};

template <class Process>
class LoopRule : public Rule {
 public:
  void OnRecord(const Record& record, Reporter* reporter) final {
    writer_ = record.writer;
    reporter_ = reporter;
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") TakeStep(*step);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (Process* process = Find(*scalar)) OnScalar(*scalar, process);
    } else if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (Process* process = Find(*statistic)) OnStatistic(*statistic, process);
    } else if (const auto* event = record.As<format::EventRow>()) {
      TakeEvent(*event);
    }
  }
  void OnEnd(Reporter* reporter) final {
    reporter_ = reporter;
    for (auto& [key, process] : processes_) {
      OnExit(&process);
      Close(&process);
    }
  }
  bool has_data() const final { return has_data_; }
  std::string Missing() const final { return stepped_ ? Lacks() : std::string(); }

 protected:
  /// The kinds of events that OnEvent is given.
  virtual bool Reads(std::string_view kind) const = 0;
  virtual void OnEvent(const format::EventRow& event, const nlohmann::json& data,
                       Process* process) = 0;
  virtual void OnStep(const format::StepRow&, Process*) {}
  virtual void OnScalar(const format::ScalarRow&, Process*) {}
  virtual void OnStatistic(const format::StatisticRow&, Process*) {}
  /// The process has ended: the last judgement of what is complete by now.
  virtual void OnExit(Process*) {}

  void SeesData() { has_data_ = true; }
  /// What has not come where steps came: a sentence of missing.h.
  virtual std::string Lacks() const = 0;

  /// Opens the incident about `about`, or says its present state. Of `finding` the words, severity,
  /// evidence and costs count, and where it is new its begin.
  void Say(Process* process, const std::string& about, Incident finding) {
    auto known = process->said.find(about);
    if (known == process->said.end()) {
      processes_.Open(process, finding.first_step, finding.start_ns);
      finding.subject = process->incident.subject + (about.empty() ? "" : ", " + about);
      known = process->said.emplace(about, Incident()).first;
    } else {
      finding.subject = known->second.subject;
      finding.first_step = known->second.first_step;
      finding.start_ns = known->second.start_ns;
    }
    known->second = std::move(finding);
    Report(process, &known->second);
  }
  /// It is over.
  void TakeBack(Process* process, const std::string& about) {
    const auto known = process->said.find(about);
    if (known == process->said.end()) return;
    Lasts(*process, &known->second);
    reporter_->Recover(known->second);
    process->said.erase(known);
    process->open = !process->said.empty();
  }
  bool IsSaid(const Process& process, const std::string& about) const {
    return process.said.contains(about);
  }

 private:
  /// Steps between two reports of an incident that only lasts.
  static constexpr std::int64_t kReportEvery = 16;

  template <class Row>
  Process* Find(const Row& row) {
    Process* process = processes_.Find(row, writer_, [this](Process* former) { Close(former); });
    return process;
  }

  void TakeStep(const format::StepRow& row) {
    Process* process = Find(row);
    if (process == nullptr || !process->BeginStep(row.step)) return;
    ++process->steps;
    stepped_ = true;
    process->end_ns =
        std::max(process->end_ns, row.time_ns + std::max<std::int64_t>(0, row.duration_ns));
    OnStep(row, process);
    if (process->steps % kReportEvery != 0) return;
    for (auto& [about, incident] : process->said) Report(process, &incident);
  }

  void TakeEvent(const format::EventRow& event) {
    if (event.kind == "process.exit") {
      processes_.End(event, writer_, [this](Process* process) {
        OnExit(process);
        Close(process);
      });
      return;
    }
    if (!Reads(event.kind)) return;
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    Process* process = Find(event);
    if (process == nullptr) return;
    process->end_ns = std::max(process->end_ns, event.time_ns);
    OnEvent(event, data, process);
  }

  static void Lasts(const Process& process, Incident* incident) {
    incident->last_step = std::max(incident->first_step, process.last_step);
    incident->end_ns = std::max(incident->start_ns, process.end_ns);
  }
  void Report(Process* process, Incident* incident) {
    Lasts(*process, incident);
    reporter_->Report(*incident);
  }
  /// No record of the process follows.
  void Close(Process* process) {
    for (auto& [about, incident] : process->said) {
      Lasts(*process, &incident);
      reporter_->Close(incident);
    }
    process->said.clear();
    process->open = false;
  }

  ProcessTable<Process> processes_;
  Reporter* reporter_ = nullptr;  ///< Of the record that is read.
  std::uint32_t writer_ = 0;      ///< Likewise.
  bool has_data_ = false;
  bool stepped_ = false;
};

/// An incident that begins at an event, without words.
inline Incident BeginAt(std::int64_t step, std::int64_t time_ns, Severity severity) {
  Incident incident;
  incident.severity = severity;
  incident.first_step = std::max<std::int64_t>(0, step);
  incident.start_ns = time_ns;
  return incident;
}

}  // namespace telltale::rules
