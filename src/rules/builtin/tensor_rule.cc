// SPDX-License-Identifier: Apache-2.0
// From verdicts on tensors to incidents of processes.
#include "rules/builtin/tensor_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/units.h"

namespace telltale::rules {
namespace {

constexpr std::size_t kNamed = 8;  ///< Tensors that the evidence names.
constexpr std::string_view kGradientPrefix = "gradient/";

}  // namespace

TensorRule::TensorRule(std::int64_t patience, bool costs)
    : patience_(std::max<std::int64_t>(1, patience)), costs_(costs) {}

std::optional<TensorRule::Verdict> TensorRule::OnStatistic(const Tensor&, Process*,
                                                           const format::StatisticRow&) {
  return std::nullopt;
}

std::optional<TensorRule::Verdict> TensorRule::OnValues(const Tensor&, Process*, const Record&,
                                                        const format::TensorRow&) {
  return std::nullopt;
}

std::optional<TensorRule::Verdict> TensorRule::OnLast(const Tensor&) { return std::nullopt; }

void TensorRule::OnEvent(const format::EventRow&, Process*) {}
void TensorRule::OnPlan(const format::EventRow&) {}
void TensorRule::OnOther(const format::EventRow&) {}
bool TensorRule::Matters(const Process&, const std::vector<const Tensor*>&) { return true; }

bool TensorRule::Wants(const Series& series) {
  if (series.table != format::TableId::kStatistics && series.table != format::TableId::kTensors) {
    return false;
  }
  // What SageMaker Debugger's hook saved without a mode is GLOBAL.
  if (series.mode != "TRAIN" && series.mode != "GLOBAL") return false;
  if (!Selects(series)) return false;
  if (by_series_.size() <= series.id) by_series_.resize(series.id + 1);
  by_series_[series.id] = &unseen_;
  return true;
}

std::uint32_t TensorRule::IdOf(const Key& key, std::string_view collection) {
  const auto next = static_cast<std::uint32_t>(tensors_.size());
  const auto [at, made] = ids_.try_emplace(key, next);
  if (!made && tensors_[at->second].writer != kNone) return at->second;
  at->second = next;
  Tensor& tensor = tensors_.emplace_back();
  tensor.id = next;
  tensor.writer = std::get<0>(key);
  tensor.name = std::get<4>(key);
  tensor.collection = collection;
  tensor.is_gradient = collection == "gradients";
  Link(key, next);
  return next;
}

void TensorRule::Link(const Key& key, std::uint32_t id) {
  const auto& [writer, rank, pid, attempt, name] = key;
  const auto find = [&](const Key& other) {
    const auto found = ids_.find(other);
    return found == ids_.end() || tensors_[found->second].writer == kNone ? kNone : found->second;
  };
  if (!name.starts_with(kGradientPrefix)) {
    const std::string gradient = std::string(kGradientPrefix) + name;
    tensors_[id].gradient = find(Key(writer, rank, pid, attempt, gradient));
    return;
  }
  const std::uint32_t parameter =
      find(Key(writer, rank, pid, attempt, name.substr(kGradientPrefix.size())));
  if (parameter != kNone) tensors_[parameter].gradient = id;
}

template <class Row>
TensorRule::Tensor* TensorRule::Renew(std::uint32_t series, std::uint32_t writer, const Row& row) {
  Tensor*& tensor = by_series_[series];
  tensor = &tensors_[IdOf(Key(writer, row.rank, row.pid, row.attempt, std::string(row.name)),
                          row.collection)];
  return tensor;
}

template <class Row>
TensorRule::Process* TensorRule::Find(const Row& row, std::uint32_t writer, Reporter* reporter) {
  return processes_.Find(row, writer, [&](Process* process) { Close(process, true, reporter); });
}

void TensorRule::BeginCapture(Process* process, std::int64_t step, std::int64_t ns,
                              Reporter* reporter) {
  if (process->dirty) Look(process, reporter);
  if (process->capture_step >= 0) {
    process->widest = std::max(process->widest, step - process->capture_step);
  }
  process->capture_step = process->judged_step = step;
  process->capture_ns = ns;
}

template <class Row>
[[gnu::always_inline]] inline TensorRule::Process* TensorRule::Begin(Tensor* tensor, const Row& row,
                                                                     std::uint32_t writer,
                                                                     Reporter* reporter) {
  Process* process = tensor->process;
  if (process == nullptr || tensor->changes != processes_.changes()) {
    process = Find(row, writer, reporter);
    if (process == nullptr) return nullptr;
    // One that ended may have rows that came late: then each is asked for.
    tensor->process = processes_.none_ended() ? process : nullptr;
    tensor->changes = processes_.changes();
  }
  if (row.step > process->capture_step) BeginCapture(process, row.step, row.time_ns, reporter);
  const std::int64_t newest = std::max(tensor->statistic_step, tensor->values_step);
  if (newest < 0) process->tensors.push_back(tensor->id);
  if (row.step > newest) tensor->presence.See(row.step);
  tensor->gone = false;
  return process;
}

inline void TensorRule::Apply(Tensor* tensor, Process* process, std::int64_t step, std::int64_t ns,
                              const Verdict& verdict) {
  if (++tensor->verdicts >= patience_) has_data_ = true;
  if (tensor->first_step < 0) {
    tensor->first_step = step;
    tensor->first_value = verdict.value;
  }
  tensor->value = verdict.value;
  tensor->weight = verdict.weight == 1 ? 1 : std::clamp(verdict.weight, 0.0, 1.0);
  process->dirty = true;
  if (!verdict.bad && tensor->bad_in_row == 0 && !tensor->ill) {  // Well, as it was.
    ++tensor->good_in_row;
    return;
  }
  if (verdict.bad && tensor->bad_in_row == 0 && !tensor->ill) {
    tensor->since = {step, ns, process->worked_s};
  }
  tensor->bad_in_row = verdict.bad ? tensor->bad_in_row + 1 : 0;
  tensor->good_in_row = verdict.bad ? 0 : tensor->good_in_row + 1;
  if (tensor->bad_in_row >= patience_) tensor->ill = process->may_be_ill = true;
  if (tensor->good_in_row >= kRecovery) tensor->ill = false;
  process->news = process->news || (verdict.bad && tensor->ill);
}

[[gnu::always_inline]] inline void TensorRule::TakeStatistic(Tensor* tensor,
                                                             const format::StatisticRow& row,
                                                             std::uint32_t writer,
                                                             Reporter* reporter) {
  if (row.count == 0 || row.step <= tensor->statistic_step) return;
  Process* process = Begin(tensor, row, writer, reporter);
  if (process == nullptr) return;
  tensor->statistic_step = row.step;
  tensor->elements = row.count;
  // Values say more, while they come: the governor takes fewer of them first.
  if (tensor->by_values) {
    const std::int64_t usual = std::max<std::int64_t>(1, process->widest);
    if (row.step - tensor->values_step > 4 * usual) tensor->by_values = false;
  }
  const auto verdict = OnStatistic(*tensor, process, row);
  if (verdict && !tensor->by_values) Apply(tensor, process, row.step, row.time_ns, *verdict);
}

void TensorRule::TakeValues(Tensor* tensor, const Record& record, const format::TensorRow& row,
                            Reporter* reporter) {
  if (row.step <= tensor->values_step) return;
  Process* process = Begin(tensor, row, record.writer, reporter);
  if (process == nullptr) return;
  tensor->values_step = row.step;
  if (const auto shape = ShapeOf(row.shape)) tensor->elements = ElementsOf(*shape);
  const auto verdict = OnValues(*tensor, process, record, row);
  if (verdict) ApplyValues(tensor, process, row.step, row.time_ns, *verdict);
}

void TensorRule::ApplyValues(Tensor* tensor, Process* process, std::int64_t step, std::int64_t ns,
                             const Verdict& verdict) {
  if (!tensor->by_values) {
    // What statistics said of the same steps does not count twice.
    tensor->by_values = true;
    tensor->bad_in_row = tensor->good_in_row = 0;
  }
  Apply(tensor, process, step, ns, verdict);
}

void TensorRule::Take(const Record& record, Reporter* reporter) {
  if (record.series < by_series_.size() && by_series_[record.series] != nullptr) {
    Tensor* tensor = by_series_[record.series];
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (tensor->writer != record.writer) {
        tensor = Renew(record.series, record.writer, *statistic);
      }
      TakeStatistic(tensor, *statistic, record.writer, reporter);
    } else if (const auto* values = record.As<format::TensorRow>()) {
      if (tensor->writer != record.writer) tensor = Renew(record.series, record.writer, *values);
      TakeValues(tensor, record, *values, reporter);
    }
  } else if (const auto* step = record.As<format::StepRow>()) {
    TakeStep(*step, record.writer, reporter);
  } else if (const auto* event = record.As<format::EventRow>()) {
    TakeEvent(*event, record.writer, reporter);
  }
}

