// SPDX-License-Identifier: Apache-2.0
#include "agent/producer.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "agent/budget.h"
#include "base/json.h"
#include "base/redact.h"
#include "format/ledger_names.h"

namespace telltale::agent {
namespace {

std::string Dump(const nlohmann::ordered_json& json) {
  // A command line need not be UTF-8: what is not is replaced, never thrown at.
  return JsonText(json);
}

constexpr std::string_view KindName(std::uint8_t kind) {
  return kind == 0 ? "trainer" : kind == 1 ? "worker" : "other";
}

/// Start of a process by the run's clock. /proc counts since boot with suspended time included,
/// CLOCK_MONOTONIC without.
std::int64_t StartNs(std::uint64_t ticks, std::int64_t monotonic_to_run_ns) {
  timespec boot{};
  timespec monotonic{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  ::clock_gettime(CLOCK_MONOTONIC, &monotonic);
  const std::int64_t suspended_ns =
      (boot.tv_sec - monotonic.tv_sec) * 1'000'000'000LL + (boot.tv_nsec - monotonic.tv_nsec);
  const std::int64_t tick_ns = 1'000'000'000LL / ::sysconf(_SC_CLK_TCK);
  // The number is the process's own word.
  constexpr std::uint64_t kMost = 1ULL << 60;
  const auto since_boot_ns = static_cast<std::int64_t>(
      std::min(ticks, kMost / static_cast<std::uint64_t>(tick_ns)) * tick_ns);
  return since_boot_ns - suspended_ns + monotonic_to_run_ns;
}

}  // namespace

std::string Hex(const Uuid& uuid) {
  std::string text;
  for (const std::uint8_t byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

Result<std::unique_ptr<Producer>> Producer::Adopt(const Uuid& uuid, UniqueFd arena,
                                                  UniqueFd control, UniqueFd pidfd) {
  auto producer = std::unique_ptr<Producer>(new Producer());
  producer->uuid_ = uuid;
  producer->pidfd_ = std::move(pidfd);
  TELLTALE_ASSIGN_OR_RETURN(producer->consumer_, channel::Consumer::Attach(std::move(arena)));
  const channel::ProducerInfo& info = producer->consumer_->info();
  if (info.uuid != uuid) {
    return Status(Code::kUnusable,
                  fmt::format("arena of pid {} holds another uuid than its hello", info.pid));
  }
  producer->subject_ = fmt::format("proc:{}:{}", info.pid, Hex(uuid));
  TELLTALE_ASSIGN_OR_RETURN(channel::ControlPage page,
                            channel::ControlPage::Attach(std::move(control)));
  producer->control_.emplace(std::move(page));
  return producer;
}

void Producer::Publish(const plan::Compiled& compiled, std::uint64_t slab_bytes, Names names) {
  const std::vector<format::ControlRule> rules = compiled.rules(passed_);
  if (names == Names::kAgain) {
    // All answers first: between the first word and the rules a probe sees some of both plans.
    std::vector<std::uint32_t> words;
    words.reserve(answered_);
    for (std::uint32_t name = 1; name <= answered_; ++name) {
      words.push_back(compiled.WordOf(consumer_->name(name)));
    }
    control_->BeginRules();
    for (std::uint32_t name = 1; name <= answered_; ++name) {
      control_->SetName(name, words[name - 1]);
    }
  }
  control_->SetRules(rules, compiled.unanswered_mask(), slab_bytes, compiled.collections());
  control_->PublishEpoch();
  published_ = passed_;
}

bool Producer::AnswerNames(const plan::Compiled& compiled) {
  // Of a million that come at once the next tick goes on: the rings have to be drained meanwhile.
  constexpr std::uint32_t kAtATime = 1U << 16;
  const std::uint32_t count = std::min(consumer_->name_count(), answered_ + kAtATime);
  const bool any = answered_ < count;
  for (; answered_ < count; ++answered_) {
    const std::uint32_t name = answered_ + 1;
    control_->SetName(name, compiled.WordOf(consumer_->name(name)));
  }
  return any;
}

void Producer::Begin(std::string_view mode, std::int64_t step) {
  const auto known = ModeOf(mode);
  // Beside steps it may be numbered otherwise, as smdebug counts.
  if (known && !has_steps_[*known] && step > 0) {
    passed_[*known] = std::max(passed_[*known], step - 1);
  }
}

void Producer::See(const format::Rows& rows, const std::vector<channel::DrainedTensor>& tensors) {
  for (const format::StepRow& row : rows.steps) {
    const auto mode = ModeOf(row.mode);
    if (!mode) continue;
    const bool first = !std::exchange(has_steps_[*mode], true);
    passed_[*mode] = first ? row.step : std::max(passed_[*mode], row.step);
  }
  for (const format::StatisticRow& row : rows.statistics) Begin(row.mode, row.step);
  for (const format::HistogramRow& row : rows.histograms) Begin(row.mode, row.step);
  for (const channel::DrainedTensor& tensor : tensors) Begin(tensor.mode, tensor.step);
}

bool Producer::Slide(const plan::Compiled& compiled, std::uint64_t slab_bytes) {
  if (passed_ == published_) return false;
  Publish(compiled, slab_bytes, Names::kKept);
  return true;
}

void Producer::AttachSlab(UniqueFd slab) {
  auto reader = channel::SlabReader::Attach(std::move(slab));
  if (!reader.ok()) {
    std::fprintf(stderr, "agent: %s: %s\n", subject_.c_str(), reader.status().message().c_str());
    return;
  }
  slab_ = std::make_shared<channel::SlabReader>(std::move(reader).value());
  inherited_ = slab_->Taken();
  if (std::find(inherited_.begin(), inherited_.end(), true) == inherited_.end()) inherited_.clear();
}

void Producer::SeeTensors(const std::vector<channel::DrainedTensor>& tensors, bool all) {
  if (inherited_.empty()) return;
  // Taken before the journal had the record: it is still in its ring, and so comes to us.
  for (const channel::DrainedTensor& tensor : tensors) {
    if (!tensor.slot) continue;
    const std::uint64_t end = std::uint64_t{*tensor.slot} + channel::SlotsOf(tensor.bytes);
    for (std::uint64_t i = *tensor.slot; i < std::min<std::uint64_t>(end, inherited_.size()); ++i) {
      inherited_[i] = false;
    }
  }
  if (!all) return;
  slab_->FreeTaken(inherited_);
  inherited_.clear();
}

bool Producer::PollEnded() {
  ended_ = ended_ || PidfdEnded(pidfd_.get());
  return ended_;
}

PendingEvent Producer::NewEvent(std::string kind, std::uint16_t mark_ring, std::uint64_t mark,
                                std::int64_t now_ns) {
  const channel::ProducerInfo& info = consumer_->info();
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = std::move(kind);
  event.subject = fmt::format("proc:{}", info.pid);
  event.rank = info.rank;
  event.pid = info.pid;
  event.marks = {{uuid_, mark_ring, mark}};
  return event;
}

PendingEvent Producer::StartEvent(std::int64_t monotonic_to_run_ns, std::int64_t now_ns) {
  const channel::ProducerInfo& info = consumer_->info();
  PendingEvent event = NewEvent("process.start", kProcessMarkRing, 1, now_ns);
  event.message = fmt::format("{} {} registered", KindName(info.kind), info.pid);
  // The command line only of the process itself, not of one that has its pid by now.
  const bool same = ProcessStartTicks(info.pid) == info.start_time_ticks;
  const auto words = Redacted(same ? ProcessArguments(info.pid) : std::vector<std::string>());
  event.data = Dump({{"pid", info.pid},
                     {"parent_pid", info.parent_pid},
                     {"kind", KindName(info.kind)},
                     {"uuid", Hex(info.uuid)},
                     {"parent_uuid", Hex(info.parent_uuid)},
                     {"process_start_ns", StartNs(info.start_time_ticks, monotonic_to_run_ns)},
                     {"cmdline", fmt::format("{}", fmt::join(words, " "))}});
  start_said = true;
  return event;
}

PendingEvent Producer::ExitEvent(const std::optional<ProcessExit>& exit, std::int64_t ended_ns,
                                 std::int64_t now_ns, const ExitFacts& facts) {
  const channel::ProducerInfo& info = consumer_->info();
  PendingEvent event = NewEvent("process.exit", kProcessMarkRing, 2, now_ns);
  event.message = fmt::format("{} {} ended", KindName(info.kind), info.pid);
  nlohmann::ordered_json data = {{"pid", info.pid}, {"uuid", Hex(info.uuid)}};
  if (exit && exit->exit_code) data["exit_code"] = *exit->exit_code;
  if (exit && exit->signal) data["signal"] = *exit->signal;
  data["ended_ns"] = ended_ns;
  if (exit) facts.AddTo(*exit, &data);
  event.data = Dump(data);
  exit_said = true;
  return event;
}

std::optional<PendingEvent> Producer::DisabledEvent(std::int64_t now_ns) {
  if (disabled_said_) return {};
  const std::string reason = consumer_->disabled_reason();
  if (reason.empty()) return {};
  disabled_said_ = true;
  PendingEvent event = NewEvent("probe.disabled", kDisabledMarkRing, 1, now_ns);
  event.severity = "medium";
  event.message = fmt::format("the probe in process {} switched itself off", event.pid);
  event.data = Dump({{"reason", reason}});
  return event;
}

std::optional<PendingEvent> Producer::LeftEvent(std::int64_t now_ns) {
  if (left_said_) return {};
  left_said_ = true;
  const channel::ProducerInfo& info = consumer_->info();
  PendingEvent event = NewEvent("producer.left", kLeftMarkRing, 1, now_ns);
  event.severity = "medium";
  event.message = fmt::format(
      "{} {} goes on after the command: no more of it is recorded: let the command "
      "wait for it",
      KindName(info.kind), info.pid);
  event.data = Dump({{"pid", info.pid}, {"uuid", Hex(info.uuid)}});
  return event;
}

std::optional<PendingEvent> Producer::StacksEvent(std::int64_t now_ns, std::int64_t run_now_ns) {
  const channel::ProducerInfo& info = consumer_->info();
  // Workers of a loader wait for their next task for as long as it takes.
  if (info.kind != 0 || ended_ || !quiet_.Due(now_ns)) return {};
  PendingEvent event;
  event.data = ThreadsOf("/proc", info.pid, quiet_.QuietNs(now_ns));
  // While it has not ended nobody else can have its pid: what was read is its own.
  if (event.data.empty() || PollEnded()) return {};
  event.time_ns = run_now_ns;
  event.kind = "process.stacks";
  event.subject = fmt::format("proc:{}", info.pid);
  event.message = fmt::format("nothing has come of process {} for {:.0f} s", info.pid,
                              static_cast<double>(quiet_.QuietNs(now_ns)) / 1e9);
  event.rank = info.rank;
  event.pid = info.pid;
  return event;
}

void Producer::SkipMarks(bool start, bool exit, bool disabled, bool left) {
  start_said = start;
  exit_said = exit;
  disabled_said_ = disabled;
  left_said_ = left;
}

void Producer::CountInto(Ledger* ledger) {
  const channel::ProducerInfo& info = consumer_->info();
  const channel::ProducerCounters counters = consumer_->counters();
  const auto set = [&](std::string_view name, std::uint64_t value, bool loss) {
    ledger->Set({std::string(name), subject_}, value, {"records", loss, info.rank, info.pid});
  };
  set("probe.records_produced", counters.produced, false);
  set("probe.records_dropped", counters.dropped, true);
  set("probe.names_folded", counters.names_folded, true);
  set(format::kSkipped, counters.skipped, true);
  std::uint64_t other = counters.skipped_other;
  for (const channel::ProducerCounters::Reason& reason : counters.skipped_for) {
    if (reason.name == format::kSkippedOther) {
      other += reason.count;
    } else {
      set(fmt::format("{}{}", format::kSkippedFor, reason.name), reason.count, false);
    }
  }
  set(fmt::format("{}{}", format::kSkippedFor, format::kSkippedOther), other, false);
  set("probe.spans_thinned", counters.spans_thinned, false);
  set("probe.malformed", counters.malformed, true);
  set("probe.foreign_thread", counters.foreign_thread, false);
  const auto tensors = [&](const char* name, std::uint64_t value) {
    ledger->Set({name, subject_}, value, {"tensors", true, info.rank, info.pid});
  };
  tensors("probe.raw_dropped", counters.raw_dropped);
  // What waits has been lost with the process, or comes when nothing is recorded any more.
  const bool over = ended_ || left_said_;
  tensors("probe.histogram_dropped",
          counters.histogram_dropped + (over ? counters.histograms_waiting : 0));
  tensors("probe.unanswered", counters.unanswered);
}

}  // namespace telltale::agent
