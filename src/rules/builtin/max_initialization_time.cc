// SPDX-License-Identifier: Apache-2.0
// MaxInitializationTime: an attempt of the training has made no step for too long since its start,
// and what it did instead.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::max_initialization_time {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 20, "min", "Time from the start of an attempt to its first step."},
};

constexpr std::int64_t kDescribeIntervalNs = 5'000'000'000;

/// What an initialization is spent with, and from which rate on that is said.
struct Activity {
  std::string_view name, subject, key;
  double least;
};
constexpr std::array<Activity, 3> kActivities = {{
    {"net.recv_bytes_rate", "net:", "net_recv_bytes_rate", 1e6},
    {"proc.read_bytes_rate", "proc:tree", "read_bytes_rate", 1e6},
    {"proc.cpu", "proc:tree", "cpu", 50},
}};
enum : std::uint8_t { kNetwork, kStorage, kCores };

/// What the spans of an initialization mean to people, and what to do; by the begin of their names.
struct Part {
  std::string_view span, what, advice;
};
constexpr std::array<Part, 6> kParts = {{
    {"download", "downloads",
     "Keep what is downloaded in a folder that outlives the job, or in its image."},
    {"checkpoint.load", "reading a checkpoint",
     "Read it from a local disk, memory-mapped (torch.load with mmap=True), or on one rank that "
     "broadcasts it."},
    {"read", "reading data files",
     "Read the data when a step needs it, or keep what is made from it in one binary file that is "
     "mapped (numpy.load with mmap_mode)."},
    {"model.build", "making the model and what stands between it and its optimizer",
     "Make the model on its device or on \"meta\", without filling weights that a checkpoint "
     "replaces, and data sets behind the loader's workers."},
    {"compile", "compiling the model", "Keep the compiler's cache between jobs."},
    {"import ", "importing libraries",
     "Import from a local disk: over a network file system each file is asked for; and leave out "
     "what is not used."},
}};
/// From this share of the time on a part is the cause.
constexpr double kMostOf = 0.3;

