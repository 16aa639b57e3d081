// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/chrome_import.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "interchange/chrome/loose_events.h"
#include "interchange/chrome/parse_pipeline.h"
#include "interchange/chrome/trace_facts.h"

namespace telltale::interchange {
namespace {

/// Of the blocks of all files together that are kept until everything is known of them.
constexpr std::size_t kHeldBytes = 224U << 20;
constexpr std::size_t kMostThreads = 4;

struct CountName {
  ChromeCount count;
  std::string_view name;
  bool loss;
};
constexpr CountName kCountNames[] = {
    {ChromeCount::kDamagedEvents, "events_damaged", true},
    {ChromeCount::kUnsupported, "events_unsupported", true},
    {ChromeCount::kNegativeDuration, "durations_negative", true},
    {ChromeCount::kNotFinite, "values_not_finite", true},
    {ChromeCount::kDuplicateKeys, "keys_duplicate", true},
    {ChromeCount::kReplacedBytes, "bytes_replaced", true},
    {ChromeCount::kUnboundFlows, "flows_unbound", false},
    {ChromeCount::kCutArguments, "arguments_cut", true},
};

/// 3 of "trace_rank-3.json" or "rank3"; -1 where the name says none.
std::int64_t RankOfName(std::string_view name) {
  const std::size_t at = name.rfind("rank");
  if (at == std::string_view::npos) return -1;
  name.remove_prefix(at + 4);
  if (!name.empty() && (name.front() == '-' || name.front() == '_')) name.remove_prefix(1);
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && number >= 0 ? number : -1;
}

/// One file while it is imported.
struct Trace {
  const ImportFile* file = nullptr;
  ParsedText text;
  TraceFacts facts;
  std::vector<std::unique_ptr<ChromeBlock>> held;
  bool all_held = true;
  std::int32_t rank = 0;
  ClockFit clock;
  std::array<std::uint64_t, kChromeCounts> counts{};
};

class ChromeImport {
 public:
  ChromeImport(std::span<const ImportFile> files, const ImportLimits& limits, TraceSink* sink)
      : limits_(limits), sink_(sink), workers_(Threads()) {
    for (const ImportFile& file : files) traces_.emplace_back().file = &file;
  }

  Status Run() {
    for (Trace& trace : traces_) TELLTALE_RETURN_IF_ERROR(Read(&trace));
    ChooseRanks();
    FitClocks();
    for (Trace& trace : traces_) TELLTALE_RETURN_IF_ERROR(Write(&trace));
    const bool any =
        std::ranges::any_of(traces_, [](const Trace& trace) { return trace.facts.events() > 0; });
    const auto damaged =
        std::ranges::find_if(traces_, [](const Trace& trace) { return trace.text.damaged > 0; });
    if (any || damaged == traces_.end()) return {};
    return Named(*damaged, {Code::kUnusable,
                            fmt::format("no event in it can be read: its text is damaged from byte "
                                        "{} on",
                                        damaged->text.damage_offset)});
  }

 private:
  static std::size_t Threads() {
    return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 2, kMostThreads);
  }

  Status Named(const Trace& trace, const Status& status) {
    if (status.ok()) return {};
    if (status.message().find(trace.file->path.string()) != std::string::npos) return status;
    return {status.code(), fmt::format("{}: {}", trace.file->path.string(), status.message())};
  }

  /// Blocks in order, with the flows between them bound: each is given when the next is known.
  template <class F>
  Status ReadBlocks(Trace* trace, F&& give) {
    std::unique_ptr<ChromeBlock> before;
    std::uint64_t events = 0;
    Status status;
    const auto give_before = [&] {
      if (before != nullptr) give(std::move(before));
    };
    auto text = ParseTrace(
        trace->file->input(), trace->file->name, limits_.inflated_bytes, &workers_,
        [&](std::unique_ptr<ChromeBlock> block) {
          events += block->events;
          if (before != nullptr && !block->flows.empty()) {
            block->flows = BindFlows(block->flows, block->tracks, before.get());
          }
          give_before();
          before = std::move(block);
          if (events <= limits_.events) return sink_->ok();
          status = {Code::kLimit, fmt::format("it holds more than {} events", limits_.events)};
          return false;
        });
    TELLTALE_RETURN_IF_ERROR(Named(*trace, status));
    if (!text.ok()) return Named(*trace, text.status());
    give_before();
    trace->text = std::move(text).value();
    return {};
  }

