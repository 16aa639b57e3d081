// SPDX-License-Identifier: Apache-2.0
// The frame of the rules that judge tensors one by one (dead, saturated, unchanged, ...): verdicts
// from statistics or values as they come, patience, and one incident a process that says how many
// tensors are ill. What a verdict is and what is said of it is the rule's.
//
// A capture is looked at as a whole when its step has ended. Values go another way than statistics
// and come later: each verdict counts for the tensor and step that it is of. Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "rules/builtin/captures.h"
#include "rules/builtin/processes.h"
#include "rules/rule.h"

namespace telltale::rules {

class TensorRule : public Rule {
 public:
  void Bind(const RuleContext& context) override { values_ = context.values; }
  bool Wants(const Series& series) final;
  void OnRecord(const Record& record, Reporter* reporter) final;
  void OnRun(const RecordRun& run, Reporter* reporter) final;
  void OnEnd(Reporter* reporter) final;
  bool has_data() const final { return has_data_; }

 protected:
  static constexpr std::uint32_t kNone = ~0U;

  struct Verdict {
    bool bad = false;
    /// The number behind it; the evidence names that of each ill tensor.
    double value = 0;
    /// Share of the tensor that is lost where it is bad.
    double weight = 1;
  };

  /// A moment of a process.
  struct Moment {
    std::int64_t step = -1;
    std::int64_t ns = 0;
    double worked_s = 0;
  };

  struct Process;

  /// A tensor of one process and attempt.
  struct Tensor {
    // First what each row asks for.
    std::uint32_t writer = kNone;  ///< Of its node; kNone: it is over.
    std::uint32_t changes = 0;     ///< `process` is its process while the table has as many.
    Process* process = nullptr;
    std::uint32_t id = 0;  ///< Counts up from 0 in the rule: an index for what it keeps beside.
    std::uint32_t gradient = kNone;  ///< Id of its gradient's tensor; kNone: none was seen.
    bool is_gradient = false;        ///< Its collection says so.
    bool ill = false;
    bool gone = false;       ///< It is captured no more.
    bool by_values = false;  ///< The newest verdict is of values; statistics are not asked.
    std::int64_t statistic_step = -1;
    std::int64_t values_step = -1;
    Presence presence;
    std::uint64_t elements = 0;
    double value = 0;  ///< Of the newest verdict.
    double weight = 1;
    std::int64_t first_step = -1;  ///< Of the first verdict, and what it found.
    std::int64_t verdicts = 0;
    std::int64_t bad_in_row = 0;
    std::int64_t good_in_row = 0;
    double first_value = 0;
    Moment since;  ///< The first bad one in the row; valid while bad_in_row > 0 or ill.
    std::string name;
    std::string collection;
  };

  struct Process : TensorProcess {
    std::vector<std::uint32_t> tensors;  ///< By id, in the order in which they came first.
    bool may_be_ill = false;             ///< False: none of them is.
    std::int64_t look_step = 0;          ///< When to look next for tensors that are gone.
    bool dirty = false;                  ///< Verdicts came that were not looked at.
    bool news = false;                   ///< One of them says that a tensor is ill.
    double share = 0;                    ///< Of the judged elements: those that are lost.
    Moment closed;                       ///< When the last incident was.

    // For rules that need them:
    std::int64_t gradient_step = -1;  ///< Newest capture of any gradient.
    std::int64_t frozen = -1;         ///< Parameters that were frozen on purpose; -1: not said.
  };

  /// `patience`: bad verdicts in a row before a tensor is ill; `costs`: time is lost while it is.
  explicit TensorRule(std::int64_t patience, bool costs = true);

  /// Whether statistics, or values, of a tensor are judged. Its mode is TRAIN or GLOBAL.
  virtual bool Selects(const Series& series) = 0;
  /// Nothing: it says neither that the tensor is well nor that it is ill. Of each step once.
  virtual std::optional<Verdict> OnStatistic(const Tensor& tensor, Process* process,
                                             const format::StatisticRow& row);
  virtual std::optional<Verdict> OnValues(const Tensor& tensor, Process* process,
                                          const Record& record, const format::TensorRow& row);
  /// The process has ended: what the captures showed that came since the last verdict of values,
  /// though they are fewer than one asks for.
  virtual std::optional<Verdict> OnLast(const Tensor& tensor);
  /// Whether less than `patience` bad verdicts count at the end of a run that has no more: where a
  /// tensor may well look so at first (zeros of an initialization) they do not.
  virtual bool JudgesShortRuns() const { return false; }
  /// Of a process that is known.
  virtual void OnEvent(const format::EventRow& event, Process* process);
  /// Of any process; `plan`.
  virtual void OnPlan(const format::EventRow& event);
  /// Of any process; an event of any other kind.
  virtual void OnOther(const format::EventRow& event);
  /// Whether those that are ill (at least one) are an incident.
  virtual bool Matters(const Process& process, const std::vector<const Tensor*>& ill);
  /// Fills in severity (never lowered by the frame), message, cause, advice, confidence and more
  /// evidence. `ill` is not empty; first those that are bad now, each in the order of the process.
  virtual void Describe(const Process& process, const std::vector<const Tensor*>& ill,
                        Incident* incident, nlohmann::ordered_json* evidence) = 0;