class MaxInitializationTime final : public Rule {
 public:
  explicit MaxInitializationTime(const Parameters& p)
      : threshold_ns_(static_cast<std::int64_t>(std::clamp(p.Get("threshold"), 0.0, 1e6) * 60e9)) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) {
      return series.collection == "runtime" && PartOf(series.name) < kParts.size();
    }
    if (series.table != format::TableId::kMetrics) return false;
    std::uint8_t activity = kNone;
    for (std::size_t i = 0; i < kActivities.size(); ++i) {
      // The loopback interface carries what the processes of this node say to each other.
      if (series.name == kActivities[i].name &&
          series.collection.starts_with(kActivities[i].subject) && series.collection != "net:lo") {
        activity = static_cast<std::uint8_t>(i);
      }
    }
    // The clock: it goes on while nothing of the training comes.
    const bool clock = series.name == "cpu.idle" && series.collection == "node";
    if (activity == kNone && !clock) return false;
    if (activity_.size() <= series.id) activity_.resize(series.id + 1, kNone);
    activity_[series.id] = activity;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* metric = record.As<format::MetricRow>()) {
      if (!initializing_ || record.series >= activity_.size()) return;
      if (start_ns_ == 0) Start(attempt_, metric->time_ns, true);
      const std::uint8_t activity = activity_[record.series];
      if (activity != kNone && std::isfinite(metric->value) && metric->time_ns > start_ns_) {
        Sum& sum = sums_[activity];
        sum.value += metric->value;
        // Several interfaces are sampled at one time: their rates add up.
        if (metric->time_ns != sum.last_ns) ++sum.samples;
        sum.last_ns = metric->time_ns;
      }
      Judge(metric->time_ns, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span, record.writer);
    } else if (const auto* step = record.As<format::StepRow>()) {
      Begin(step->attempt, step->time_ns, step->step, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    if (initializing_ && last_ns_ > 0) Judge(last_ns_, reporter);
    Close(reporter);
  }

  bool has_data() const override { return has_data_; }
  std::string Missing() const override { return "the start of the training was not recorded"; }

  std::string Summary() const override {
    if (first_step_ns_ <= 0 || start_ns_ <= 0) return {};
    const nlohmann::ordered_json out = {
        {"seconds", Rounded(static_cast<double>(first_step_ns_ - start_ns_) / 1e9)},
        {"threshold_minutes", Rounded(static_cast<double>(threshold_ns_) / 60e9)},
        {"attempt", attempt_}};
    return JsonText(out);
  }

 private:
  static constexpr std::uint8_t kNone = 0xff;

  struct Sum {
    double value = 0;
    std::int64_t samples = 0;
    std::int64_t last_ns = 0;
    double mean() const { return samples > 0 ? value / static_cast<double>(samples) : 0; }
  };

  static constexpr std::string_view kImports = "import ";
  static constexpr std::size_t kMaxProcesses = 4096;
  static constexpr std::size_t kMaxSpans = 256;

  /// Of one process's spans before its first step.
  struct Process {
    /// By kParts, begin and end: those within each other, or of several threads, are one.
    std::array<std::vector<std::pair<std::int64_t, std::int64_t>>, kParts.size()> spans;
    std::array<double, kParts.size()>
        before{};  ///< Time of those that were first, where they are many.

    void Add(std::size_t part, std::int64_t begin, std::int64_t end) {
      auto& known = spans[part];
      std::erase_if(known, [&](const auto& other) {
        if (other.first > end || other.second < begin) return false;
        begin = std::min(begin, other.first);
        end = std::max(end, other.second);
        return true;
      });
      if (known.size() == kMaxSpans) {
        before[part] += static_cast<double>(known.front().second - known.front().first);
        known.erase(known.begin());
      }
      known.emplace_back(begin, end);
    }
    double Of(std::size_t part) const {
      double sum = before[part];
      for (const auto& [begin, end] : spans[part]) sum += static_cast<double>(end - begin);
      return sum;
    }
  };

  static std::size_t PartOf(std::string_view span) {
    std::size_t at = 0;
    while (at < kParts.size() && kParts[at].span != span &&
           !(kParts[at].span == kImports && span.starts_with(kImports))) {
      ++at;
    }
    return at;
  }

  void OnSpan(const format::SpanRow& span, std::uint32_t writer) {
    if (!initializing_ || span.duration_ns <= 0) return;
    const std::size_t part = PartOf(span.name);
    if (part == kParts.size()) return;
    const std::pair pid(writer, span.pid);
    if (parts_.size() >= kMaxProcesses && !parts_.contains(pid)) return;
    parts_[pid].Add(part, span.time_ns, span.time_ns + span.duration_ns);
  }

  /// The part that took most of one process's initialization, and how long.
  std::pair<const Part*, double> LongestPart() const {
    std::pair<const Part*, double> out{nullptr, 0};
    for (const auto& [pid, process] : parts_) {
      for (std::size_t i = 0; i < kParts.size(); ++i) {
        const double ns = process.Of(i);
        if (ns > out.second) out = {&kParts[i], ns};
      }
    }
    return out;
  }

  /// `seen`: its start was, and not only its first step.
  void Start(std::uint32_t attempt, std::int64_t time_ns, bool seen) {
    attempt_ = attempt;
    start_ns_ = time_ns;
    first_step_ns_ = 0;
    sums_ = {};
    parts_.clear();
    framework_ = unseen_ = false;
    initializing_ = seen;
    has_data_ = has_data_ || seen;
  }

  void OnEvent(const format::EventRow& event, Reporter* reporter) {
    if (event.kind == "run.attempt_start") {
      // Each node's agent says it; the first counts.
      if (event.attempt > attempt_ || start_ns_ == 0) {
        Close(reporter);
        Start(event.attempt, event.time_ns, true);
      }
      return;
    }
    if (event.kind == "framework" && event.attempt >= attempt_) framework_ = true;
    if (event.kind == "run.first_forward") {
      // The first step has begun; its own record comes when it has ended.
      Begin(event.attempt, event.time_ns, -1, reporter);
      return;
    }
    if (event.kind == "run.attempt_end" && event.attempt == attempt_) {
      if (initializing_ && start_ns_ > 0) Judge(event.time_ns, reporter);
      unseen_ = !framework_ && EndedWell(event);
      Close(reporter);
      initializing_ = false;
      return;
    }
    if (initializing_ && start_ns_ > 0) Judge(event.time_ns, reporter);
  }

  static bool EndedWell(const format::EventRow& attempt_end) {
    const auto data = ParseJson(attempt_end.data);
    if (!data.is_object()) return false;
    const auto code = data.find("exit_code");
    return code != data.end() && code->is_number_integer() && code->get<std::int64_t>() == 0;
  }

  /// A step began at `time_ns`.
  void Begin(std::uint32_t attempt, std::int64_t time_ns, std::int64_t step, Reporter* reporter) {
    if (attempt < attempt_) return;
    if (attempt_ == 0 && start_ns_ != 0) attempt_ = attempt;  // Nobody said its start.
    if (start_ns_ == 0 || attempt > attempt_) {
      // Its start was not recorded: nothing can be said of how long it took.
      Close(reporter);
      Start(attempt, time_ns, false);
      return;
    }
    if (!initializing_) return;
    Judge(time_ns, reporter);
    initializing_ = false;
    first_step_ns_ = std::max(start_ns_, time_ns);
    if (!open_) return;
    open_ = false;
    incident_.last_step = incident_.first_step = step;
    incident_.end_ns = first_step_ns_;
    Describe(first_step_ns_);
    reporter->Recover(incident_);
  }

  double Cost(std::int64_t now_ns) const {
    return std::max(0.0, static_cast<double>(now_ns - start_ns_ - threshold_ns_) / 1e9);
  }

  void Judge(std::int64_t now_ns, Reporter* reporter) {
    last_ns_ = std::max(last_ns_, now_ns);
    if (now_ns - start_ns_ <= threshold_ns_) return;
    if (!open_) {
      open_ = true;
      described_ns_ = 0;
      incident_ = Incident();
      incident_.subject = attempt_ > 1 ? fmt::format("attempt {}", attempt_) : "initialization";
      incident_.start_ns = start_ns_;
    }
    incident_.end_ns = std::max(incident_.end_ns, now_ns);
    if (described_ns_ != 0 && now_ns < described_ns_ + kDescribeIntervalNs) return;
    described_ns_ = now_ns;
    Describe(now_ns);
    reporter->Report(incident_);
  }

  void Describe(std::int64_t now_ns) {
    const double minutes = static_cast<double>(now_ns - start_ns_) / 60e9;
    incident_.severity = Severity::kMedium;
    incident_.message = "No training step since the start";
    incident_.cost_seconds = Cost(now_ns);
    const double network = sums_[kNetwork].mean();
    const double storage = sums_[kStorage].mean();
    const double cores = sums_[kCores].mean();
    const std::string since =
        fmt::format("{} min after its start the training has made no step", Figure(minutes));
    bool known = true;
    const auto [part, part_ns] = LongestPart();
    if (part != nullptr && part_ns >= kMostOf * static_cast<double>(now_ns - start_ns_)) {
      incident_.cause =
          fmt::format("{}: {} min of it {} took.", since, Figure(part_ns / 60e9), part->what);
      incident_.advice = std::string(part->advice);
    } else if (unseen_) {
      known = false;
      incident_.severity = Severity::kLow;
      incident_.cost_seconds = 0;
      incident_.cause = fmt::format(
          "{}, and it ended well without one: it trains nothing, or with what is not recorded.",
          since);
      incident_.advice =
          "Look at the frameworks that are recorded (docs/guide); where this is none of them, "
          "leave the rule off: --no-rule MaxInitializationTime.";
    } else if (network >= kActivities[kNetwork].least && network >= storage) {
      incident_.cause =
          fmt::format("{}: it received {} MB/s over the network.", since, Plain(network / 1e6));
      incident_.advice =
          "Keep the data on a local disk, or stream it while the training runs instead of copying "
          "it "
          "first.";
    } else if (storage >= kActivities[kStorage].least) {
      incident_.cause =
          fmt::format("{}: it fetched {} MB/s from storage.", since, Plain(storage / 1e6));
      incident_.advice =
          "Read the data when a step needs it instead of all at the start, or keep what is made "
          "from it in one binary file.";
    } else if (cores >= kActivities[kCores].least) {
      incident_.cause =
          fmt::format("{}: its processes computed, on {} cores.", since, Figure(cores / 100));
      incident_.advice =
          "Look with py-spy dump at what is computed before the loop: prepare the data once and "
          "keep it in a file; compile with a cache.";
    } else {
      known = false;
      incident_.cause = "cause not found";
      incident_.advice =
          "Look with py-spy dump at what the training waits for before its loop: another rank, a "
          "lock, a service that does not answer.";
    }
    incident_.confidence = known ? 0.9 : 0.7;
    nlohmann::ordered_json evidence;
    evidence["minutes"] = Rounded(minutes);
    evidence["threshold_minutes"] = Rounded(static_cast<double>(threshold_ns_) / 60e9);
    evidence["attempt"] = attempt_;
    for (std::size_t i = 0; i < kActivities.size(); ++i) {
      if (sums_[i].samples > 0)
        evidence[std::string(kActivities[i].key)] = Rounded(sums_[i].mean());
    }
    if (part != nullptr) {
      evidence["longest_part"] = part->span == kImports ? "import" : part->span;
      evidence["longest_part_minutes"] = Rounded(part_ns / 60e9);
    }
    incident_.evidence = JsonText(evidence);
  }

  void Close(Reporter* reporter) {
    if (!open_) return;
    open_ = false;
    Describe(incident_.end_ns);
    reporter->Close(incident_);
  }

  const std::int64_t threshold_ns_;

  std::vector<std::uint8_t> activity_;  ///< By series: index of kActivities or kNone.
  std::array<Sum, kActivities.size()> sums_{};
  /// By writer and pid: pids are those of one node, whose agent writes all its records.
  std::map<std::pair<std::uint32_t, std::int32_t>, Process> parts_;
  std::uint32_t attempt_ = 0;
  std::int64_t start_ns_ = 0;       ///< Of the attempt; 0: not seen.
  std::int64_t first_step_ns_ = 0;  ///< Begin of its first step.
  std::int64_t last_ns_ = 0;
  std::int64_t described_ns_ = 0;
  bool initializing_ = true;
  bool framework_ = false;  ///< One that is recorded began in the attempt.
  bool unseen_ = false;     ///< It ended well, and none did.
  bool open_ = false;
  bool has_data_ = false;
  Incident incident_;
};

}  // namespace

