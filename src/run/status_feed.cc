// SPDX-License-Identifier: Apache-2.0
#include "run/status_feed.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/printable.h"
#include "base/utf8.h"

namespace telltale::run {
namespace {

using format::TableId;

constexpr std::chrono::milliseconds kPeriod(500);
constexpr std::size_t kMaxRowsATime = 4096;
/// Steps whose rates and shares are shown: those of the last seconds.
constexpr std::int64_t kRecentNs = 5'000'000'000;
constexpr std::size_t kMinRecent = 2;
/// Of one message, so that it fits what a socket holds.
constexpr std::size_t kMostMessage = 128U << 10;
constexpr std::size_t kMostText = 256;  ///< Bytes.
constexpr std::size_t kMostChanges = 64;
constexpr std::size_t kMostOpen = 64;  ///< Rules by severity.

bool DropsRecords(const format::LedgerRow& row) {
  return row.loss && row.unit == "records" && row.name != "probe.skipped" &&
         row.name != "probe.names_folded";
}

/// 41280 as 41,280.
std::string Grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0);
       at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

struct Mark {
  const char* shape;
  const char* colour;
};
Mark MarkOf(std::string_view severity) {
  if (severity == "high") return {"◆", "\x1b[1;31m"};
  if (severity == "medium") return {"▲", "\x1b[33m"};
  if (severity == "low") return {"○", ""};
  return {"·", ""};
}

/// Columns that UTF-8 text without wide characters takes.
std::size_t Width(std::string_view text) {
  std::size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return width;
}

}  // namespace

void StatusFold::Add(const store::OrderedRecord& record) {
  if (const auto* row = record.As<format::StepRow>()) AddStep(*row);
  if (const auto* row = record.As<format::FindingRow>()) AddFinding(*row);
  if (const auto* row = record.As<format::EventRow>()) AddEvent(*row);
  if (const auto* row = record.As<format::ScalarRow>()) {
    if (row->name == "loss" && row->mode == "TRAIN" && row->attempt == attempt_) {
      facts_.has_loss = true;
      facts_.loss = row->value;
    }
  }
  if (const auto* row = record.As<format::MetricRow>()) {
    if (row->subject == "proc:tree" && row->name == "proc.cpu") facts_.cpu_percent = row->value;
  }
  if (const auto* row = record.As<format::LedgerRow>()) {
    if (row->name == "agent.taken_ns") taken_.ns = row->value;
    if (row->name == "agent.taken_of_ns") taken_.of_ns = row->value;
    if (DropsRecords(*row) && row->attempt == attempt_) {
      std::uint64_t& known = dropped_[std::string(row->subject) + "/" + std::string(row->name)];
      facts_.dropped += row->value - std::min(known, row->value);
      known = row->value;
    }
  }
}

void StatusFold::AddStep(const format::StepRow& row) {
  // As the verdict has it at the end: of all steps so far.
  all_duration_ns_ += static_cast<double>(row.duration_ns);
  all_probe_ns_ += static_cast<double>(row.probe_ns);
  if (all_duration_ns_ > 0) {
    facts_.overhead_share =
        all_probe_ns_ / all_duration_ns_ +
        (taken_.of_ns > 0 ? static_cast<double>(taken_.ns) / static_cast<double>(taken_.of_ns) : 0);
  }
  if (row.mode != "TRAIN" || row.attempt != attempt_) return;
  facts_.step = std::max(facts_.step, row.step);
  if (row.rank != 0) return;  // Rates are those of one rank; others keep its pace.
  const std::int64_t end_ns = row.time_ns + row.duration_ns;
  recent_.push_back({end_ns, row.duration_ns, row.data_wait_ns});
  recent_duration_ns_ += row.duration_ns;
  recent_wait_ns_ += row.data_wait_ns;
  while (recent_.size() > kMinRecent && recent_.front().end_ns < end_ns - kRecentNs) {
    recent_duration_ns_ -= recent_.front().duration_ns;
    recent_wait_ns_ -= recent_.front().wait_ns;
    recent_.pop_front();
  }
  if (recent_duration_ns_ <= 0) return;
  const auto total = static_cast<double>(recent_duration_ns_);
  facts_.steps_per_second = static_cast<double>(recent_.size()) * 1e9 / total;
  facts_.wait_share = static_cast<double>(recent_wait_ns_) / total;
}

