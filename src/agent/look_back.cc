// SPDX-License-Identifier: Apache-2.0
#include "agent/look_back.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/budget.h"
#include "base/json.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kHeldModes = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
constexpr std::array<std::string_view, 5> kHeldCategories = {"user", "phase", "data", "runtime",
                                                             "module"};
constexpr std::int64_t kLookBackSteps = 20;
constexpr std::int64_t kMaxLookBackSteps = 10'000;
/// So many spans of one request are written, and of all of an attempt.
constexpr std::uint64_t kMaxKept = 500'000;
constexpr std::uint64_t kMaxStored = 5'000'000;
constexpr std::size_t kMaxKeeps = 64;
constexpr std::size_t kMaxHeldProcesses = 4096;
constexpr std::uint64_t kLookAgainSpans = 4096;
constexpr std::size_t kKeptRowsAtOnce = 2048;
/// So long the steps after a finding are waited for.
constexpr std::int64_t kAfterPatienceNs = 120 * kSecond;
/// Of the bytes that are held, a part for names.
constexpr std::size_t kNamePart = 8;

std::int64_t BodyNumber(const ordered_json& body, const char* key, std::int64_t otherwise) {
  const auto found = body.find(key);
  return found != body.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
}

std::string BodyText(const ordered_json& body, const char* key) {
  const auto found = body.find(key);
  return found != body.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

/// {"steps": N, "after": N, "first_step": S, "last_step": S, "rule", "incident", "why"}
struct LookBack::Asked {
  std::int64_t before = kLookBackSteps, after = kLookBackSteps;
  std::vector<std::int64_t> around;  ///< TRAIN steps; none: the newest ones.
};

void LookBack::Keep::Saw(const Held& span) {
  if (span.mode != 0) return;
  if (first < 0 || span.step < first) first = span.step;
  last = std::max(last, span.step);
}

LookBack::LookBack(std::uint64_t bytes)
    : room_((bytes - bytes / kNamePart) / (sizeof(Held) + 4)), name_room_(bytes / kNamePart) {}

bool LookBack::wants_all() const {
  return !ended_ && std::any_of(keeps_.begin(), keeps_.end(),
                                [](const Keep& keep) { return !keep.waits.empty(); });
}

std::optional<std::uint16_t> LookBack::ProcessOf(std::int32_t pid, std::int32_t rank) {
  for (std::size_t i = processes_.size(); i > 0; --i) {
    Process& process = processes_[i - 1];
    if (process.pid != pid || process.gone) continue;
    process.rank = rank;
    return static_cast<std::uint16_t>(i - 1);
  }
  if (processes_.size() == kMaxHeldProcesses && free_.empty()) FreePlaces();
  std::size_t at = processes_.size();
  if (at < kMaxHeldProcesses) {
    processes_.emplace_back();
  } else if (!free_.empty()) {
    at = free_.back();
    free_.pop_back();
    processes_[at] = Process();
  } else {
    return {};
  }
  processes_[at].pid = pid;
  processes_[at].rank = rank;
  return static_cast<std::uint16_t>(at);
}

void LookBack::FreePlaces() {
  // The ring is long: it is looked through again once some of it has changed.
  if (looked_ > 0 && received_ - looked_ < kLookAgainSpans) return;
  looked_ = std::max<std::uint64_t>(received_, 1);
  std::vector<bool> used(processes_.size());
  const auto use = [&](const auto& spans) {
    for (const Held& span : spans) used[span.process] = true;
  };
  use(ring_);
  use(kept_);
  use(offered_);
  use(offered_full_);
  for (const auto& step : offered_steps_) used[static_cast<std::size_t>(step[0])] = true;
  for (const Keep& keep : keeps_) {
    for (const auto& wait : keep.waits) used[wait.first] = true;
  }
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (!processes_[i].gone || processes_[i].free || used[i]) continue;
    processes_[i].free = true;
    free_.push_back(static_cast<std::uint16_t>(i));
  }
}

void LookBack::Gone(std::int32_t pid) {
  for (Process& process : processes_) process.gone = process.gone || process.pid == pid;
}

