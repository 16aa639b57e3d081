// SPDX-License-Identifier: Apache-2.0
// MaxInitializationTime: an attempt of the training has made no step for too long since its start,
// and what it did instead.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::max_initialization_time {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 20, "min", "Time from the start of an attempt to its first step."},
    {"long_start", 60, "s",
     "A start of at least this time, or of `share` of the attempt, is reported with the seconds of "
     "its parts."},
    {"share", 10, "%", "Share of the attempt from which a shorter start is reported too."},
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
/// What lies within another one is told as the one that stands first here.
struct Part {
  std::string_view span, what, advice;
  bool saved = false;  ///< What a job before has fetched need not be fetched again.
};
constexpr std::string_view kKeepFetched =
    "Keep what is fetched in a folder that outlives the job, or in its image.";
constexpr std::array<Part, 10> kParts = {{
    {"download", "downloads", kKeepFetched, true},
    {"network", "receiving data over the network (downloads, answers of servers)", kKeepFetched,
     true},
    {"unpack", "unpacking archives", kKeepFetched, true},
    {"copy", "copying files",
     "Read the files where they are, or keep the copy on a disk that outlives the job.", true},
    {"program", "waiting for other programs that it started",
     "Look at what these programs do, and keep what they prepare for the next job."},
    {"checkpoint.load", "reading a checkpoint",
     "Read it from a local disk, memory-mapped (torch.load with mmap=True), or on one rank that "
     "broadcasts it."},
    {"read", "reading data files",
     "Read the data when a step needs it, or keep what is made from it in one binary file that is "
     "mapped (numpy.load with mmap_mode)."},
    {"compile", "compiling the model", "Keep the compiler's cache between jobs."},
    {"import ", "importing libraries",
     "Import from a local disk: over a network file system each file is asked for; and leave out "
     "what is not used."},
    {"model.build", "making the model and the code up to its optimizer",
     "Make the model on its device or on \"meta\", without filling weights that a checkpoint "
     "replaces; load data sets in the loader's workers."},
}};
/// From this share of the time on a part is the cause.
constexpr double kMostOf = 0.3;
/// Smaller shares of the start are not named.
constexpr double kNamedShare = 0.02;
/// What could be saved is told from this share of the start and this time on.
constexpr double kSavedShare = 0.1;
constexpr double kLeastSavedS = 2;
/// A start that neither computes, reads nor receives waits: told from this time on, and this share
/// of the start.
constexpr double kLeastWaitS = 10;
constexpr double kWaitShare = 0.5;
constexpr std::int64_t kFewestSamples = 5;

