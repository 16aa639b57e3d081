// SPDX-License-Identifier: Apache-2.0
// Feeds ordered records to rules and keeps the incidents that they report: every incident of every
// rule takes the one course of lifecycle.h. The result depends on the records and their order
// alone, so a replay gives the same incidents and revisions.
//
// Thread safety: none. Memory: the rules' own, and one Finding an incident.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "rules/capture_count.h"
#include "rules/lifecycle.h"
#include "rules/missing.h"
#include "rules/registry.h"
#include "rules/rule.h"
#include "rules/rule_set.h"
#include "rules/series.h"
#include "store/reader.h"

namespace telltale::rules {

/// One incident of one rule in one of its revisions.
struct Finding {
  std::string id;  ///< Hash of rule, subject and where it began: the same in every replay.
  std::uint32_t revision = 0;
  std::string rule;
  bool open = true;
  /// The run has ended, and it was open when its process or the run did (it closed only because
  /// nothing follows: what recovered in the last records was over); no later attempt made a step
  /// since.
  bool until_end = false;
  bool wrong_result = false;  ///< As the rule's description says.
  Standing standing;          ///< Likewise.
  Incident incident;
};

/// The words of `rules status` and of check --json.
enum class RuleStatus : std::uint8_t {
  kNoIssuesFound,
  kIssuesFound,
  kInProgress,
  kNoData,
  kPartial,  ///< It found nothing, in less than it had planned to look at.
  kNotApplicable,
  kSuspended,
  kStopped,
  kError,
};
std::string_view Name(RuleStatus status);

struct RuleState {
  std::string name;
  RuleStatus status = RuleStatus::kInProgress;
  std::optional<std::uint64_t> records;  ///< Records that it was given; none: nobody said.
  std::uint32_t incidents = 0;           ///< Opened so far.
  std::string error;                     ///< Of kError and kSuspended: why.
  std::string partial;                   ///< Of kPartial: "2 of 12 captures".
  /// Of kNoData and kNotApplicable: why it could not judge, "no gradients were captured".
  std::string missing;
  std::string rule;           ///< Of the registry; empty for a rule of the user's.
  std::string summary;        ///< Rule::Summary.
  bool wrong_result = false;  ///< As its description says.
};

/// A rule that is none of the registry: an expression, a process of the user's.
struct ForeignRule {
  std::unique_ptr<RuleDesc> desc;
  std::unique_ptr<Rule> rule;
};

class Engine {
 public:
  /// Time of the records that must pass before an incident whose numbers alone changed gets a new
  /// revision; of news see kNewsNs.
  static constexpr std::int64_t kUpdateIntervalNs = 5'000'000'000;

