// SPDX-License-Identifier: Apache-2.0
// MemoryForecast: memory grows steadily while the training runs; when will it be gone?
//
// Who is killed for want of memory learns nothing: the kernel's signal leaves no stack. The trend
// is visible long before. Four windows look for it, from half a minute to four hours, each at the
// lowest points of its 24 cells, so that what is allocated and freed in between is no growth; and a
// level that was reached before is none either (caches that fill once an epoch).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::memory_forecast {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"hours", 24, "h", "A memory that lasts longer than this at the present rate is enough."},
    {"extrapolation", 4, "",
     "A trend that was seen for a time T is believed for so many times T into the future."},
    {"creep_gib", 1, "GiB", "Steady growth of this much is told, however far away its end is."},
    {"least_mib", 64, "MiB", "Growth below this is none."},
    {"warmup_seconds", 10, "s", "After the first TRAIN step: buffers and caches fill."},
};

constexpr double kMiB = 1048576;
constexpr double kGiB = 1073741824;
constexpr std::size_t kCells = 24;
constexpr std::array kCellNs = {std::int64_t{1'250'000'000}, std::int64_t{10'000'000'000},
                                std::int64_t{80'000'000'000}, std::int64_t{640'000'000'000}};
constexpr std::size_t kScales = kCellNs.size();
constexpr std::size_t kMostProcesses = 1024;
/// One that was not sampled for so long is gone, though nobody said so: a helper without a channel.
constexpr std::int64_t kGoneNs = 5'000'000'000;
constexpr double kUrgent = 600;  ///< Seconds left from which it is high.

/// One series in cells of one width.
class Trend {
 public:
  struct Line {
    double growth = 0;  ///< Over the whole window.
    double per_second = 0;
    double seconds = 0;
    double newest = 0;  ///< Of the newest quarter, per second.
    std::int64_t from_ns = 0;
    std::int64_t first_step = -1;
    double steps = 0;
    bool steady = false;
  };

  /// True where a cell became complete.
  bool Push(std::int64_t cell_ns, std::int64_t time_ns, double value, double steps,
            std::int64_t step) {
    const std::int64_t index = time_ns / cell_ns;
    if (index == index_) {
      now_.least = std::min(now_.least, value);
      now_.most = std::max(now_.most, value);
      return false;
    }
    const bool next = index_ >= 0 && index == index_ + 1;
    if (next) {
      cells_.push_back(now_);
      if (cells_.size() > kCells) {
        peak_ = std::max(peak_, cells_.front().most);
        cells_.pop_front();
      }
    } else if (index_ >= 0) {
      Forget();
    }
    index_ = index;
    now_ = {value, value, time_ns, steps, step};
    return next;
  }

  /// What follows is a new trend; how high it was stays known.
  void Forget() {
    for (const Cell& cell : cells_) peak_ = std::max(peak_, cell.most);
    if (index_ >= 0) peak_ = std::max(peak_, now_.most);
    cells_.clear();
    index_ = -1;
  }

  bool full() const { return cells_.size() == kCells; }
  /// Between the first cell of the window and the newest.
  double Growth() const {
    return cells_.size() < 2 ? 0 : cells_.back().least - cells_.front().least;
  }

  /// REQUIRES: full().
  Line Fit(std::int64_t cell_ns) const {
    const double width = static_cast<double>(cell_ns) / 1e9;
    std::vector<double> slopes;
    slopes.reserve(kCells * (kCells - 1) / 2);
    std::size_t rising = 0;
    for (std::size_t i = 0; i < kCells; ++i) {
      if (i > 0 && cells_[i].least > cells_[i - 1].least) ++rising;
      for (std::size_t j = i + 1; j < kCells; ++j) {
        slopes.push_back((cells_[j].least - cells_[i].least) /
                         (static_cast<double>(j - i) * width));
      }
    }
    Line line;
    line.per_second = MedianOf(std::move(slopes));
    line.growth = Growth();
    line.seconds = width * static_cast<double>(kCells);
    line.from_ns = cells_.front().time_ns;
    line.first_step = cells_.front().step;
    line.steps = cells_.back().steps - cells_.front().steps;
    constexpr std::size_t kQuarter = kCells / 4;
    line.newest = (cells_.back().least - cells_[kCells - kQuarter].least) /
                  (static_cast<double>(kQuarter - 1) * width);
    // Both halves grow, and neither does all of it: a jump is no trend.
    const double first_half = cells_[kCells / 2].least - cells_.front().least;
    const double second_half = cells_.back().least - cells_[kCells / 2].least;
    const bool even = first_half > 0 && second_half > 0 && first_half <= 3 * second_half &&
                      second_half <= 3 * first_half;
    line.steady = line.per_second > 0 && rising * 4 >= (kCells - 1) * 3 && even &&
                  line.newest >= line.per_second / 2 && cells_.back().least > peak_;
    return line;
  }