void StatusFold::AddFinding(const format::FindingRow& row) {
  const std::string incident(row.incident);
  const auto known = facts_.open.find(incident);
  const bool closed = row.state == "closed";
  FindingChange change;
  change.time_ns = row.ord_ns;
  change.step = row.last_step;
  change.severity = Printable(row.severity);
  change.message = Printable(row.message);
  change.closed = closed;
  if (closed) {
    if (known != facts_.open.end()) changes_.push_back(std::move(change));
    facts_.open.erase(incident);
    return;
  }
  if (known == facts_.open.end() || known->second.severity != row.severity) {
    changes_.push_back(std::move(change));
  }
  facts_.open[incident] = {Printable(row.rule), Printable(row.severity), Printable(row.message),
                           row.last_step};
}

void StatusFold::AddEvent(const format::EventRow& row) {
  if (row.attempt != attempt_) return;
  if (row.kind == "plan") {
    // Another plan begins without any thinning.
    facts_.stretch = 1;
    facts_.shed = false;
    return;
  }
  if (row.kind == "governor") {
    // What was asked for by name and is not taken so, with what it would cost.
    const auto asked = ParseJson(row.data);
    if (asked.is_object() && asked.contains("asked")) {
      FindingChange change;
      change.time_ns = row.ord_ns;
      change.step = facts_.step;
      change.severity = "low";
      change.message = Printable(row.message);
      changes_.push_back(std::move(change));
    }
  }
  if (row.kind == "stop.begun") {
    // Who looks on is told why the training is about to end.
    FindingChange change;
    change.time_ns = row.ord_ns;
    change.step = facts_.step;
    change.severity = Printable(row.severity);
    change.message = Printable(row.message);
    changes_.push_back(std::move(change));
    return;
  }
  if (row.kind != "governor") return;
  const auto data = ParseJson(row.data);
  if (!data.is_object()) return;
  const auto stretch = data.find("stretch");
  if (stretch != data.end() && stretch->is_number_unsigned()) {
    facts_.stretch = stretch->get<std::uint32_t>();
  }
  const auto shed = data.find("shed");
  facts_.shed = shed != data.end() && shed->is_array() && !shed->empty();
}

std::string RenderStatus(const StatusFacts& facts, int columns, bool colour) {
  // Parts in the order of their weight; what does not fit is left out from the end.
  struct Part {
    std::string plain;
    std::string painted;
  };
  std::vector<Part> parts;
  const auto add = [&](std::string text) { parts.push_back({text, text}); };
  if (facts.step < 0) {
    add("waiting for the first step");
  } else {
    add(fmt::format("step {}", Grouped(facts.step)));
    if (facts.steps_per_second > 0) {
      add(facts.steps_per_second >= 10  ? fmt::format("{:.0f} steps/s", facts.steps_per_second)
          : facts.steps_per_second >= 1 ? fmt::format("{:.1f} steps/s", facts.steps_per_second)
                                        : fmt::format("{:.1f} s/step", 1 / facts.steps_per_second));
    }
    if (facts.has_loss) add(fmt::format("loss {:.4g}", facts.loss));
  }
  if (facts.cpu_percent >= 0) add(fmt::format("CPU {:.0f} %", facts.cpu_percent));
  if (facts.wait_share >= 0) add(fmt::format("wait {:.0f} %", facts.wait_share * 100));
  Part findings;
  for (const char* severity : {"high", "medium", "low"}) {
    std::map<std::string, std::uint64_t> rules;
    for (const auto& [incident, finding] : facts.open) {
      if (finding.severity == severity) rules[finding.rule] += finding.count;
    }
    for (const auto& [rule, count] : rules) {
      const Mark mark = MarkOf(severity);
      const std::string text =
          fmt::format("{}{} {}{}", findings.plain.empty() ? "" : " ", mark.shape, rule,
                      count > 1 ? fmt::format(" ×{}", count) : "");
      findings.plain += text;
      findings.painted +=
          std::string(mark.colour) + text + (mark.colour[0] != '\0' ? "\x1b[0m" : "");
    }
  }
  if (!findings.plain.empty()) parts.push_back(findings);
  if (facts.dropped > 0)
    add(fmt::format("{} dropped", Grouped(static_cast<std::int64_t>(facts.dropped))));
  if (facts.overhead_share >= 0) add(fmt::format("+{:.2f} %", facts.overhead_share * 100));
  if (facts.stretch > 1 || facts.shed) {
    add(fmt::format("thinned ×{}{}", facts.stretch, facts.shed ? " and shed" : ""));
  }

  std::string line;
  std::size_t width = 0;
  for (const Part& part : parts) {
    const std::size_t needed = (width == 0 ? 1 : 2) + Width(part.plain);
    if (width + needed >= static_cast<std::size_t>(columns)) break;
    line += width == 0 ? " " : "  ";
    line += colour ? part.painted : part.plain;
    width += needed;
  }
  return line;
}