std::uint32_t LookBack::NameOf(std::string_view name) {
  const auto found = name_ids_.find(std::string(name));
  if (found != name_ids_.end()) return found->second;
  const auto id = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  name_ids_.emplace(name, id);
  name_bytes_ += 2 * (sizeof(std::string) + name.size());
  return id;
}

/// Everything falls out, with its names, once nothing is being written.
void LookBack::Forget() {
  if (!kept_.empty() || !offered_.empty() || !offered_full_.empty()) return;
  for (const Held& held : ring_) fell_out_ += held.kept ? 0 : 1;
  ring_.clear();
  names_.clear();
  name_ids_.clear();
  name_bytes_ = 0;
}

LookBack::Held LookBack::HeldOf(const format::SpanRow& row, std::uint16_t process) {
  Held held{};
  held.time_ns = row.time_ns;
  held.duration_ns = row.duration_ns;
  held.step = row.step;
  held.process = process;
  held.mode = static_cast<std::uint8_t>(ModeOf(row.mode).value_or(3));
  const auto* const category =
      std::find(kHeldCategories.begin(), kHeldCategories.end(), row.category);
  held.category = static_cast<std::uint8_t>(
      category == kHeldCategories.end() ? 0 : category - kHeldCategories.begin());
  held.tid = row.tid;
  held.name = NameOf(row.name);
  return held;
}

format::SpanRow LookBack::RowOf(const Held& span) const {
  format::SpanRow row;
  const Process& process = processes_[span.process];
  row.time_ns = span.time_ns;
  row.duration_ns = span.duration_ns;
  row.ord_ns = span.time_ns + span.duration_ns;
  row.name = names_[span.name];
  row.category = kHeldCategories[span.category];
  row.step = span.step;
  row.mode = kHeldModes[span.mode];
  row.rank = process.rank;
  row.pid = process.pid;
  row.tid = span.tid;
  return row;
}

void LookBack::Offer(const std::vector<format::SpanRow>& details, format::Rows* rows) {
  if (!on()) return;
  if (!details.empty() && name_bytes_ > name_room_) Forget();
  for (const format::SpanRow& row : details) {
    const auto process = ProcessOf(row.pid, row.rank);
    const bool no_room = name_bytes_ > 2 * name_room_ && !name_ids_.contains(std::string(row.name));
    if (!process || no_room) {
      ++fell_out_;
      no_place_ += process ? 0 : 1;
      continue;
    }
    const Held held = HeldOf(row, *process);
    const std::int64_t until = processes_[held.process].full_until;
    // Those of evaluations in between too.
    const bool full = until >= 0 && (held.mode != 0 || held.step <= until);
    (full ? offered_full_ : offered_).push_back(held);
    if (full) rows->spans.push_back(row);
  }
  for (const format::StepRow& row : rows->steps) {
    const auto mode = ModeOf(row.mode);
    const auto process = mode ? ProcessOf(row.pid, row.rank) : std::nullopt;
    if (process) offered_steps_.push_back({*process, *mode, row.step});
  }
}

void LookBack::Settle(bool taken) {
  if (taken) {
    received_ += offered_.size() + offered_full_.size();
    stored_ += offered_full_.size();
    ring_.insert(ring_.end(), offered_.begin(), offered_.end());
    for (; ring_.size() > room_; ring_.pop_front()) fell_out_ += ring_.front().kept ? 0 : 1;
    for (const Held& held : offered_full_) {
      for (Keep& keep : keeps_) {
        const bool of_it = std::any_of(keep.waits.begin(), keep.waits.end(), [&](const auto& wait) {
          return wait.first == held.process && (held.mode != 0 || held.step <= wait.second);
        });
        if (!of_it) continue;
        ++keep.after;
        keep.Saw(held);
      }
    }
    for (const auto& [index, mode, step] : offered_steps_) {
      Process& process = processes_[static_cast<std::size_t>(index)];
      auto& newest = process.newest[static_cast<std::size_t>(mode)];
      newest = std::max(newest, step);
      if (process.full_until >= 0 && process.newest[0] >= process.full_until) {
        process.full_until = -1;
      }
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(writing_));
    stored_ += writing_;
  }
  writing_ = 0;
  offered_.clear();
  offered_full_.clear();
  offered_steps_.clear();
}