  /// The one with the largest value. REQUIRES: there is one.
  static const Tensor& Largest(const std::vector<const Tensor*>& tensors);
  /// Values of a record, at most `limit`; nothing where there are none to be had.
  std::optional<std::vector<double>> Read(const Record& record, std::size_t limit) const;
  /// Tensors of a process that were judged and still come.
  std::size_t Judged(const Process& process) const;
  /// Of a parameter; null: none was captured so far, or the rule does not select it.
  const Tensor* GradientTensor(const Tensor& parameter) const {
    return parameter.gradient == kNone ? nullptr : &tensors_[parameter.gradient];
  }

  /// What a rule keeps of a tensor beside the frame.
  template <class T>
  static T& Beside(std::vector<T>* kept, const Tensor& tensor) {
    if (kept->size() <= tensor.id) kept->resize(tensor.id + 1);
    return (*kept)[tensor.id];
  }

 private:
  static constexpr std::int64_t kRecovery = 2;  ///< Good verdicts in a row that make it well.

  /// Writer, rank, pid, attempt, name: processes of two nodes may have the same numbers.
  using Key = std::tuple<std::uint32_t, std::int32_t, std::int32_t, std::uint32_t, std::string>;

  /// The tensor of this name in its process, made where there is none or its process has ended.
  std::uint32_t IdOf(const Key& key, std::string_view collection);
  /// Makes a parameter and its gradient known to each other.
  void Link(const Key& key, std::uint32_t id);
  /// What a row of a series is of, where it is not what the row before was of: the first, of
  /// another node, or the process of those before it has ended.
  template <class Row>
  Tensor* Renew(std::uint32_t series, std::uint32_t writer, const Row& row);
  template <class Row>
  Process* Find(const Row& row, std::uint32_t writer, Reporter* reporter);
  template <class Row>
  Process* Begin(Tensor* tensor, const Row& row, std::uint32_t writer, Reporter* reporter);
  void BeginCapture(Process* process, std::int64_t step, std::int64_t ns, Reporter* reporter);
  void Take(const Record& record, Reporter* reporter);
  void TakeStatistic(Tensor* tensor, const format::StatisticRow& row, std::uint32_t writer,
                     Reporter* reporter);
  void TakeValues(Tensor* tensor, const Record& record, const format::TensorRow& row,
                  Reporter* reporter);
  void TakeStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter);
  void TakeEvent(const format::EventRow& event, std::uint32_t writer, Reporter* reporter);
  void Apply(Tensor* tensor, Process* process, std::int64_t step, std::int64_t ns,
             const Verdict& verdict);
  void ApplyValues(Tensor* tensor, Process* process, std::int64_t step, std::int64_t ns,
                   const Verdict& verdict);
  void Look(Process* process, Reporter* reporter);
  void LookForGone(Process* process, std::int64_t step, Reporter* reporter);
  void Open(Process* process, const std::vector<const Tensor*>& ill);
  /// Makes the incident that is to be reported.
  void Prepare(Process* process, const std::vector<const Tensor*>& ill);
  void Say(Process* process, const std::vector<const Tensor*>& ill, Reporter* reporter);
  double ShareOf(const Process& process) const;
  void End(Process* process, Reporter* reporter);
  void JudgeShortRun(Process* process, Reporter* reporter);
  void Close(Process* process, bool still, Reporter* reporter);

  const std::int64_t patience_;
  const bool costs_;

  TensorValues* values_ = nullptr;
  std::deque<Tensor> tensors_;
  std::map<Key, std::uint32_t> ids_;
  std::vector<Tensor*> by_series_;  ///< Null: not wanted.
  Tensor unseen_;                   ///< In by_series_ until the first row.
  ProcessTable<Process> processes_;
  bool has_data_ = false;
};

}  // namespace telltale::rules