std::string LocalTime(std::int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

std::string RenderChange(const FindingChange& change, bool colour) {
  const Mark mark = MarkOf(change.severity);
  const bool paint = colour && mark.colour[0] != '\0';
  return fmt::format("telltale {} step {}  {}{} {:<6}{}  {}{}", LocalTime(change.time_ns),
                     change.step < 0 ? "-" : Grouped(change.step), paint ? mark.colour : "",
                     mark.shape, change.severity, paint ? "\x1b[0m" : "", change.message,
                     change.closed ? " (closed)" : "");
}

std::string ToMessage(const StatusWord& word) {
  const StatusFacts& facts = word.facts;
  const auto cut = [](std::string text) {
    if (text.size() > kMostText) {
      text.resize(ValidUtf8Prefix(std::string_view(text).substr(0, kMostText)));
    }
    return text;
  };
  // JSON has no infinity.
  const auto finite = [](double value) { return std::isfinite(value) ? value : -1.0; };
  // What the status line shows of open findings is their number.
  std::map<std::pair<std::string, std::string>, std::uint64_t> open;
  for (const auto& [incident, finding] : facts.open) {
    const std::pair key(finding.severity, cut(finding.rule));
    if (open.size() < kMostOpen || open.contains(key)) open[key] += finding.count;
  }
  nlohmann::json out = {{"step", facts.step},
                        {"rate", finite(facts.steps_per_second)},
                        {"cpu", finite(facts.cpu_percent)},
                        {"wait", finite(facts.wait_share)},
                        {"overhead", finite(facts.overhead_share)},
                        {"stretch", facts.stretch},
                        {"shed", facts.shed},
                        {"dropped", facts.dropped},
                        {"open", nlohmann::json::array()},
                        {"changes", nlohmann::json::array()},
                        {"more", word.more_changes}};
  // That a loss is no number is worth seeing.
  if (facts.has_loss) out["loss"] = fmt::format("{}", facts.loss);
  for (const auto& [key, count] : open) out["open"].push_back({key.first, key.second, count});
  for (const FindingChange& change : word.changes) {
    out["changes"].push_back(
        {change.time_ns, change.step, cut(change.severity), cut(change.message), change.closed});
  }
  return JsonText(out);
}

bool FromMessage(std::string_view message, StatusWord* word) {
  const auto in = ParseJson(message);
  if (!in.is_object()) return false;
  try {
    StatusFacts& facts = word->facts;
    in.at("step").get_to(facts.step);
    in.at("rate").get_to(facts.steps_per_second);
    in.at("cpu").get_to(facts.cpu_percent);
    in.at("wait").get_to(facts.wait_share);
    in.at("overhead").get_to(facts.overhead_share);
    in.at("stretch").get_to(facts.stretch);
    in.at("shed").get_to(facts.shed);
    in.at("dropped").get_to(facts.dropped);
    facts.has_loss = in.contains("loss");
    if (facts.has_loss) facts.loss = std::strtod(in.at("loss").get<std::string>().c_str(), nullptr);
    facts.open.clear();
    for (const auto& one : in.at("open")) {
      OpenFinding finding;
      one.at(0).get_to(finding.severity);
      one.at(1).get_to(finding.rule);
      one.at(2).get_to(finding.count);
      facts.open.emplace(std::to_string(facts.open.size()), std::move(finding));
    }
    for (const auto& one : in.at("changes")) {
      FindingChange& change = word->changes.emplace_back();
      one.at(0).get_to(change.time_ns);
      one.at(1).get_to(change.step);
      one.at(2).get_to(change.severity);
      one.at(3).get_to(change.message);
      one.at(4).get_to(change.closed);
    }
    word->more_changes += in.at("more").get<std::uint64_t>();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

namespace {

/// The process's life: it ends with its link.
int Follow(int link, const std::filesystem::path& run, std::uint32_t attempt) {
  StatusFold fold(attempt);
  std::unique_ptr<store::RunReader> reader;
  // Findings by a cursor of their own: a watcher that is away must not hold up the rest.
  std::unique_ptr<store::Cursor> records;
  std::unique_ptr<store::Cursor> findings;
  std::vector<store::OrderedRecord> rows;
  std::string said;
  // True where nobody listens any more.
  const auto listener_gone = [link](int patience_ms) {
    pollfd fd{link, 0, 0};
    return ::poll(&fd, 1, patience_ms) > 0;
  };
  while (!listener_gone(0)) {
    if (!reader) {
      auto opened = store::RunReader::Open(run);
      if (opened.ok()) reader = std::move(opened).value();
    }
    if (reader && !records) {
      store::CursorOptions options;
      options.table_mask = store::MaskOf(TableId::kSteps) | store::MaskOf(TableId::kScalars) |
                           store::MaskOf(TableId::kMetrics) | store::MaskOf(TableId::kLedger) |
                           store::MaskOf(TableId::kEvents);
      auto made = reader->NewCursor(options);
      if (made.ok()) records = std::move(made).value();
      options.exclude_prefix = "agent";
      options.table_mask = store::MaskOf(TableId::kFindings);
      made = reader->NewCursor(options);
      if (made.ok()) findings = std::move(made).value();
    }
    for (store::Cursor* cursor : {records.get(), findings.get()}) {
      while (cursor != nullptr && !listener_gone(0)) {
        rows.clear();
        if (!cursor->Next(kMaxRowsATime, &rows).ok() || rows.empty()) break;
        for (const store::OrderedRecord& row : rows) fold.Add(row);
      }
    }
    StatusWord word{fold.facts(), fold.TakeChanges(), 0};
    if (word.changes.size() > kMostChanges) {
      word.more_changes = word.changes.size() - kMostChanges;
      word.changes.resize(kMostChanges);
    }
    // Who listens may be stopped: then this waits.
    std::string message = ToMessage(word);
    if (message != said) {
      if (::send(link, message.data(), message.size(), MSG_NOSIGNAL) < 0) return 0;
      said = std::move(message);
    }
    if (listener_gone(static_cast<int>(kPeriod.count()))) return 0;
  }
  return 0;
}

}  // namespace

std::unique_ptr<StatusFeed> StatusFeed::Start(std::filesystem::path run, std::uint32_t attempt) {
  auto errand =
      Errand::Start("telltale-status", [&](int link) { return Follow(link, run, attempt); });
  if (!errand.ok()) return nullptr;
  return std::unique_ptr<StatusFeed>(new StatusFeed(std::move(errand).value()));
}

void StatusFeed::Read() {
  std::array<char, kMostMessage> bytes;
  while (!over_) {
    const ssize_t got = ::recv(errand_.link(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      over_ = true;
      errand_.Leave();
      return;
    }
    StatusWord word;
    if (!FromMessage(std::string_view(bytes.data(), static_cast<std::size_t>(got)), &word))
      continue;
    facts_ = std::move(word.facts);
    more_changes_ += word.more_changes;
    for (FindingChange& change : word.changes) {
      if (changes_.size() < kMostChanges) {
        changes_.push_back(std::move(change));
      } else {
        ++more_changes_;
      }
    }
  }
}

std::vector<FindingChange> StatusFeed::TakeChanges(std::uint64_t* more) {
  *more = std::exchange(more_changes_, 0);
  return std::exchange(changes_, {});
}

}  // namespace telltale::run
