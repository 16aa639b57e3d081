// SPDX-License-Identifier: Apache-2.0
// Incidents: opened, updated, closed; numbered revisions; nothing said twice.
#include "rules/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <tuple>

#include "rules/incident_id.h"

namespace telltale::rules {
namespace {

/// A run ends at a record of the kind that it began with, once it has this many: runs then mostly
/// have the same kinds as the run before. Some 100 KB of rows stay in the cache while one rule
/// after the other looks at them, and so does the rule while it looks.
constexpr std::size_t kEnoughForRun = 256;
constexpr std::size_t kMostOfRun = 1024;

/// Kind of the records of a table that has no series; of others it is the series' id.
constexpr std::uint32_t kKindOfTable = 1U << 31U;
static_assert(SeriesTable::kMaxSeries < kKindOfTable);

/// Words changed, not numbers in them: worth a revision at once.
bool SaysSomethingNew(const Incident& before, const Incident& now) {
  return std::tie(before.severity, before.first_step, before.start_ns) !=
             std::tie(now.severity, now.first_step, now.start_ns) ||
         (before.cause != now.cause && !AreAlike(before.cause, now.cause));
}

bool NumbersChanged(const Incident& before, const Incident& now) {
  return std::tie(before.last_step, before.end_ns, before.cost_seconds, before.message,
                  before.cause, before.evidence,
                  before.advice) != std::tie(now.last_step, now.end_ns, now.cost_seconds,
                                             now.message, now.cause, now.evidence, now.advice);
}

}  // namespace

std::string_view Name(RuleStatus status) {
  constexpr std::array<std::string_view, 9> kNames = {
      "NoIssuesFound", "IssuesFound", "InProgress", "NoData", "Partial",
      "NotApplicable", "Suspended",   "Stopped",    "Error"};
  return kNames[static_cast<std::size_t>(status)];
}

struct Engine::Slot {
  std::size_t index = 0;           ///< Among the slots.
  std::string name;                ///< Of the instance.
  const RuleDesc* desc = nullptr;  ///< Null where the rule could not be made.
  std::unique_ptr<RuleDesc> owned_desc;
  std::unique_ptr<Rule> rule;
  std::vector<Need> needs;
  SeenByRule seen;
  std::vector<std::uint32_t> wanted;  ///< The series of which it wants the records.
  std::uint64_t records = 0;
  std::uint32_t incidents = 0;
  bool failed = false;
  bool suspended = false;  ///< Failed by breaking a limit.
  std::string error;
};

struct Engine::Said {
  enum class What : std::uint8_t { kReport, kClose, kRecover, kFail };
  std::uint32_t at;  ///< Index of the record in the run.
  Slot* slot;
  What what;
  Incident incident;
};

/// While rules look at a run one after the other, what they say waits until all have: it is then
/// said in the order of the records.
class Engine::SlotReporter final : public Reporter {
 public:
  SlotReporter(Engine* engine, Slot* slot) : engine_(engine), slot_(slot) {}
  void Report(const Incident& incident) override { Say(Said::What::kReport, incident); }
  void Close(const Incident& incident) override { Say(Said::What::kClose, incident); }
  void Recover(const Incident& incident) override { Say(Said::What::kRecover, incident); }

 private:
  void Say(Said::What what, const Incident& incident) {
    Said said{engine_->run_at_, slot_, what, incident};
    engine_->in_run_ ? engine_->said_.push_back(std::move(said)) : engine_->Apply(said);
  }