  Status Read(Trace* trace) {
    TELLTALE_RETURN_IF_ERROR(ReadBlocks(trace, [&](std::unique_ptr<ChromeBlock> block) {
      trace->facts.Take(block.get());
      if (!trace->all_held) return;
      held_bytes_ += block->bytes();
      trace->held.push_back(std::move(block));
      if (held_bytes_ <= kHeldBytes) return;
      for (const auto& one : trace->held) held_bytes_ -= std::min(held_bytes_, one->bytes());
      trace->held.clear();
      trace->held.shrink_to_fit();
      trace->all_held = false;
    }));
    trace->facts.Settle();
    return {};
  }

  void ChooseRanks() {
    std::set<std::int32_t> taken;
    std::vector<Trace*> without;
    for (Trace& trace : traces_) {
      std::int64_t rank = trace.text.header.rank;
      if (rank < 0) rank = RankOfName(trace.file->name);
      trace.rank = static_cast<std::int32_t>(std::clamp<std::int64_t>(rank, -1, INT32_MAX));
      if (trace.rank < 0 || !taken.insert(trace.rank).second) without.push_back(&trace);
    }
    std::int32_t next = 0;
    for (Trace* const trace : without) {
      while (taken.contains(next)) ++next;
      if (trace->rank >= 0) {
        sink_->Note(
            fmt::format("{}: rank {} is another file's already, so this one is called rank "
                        "{}",
                        trace->file->path.string(), trace->rank, next));
      }
      trace->rank = next;
      taken.insert(next);
    }
  }

  void FitClocks() {
    if (traces_.size() < 2) return;
    Trace* first = nullptr;
    for (Trace& trace : traces_) {
      trace.facts.SettleCollectives();
      if (first == nullptr || trace.rank < first->rank) first = &trace;
    }
    for (Trace& trace : traces_) {
      if (&trace == first) continue;
      trace.clock = FitClock(first->facts, first->text.header.base_ns, trace.facts,
                             trace.text.header.base_ns);
      if (trace.clock.uncertainty_ns < 0) {
        sink_->Note(
            fmt::format("{}: no collectives that rank {} has too: its clock is taken as it "
                        "is",
                        trace.file->path.string(), first->rank));
      } else if (trace.clock.shift_ns != 0) {
        sink_->Note(
            fmt::format("{}: times are moved by {:.3f} ms, so that {} collectives end when rank "
                        "{}'s do; within "
                        "{:.3f} ms",
                        trace.file->path.string(), static_cast<double>(trace.clock.shift_ns) / 1e6,
                        trace.clock.matched, first->rank,
                        static_cast<double>(trace.clock.uncertainty_ns) / 1e6));
      }
    }
  }

  std::int64_t ShiftOf(const Trace& trace) const {
    return trace.text.header.base_ns + trace.clock.shift_ns;
  }

  Status Write(Trace* trace) {
    LooseEvents loose([&](format::SliceRow& row, const ChromeTrack& track) {
      row.rank = trace->rank;
      row.step = trace->facts.StepAt(row.time_ns);
      row.time_ns += ShiftOf(*trace);
      row.window = trace->file->name;
      const std::string lane = HostLane(*trace, track);
      row.lane = lane;
      sink_->Slice(row);
    });
    const auto write = [&](std::unique_ptr<ChromeBlock> block) {
      WriteSmall(trace, *block, &loose);
      WriteSlices(trace, std::move(block));
    };
    if (trace->all_held) {
      for (auto& block : trace->held) write(std::move(block));
      trace->held.clear();
    } else {
      TELLTALE_RETURN_IF_ERROR(ReadBlocks(trace, write));
    }
    // While the workers write.
    loose.Finish(trace->facts.last_ns());
    for (format::StepRow row : trace->facts.Steps()) {
      row.time_ns += ShiftOf(*trace);
      row.rank = trace->rank;
      sink_->Step(row);
    }
    workers_.WaitFor(0);
    TELLTALE_RETURN_IF_ERROR(Named(*trace, workers_.failure()));
    WriteSource(*trace);
    return CountAll(*trace, loose);
  }