const RuleDesc kMaxInitializationTimeDesc{
    .name = "MaxInitializationTime",
    .summary = "No step is made for many minutes after the start.",
    .formula =
        "Time from the start of an attempt (event run.attempt_start, else the first sample of the "
        "machine) to the newest record, while the attempt has begun no step of any mode (event "
        "run.first_forward, else its first step); an incident above `threshold` minutes, over when "
        "the first step begins, closed where the attempt ends. The cause is what was done "
        "meanwhile: what the spans of a process say (download, checkpoint.load, read, model.build, "
        "compile, import) where one of these is at least 30 % of the time; they are known once the "
        "process's first step begins. Else the mean rate of bytes received (all interfaces but the "
        "loopback) where it is at least 1 MB/s and above that of bytes fetched from storage, else "
        "the latter from 1 MB/s, else processor time from half a core, else not found. Medium; low "
        "and without cost where the attempt ended with exit code 0, had made no step, and no "
        "framework that is recorded began: then its steps are what nobody sees. Cost = time beyond "
        "the threshold: assumes that so much is needed.",
    .how_to_fix =
        "Read data while training instead of before it, keep prepared data in a file, cache what "
        "is compiled.",
    .table_mask = store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example = "A script that copies 300 GB from a bucket before its first step.",
};

std::unique_ptr<Rule> MakeMaxInitializationTime(const Parameters& parameters) {
  return std::make_unique<MaxInitializationTime>(parameters);
}

}  // namespace telltale::rules::max_initialization_time