  Engine* engine_;
  Slot* slot_;
};

Engine::Engine() {
  for (const RuleEntry& entry : Registry()) {
    if (!entry.desc->by_default) continue;
    const std::string name(entry.desc->name);
    Add(name, entry.desc, entry.make(Parameters(*entry.desc)),
        NeedsOf(RuleSpec{.name = name, .rule = name}));
  }
}

Engine::Engine(std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules) {
  for (auto& [desc, rule] : rules) Add(std::string(desc->name), desc, std::move(rule));
}

Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

Result<Engine> Engine::Create(const RuleSet& set, const ForeignMaker& foreign) {
  TELLTALE_ASSIGN_OR_RETURN(const std::vector<RuleSpec> specs, Resolve(set));
  Engine engine{std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>>()};
  for (const RuleSpec& spec : specs) {
    if (spec.source == RuleSource::kBuiltIn) {
      const RuleEntry* entry = FindRule(spec.rule);
      TELLTALE_ASSIGN_OR_RETURN(const Parameters parameters, ParametersOf(spec));
      try {
        engine.Add(spec.name, entry->desc, entry->make(parameters), NeedsOf(spec));
      } catch (const std::exception& error) {
        engine.Add(spec.name, nullptr, nullptr);
        engine.slots_.back()->failed = true;
        engine.slots_.back()->error = error.what();
      }
      continue;
    }
    ForeignRule made;
    Status status(Code::kUsage, "rules of the user's own are not run here");
    if (foreign) {
      auto result = foreign(spec);
      status = result.status();
      if (result.ok()) made = std::move(result).value();
    }
    engine.Add(spec.name, made.desc.get(), std::move(made.rule));
    Slot& slot = *engine.slots_.back();
    slot.owned_desc = std::move(made.desc);
    if (!status.ok()) {
      slot.failed = true;
      slot.error = status.message();
    }
  }
  return engine;
}

void Engine::Add(std::string name, const RuleDesc* desc, std::unique_ptr<Rule> rule,
                 std::vector<Need> needs) {
  auto slot = std::make_unique<Slot>();
  slot->index = slots_.size();
  slot->name = std::move(name);
  slot->desc = desc;
  slot->rule = std::move(rule);
  slot->needs = std::move(needs);
  for (const format::TableDesc& table : format::kTables) {
    if (desc == nullptr || (desc->table_mask & store::MaskOf(table.id)) == 0) continue;
    const auto at = static_cast<std::size_t>(table.id);
    if (by_table_.size() <= at) by_table_.resize(at + 1);
    by_table_[at].push_back(slot.get());
  }
  slots_.push_back(std::move(slot));
}

void Engine::Bind(const RuleContext& context) {
  for (auto& slot : slots_) {
    Guard(slot.get(), [&](Reporter*) { slot->rule->Bind(context); });
  }
}

Engine::~Engine() = default;

/// A rule that throws is out, with its words; the others go on.
template <class F>
void Engine::Guard(Slot* slot, F&& body) {
  if (slot->failed) return;
  try {
    SlotReporter reporter(this, slot);
    body(&reporter);
  } catch (const Suspended& error) {
    slot->failed = true;
    slot->suspended = true;
    slot->error = error.what();
  } catch (const std::exception& error) {
    slot->failed = true;
    slot->error = error.what();
  }
  if (!slot->failed) return;
  if (in_run_) {
    said_.push_back({run_at_, slot, Said::What::kFail, {}});
  } else {
    CloseAll(*slot);
  }
}

void Engine::Apply(const Said& said) {
  switch (said.what) {
    case Said::What::kReport:
      return Report(said.slot, said.incident);
    case Said::What::kClose:
      return Close(said.slot, said.incident, false);
    case Said::What::kRecover:
      return Close(said.slot, said.incident, true);
    case Said::What::kFail:
      return CloseAll(*said.slot);
  }
}

void Engine::CloseAll(const Slot& slot) {
  for (auto at = open_.begin(); at != open_.end();) {
    if (at->first.first != slot.name) {
      ++at;
      continue;
    }
    const std::size_t index = at->second.newest;
    if (findings_[index].open) CloseNow(index, ending_);
    at = Drop(at);
  }
}

void Engine::NoteEvent(const format::EventRow& event) {
  process_ends_ = event.kind == "process.exit";
}

void Engine::NoteStep(const format::StepRow& step) {
  seen_.Add(step);
  if (step.attempt <= attempt_) return;
  // What was before a restart says nothing about now.
  attempt_ = step.attempt;
  lasted_.clear();
}

const std::vector<Engine::Slot*>& Engine::WantedBy(const Series& series) {
  if (series.id < wanted_.size()) return wanted_[series.id];
  std::vector<Slot*>& wanted = wanted_.emplace_back();
  for (Slot* slot : by_table_[static_cast<std::size_t>(series.table)]) {
    Guard(slot, [&](Reporter*) {
      if (!slot->rule->Wants(series)) return;
      wanted.push_back(slot);
      slot->wanted.push_back(series.id);
      slot->seen.Add(series);
    });
  }
  seen_.Add(series);
  return wanted;
}

void Engine::Deliver(Slot* slot, const Record& record) {
  if (slot->failed) return;
  ++slot->records;
  Guard(slot, [&](Reporter* reporter) { slot->rule->OnRecord(record, reporter); });
}

void Engine::Feed(const store::OrderedRecord& record) {
  Advance(record.ord_ns);
  NoteLives(record);
  const auto table = static_cast<std::size_t>(record.table);
  const bool read = table < by_table_.size() && !by_table_[table].empty();
  const std::uint64_t refused = series_.refused();
  const Series* series = read ? series_.Find(record) : nullptr;
  captures_.See(record, series != nullptr ? series->id : kNoSeries);
  if (!read) return;
  if (series != nullptr) {
    const Record known{record, series->id};
    for (Slot* slot : WantedBy(*series)) Deliver(slot, known);
  } else if (series_.refused() == refused) {
    for (Slot* slot : by_table_[table]) Deliver(slot, Record{record, kNoSeries});
  }
}

void Engine::Feed(std::span<const store::OrderedRecord> records) {
  series_.ForgetRows();
  while (!records.empty()) {
    GatherRun(records);
    if (run_size_ > 1) {
      FeedRun();
      records = records.subspan(run_size_);
    } else {
      Feed(records.front());
      records = records.subspan(1);
    }
  }
}

bool Engine::AnyWants(format::TableId table) const {
  const auto at = static_cast<std::size_t>(table);
  return at < by_table_.size() && !by_table_[at].empty();
}

/// kNoSeries: it is not to be among the records of a run.
std::uint32_t Engine::KindOf(const store::OrderedRecord& record) {
  // Who reads the values of a tensor finds them in memory where another has just read them.
  if (record.table == format::TableId::kTensors) return kNoSeries;
  if (!AnyWants(record.table) || !SeriesTable::Has(record.table)) {
    return kKindOfTable | static_cast<std::uint32_t>(record.table);
  }
  // A rule is asked whether it wants a series when its first record comes, not before others.
  const Series* series = series_.Known(record);
  return series != nullptr && series->id < wanted_.size() ? series->id : kNoSeries;
}

void Engine::GatherRun(std::span<const store::OrderedRecord> records) {
  if (run_.empty()) {
    run_.resize(kMostOfRun);
    run_kinds_.resize(kMostOfRun);
  }
  const bool statistics = AnyWants(format::TableId::kStatistics);
  // Samples of the machine lie anywhere among the records of steps: apart, those are as before.
  const bool sampled = records.front().table == format::TableId::kMetrics;
  const std::size_t known = wanted_.size();
  const std::size_t most = std::min(records.size(), kMostOfRun);
  std::size_t size = 0;
  for (; size < most; ++size) {
    const store::OrderedRecord& record = records[size];
    if ((record.table == format::TableId::kMetrics) != sampled) break;
    const auto* statistic = record.As<format::StatisticRow>();
    std::uint32_t kind =
        statistics && statistic != nullptr ? series_.Following(*statistic) : kNoSeries;
    if (kind >= known) {
      kind = KindOf(record);
      if (kind == kNoSeries) break;
    }
    if (size >= kEnoughForRun && kind == run_kinds_.front()) break;
    if (size > 0 && kind == usual_first_ && run_kinds_.front() != usual_first_) break;
    run_[size] = {record, kind < kKindOfTable ? kind : kNoSeries};
    run_kinds_[size] = kind;
  }
  run_size_ = size;
  if (size >= kEnoughForRun) usual_first_ = run_kinds_.front();
}

void Engine::DivideRun() {
  const std::span<const std::uint32_t> kinds(run_kinds_.data(), run_size_);
  const auto is_of_run = [&](const Division& division) {
    return kinds.size() <= division.kinds.size() &&
           std::equal(kinds.begin(), kinds.end(), division.kinds.begin());
  };
  if (is_of_run(divisions_[0])) return;  // As before.
  std::swap(divisions_[0], divisions_[1]);
  if (is_of_run(divisions_[0])) return;
  Division& division = divisions_[0];
  division.kinds.assign(kinds.begin(), kinds.end());
  division.shares.resize(slots_.size());
  for (std::vector<std::uint32_t>& share : division.shares) share.clear();
  for (std::uint32_t at = 0; at < kinds.size(); ++at) {
    const std::uint32_t kind = kinds[at];
    const std::uint32_t table = kind & ~kKindOfTable;
    if (kind >= kKindOfTable && table >= by_table_.size()) continue;
    for (const Slot* slot : kind >= kKindOfTable ? by_table_[table] : wanted_[kind]) {
      division.shares[slot->index].push_back(at);
    }
  }
}

void Engine::FeedRun() {
  DivideRun();
  in_run_ = true;
  const bool whole = run_size_ == divisions_[0].kinds.size();
  for (const auto& slot : slots_) {
    std::span<const std::uint32_t> share = divisions_[0].shares[slot->index];
    if (!whole) {
      const auto past = std::lower_bound(share.begin(), share.end(), run_size_);
      share = share.first(static_cast<std::size_t>(past - share.begin()));
    }
    if (share.empty() || slot->failed) continue;
    Guard(slot.get(), [&](Reporter* reporter) {
      slot->rule->OnRun({{run_.data(), run_size_}, share, &run_at_}, reporter);
    });
    const auto end =
        slot->failed ? std::upper_bound(share.begin(), share.end(), run_at_) : share.end();
    slot->records += static_cast<std::uint64_t>(end - share.begin());
  }
  in_run_ = false;
  std::stable_sort(said_.begin(), said_.end(), [](const Said& a, const Said& b) {
    return std::tie(a.at, a.slot->index) < std::tie(b.at, b.slot->index);
  });
  auto said = said_.begin();
  for (std::uint32_t at = 0; at < run_size_; ++at) {
    Advance(run_[at].ord_ns);
    NoteLives(run_[at]);
    captures_.See(run_[at], run_[at].series);
    for (; said != said_.end() && said->at == at; ++said) Apply(*said);
  }
  said_.clear();
}

void Engine::End() {
  if (ended_) return;
  ending_ = true;
  for (auto& slot : slots_) {
    Guard(slot.get(), [&](Reporter* reporter) { slot->rule->OnEnd(reporter); });
  }
  // What a rule left open ends with the run; what it has closed was over.
  for (auto at = open_.begin(); at != open_.end();) {
    const std::size_t index = at->second.newest;
    if (findings_[index].open) CloseNow(index, !courses_[index].closing());
    at = Drop(at);
  }
  for (const std::size_t index : lasted_) findings_[index].until_end = true;
  ended_ = true;
}

double Engine::elapsed_seconds() const {
  return first_ns_ < 0 ? 0 : static_cast<double>(now_ns_ - first_ns_) / 1e9;
}

void Engine::Judge(const Slot& slot, const Severity* before, Incident* incident) const {
  if (slot.desc->severity_by_cost && incident->severity != Severity::kInfo) {
    incident->severity =
        SeverityOfCost(incident->cost_seconds, elapsed_seconds(), incident->severity,
                       before == nullptr ? std::nullopt : std::optional<Severity>(*before));
  }
  incident->cause = CauseOf(*incident);
}

void Engine::Report(Slot* slot, Incident incident) {
  const auto found = open_.find({slot->name, incident.subject});
  const std::optional<std::size_t> known =
      found == open_.end() ? std::nullopt : GoOn(&found->second, incident);
  if (!known) {
    Open(slot, std::move(incident), found);
    return;
  }
  Finding& finding = findings_[*known];
  Course& course = courses_[*known];
  course.Say(incident);
  course.Take(&incident);
  Judge(*slot, &finding.incident.severity, &incident);
  const bool news = !finding.open || SaysSomethingNew(finding.incident, incident);
  const bool numbers = NumbersChanged(finding.incident, incident);
  finding.open = true;
  finding.incident = std::move(incident);
  if (numbers && now_ns_ - course.emitted_ns >= kUpdateIntervalNs) {
    Emit(*known);
  } else if (news || course.pending) {
    if (course.TakesNews(now_ns_, finding.incident.severity)) {
      Emit(*known);
    } else {
      course.pending = true;
      WakeAt(*known, course.next_news_ns());
    }
  }
}

void Engine::Open(Slot* slot, Incident incident, OpenMatters::iterator matters) {
  Judge(*slot, nullptr, &incident);
  const std::size_t index = findings_.size();
  Finding& finding = findings_.emplace_back();
  // What was over may begin again where it began: at a step that a window still holds.
  std::uint32_t& before = began_[IncidentId(slot->name, incident)];
  do {
    finding.id = IncidentId(slot->name, incident, before++);
  } while (!ids_.insert(finding.id).second);
  finding.rule = slot->name;
  finding.wrong_result = slot->desc->wrong_result;
  finding.standing = slot->desc->standing;
  finding.incident = std::move(incident);
  Course& course = courses_.emplace_back();
  course.Open(now_ns_);
  course.Say(finding.incident);
  if (matters == open_.end()) {
    open_.emplace(std::pair(slot->name, finding.incident.subject), Matters{index, {}});
  } else {
    matters->second.newest = index;
  }
  ++slot->incidents;
  Emit(index);
}

std::optional<std::size_t> Engine::GoOn(Matters* matters, const Incident& incident) {
  const std::size_t newest = matters->newest;
  if (findings_[newest].open && !courses_[newest].closing()) return newest;
  std::vector<std::size_t>& others = matters->others;
  std::erase_if(others, [&](std::size_t i) { return !courses_[i].MayGoOn(now_ns_, settle_ns_); });
  const auto goes_on = [&](std::size_t i) {
    return courses_[i].MayGoOn(now_ns_, settle_ns_) && courses_[i].HasSaid(incident);
  };
  const auto other = std::find_if(others.begin(), others.end(), goes_on);
  if (goes_on(newest) || (other == others.end() && others.size() + 1 >= kMostMatters &&
                          courses_[newest].MayGoOn(now_ns_, settle_ns_))) {
    courses_[newest].GoOn(now_ns_, findings_[newest].open);
    return newest;
  }
  std::optional<std::size_t> known;
  if (other != others.end()) {
    known = *other;
    others.erase(other);
    courses_[*known].GoOn(now_ns_, findings_[*known].open);
    courses_[*known].ComeBack();
    matters->newest = *known;
  }
  if (findings_[newest].open && courses_[newest].ClosesForAnother()) CloseNow(newest, false);
  if (courses_[newest].MayGoOn(now_ns_, settle_ns_)) others.push_back(newest);
  return known;
}

void Engine::Close(Slot* slot, Incident incident, bool over) {
  const auto found = open_.find({slot->name, incident.subject});
  if (found == open_.end()) return;
  const std::size_t index = found->second.newest;
  Finding& finding = findings_[index];
  Course& course = courses_[index];
  if (!finding.open || course.closing()) return;
  course.Say(incident);
  course.Take(&incident);
  Judge(*slot, &finding.incident.severity, &incident);
  finding.incident = std::move(incident);
  const std::int64_t close_ns = course.CloseAt(finding.incident, now_ns_, settle_ns_);
  if (close_ns > now_ns_ && !ending_ && !process_ends_) {
    WakeAt(index, close_ns);
    return;
  }
  if (process_ends_ && !over) lasted_.push_back(index);
  CloseNow(index, ending_ && !over);
  if (ending_ || process_ends_) Drop(found);
}

Engine::OpenMatters::iterator Engine::Drop(OpenMatters::iterator matters) {
  for (const std::size_t other : matters->second.others) {
    if (findings_[other].open) CloseNow(other, false);
  }
  return open_.erase(matters);
}

void Engine::CloseNow(std::size_t index, bool until_end) {
  courses_[index].Closed(now_ns_);
  findings_[index].open = false;
  findings_[index].until_end = until_end;
  Emit(index);
  WakeAt(index, courses_[index].forgotten_ns(settle_ns_));
}

void Engine::WakeAt(std::size_t index, std::int64_t at_ns) {
  Course& course = courses_[index];
  if (at_ns >= course.wake_ns) return;
  course.wake_ns = at_ns;
  due_.emplace(at_ns, index);
  next_close_ns_ = due_.top().first;
}

void Engine::CloseSettled() {
  while (!due_.empty() && due_.top().first <= now_ns_) {
    const auto [at_ns, index] = due_.top();
    due_.pop();
    if (courses_[index].wake_ns != at_ns) continue;
    courses_[index].wake_ns = kNever;
    Settle(index);
  }
  next_close_ns_ = due_.empty() ? kNever : due_.top().first;
}

void Engine::Settle(std::size_t index) {
  Course& course = courses_[index];
  if (course.pending && course.TakesNews(now_ns_, findings_[index].incident.severity)) Emit(index);
  if (course.closing() && course.close_ns() <= now_ns_) CloseNow(index, false);
  if (course.pending) WakeAt(index, course.next_news_ns());
  if (course.closing()) WakeAt(index, course.close_ns());
  if (findings_[index].open) return;
  if (course.MayGoOn(now_ns_, settle_ns_)) {
    WakeAt(index, course.forgotten_ns(settle_ns_));
  } else {
    Forget(index);
  }
}

void Engine::Forget(std::size_t index) {
  const Finding& finding = findings_[index];
  const auto found = open_.find({finding.rule, finding.incident.subject});
  if (found == open_.end()) return;
  auto& [newest, others] = found->second;
  std::erase(others, index);
  if (newest != index) return;
  if (others.empty()) {
    open_.erase(found);
  } else {
    newest = others.back();
    others.pop_back();
  }
}

void Engine::Emit(std::size_t index) {
  Finding& finding = findings_[index];
  ++finding.revision;
  courses_[index].Emitted(now_ns_, finding.incident.severity);
  revisions_.push_back(finding);
}

std::vector<Finding> Engine::TakeRevisions() { return std::exchange(revisions_, {}); }

std::vector<RuleState> Engine::rule_states(bool summaries) const {
  std::vector<RuleState> out;
  for (const auto& slot : slots_) {
    RuleState state{slot->name,
                    RuleStatus::kInProgress,
                    slot->records,
                    slot->incidents,
                    slot->error,
                    {},
                    {},
                    {},
                    {},
                    slot->desc != nullptr && slot->desc->wrong_result};
    if (slot->desc != nullptr && slot->owned_desc == nullptr) state.rule = slot->desc->name;
    try {
      if (slot->failed) {
        state.status = slot->suspended ? RuleStatus::kSuspended : RuleStatus::kError;
      } else if (slot->incidents > 0) {
        state.status = RuleStatus::kIssuesFound;
      } else if (ended_ && !slot->rule->applies()) {
        state.status = RuleStatus::kNotApplicable;
        state.missing = MissingOf(*slot);
      } else if (!slot->rule->has_data()) {
        state.status = RuleStatus::kNoData;
        state.missing = MissingOf(*slot);
      } else if (ended_) {
        const std::optional<Captures> captures = CapturesOf(*slot);
        const bool few = captures && captures->TooFew();
        state.status = few ? RuleStatus::kPartial : RuleStatus::kNoIssuesFound;
        if (few) state.partial = captures->Words();
      }
      if (summaries && !slot->failed) state.summary = slot->rule->Summary();
    } catch (const std::exception& error) {
      // As in Guard; the slot is not ours to change here.
      state.status = RuleStatus::kError;
      state.error = error.what();
    }
    out.push_back(std::move(state));
  }
  return out;
}

std::string Engine::MissingOf(const Slot& slot) const {
  std::string own = slot.rule->Missing();
  if (!own.empty()) return own;
  // What a rule of the user's needs only it knows.
  if (slot.owned_desc != nullptr) {
    return slot.records == 0 ? "nothing that it reads was recorded"
                             : "what it was given was not enough";
  }
  return Missing(*slot.desc, slot.needs, slot.seen, seen_,
                 {CapturesOf(slot), captures_.no_number_since(), elapsed_seconds()});
}

std::optional<Captures> Engine::CapturesOf(const Slot& slot) const {
  if (slot.needs.empty()) return std::nullopt;
  std::vector<const Series*> series;
  series.reserve(slot.wanted.size());
  for (const std::uint32_t id : slot.wanted) series.push_back(&series_[id]);
  return captures_.Of(slot.needs, series);
}

std::uint32_t Engine::table_mask() const {
  std::uint32_t mask = 0;
  for (const auto& slot : slots_) {
    if (slot->desc != nullptr) mask |= slot->desc->table_mask;
    // How much of what it needs came is told by the plan and the steps.
    if (!slot->needs.empty()) {
      mask |= store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps);
    }
  }
  return mask;
}

format::FindingRow ToRow(const Finding& finding) {
  const Incident& incident = finding.incident;
  format::FindingRow row;
  row.time_ns = incident.start_ns;
  row.ord_ns = incident.end_ns;
  row.incident = finding.id;
  row.revision = finding.revision;
  row.rule = finding.rule;
  row.severity = Name(incident.severity);
  row.state = finding.open ? "open" : "closed";
  row.subject = incident.subject;
  row.first_step = incident.first_step;
  row.last_step = incident.last_step;
  row.start_ns = incident.start_ns;
  row.end_ns = incident.end_ns;
  row.message = incident.message;
  row.evidence = incident.evidence;
  row.cause = incident.cause;
  row.cost_seconds = incident.cost_seconds;
  row.advice = incident.advice;
  row.confidence = incident.confidence;
  return row;
}

}  // namespace telltale::rules