  /// What is rare is written in order, by this thread.
  void WriteSmall(Trace* trace, const ChromeBlock& block, LooseEvents* loose) {
    for (std::size_t i = 0; i < kChromeCounts; ++i) trace->counts[i] += block.counts[i];
    trace->counts[static_cast<std::size_t>(ChromeCount::kUnboundFlows)] += block.flows.size();
    for (const ChromeLoose& event : block.loose) loose->Take(event, block.tracks[event.track]);
    for (const ChromeCounter& counter : block.counters) {
      const ChromeTrack& track = block.tracks[counter.track];
      const std::string subject = fmt::format("proc:{}", track.pid);
      format::MetricRow row;
      row.time_ns = counter.time_ns + ShiftOf(*trace);
      row.subject = subject;
      row.name = counter.name;
      row.value = counter.value;
      row.unit = "1";
      row.pid = static_cast<std::int32_t>(std::clamp<std::int64_t>(track.pid_number, 0, INT32_MAX));
      sink_->Metric(trace->rank, row);
    }
  }

  void WriteSlices(Trace* trace, std::unique_ptr<ChromeBlock> block) {
    const std::uint64_t rows = block->slices.rows();
    if (rows == 0) return;
    const store::SlicePlace place = sink_->Place(trace->rank, rows);
    // A function is copied, a block is not.
    std::shared_ptr<ChromeBlock> shared = std::move(block);
    workers_.Post([this, trace, place, shared = std::move(shared)](BlockParser&) {
      Complete(*trace, shared.get());
      sink_->Put(trace->rank, place, shared->slices);
    });
    if (!trace->all_held) workers_.WaitFor(2 * workers_.threads() + 2);
  }

  /// Fills in what is known only when all of the trace was read.
  void Complete(const Trace& trace, ChromeBlock* block) {
    store::SliceBlock& s = block->slices;
    for (std::size_t i = 0; i < s.lanes.size(); ++i) {
      const ChromeTrack& track = block->tracks[block->lane_track[i]];
      s.lanes[i].rank = trace.rank;
      s.lanes[i].lane = s.lanes[i].device < 0 ? HostLane(trace, track)
                                              : DeviceLane(trace, track, s.lanes[i].stream);
    }
    FillColumns(&s);
    const std::int64_t shift = ShiftOf(trace);
    std::size_t near = 0;
    for (std::size_t i = 0; i < s.rows(); ++i) {
      s.step[i] = trace.facts.StepAt(s.time_ns[i], &near);
      s.time_ns[i] += shift;
    }
  }

  static std::string HostLane(const Trace& trace, const ChromeTrack& track) {
    if (const auto name = trace.facts.ThreadName(track); !name.empty()) return std::string(name);
    const bool numbered = track.tid_number != 0 || track.tid == "0";
    if (track.pid_number != 0 || track.pid == "0" || track.pid.empty()) {
      return numbered ? fmt::format("thread {}", track.tid_number) : track.tid;
    }
    return track.tid.empty() ? track.pid : track.pid + " " + track.tid;
  }
  static std::string DeviceLane(const Trace& trace, const ChromeTrack& track, std::int64_t stream) {
    if (const auto name = trace.facts.ThreadName(track); !name.empty()) return std::string(name);
    return fmt::format("stream {}", stream);
  }