 private:
  struct Cell {
    double least = 0, most = 0;
    std::int64_t time_ns = 0;
    double steps = 0;  ///< Made before it.
    std::int64_t step = -1;
  };
  std::deque<Cell> cells_;  ///< Complete, without a gap.
  Cell now_;
  std::int64_t index_ = -1;
  double peak_ = 0;  ///< Highest before the window.
};

class MemoryForecast final : public Rule {
 public:
  explicit MemoryForecast(const Parameters& p)
      : most_left_s_(3600 * p.Get("hours")),
        extrapolation_(p.Get("extrapolation")),
        creep_(kGiB * p.Get("creep_gib")),
        least_(kMiB * p.Get("least_mib")),
        warmup_ns_(p.GetNs("warmup_seconds")) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    const std::string_view name = series.name;
    What what = kNone;
    std::int32_t unit = 0;
    if (series.collection == "node") {
      what = name == "mem.total" ? kHostTotal : name == "mem.available" ? kHostAvailable : kNone;
    } else if (series.collection == "cgroup") {
      what = name == "cgroup.mem_limit"  ? kGroupLimit
             : name == "cgroup.mem_used" ? kGroupUsed
                                         : kNone;
    } else if (series.collection == "proc:tree") {
      what = name == "proc.rss" ? kTree : kNone;
    } else if (name == "proc.rss" && series.pid != 0) {
      what = kProcess;
      unit = series.pid;
    } else if (unit = UnitOf(series.collection, "gpu:"); unit >= 0) {
      what = name == "gpu.memory_used" ? kGpuUsed : name == "gpu.memory_total" ? kGpuTotal : kNone;
    }
    if (what == kNone) return false;
    sampler_.Read(series, what, unit);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    const auto* event = record.As<format::EventRow>();
    if (event != nullptr && event->kind == "process.exit") {
      processes_.erase({record.writer, event->pid});
    }
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [key, memory] : memories_) {
      if (memory.watched.open) reporter->Close(memory.watched.incident);
      memory.watched.open = false;
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  enum What : int {
    kNone,
    kHostTotal,
    kHostAvailable,
    kGroupLimit,
    kGroupUsed,
    kTree,
    kProcess,
    kGpuUsed,
    kGpuTotal,
  };
  enum class Kind : std::uint8_t { kGroup, kHost, kGpu };

  using Trends = std::array<Trend, kScales>;

  struct Memory {
    Kind kind = Kind::kHost;
    std::string subject;
    Trends trends;
    Watched watched;
    std::size_t scale = 0;  ///< Whose trend the open incident is.
    double opened_slope = 0;
    double used = 0, limit = 0;
  };
  struct Machine {
    double steps = 0;
    std::int64_t step = -1;
    std::int64_t first_step_ns = 0;
    std::uint32_t attempt = 0;
    bool warm = false;
    std::int64_t now_ns = 0;
  };
  struct Process {
    Trends trends;
    std::int64_t last_ns = 0;

    bool GoneAt(std::int64_t now_ns) const { return last_ns + kGoneNs < now_ns; }
  };
  struct Culprit {
    std::string who;
    std::string kind;
    double growth = 0;
  };

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Machine& machine = machines_[node.writer];
    machine.steps += sample.steps.count;
    machine.step = std::max(machine.step, sample.steps.last);
    if (sample.attempt != machine.attempt) {
      machine = Machine{};
      machine.attempt = sample.attempt;
      Forget(node.writer, reporter);
    }
    machine.now_ns = sample.to_ns;
    if (machine.first_step_ns == 0 && sample.attempt != 0) machine.first_step_ns = sample.to_ns;
    if (!machine.warm && machine.first_step_ns != 0 &&
        sample.to_ns >= machine.first_step_ns + warmup_ns_) {
      machine.warm = true;
      Forget(node.writer, reporter);
    }
    for (const SampleValue& value : sample.values) {
      if (value.what == kProcess) PushProcess(node.writer, value, sample.to_ns);
    }
    const double total = sample.SumOf(kHostTotal);
    const double available = sample.SumOf(kHostAvailable);
    const double limit = sample.SumOf(kGroupLimit);
    const double tree = sample.SumOf(kTree);
    // A limit above what the machine has is none.
    const bool limited = limit > 0 && !(limit >= total) && !std::isnan(tree);
    if (limited) {
      // The group's own count has the page cache in it, which gives way; that of the processes has
      // shared pages several times.
      const double group = sample.SumOf(kGroupUsed);
      Push({node.writer, -2}, Kind::kGroup, "cgroup",
           std::isnan(group) ? tree : std::min(tree, group), limit, node, sample, reporter);
    }
    if (total > 0 && !std::isnan(available)) {
      Push({node.writer, -1}, Kind::kHost, "host", total - available, total, node, sample,
           reporter);
    }
    for (const SampleValue& value : sample.values) {
      if (value.what != kGpuUsed) continue;
      const double of = sample.Of(kGpuTotal, value.unit);
      if (of > 0) {
        Push({node.writer, value.unit}, Kind::kGpu, fmt::format("gpu:{}", value.unit), value.value,
             of, node, sample, reporter);
      }
    }
  }

  using Key = std::pair<std::uint32_t, std::int32_t>;

  /// Trends begin anew: what was before the loop, or before a restart, is another matter.
  void Forget(std::uint32_t writer, Reporter* reporter) {
    for (auto& [key, memory] : memories_) {
      if (key.first != writer) continue;
      for (Trend& trend : memory.trends) trend.Forget();
      if (memory.watched.open) reporter->Close(memory.watched.incident);
      memory.watched.open = false;
    }
    for (auto& [key, process] : processes_) {
      if (key.first != writer) continue;
      for (Trend& trend : process.trends) trend.Forget();
    }
  }

  void PushProcess(std::uint32_t writer, const SampleValue& value, std::int64_t time_ns) {
    const Key key(writer, value.unit);
    auto at = processes_.find(key);
    if (at == processes_.end()) {
      if (processes_.size() >= kMostProcesses) {
        std::erase_if(processes_, [&](const auto& entry) { return entry.second.GoneAt(time_ns); });
      }
      if (processes_.size() >= kMostProcesses) return;
      at = processes_.try_emplace(key).first;
    }
    at->second.last_ns = time_ns;
    for (std::size_t scale = 0; scale < kScales; ++scale) {
      at->second.trends[scale].Push(kCellNs[scale], time_ns, value.value, 0, -1);
    }
  }

  void Push(const Key& key, Kind kind, const std::string& name, double used, double limit,
            const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Memory& memory = memories_[key];
    if (memory.subject.empty()) {
      memory.kind = kind;
      memory.subject = fmt::format("{} on {}", name, node.name);
    }
    memory.used = used;
    memory.limit = limit;
    const Machine& machine = machines_[node.writer];
    for (std::size_t scale = 0; scale < kScales; ++scale) {
      const bool complete = memory.trends[scale].Push(kCellNs[scale], sample.to_ns, used,
                                                      machine.steps, machine.step);
      if (!complete || !machine.warm || !memory.trends[scale].full()) continue;
      has_data_ = true;
      Judge(&memory, scale, node, sample, reporter);
    }
  }

  void Judge(Memory* memory, std::size_t scale, const SampledNode& node, const Sample& sample,
             Reporter* reporter) {
    Watched& watched = memory->watched;
    if (watched.open && scale != memory->scale) return;
    const Trend::Line line = memory->trends[scale].Fit(kCellNs[scale]);
    const double left = std::max(0.0, memory->limit - memory->used);
    const double slope = line.per_second;
    if (watched.open && (line.newest < memory->opened_slope / 5 || slope <= 0)) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    }
    const double left_s = slope > 0 ? left / slope : most_left_s_ + 1;
    const bool soon = left_s <= extrapolation_ * line.seconds;
    if (!watched.open) {
      if (!line.steady || line.growth < least_ || left_s > most_left_s_) return;
      if (!soon && line.growth < creep_) return;
      // The tighter limit alone speaks of the same memory.
      const auto group = memories_.find({node.writer, -2});
      if (memory->kind == Kind::kHost && group != memories_.end() && group->second.watched.open) {
        return;
      }
      memory->scale = scale;
      memory->opened_slope = slope;
      CellBase from(sample);
      from.from_ns = line.from_ns;
      from.steps = {};
      watched.Open(memory->subject, from, Severity::kLow);
      watched.incident.first_step = line.first_step;
    }
    const bool clear = soon || scale > 0 || line.growth >= memory->limit / 10;
    if (clear) watched.Raise(soon && left_s <= kUrgent ? Severity::kHigh : Severity::kMedium);
    watched.Extend(CellBase(sample));
    Describe(memory, scale, line, left, left_s, soon, node);
    reporter->Report(watched.incident);
  }

  /// Whose growth it mostly is.
  std::optional<Culprit> CulpritOf(std::size_t scale, double growth,
                                   const SampledNode& node) const {
    double most = 0;
    std::int32_t pid = 0;
    double workers = 0;
    const std::int64_t now_ns = machines_.at(node.writer).now_ns;
    for (const auto& [key, process] : processes_) {
      if (key.first != node.writer || process.GoneAt(now_ns)) continue;
      const double of = process.trends[scale].Growth();
      if (node.workers.contains(key.second)) workers += of;
      if (of > most) {
        most = of;
        pid = key.second;
      }
    }
    if (workers >= growth / 2 && workers > most) {
      return Culprit{fmt::format("the {} loader workers", node.workers.size()), "workers", workers};
    }
    if (most < growth / 2) return std::nullopt;
    if (node.workers.contains(pid)) {
      return Culprit{fmt::format("a loader worker (pid {})", pid), "workers", most};
    }
    if (const auto rank = node.trainers.find(pid); rank != node.trainers.end()) {
      return Culprit{fmt::format("rank {} (pid {})", rank->second, pid), "trainer", most};
    }
    return Culprit{fmt::format("another process of the run (pid {})", pid), "other", most};
  }

  void Describe(Memory* memory, std::size_t scale, const Trend::Line& line, double left,
                double left_s, bool soon, const SampledNode& node) const {
    Incident& incident = memory->watched.incident;
    const bool gpu = memory->kind == Kind::kGpu;
    const std::string what = gpu ? "GPU memory" : "Memory";
    incident.message = soon ? fmt::format("{} runs out in about {}", what, Lasting(left_s))
                            : fmt::format("{} grows by {} a second", what, Bytes(line.per_second));
    const double ranks = static_cast<double>(std::max<std::size_t>(1, node.trainers.size()));
    const double per_step = line.steps > 0 ? line.growth * ranks / line.steps : 0;
    const std::string grew =
        fmt::format("{} in {}{}", Bytes(line.growth), Lasting(line.seconds),
                    per_step > 0 ? fmt::format(", {} a step", Bytes(per_step)) : std::string());
    const std::optional<Culprit> culprit = gpu ? std::nullopt : CulpritOf(scale, line.growth, node);
    if (gpu) {
      incident.cause = fmt::format("{} took {} more; {} of {} are left.",
                                   memory->subject.substr(0, memory->subject.find(' ')), grew,
                                   Bytes(left), Bytes(memory->limit));
      incident.advice =
          "Look for tensors that outlive their step: losses and outputs kept in a list with their "
          "graph (loss.item(), .detach()), retain_graph, caches by shape.";
    } else if (!culprit) {
      incident.cause = memory->kind == Kind::kHost
                           ? fmt::format(
                                 "The machine's memory in use grew by {}, not by processes "
                                 "of this run: other programs, or files in /dev/shm or /tmp.",
                                 grew)
                           : fmt::format("The processes of the run grew by {} together.", grew);
      incident.advice = memory->kind == Kind::kHost
                            ? "Look at what else grows: free -h, df -h /dev/shm, top (key M)."
                            : "Compare what each process holds: telltale's chart of proc.rss.";
    } else {
      incident.cause =
          fmt::format("It is {} that grew: {} in {}{}; {} of {} are left.", culprit->who,
                      Bytes(culprit->growth), Lasting(line.seconds),
                      per_step > 0 ? fmt::format(", {} a step", Bytes(per_step)) : std::string(),
                      Bytes(left), Bytes(memory->limit));
      incident.advice =
          culprit->kind == "trainer"
              ? "Look for what the loop keeps of each step: losses and outputs in a list "
                "(loss.item(), .detach()), histories, caches without a bound."
          : culprit->kind == "workers"
              ? "Look for what the data set keeps: caches in __getitem__, and large lists of "
                "Python "
                "objects, each of whose pages a worker copies when it reads it; use numpy arrays."
              : "Look at what this process keeps.";
    }
    incident.confidence = std::min(0.95, 0.6 + 0.1 * static_cast<double>(scale) +
                                             (culprit || gpu ? 0.1 : 0) + (soon ? 0.1 : 0));
    nlohmann::ordered_json evidence;
    evidence["bytes_per_second"] = Rounded(line.per_second);
    if (per_step > 0) evidence["bytes_per_step"] = Rounded(per_step);
    evidence["growth_bytes"] = Rounded(line.growth);
    evidence["over_seconds"] = Rounded(line.seconds);
    evidence["used_bytes"] = Rounded(memory->used);
    evidence["limit_bytes"] = Rounded(memory->limit);
    evidence["left_bytes"] = Rounded(left);
    evidence["seconds_left"] = Rounded(left_s);
    if (culprit) {
      evidence["grows_in"] = culprit->kind;
      evidence["process_growth_bytes"] = Rounded(culprit->growth);
    }
    incident.evidence = JsonText(evidence);
  }

  const double most_left_s_;
  const double extrapolation_;
  const double creep_;
  const double least_;
  const std::int64_t warmup_ns_;
  MachineSampler sampler_;
  std::map<std::uint32_t, Machine> machines_;  ///< By writer.
  std::map<Key, Memory> memories_;             ///< By (writer, −2 group, −1 host, or the GPU).
  std::map<Key, Process> processes_;           ///< By (writer, pid).
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kMemoryForecastDesc{
    .name = "MemoryForecast",
    .summary = "Memory of the host, the control group or a GPU grows steadily: how long it lasts.",
    .formula =
        "Used: host mem.total − mem.available; control group (where its limit is below the "
        "machine's memory) the resident memory of the run's processes, at most what is charged to "
        "it; gpu.memory_used. From warmup_seconds after the first TRAIN step, without a gap, in "
        "windows of 24 cells of 1.25, 10, 80 and 640 s: slope = the median slope between the "
        "lowest "
        "values of two cells. A trend is one where three quarters of the cells are above the one "
        "before, no half of the window grows three times as much as the other, the newest quarter "
        "grows at half of the slope, and the level was not reached before. Time left = (limit − "
        "used) / slope. Told from growth of least_mib with a time left of at most `hours`, where "
        "the time left is at most extrapolation × the window, or the growth is creep_gib: high "
        "below 10 min, medium where the end is near, the window is one of minutes or a tenth of "
        "the memory is gone, else low. Over where the newest quarter grows at less than a fifth of "
        "the slope that opened it. Cost = 0: nothing is lost before the kill.",
    .how_to_fix =
        "Keep numbers, not tensors with their graph; bound caches; hold data sets in arrays, not "
        "in "
        "lists of objects. Save a checkpoint before the memory is gone.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example = "`losses.append(loss)` in the loop: each loss keeps the whole graph of its step.",
    .standing = {.theme = Theme::kMemory, .order = 1},
    .data_mask = DataMask(Datum::kSamples),
};

std::unique_ptr<Rule> MakeMemoryForecast(const Parameters& parameters) {
  return std::make_unique<MemoryForecast>(parameters);
}

}  // namespace telltale::rules::memory_forecast