void TensorRule::OnRecord(const Record& record, Reporter* reporter) { Take(record, reporter); }

void TensorRule::OnRun(const RecordRun& run, Reporter* reporter) {
  for (const std::uint32_t at : run.share) {
    *run.at = at;
    const Record& record = run.records[at];
    const auto* statistic = record.As<format::StatisticRow>();
    if (statistic == nullptr || record.series >= by_series_.size()) {
      Take(record, reporter);
      continue;
    }
    Tensor* tensor = by_series_[record.series];
    if (tensor == nullptr) continue;
    if (tensor->writer != record.writer) {
      tensor = Renew(record.series, record.writer, *statistic);
    }
    TakeStatistic(tensor, *statistic, record.writer, reporter);
  }
}

void TensorRule::TakeStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter) {
  if (step.mode != "TRAIN") return;
  Process* process = Find(step, writer, reporter);
  if (process == nullptr || !process->BeginStep(step)) return;
  process->CountWork(step);
  if (process->dirty && step.step >= process->capture_step) Look(process, reporter);
  if (process->open && step.step >= process->look_step) LookForGone(process, step.step, reporter);
}

void TensorRule::TakeEvent(const format::EventRow& event, std::uint32_t writer,
                           Reporter* reporter) {
  if (event.kind == "process.exit") {
    processes_.End(event, writer, [&](Process* process) {
      End(process, reporter);
      for (const std::uint32_t id : process->tensors) tensors_[id].writer = kNone;
    });
  } else if (event.kind == "plan") {
    OnPlan(event);
  } else if (event.kind == "optimizer") {
    Process* process = Find(event, writer, reporter);
    if (process != nullptr) OnEvent(event, process);
  } else {
    OnOther(event);
  }
}