  /// With the rules that run by default.
  Engine();
  /// With these alone; tests.
  explicit Engine(std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  /// Makes a rule of the user's; kUsage where it is none. Never called for kBuiltIn.
  using ForeignMaker = std::function<Result<ForeignRule>(const RuleSpec&)>;
  /// With the rules of a set. kUsage: the set names what there is not. A rule that cannot be made
  /// is in the engine with its error, the others run.
  static Result<Engine> Create(const RuleSet& set, const ForeignMaker& foreign = nullptr);

  /// Lends `context` to every rule. REQUIRES: before the first Feed.
  void Bind(const RuleContext& context);

  /// Closes incidents as soon as their rules do, and lets none go on: what a rule itself says,
  /// which rule scripts test. REQUIRES: before the first Feed.
  void SettleAtOnce() { settle_ns_ = 0; }

  /// REQUIRES: records come in the order of the cursor; no call after End().
  void Feed(const store::OrderedRecord& record);
  /// The same of each of them in turn, with the same revisions, and faster: each rule sees some
  /// hundred at once (docs/decisions/0008-statistics-in-runs.md).
  void Feed(std::span<const store::OrderedRecord> records);
  /// The run has ended and all of it was fed: closes what is open.
  void End();
  bool ended() const { return ended_; }

  /// Revisions since the last call, in the order in which they came to be.
  std::vector<Finding> TakeRevisions();
  /// The present state of every incident, in the order of opening.
  const std::vector<Finding>& findings() const { return findings_; }
  /// `summaries`: with what Rule::Summary says, which may take long.
  std::vector<RuleState> rule_states(bool summaries = true) const;
  /// Records of series that were too many to be known; no rule was given them.
  std::uint64_t refused_records() const { return series_.refused(); }
  /// Tables that at least one rule reads.
  std::uint32_t table_mask() const;

 private:
  struct Slot;
  class SlotReporter;
  /// What a slot said of which record of the run.
  struct Said;

  void Add(std::string name, const RuleDesc* desc, std::unique_ptr<Rule> rule,
           std::vector<Need> needs = {});
  /// Why a rule has not judged.
  std::string MissingOf(const Slot& slot) const;
  /// Captures of what the rule needs that it was given, where those were too few.
  std::optional<Captures> CapturesOf(const Slot& slot) const;
  /// The slots that want the records of a series.
  const std::vector<Slot*>& WantedBy(const Series& series);
  void Deliver(Slot* slot, const Record& record);

  /// Takes into run_ what `records` begin with and may be given to one rule after the other.
  void GatherRun(std::span<const store::OrderedRecord> records);
  bool AnyWants(format::TableId table) const;
  std::uint32_t KindOf(const store::OrderedRecord& record);
  void DivideRun();
  void FeedRun();
  void Apply(const Said& said);

  /// What a rule says of one subject: what is open, or was closed so shortly ago that it may go on.
  struct Matters {
    std::size_t newest;               ///< That its rule spoke of last.
    std::vector<std::size_t> others;  ///< The rule has closed them.
  };
  using OpenMatters = std::map<std::pair<std::string, std::string>, Matters>;

  void Report(Slot* slot, Incident incident);
  /// The incident that this one goes on with, made the newest; nullopt: it is another matter.
  std::optional<std::size_t> GoOn(Matters* matters, const Incident& incident);
  /// Opens an incident. `matters`: of its subject, end() where there are none.
  void Open(Slot* slot, Incident incident, OpenMatters::iterator matters);
  /// Its process is gone, or the run is over: nothing goes on.
  OpenMatters::iterator Drop(OpenMatters::iterator matters);
  /// `over`: not only because nothing follows.
  void Close(Slot* slot, Incident incident, bool over);
  /// Sets severity and cause as lifecycle.h has them.
  void Judge(const Slot& slot, const Severity* before, Incident* incident) const;
  /// Time of the run until now.
  double elapsed_seconds() const;
  void Advance(std::int64_t ord_ns) {
    if (first_ns_ < 0) first_ns_ = ord_ns;
    now_ns_ = std::max(now_ns_, ord_ns);
    if (now_ns_ >= next_close_ns_) CloseSettled();
  }
  /// Closes what its rule has closed long enough ago, and makes the revisions that waited.
  void CloseSettled();
  void Settle(std::size_t index);
  /// It is to be looked at again then, or sooner.
  void WakeAt(std::size_t index, std::int64_t at_ns);
  /// It cannot go on any more.
  void Forget(std::size_t index);
  void CloseNow(std::size_t index, bool until_end);
  /// Whether what closes at this record closes only because its process has ended.
  void NoteLives(const store::OrderedRecord& record) {
    process_ends_ = false;
    if (record.table == format::TableId::kEvents) NoteEvent(*record.As<format::EventRow>());
    if (record.table == format::TableId::kSteps) NoteStep(*record.As<format::StepRow>());
  }
  void NoteEvent(const format::EventRow& event);
  void NoteStep(const format::StepRow& step);
  void Emit(std::size_t index);
  template <class F>
  void Guard(Slot* slot, F&& body);
  /// The rule is out: nobody sees whether its incidents last.
  void CloseAll(const Slot& slot);

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::vector<Slot*>> by_table_;  ///< By TableId: the slots that read the table.
  SeriesTable series_;
  std::vector<std::vector<Slot*>> wanted_;  ///< By series.
  CaptureCount captures_;
  Seen seen_;

  // Of the run of records that rules look at:
  std::vector<Record> run_;               ///< Of which the first run_size_ are of it.
  std::vector<std::uint32_t> run_kinds_;  ///< Of each of its records: who wants it.
  std::size_t run_size_ = 0;
  /// Kind that the last long run began with. One that begins elsewhere, since the records of a call
  /// do, ends where it comes, so that the next is again as the last.
  std::uint32_t usual_first_ = kNoSeries;
  /// Which record of a run is whose.
  struct Division {
    /// Of the run that it is of; it holds for one that ends before too.
    std::vector<std::uint32_t> kinds;
    /// By slot: the indices of the records that it wants, rising.
    std::vector<std::vector<std::uint32_t>> shares;
  };
  /// Of the two newest kinds of runs, the newest in front: mostly one of samples, one of the rest.
  std::array<Division, 2> divisions_;
  std::uint32_t run_at_ = 0;  ///< The record that a rule looks at.
  bool in_run_ = false;
  std::vector<Said> said_;

  std::vector<Finding> findings_;
  std::set<std::string> ids_;  ///< Of findings_.
  /// By the id that an incident would have if none began before where it begins: how many did.
  std::map<std::string, std::uint32_t> began_;
  std::vector<Course> courses_;  ///< By index of findings_.
  std::vector<Finding> revisions_;
  OpenMatters open_;  ///< By (rule, subject): indices of findings_.
  /// When to look at which, the soonest first; what is not the incident's wake_ns is stale.
  std::priority_queue<std::pair<std::int64_t, std::size_t>,
                      std::vector<std::pair<std::int64_t, std::size_t>>, std::greater<>>
      due_;
  std::int64_t next_close_ns_ = kNever;
  std::vector<std::size_t> lasted_;  ///< Closed by the end of their process in this attempt.
  std::uint32_t attempt_ = 0;        ///< The newest that made a step.
  std::int64_t settle_ns_ = kSettleNs;
  std::int64_t first_ns_ = -1;
  std::int64_t now_ns_ = 0;
  bool process_ends_ = false;
  bool ending_ = false;
  bool ended_ = false;
};

/// The row of the findings table; views point into `finding`, which must outlive it.
format::FindingRow ToRow(const Finding& finding);

}  // namespace telltale::rules