  void WriteSource(const Trace& trace) {
    const ChromeHeader& header = trace.text.header;
    nlohmann::ordered_json data = {{"file", trace.file->name},
                                   {"format", header.kineto ? "kineto" : "chrome"},
                                   {"events", trace.facts.events()},
                                   {"bytes", trace.text.inflated_bytes}};
    if (header.rank >= 0) data["rank"] = header.rank;
    if (header.world_size > 0) data["world_size"] = header.world_size;
    if (!header.backend.empty()) data["backend"] = header.backend;
    data["clock"] = {{"shift_ns", trace.clock.shift_ns}, {"matched", trace.clock.matched}};
    if (trace.clock.uncertainty_ns >= 0) {
      data["clock"]["uncertainty_ns"] = trace.clock.uncertainty_ns;
    }
    if (!header.devices.empty()) data["devices"] = ParseOrderedJson(header.devices);
    const std::string text = JsonText(data);
    const std::string message =
        fmt::format("Imported {} events of {}", trace.facts.events(), trace.file->name);
    format::EventRow row;
    row.time_ns =
        (trace.facts.first_ns() == INT64_MAX ? 0 : trace.facts.first_ns()) + ShiftOf(trace);
    row.kind = "trace.source";
    row.severity = "info";
    row.subject = trace.file->name;
    row.message = message;
    row.data = text;
    row.step = -1;
    row.rank = trace.rank;
    if (trace.facts.events() > 0) sink_->Event(row);
    if (trace.facts.own_loader_pid() < 0) return;
    row.kind = "dataloader";
    row.subject = "loader:1";
    row.message = "A DataLoader without workers";
    row.data = R"({"loader_id":1,"workers":0})";
    row.pid = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(trace.facts.own_loader_pid(), 0, INT32_MAX));
    sink_->Event(row);
  }

  Status CountAll(const Trace& trace, const LooseEvents& loose) {
    const std::string& file = trace.file->name;
    for (const CountName& one : kCountNames) {
      sink_->Count(one.name, file, trace.counts[static_cast<std::size_t>(one.count)], one.loss);
    }
    sink_->Count("ends_without_begin", file, loose.ends_without_begin(), true);
    sink_->Count("begins_without_end", file, loose.begins_without_end(), true);
    const ParsedText& text = trace.text;
    sink_->Count("pieces_damaged", file, text.damaged, true);
    if (!text.gzip_damage.empty()) {
      sink_->Count("streams_damaged", file, 1, true);
      sink_->Note(fmt::format("{}: its gzip stream is {}: what came before was used",
                              trace.file->path.string(), text.gzip_damage));
    }
    if (!text.trailing.empty()) {
      sink_->Count("bytes_trailing", file, 1, false);
      sink_->Note(
          fmt::format("{}: {}: they were left out", trace.file->path.string(), text.trailing));
    }
    sink_->Count("keys_duplicate", file, text.header.duplicate_keys, true);
    if (text.damaged > 0) {
      sink_->Note(fmt::format("{}: {} pieces of it are no events, the first at byte {} of the text",
                              trace.file->path.string(), text.damaged, text.damage_offset));
    }
    if (text.header.damaged) {
      sink_->Count("headers_damaged", file, 1, true);
      sink_->Note(
          fmt::format("{}: what stands around its events is no JSON, or has no time that can be",
                      trace.file->path.string()));
    }
    if (!text.complete && trace.facts.events() > 0) {
      // The trace format allows it of arrays alone.
      sink_->Count("traces_cut_off", file, 1, text.header.kineto);
    }
    return {};
  }

  const ImportLimits limits_;
  TraceSink* const sink_;
  std::vector<Trace> traces_;
  std::size_t held_bytes_ = 0;
  ImportWorkers workers_;  // Last: its threads end before what they use.
};

}  // namespace

bool DetectChrome(const ImportFile& file) {
  if (file.folder) return false;
  std::string_view head = file.head;
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || (head[begin] != '{' && head[begin] != '[')) return false;
  const auto has = [&](std::string_view word) { return head.find(word) != std::string_view::npos; };
  return has("\"traceEvents\"") || has("\"schemaVersion\"") || has("\"ph\"");
}

Status ImportChrome(std::span<const ImportFile> files, const ImportLimits& limits,
                    TraceSink* sink) {
  return ChromeImport(files, limits, sink).Run();
}

}  // namespace telltale::interchange