void TensorRule::OnEnd(Reporter* reporter) {
  for (auto& [key, process] : processes_) End(&process, reporter);
}

void TensorRule::Look(Process* process, Reporter* reporter) {
  process->dirty = false;
  const bool news = std::exchange(process->news, false);
  std::vector<const Tensor*> ill;
  if (process->may_be_ill) {
    for (const std::uint32_t id : process->tensors) {
      if (tensors_[id].ill) ill.push_back(&tensors_[id]);
    }
    process->may_be_ill = !ill.empty();
  }
  // First those that are bad now, before those that are on the way back.
  std::stable_partition(ill.begin(), ill.end(),
                        [](const Tensor* tensor) { return tensor->bad_in_row > 0; });
  if (ill.empty() || !Matters(*process, ill)) {
    if (process->open) Close(process, false, reporter);
    return;
  }
  if (!process->open) {
    Open(process, ill);
  } else if (!news) {
    return;  // On the way back there is nothing new to say.
  }
  Say(process, ill, reporter);
}

void TensorRule::LookForGone(Process* process, std::int64_t step, Reporter* reporter) {
  process->look_step = step + std::max<std::int64_t>(1, process->widest);
  bool changed = false;
  for (const std::uint32_t id : process->tensors) {
    Tensor& tensor = tensors_[id];
    if (tensor.gone || !tensor.presence.GoneAt(step, process->widest)) continue;
    tensor.gone = true;
    tensor.bad_in_row = tensor.good_in_row = 0;
    changed = changed || tensor.ill;
    tensor.ill = false;
  }
  if (changed) Look(process, reporter);
}

void TensorRule::Open(Process* process, const std::vector<const Tensor*>& ill) {
  Moment since = ill.front()->since;
  for (const Tensor* tensor : ill) {
    if (tensor->since.step < since.step) since = tensor->since;
  }
  // What the incident before has counted is not counted again.
  if (process->closed.step > since.step) since = process->closed;
  processes_.Open(process, since.step, since.ns);
  process->cost_from_s = since.worked_s;
}

void TensorRule::Say(Process* process, const std::vector<const Tensor*>& ill, Reporter* reporter) {
  Prepare(process, ill);
  reporter->Report(process->incident);
}