/// What the ring has of the steps that were asked for goes to kept_, and the next steps of each
/// process are stored as they come.
void LookBack::Take(const Asked& asked, Keep* keep) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::vector<Range> times(processes_.size(),
                           Range{kNone, std::numeric_limits<std::int64_t>::min()});
  const auto in_reach = [&](const Held& span) {
    const std::int64_t newest = processes_[span.process].newest[span.mode];
    if (asked.around.empty()) return span.step > newest - asked.before;
    if (span.mode != 0) return false;
    if (span.step > newest && asked.after > 0) return true;
    return std::any_of(asked.around.begin(), asked.around.end(), [&](std::int64_t step) {
      return span.step >= step - asked.before && span.step <= step + asked.after;
    });
  };
  const auto keep_it = [&](Held* span) {
    if (span->kept) return;
    if (keep->before == kMaxKept) {
      ++keep->left_out;
      return;
    }
    ++keep->before;
    keep->Saw(*span);
    span->kept = true;
    kept_.push_back(*span);
  };
  std::vector<bool> detailed(processes_.size());
  for (Held& span : ring_) {
    detailed[span.process] = true;
    if (span.mode == 0 && (keep->oldest < 0 || span.step < keep->oldest)) keep->oldest = span.step;
    if (!in_reach(span)) continue;
    Range& time = times[span.process];
    time.first = std::min(time.first, span.time_ns);
    time.last = std::max(time.last, span.time_ns);
    keep_it(&span);
  }
  // Evaluations have steps of their own: those that lie in between.
  for (Held& span : ring_) {
    const Range& time = times[span.process];
    if (span.mode != 0 && span.time_ns >= time.first && span.time_ns <= time.last) keep_it(&span);
  }
  if (asked.after == 0) return;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    if (process.gone || !detailed[i]) continue;
    // A finding may come of a step that has not ended.
    std::int64_t until = process.newest[0];
    for (const std::int64_t step : asked.around) {
      if (step <= until + asked.after) until = std::max(until, step);
    }
    // The program says at which step it is, and may say anything.
    until = std::min(until, std::numeric_limits<std::int64_t>::max() / 2) + asked.after;
    process.full_until = std::max(process.full_until, until);
    keep->waits.emplace_back(static_cast<std::uint16_t>(i), until);
  }
}

Status LookBack::Ask(const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
  const auto wrong = [](std::string what) { return Status(Code::kUsage, std::move(what)); };
  const bool watcher = request.who == "watch";
  // Nothing detailed is recorded in this run: each finding would only say so.
  if (watcher && (!on() || received_ == 0)) return {};
  if (!on()) return wrong("the look-back ring is off: start the run without --look-back off");
  const ordered_json body = ParseOrderedJson(request.body);
  if (!body.is_object()) return wrong("the request holds no JSON object");
  Asked asked;
  asked.before = BodyNumber(body, "steps", kLookBackSteps);
  asked.after = BodyNumber(body, "after", kLookBackSteps);
  if (asked.before < 1 || asked.before > kMaxLookBackSteps || asked.after < 0 ||
      asked.after > kMaxLookBackSteps) {
    return wrong(fmt::format("steps {} and after {}: write 1 (after: 0) to {}", asked.before,
                             asked.after, kMaxLookBackSteps));
  }
  for (const char* key : {"first_step", "last_step"}) {
    if (const std::int64_t step = BodyNumber(body, key, -1); step >= 0) {
      asked.around.push_back(std::min(step, std::numeric_limits<std::int64_t>::max() / 2));
    }
  }
  if (received_ == 0) {
    return wrong(
        "no spans of detail have come of this run: torch's modules record them, and "
        "programs by tt_detail_span");
  }
  if (keeps_.size() >= kMaxKeeps || stored_ + kept_.size() >= kMaxStored) {
    return wrong(keeps_.size() >= kMaxKeeps ? "many steps are being kept already: ask again later"
                                            : "so many spans were kept in this attempt that no "
                                              "more are");
  }
  Keep keep;
  keep.id = request.id;
  keep.who = request.who;
  keep.rule = BodyText(body, "rule");
  keep.incident = BodyText(body, "incident");
  keep.why = BodyText(body, "why");
  keep.asked_ns = now_ns;
  Take(asked, &keep);
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.done";
  event.subject = "lookback";
  event.message = fmt::format("{} spans of the steps before are kept", keep.before);
  if (keep.first >= 0) {
    event.message += fmt::format(", of TRAIN steps {} to {}", keep.first, keep.last);
  }
  if (!keep.waits.empty()) {
    event.message += fmt::format("; the next {} steps are recorded in full", asked.after);
  }
  event.data = JsonText(ordered_json{{"id", store::Hex(keep.id)},
                                     {"who", keep.who},
                                     {"before", keep.before},
                                     {"after_steps", keep.waits.empty() ? 0 : asked.after}});
  event.marks = {{keep.id, kRequestMarkRing, 1}};
  outbox->Add(std::move(event));
  keeps_.push_back(std::move(keep));
  return {};
}