class MaxInitializationTime final : public Rule {
 public:
  explicit MaxInitializationTime(const Parameters& p)
      : threshold_ns_(SaturatingCast(std::clamp(p.Get("threshold"), 0.0, 1e6) * 60e9)),
        long_start_s_(std::max(0.0, p.Get("long_start"))),
        share_(std::max(0.0, p.Get("share")) / 100) {}

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
    newest_ns_ = std::max(newest_ns_, record.ord_ns);
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
    TellStart(true, reporter);
  }

  bool has_data() const override { return has_data_; }
  std::string Missing() const override { return "the start of the training was not recorded"; }

  std::string Summary() const override {
    if (first_step_ns_ <= 0 || start_ns_ <= 0) return {};
    nlohmann::ordered_json out = {{"seconds", Rounded(StartSeconds())},
                                  {"threshold_minutes", Rounded(minutes(threshold_ns_))},
                                  {"attempt", attempt_}};
    const std::vector<Held> held = HeldOf(StartSeconds());
    for (const Held& one : held) out["parts"][Key(*one.part)] = Rounded(one.seconds);
    if (!held.empty()) out["held"] = Words(held);
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
    /// Seconds by part, each moment in one of them.
    std::array<double, kParts.size()> Seconds() const {
      std::array<double, kParts.size()> out{};
      std::vector<std::pair<std::int64_t, std::int64_t>> all;
      double known_ns = 0;
      for (std::size_t part = 0; part < kParts.size(); ++part) {
        all.insert(all.end(), spans[part].begin(), spans[part].end());
        const double covered_ns = CoveredNs(&all);
        out[part] = (before[part] + covered_ns - std::exchange(known_ns, covered_ns)) / 1e9;
      }
      return out;
    }
  };

  /// A part of the start that is worth a word.
  struct Held {
    const Part* part;
    double seconds;
  };

  static double CoveredNs(std::vector<std::pair<std::int64_t, std::int64_t>>* spans) {
    std::sort(spans->begin(), spans->end());
    double sum = 0;
    std::int64_t until = std::numeric_limits<std::int64_t>::min();
    for (const auto& [begin, end] : *spans) {
      if (end <= until) continue;
      sum += static_cast<double>(end - std::max(begin, until));
      until = end;
    }
    return sum;
  }

  static double minutes(std::int64_t ns) { return static_cast<double>(ns) / 60e9; }

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

  double StartSeconds() const { return static_cast<double>(first_step_ns_ - start_ns_) / 1e9; }
  static std::string Key(const Part& part) {
    std::string key(part.span == kImports ? "import" : part.span);
    std::replace(key.begin(), key.end(), '.', '_');
    return key;
  }

  /// What held `seconds` of the start, of the process of which most is known; the longest first.
  std::vector<Held> HeldOf(double seconds) const {
    std::array<double, kParts.size()> most{};
    double most_s = 0;
    for (const auto& [pid, process] : parts_) {
      const auto of = process.Seconds();
      const double sum = std::accumulate(of.begin(), of.end(), 0.0);
      if (sum > most_s) {
        most_s = sum;
        most = of;
      }
    }
    std::vector<Held> out;
    for (std::size_t part = 0; part < kParts.size(); ++part) {
      if (most[part] > 0 && most[part] >= kNamedShare * seconds) {
        out.push_back({&kParts[part], most[part]});
      }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Held& a, const Held& b) { return a.seconds > b.seconds; });
    return out;
  }

  /// "20.1 s went to downloads, 5.2 s to importing libraries".
  static std::string Words(const std::vector<Held>& held) {
    std::string out;
    for (std::size_t i = 0; i < held.size(); ++i) {
      out += fmt::format("{}{} s {}to {}",
                         i == 0                 ? ""
                         : i + 1 == held.size() ? " and "
                                                : ", ",
                         Figure(held[i].seconds), i == 0 ? "went " : "", held[i].part->what);
    }
    return out;
  }

  /// Seconds of the start in which its processes had no core, and little came from storage or
  /// network; 0: not known.
  double WaitSeconds(double start_s) const {
    if (sums_[kCores].samples < kFewestSamples) return 0;
    if (sums_[kNetwork].mean() >= kActivities[kNetwork].least ||
        sums_[kStorage].mean() >= kActivities[kStorage].least) {
      return 0;
    }
    return start_s * (1 - std::clamp(sums_[kCores].mean() / 100, 0.0, 1.0));
  }

  /// The first step has begun (how long the attempt lasts nobody knows then), or the attempt is
  /// `over`: whether its start was long, and what of it need not be.
  void TellStart(bool over, Reporter* reporter) {
    if (first_step_ns_ <= start_ns_ || start_ns_ <= 0 || long_told_) return;
    const double start_s = StartSeconds();
    const double attempt_s = static_cast<double>(newest_ns_ - start_ns_) / 1e9;
    const bool is_long = start_s >= long_start_s_ || (over && start_s >= share_ * attempt_s);
    std::vector<Held> held;
    double saved_s = 0;
    const Part* most = nullptr;
    if (is_long) held = HeldOf(start_s);
    for (const Held& one : held) {
      if (!one.part->saved) continue;
      saved_s += one.seconds;
      if (most == nullptr) most = one.part;
    }
    const bool saves = most != nullptr && saved_s >= std::max(kLeastSavedS, kSavedShare * start_s);
    const double wait_s = is_long ? WaitSeconds(start_s) : 0;
    const bool waits = wait_s >= std::max(kLeastWaitS, kWaitShare * start_s);
    if (!saves && !waits) return;
    Incident incident;
    incident.subject = attempt_ > 1 ? fmt::format("start, attempt {}", attempt_) : "start";
    incident.severity = over ? Severity::kMedium : Severity::kLow;
    incident.first_step = incident.last_step = 0;
    incident.start_ns = start_ns_;
    incident.end_ns = first_step_ns_;
    if (saves) {
      incident.message = fmt::format("The start is held up by {}", most->what);
      incident.cause =
          fmt::format("Of {} s before the first step, {}.", Figure(start_s), Words(held));
      incident.advice = std::string(most->advice);
      incident.cost_seconds = saved_s;
    } else {
      incident.message = "The start waits and does not work";
      incident.cause = fmt::format(
          "Of {} s before the first step the processes computed, read or received for {} s: for {} "
          "s they waited (a sleep, a lock, a server, another rank).{}",
          Figure(start_s), Figure(start_s - wait_s), Figure(wait_s),
          held.empty() ? std::string() : fmt::format(" In this time, {}.", Words(held)));
      // An import or a download may wait too, for a file system or a server that is slow to answer.
      const bool named = !held.empty() && held.front().part->span != "model.build" &&
                         held.front().seconds >= kWaitShare * start_s;
      incident.advice = named
                            ? std::string(held.front().part->advice)
                            : "Find the line that waits, with py-spy dump while it does, or with "
                              "times printed before "
                              "the loop; wait for it in parallel with the imports, or not at all.";
      incident.cost_seconds = wait_s;
    }
    incident.confidence = 0.8;
    nlohmann::ordered_json evidence;
    evidence["seconds"] = Rounded(start_s);
    evidence["attempt"] = attempt_;
    if (waits) evidence["wait_seconds"] = Rounded(wait_s);
    for (const Held& one : held) {
      evidence["parts"][Key(*one.part)] = Rounded(one.seconds);
    }
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
    if (over) reporter->Recover(incident);
    long_told_ = over;
  }

  /// `seen`: its start was, and not only its first step.
  void Start(std::uint32_t attempt, std::int64_t time_ns, bool seen) {
    attempt_ = attempt;
    start_ns_ = time_ns;
    first_step_ns_ = 0;
    long_told_ = false;
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
        TellStart(true, reporter);
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
      TellStart(true, reporter);
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
    if (!open_) return TellStart(false, reporter);
    long_told_ = true;  // As what follows.
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
    const double start_s = static_cast<double>(now_ns - start_ns_) / 1e9;
    const std::vector<Held> held = HeldOf(start_s);
    if (!held.empty() && held.front().seconds >= kMostOf * start_s) {
      incident_.cause = fmt::format("{}: {}.", since, Words(held));
      incident_.advice = std::string(held.front().part->advice);
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
    for (const Held& one : held) {
      evidence["parts"][Key(*one.part)] = Rounded(one.seconds);
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
  const double long_start_s_;
  const double share_;

  std::vector<std::uint8_t> activity_;  ///< By series: index of kActivities or kNone.
  std::array<Sum, kActivities.size()> sums_{};
  /// By writer and pid: pids are those of one node, whose agent writes all its records.
  std::map<std::pair<std::uint32_t, std::int32_t>, Process> parts_;
  std::uint32_t attempt_ = 0;
  std::int64_t start_ns_ = 0;       ///< Of the attempt; 0: not seen.
  std::int64_t first_step_ns_ = 0;  ///< Begin of its first step.
  std::int64_t newest_ns_ = 0;      ///< Of any record.
  bool long_told_ = false;          ///< Its start, for the last time.
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
    .summary =
        "No step is made for many minutes after the start, or a long start goes to downloads, "
        "copies, unpacking or waiting.",
    .formula =
        "Time from the start of an attempt (event run.attempt_start, else the first sample of the "
        "machine) to the newest record, while the attempt has begun no step of any mode (event "
        "run.first_forward, else its first step); an incident above `threshold` minutes, over when "
        "the first step begins, closed where the attempt ends. The cause is what was done "
        "meanwhile: what the spans of a process say (download, network, unpack, copy, program, "
        "checkpoint.load, read, compile, import, model.build; of those within each other the first "
        "in this order counts) where one of these is at least 30 % of the time; they are known "
        "once the process's first step begins. Else the mean rate of bytes received (all "
        "interfaces but the loopback) where it is at least 1 MB/s and above that of bytes fetched "
        "from storage, else the latter from 1 MB/s, else processor time from half a core, else not "
        "found. Medium; low and without cost where the attempt ended with exit code 0, had made no "
        "step, and no framework that is recorded began: then its steps cannot be seen. Cost = time "
        "beyond the threshold: assumes that so much is needed. A shorter start is reported where "
        "it takes `long_start` seconds or `share` of the attempt, and download, network, unpack "
        "and copy together at least 10 % of it and 2 s: with the seconds of each part; cost = "
        "those of these four: assumes that the next job finds what this one has fetched. Else "
        "where "
        "its processes had no core for half of it and 10 s (1 − their mean processor time / 1 "
        "core), "
        "and less than 1 MB/s came from storage and from the network: cost = that time.",
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
    .severity_by_cost = true,
};

std::unique_ptr<Rule> MakeMaxInitializationTime(const Parameters& parameters) {
  return std::make_unique<MaxInitializationTime>(parameters);
}

}  // namespace telltale::rules::max_initialization_time