void TensorRule::Prepare(Process* process, const std::vector<const Tensor*>& ill) {
  process->share = ShareOf(*process);
  process->Extend(process->share);
  Incident& incident = process->incident;
  nlohmann::ordered_json evidence;
  evidence["judged"] = Judged(*process);
  evidence["ill"] = ill.size();
  evidence["captured_step"] = process->judged_step;
  std::int64_t captures = 0;
  std::size_t by_values = 0;
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  nlohmann::ordered_json first = nlohmann::ordered_json::object();
  nlohmann::ordered_json since = nlohmann::ordered_json::object();
  for (const Tensor* tensor : ill) {
    captures = std::max(captures, tensor->bad_in_row);
    by_values += tensor->by_values ? 1 : 0;
    if (found.size() >= kNamed) continue;
    found[tensor->name] = Rounded(tensor->value);
    first[tensor->name] = Rounded(tensor->first_value);
    since[tensor->name] = tensor->since.step;
  }
  evidence["captures"] = captures;
  evidence["by_values"] = by_values;
  evidence["share_of_elements"] = Rounded(process->share);
  evidence["found"] = std::move(found);
  evidence["found_first"] = std::move(first);
  evidence["since_step"] = std::move(since);
  const Severity before = incident.severity;
  const bool known = !incident.message.empty();
  Describe(*process, ill, &incident, &evidence);
  if (known) incident.severity = std::max(incident.severity, before);
  incident.evidence = JsonText(evidence);
}

double TensorRule::ShareOf(const Process& process) const {
  if (!costs_) return 0;
  double all = 0;
  double lost = 0;
  for (const std::uint32_t id : process.tensors) {
    const Tensor& tensor = tensors_[id];
    if (tensor.gone || tensor.verdicts == 0) continue;
    const double elements = static_cast<double>(std::max<std::uint64_t>(1, tensor.elements));
    all += elements;
    if (tensor.ill) lost += elements * tensor.weight;
  }
  return all > 0 ? lost / all : 0;
}

void TensorRule::End(Process* process, Reporter* reporter) {
  for (const std::uint32_t id : process->tensors) {
    Tensor& tensor = tensors_[id];
    if (tensor.gone || tensor.values_step < 0) continue;
    const auto verdict = OnLast(tensor);
    if (verdict) ApplyValues(&tensor, process, tensor.values_step, process->capture_ns, *verdict);
  }
  if (process->dirty) Look(process, reporter);
  if (!process->open && JudgesShortRuns()) JudgeShortRun(process, reporter);
  if (process->open) Close(process, true, reporter);
}

/// More captures would have made sure; none follows.
void TensorRule::JudgeShortRun(Process* process, Reporter* reporter) {
  constexpr double kSureness = 0.7;
  std::vector<const Tensor*> ill;
  std::int64_t verdicts = 0;
  for (const std::uint32_t id : process->tensors) {
    const Tensor& tensor = tensors_[id];
    if (tensor.gone || tensor.bad_in_row * 2 <= tensor.verdicts) continue;
    ill.push_back(&tensor);
    verdicts = std::max(verdicts, tensor.verdicts);
  }
  if (ill.empty() || !Matters(*process, ill)) return;
  for (const Tensor* tensor : ill) tensors_[tensor->id].ill = true;
  has_data_ = true;
  Open(process, ill);
  Prepare(process, ill);
  Incident& incident = process->incident;
  incident.severity = std::min(incident.severity, Severity::kMedium);
  incident.confidence *= kSureness;
  incident.cause += fmt::format(" The run ended after {} of the {} verdicts that make it sure.",
                                verdicts, patience_);
  reporter->Report(incident);
}

void TensorRule::Close(Process* process, bool still, Reporter* reporter) {
  if (still) process->Extend(process->share);
  still ? reporter->Close(process->incident) : reporter->Recover(process->incident);
  process->open = false;
  process->closed = {process->judged_step, process->capture_ns, process->worked_s};
}

const TensorRule::Tensor& TensorRule::Largest(const std::vector<const Tensor*>& tensors) {
  return **std::max_element(tensors.begin(), tensors.end(),
                            [](const Tensor* a, const Tensor* b) { return a->value < b->value; });
}

std::optional<std::vector<double>> TensorRule::Read(const Record& record, std::size_t limit) const {
  if (values_ == nullptr) return std::nullopt;
  auto read = values_->Read(record, limit);
  if (!read.ok() || read->empty()) return std::nullopt;
  return std::move(read).value();
}

std::size_t TensorRule::Judged(const Process& process) const {
  return static_cast<std::size_t>(std::count_if(
      process.tensors.begin(), process.tensors.end(),
      [&](std::uint32_t id) { return !tensors_[id].gone && tensors_[id].verdicts > 0; }));
}

}  // namespace telltale::rules