void LookBack::Say(const Keep& keep, std::int64_t now_ns, Outbox* outbox) {
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "lookback.kept";
  event.subject = keep.rule.empty() ? "lookback" : "rule:" + keep.rule;
  event.message = fmt::format("spans of detail kept: {} of the steps before, {} of those after",
                              keep.before, keep.after);
  if (keep.first >= 0) {
    event.message += fmt::format(" (TRAIN steps {} to {})", keep.first, keep.last);
  }
  ordered_json data = {{"id", store::Hex(keep.id)}, {"who", keep.who}};
  if (!keep.rule.empty()) data["rule"] = keep.rule;
  if (!keep.incident.empty()) data["incident"] = keep.incident;
  if (!keep.why.empty()) data["why"] = keep.why;
  data["first"] = keep.first;
  data["last"] = keep.last;
  data["before"] = keep.before;
  data["after"] = keep.after;
  data["left_out"] = keep.left_out;
  data["oldest_step"] = keep.oldest;
  data["early"] = keep.early;
  event.data = JsonText(data);
  outbox->Add(std::move(event));
}

void LookBack::Poll(std::int64_t now_ns, Outbox* outbox) {
  for (Keep& keep : keeps_) {
    std::erase_if(keep.waits, [&](const auto& wait) {
      const Process& process = processes_[wait.first];
      const bool whole = process.newest[0] >= wait.second;
      if (process.gone && !whole) keep.early = "a process ended";
      return process.gone || whole;
    });
  }
  // Their rows first: whoever reads the event finds them.
  if (!kept_.empty()) return;
  std::erase_if(keeps_, [&](Keep& keep) {
    if (!keep.waits.empty()) {
      if (ended_) {
        keep.early = "the run ended";
      } else if (now_ns - keep.asked_ns >= kAfterPatienceNs) {
        keep.early = "the steps after took too long";
      } else {
        return false;
      }
      for (const auto& [process, until] : keep.waits) {
        if (processes_[process].full_until == until) processes_[process].full_until = -1;
      }
    }
    Say(keep, now_ns, outbox);
    return true;
  });
}

void LookBack::AddTo(std::uint32_t attempt, std::int64_t now_ns, format::Batch* batch) {
  writing_ = std::min(kept_.size(), kKeptRowsAtOnce);
  for (std::size_t i = 0; i < writing_; ++i) {
    format::SpanRow row = RowOf(kept_[i]);
    // Its end lies before what the journal's readers have seen: it comes now.
    row.ord_ns = std::max(row.ord_ns, now_ns);
    row.attempt = attempt;
    batch->rows.spans.push_back(row);
  }
}

void LookBack::CountInto(pid_t pid, Ledger* ledger) const {
  if (received_ == 0) return;
  const auto set = [&](const char* name, std::uint64_t value) {
    ledger->Set({name, "agent"}, value, {"records", false, 0, pid});
  };
  set("lookback.received", received_);
  set("lookback.stored", stored_);
  set("lookback.fell_out", fell_out_);
  if (no_place_ > 0) set("lookback.no_place", no_place_);
}

}  // namespace telltale::agent
