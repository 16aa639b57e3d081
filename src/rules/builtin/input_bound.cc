// SPDX-License-Identifier: Apache-2.0
// InputBound: the model waits for its next batch for too large a share of the step.
//
// One window a (rank, process, attempt) slides over TRAIN steps. A window and not the whole run, so
// that a pipeline that becomes slow later is seen, and one that recovers is closed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "rules/builtin/fetch_facts.h"
#include "rules/builtin/loader_advice.h"
#include "rules/builtin/loader_model.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::input_bound {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"window_steps", 50, "steps",
     "Steps in the sliding window (more where they are short, so that it spans min_seconds)."},
    {"min_steps", 20, "steps",
     "Fewer steps than this are not judged, unless they are long (few_steps)."},
    {"min_seconds", 2, "s", "Less time than this says nothing."},
    {"few_steps", 8, "steps", "As few steps as this are enough where they took few_seconds."},
    {"few_seconds", 10, "s", "Time after which few_steps are enough."},
    {"warmup_steps", 3, "steps", "First steps of each attempt that do not count."},
    {"low_share", 5, "%", "Share of step time from which there is a finding."},
    {"medium_share", 10, "%", "Share from which it is medium."},
    {"high_share", 20, "%", "Share from which it is high."},
    {"close_share", 4, "%", "Share of a window below which the incident is over."},
};

/// The window never holds more steps than this, however short they are.
constexpr std::size_t kMaxWindow = 20'000;
constexpr std::size_t kFetchesKept = 128;
/// While nothing but numbers change, an open incident is described once in this time of the run.
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;

struct Sample {
  std::int64_t step;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::int64_t wait_ns;
  bool workers_started;  ///< A loader worker began during it.
};

struct LoaderFacts {
  bool known = false;
  int workers = -1;
  std::int64_t batch_size = 0;
  std::int64_t length = 0;  ///< Items of the data set; 0: not known.
  bool pin_memory = false;
  bool persistent = false;
  int made = 0;  ///< Loaders like this one: a script may make one for each epoch.
};

/// A mean over the newest samples.
struct Recent {
  double mean = 0;
  bool known = false;
  void Take(double value) {
    if (!std::isfinite(value)) return;
    mean = known ? mean + 0.1 * (value - mean) : value;
    known = true;
  }
};

/// A script that makes so many loaders of one kind makes one for each epoch.
constexpr int kMadeAnew = 3;

class InputBound final : public Rule {
 public:
  explicit InputBound(const Parameters& p)
      : window_steps_(
            static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("window_steps")))),
        min_steps_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("min_steps")))),
        min_ns_(p.GetNs("min_seconds")),
        few_steps_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("few_steps")))),
        few_ns_(p.GetNs("few_seconds")),
        warmup_steps_(p.GetInt("warmup_steps")),
        low_(p.Get("low_share") / 100),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        close_(p.Get("close_share") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) {
      return series.name == "fetch" && series.collection == "data";
    }
    if (series.table != format::TableId::kMetrics) return false;
    return series.name == "cgroup.cpu_limit" || series.name == "proc.cpu" ||
           (series.name == "cpu.busy" && series.collection == "node") ||
           (series.name == "cpu.idle" && series.collection.starts_with("cpu:"));
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, record.writer, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span, record.writer);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, record.writer, reporter);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric, record.writer);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  /// Writer and pid: pids are those of one node, whose agent writes all its records.
  using Pid = std::pair<std::uint32_t, std::int32_t>;

  struct Process : TrainingProcess {
    std::int64_t seen = 0;  ///< Steps of this attempt.
    std::int64_t micro_batch = 0;
    std::deque<Sample> window;
    Sum window_ns = 0;
    Sum window_wait_ns = 0;

    std::int64_t described_ns = 0;
    // Over the incident.
    std::int64_t steps = 0;
    Sum time_ns = 0;
    Sum wait_ns = 0;
    Sum start_up_wait_ns = 0;         ///< Of it: in steps during which workers began.
    std::int64_t start_ups = 0;       ///< Steps during which workers began.
    Severity worst = Severity::kLow;  ///< By its share of step time, so far.
  };

  void OnMetric(const format::MetricRow& metric, std::uint32_t writer) {
    if (metric.name == "cpu.idle") {
      cores_.emplace(metric.subject);
    } else if (metric.name == "cgroup.cpu_limit") {
      if (std::isfinite(metric.value)) limit_ = metric.value;
    } else if (metric.name == "cpu.busy") {
      busy_[writer].Take(metric.value / 100);
    } else if (metric.subject == "proc:tree") {
      tree_[writer].Take(metric.value / 100);
    } else if (const auto found = cpu_.find({writer, metric.pid}); found != cpu_.end()) {
      found->second.Take(metric.value / 100);
    }
  }

  void OnExit(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    processes_.End(event, writer, [&](Process* process) { End(process, reporter); });
    // Who has its pid next is another.
    const Pid pid(writer, event.pid);
    loaders_.erase(pid);
    own_fetches_.erase(pid);
    own_facts_.erase(pid);
    hand_over_ns_.erase(pid);
    cpu_.erase(pid);
    worker_pids_.erase(pid);
  }

  void OnEvent(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    if (event.kind == "process.exit") {
      OnExit(event, writer, reporter);
      return;
    }
    if (event.kind == "worker.start") {
      workers_seen_ = true;
      worker_pids_.emplace(writer, event.pid);
      worker_start_ns_ = std::max(worker_start_ns_, event.time_ns);
      return;
    }
    if (event.kind != "framework" && !event.kind.starts_with("dataloader")) return;
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    const Pid pid(writer, event.pid);
    if (event.kind == "dataloader.slow_item") {
      OnSlowItem(event, writer, data);
      return;
    }
    if (event.kind == "dataloader.item") {
      repeated_[writer].Take(data);
      return;
    }
    if (event.kind == "dataloader.handover") {
      hand_over_ns_[pid] = NumberIn(data, "median_ns");
      return;
    }
    if (event.kind == "dataloader.fetches" || event.kind == "dataloader.held_by") {
      FetchFacts& facts = worker_pids_.contains(pid) ? worker_facts_[writer] : own_facts_[pid];
      if (event.kind == "dataloader.fetches") {
        facts.costs.Take(data);
      } else {
        facts.holders.Take(data);
      }
      return;
    }
    if (event.kind == "framework") {
      cpu_[pid];
      if (const auto cpus = data.find("cpus"); cpus != data.end() && cpus->is_number_integer()) {
        cpus_ = static_cast<int>(std::clamp<std::int64_t>(IntegerOf(*cpus), 0, 65536));
      }
      // "cuda" is what the framework was built with; only this says that a device is there.
      if (const auto cuda = data.find("cuda_available"); cuda != data.end() && cuda->is_boolean()) {
        cuda_ = cuda->get<bool>();
      }
      return;
    }
    if (event.kind != "dataloader") return;
    LoaderFacts facts;
    facts.known = true;
    facts.made = 1;
    const auto flag = [&](const char* key) {
      const auto found = data.find(key);
      return found != data.end() && found->is_boolean() && found->get<bool>();
    };
    facts.workers =
        static_cast<int>(std::clamp<std::int64_t>(IntegerIn(data, "workers", -1), -1, 4096));
    facts.batch_size = CountIn(data, "batch_size");
    facts.length = std::max<std::int64_t>(0, CountIn(data, "length"));
    facts.pin_memory = flag("pin_memory");
    facts.persistent = flag("persistent_workers");
    auto& loaders = loaders_[{writer, event.pid}];
    for (LoaderFacts& known : loaders) {
      if (known.batch_size == facts.batch_size && known.workers == facts.workers) {
        facts.made = known.made + (known.length == facts.length ? 1 : 0);
        known = facts;
        return;
      }
    }
    if (loaders.size() < 32) loaders.push_back(facts);
  }

  /// An item of a batch took far longer than the loader's items do.
  void OnSlowItem(const format::EventRow& event, std::uint32_t writer, const nlohmann::json& data) {
    if (slow_items_.size() >= kMostSlowItems) return;
    SlowItem item;
    item.worker = {writer, event.pid};
    item.ns = NumberIn(data, "duration_ns");
    item.mean_ns = NumberIn(data, "mean_ns");
    item.end_ns = static_cast<double>(event.time_ns);
    item.begin_ns = item.end_ns - std::max(item.ns, NumberIn(data, "batch_ns"));
    if (const auto file = data.find("file"); file != data.end() && file->is_string()) {
      item.what = file->get<std::string>();
    } else if (const auto index = data.find("index"); index != data.end()) {
      item.what = fmt::format("item {}", index->dump());
    } else {
      item.what = "one item";
    }
    // What holds two workers up at once is the machine, not their items.
    for (SlowItem& other : slow_items_) {
      if (other.worker == item.worker || other.worker.first != writer) continue;
      const double both_ns =
          std::min(other.end_ns, item.end_ns) - std::max(other.begin_ns, item.begin_ns);
      if (2 * both_ns > std::min(other.ns, item.ns)) other.machine = item.machine = true;
    }
    slow_items_.push_back(std::move(item));
  }

  /// The slow items that were slow by themselves.
  void TakeSlowItems(LoaderCase* of) const {
    for (const SlowItem& item : slow_items_) {
      if (item.machine) continue;
      ++of->slow_items;
      of->slow_items_ns += std::max(0.0, item.ns - item.mean_ns);
      if (!(item.ns > of->slow_item_ns)) continue;
      of->slow_item = item.what;
      of->slow_item_ns = item.ns;
      of->slow_item_mean_ns = item.mean_ns;
    }
  }

  void OnSpan(const format::SpanRow& span, std::uint32_t writer) {
    if (span.name != "fetch" || span.category != "data" || span.duration_ns < 0) return;
    if (span.mode == "EVAL" || span.mode == "PREDICT") return;
    // Workers of one epoch have other pids than those of the next: they share one list.
    const Pid pid(writer, span.pid);
    std::deque<double>& fetches = worker_pids_.contains(pid) ? worker_fetches_ : own_fetches_[pid];
    fetches.push_back(static_cast<double>(span.duration_ns));
    if (fetches.size() > kFetchesKept) fetches.pop_front();
  }

  void OnStep(const format::StepRow& row, std::uint32_t writer, Reporter* reporter) {
    if (row.mode != "TRAIN") return;
    const format::StepRow step = WithoutProbe(row);
    if (step.duration_ns <= 0 || step.data_wait_ns < 0 || step.data_wait_ns > step.duration_ns) {
      return;  // Not a step that can be measured.
    }
    // Neither an input pipeline nor a model was seen in it, as in a boosting round.
    if (step.data_wait_ns == 0 && step.forward_ns == 0) return;
    Process* const found =
        processes_.Find(step, writer, [&](Process* former) { CloseIncident(former, reporter); });
    if (found == nullptr || !found->BeginStep(step.step)) return;
    Process& state = *found;
    if (step.batch_size > 0 && step.micro_steps > 0) {
      state.micro_batch = step.batch_size / step.micro_steps;
    }
    if (++state.seen <= warmup_steps_) return;

    const bool workers_started =
        worker_start_ns_ >= row.time_ns && worker_start_ns_ <= row.time_ns + row.duration_ns;
    Push(&state, {step.step, step.time_ns, step.duration_ns, step.data_wait_ns, workers_started});
    if (state.open) {
      ++state.steps;
      state.time_ns += step.duration_ns;
      state.wait_ns += step.data_wait_ns;
      if (workers_started) {
        state.start_up_wait_ns += step.data_wait_ns;
        ++state.start_ups;
      }
    }
    const bool enough = state.window.size() >= min_steps_ && state.window_ns >= min_ns_;
    const bool few_long = state.window.size() >= few_steps_ && state.window_ns >= few_ns_;
    if (!enough && !few_long) return;
    has_data_ = true;
    const double share =
        static_cast<double>(state.window_wait_ns) / static_cast<double>(state.window_ns);
    if (!state.open) {
      if (share < low_) return;
      Open(&state);
    } else if (share < close_) {
      CloseIncident(&state, reporter);
      // The next incident needs a window of its own.
      state.window.clear();
      state.window_ns = state.window_wait_ns = 0;
      return;
    }
    // Severity is the highest that the incident had: it does not flicker around a threshold.
    const Severity worst = std::max(state.worst, share >= high_     ? Severity::kHigh
                                                 : share >= medium_ ? Severity::kMedium
                                                                    : Severity::kLow);
    const std::int64_t end_ns = row.time_ns + row.duration_ns;
    if (worst == state.worst && end_ns < state.described_ns + kDescribeIntervalNs) return;
    state.described_ns = end_ns;
    state.worst = worst;
    Describe(&state);
    reporter->Report(state.incident);
  }

  void Push(Process* state, const Sample& sample) {
    state->window.push_back(sample);
    state->window_ns += sample.duration_ns;
    state->window_wait_ns += sample.wait_ns;
    while (state->window.size() > window_steps_ &&
           (state->window_ns - state->window.front().duration_ns >= min_ns_ ||
            state->window.size() > kMaxWindow)) {
      state->window_ns -= state->window.front().duration_ns;
      state->window_wait_ns -= state->window.front().wait_ns;
      state->window.pop_front();
    }
  }

  /// The incident begins where, looking back from now, the excess over the threshold is largest.
  void Open(Process* state) {
    double excess = 0;
    double best = -1;
    std::size_t begin = 0;
    for (std::size_t i = state->window.size(); i-- > 0;) {
      const Sample& s = state->window[i];
      excess += static_cast<double>(s.wait_ns) - low_ * static_cast<double>(s.duration_ns);
      if (excess >= best) {
        best = excess;
        begin = i;
      }
    }
    processes_.Open(state, state->window[begin].step, state->window[begin].start_ns);
    state->worst = Severity::kLow;
    state->described_ns = 0;
    state->steps = 0;
    state->time_ns = state->wait_ns = state->start_up_wait_ns = 0;
    state->start_ups = 0;
    for (std::size_t i = begin; i < state->window.size(); ++i) {
      const Sample& s = state->window[i];
      ++state->steps;
      state->time_ns += s.duration_ns;
      state->wait_ns += s.wait_ns;
      if (!s.workers_started) continue;
      state->start_up_wait_ns += s.wait_ns;
      ++state->start_ups;
    }
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    if (process->open) CloseIncident(process, reporter);
  }

  void CloseIncident(Process* state, Reporter* reporter) {
    Describe(state);
    reporter->Close(state->incident);
    state->open = false;
  }

  LoaderFacts Loader(const Process& state) const {
    const auto found = loaders_.find({state.writer, state.pid});
    if (found == loaders_.end() || found->second.empty()) return {};
    for (const LoaderFacts& facts : found->second) {
      if (facts.batch_size > 0 && facts.batch_size == state.micro_batch) return facts;
    }
    return found->second.front();
  }

  /// What one batch took to make, of the newest; null: none was recorded.
  const std::deque<double>* Fetches(const Process& state, bool in_process) const {
    if (!in_process) return &worker_fetches_;
    const auto own = own_fetches_.find({state.writer, state.pid});
    return own == own_fetches_.end() ? nullptr : &own->second;
  }

  /// By the share of the wait, as far as the cause explains it: on a machine that others keep busy
  /// most of a wait is theirs. Where a change has a forecast, by what that saves too: a wait of
  /// which most stays is not worth an alarm.
  Severity SeverityOf(const Process& state, const LoaderAdvice& advice, double step_ns) const {
    if (!advice.gains) return Severity::kInfo;
    Severity severity = state.worst;
    const auto by = [&](double share) {
      severity = std::min(severity, share >= high_     ? Severity::kHigh
                                    : share >= medium_ ? Severity::kMedium
                                                       : Severity::kLow);
    };
    if (advice.explained_ns >= 0 && state.time_ns > 0) {
      by(advice.explained_ns / static_cast<double>(state.time_ns));
    }
    if (advice.saved_ns >= 0) by(advice.saved_ns / step_ns);
    return severity;
  }

  void Describe(Process* state) {
    Incident& incident = state->incident;
    if (!state->window.empty()) {
      const Sample& last = state->window.back();
      incident.last_step = last.step;
      incident.end_ns = last.start_ns + last.duration_ns;
    }
    const double steps = static_cast<double>(std::max<std::int64_t>(1, state->steps));
    const double step_ns = static_cast<double>(state->time_ns) / steps;
    const double wait_ns = static_cast<double>(state->wait_ns) / steps;
    const double compute_ns = std::max(0.0, step_ns - wait_ns);
    const double share = state->time_ns > 0 ? wait_ns / step_ns : 0;
    incident.cost_seconds = static_cast<double>(state->wait_ns) / 1e9;
    incident.message = fmt::format("Data loading takes {:.0f} % of step time", share * 100);

    const LoaderFacts loader = Loader(*state);
    const LoaderCase of = CaseOf(*state, loader, step_ns, compute_ns);
    LoaderAdvice advice = AdviseLoader(of);
    incident.cause = std::move(advice.cause);
    incident.advice = std::move(advice.advice);
    incident.explained_seconds = advice.explained_ns < 0 ? -1 : advice.explained_ns / 1e9;
    incident.severity = SeverityOf(*state, advice, step_ns);
    const double fetch_ns = of.fetch_ns;
    const bool found = advice.found;

    // Half for having seen it, a quarter each for a full window and for a known cause.
    incident.confidence =
        0.5 + 0.25 * std::min(1.0, steps / static_cast<double>(window_steps_)) + (found ? 0.25 : 0);

    nlohmann::ordered_json evidence;
    const auto rounded = [](double v) { return std::round(v * 1000) / 1000; };
    evidence["share"] = rounded(share);
    evidence["steps"] = state->steps;
    evidence["seconds"] = rounded(static_cast<double>(state->time_ns) / 1e9);
    if (state->window_ns > 0) {
      evidence["window_share"] = rounded(static_cast<double>(state->window_wait_ns) /
                                         static_cast<double>(state->window_ns));
      evidence["window_steps"] = state->window.size();
      evidence["window_seconds"] = rounded(static_cast<double>(state->window_ns) / 1e9);
    }
    evidence["step_ms"] = rounded(step_ns / 1e6);
    evidence["data_wait_ms"] = rounded(wait_ns / 1e6);
    evidence["compute_ms"] = rounded(compute_ns / 1e6);
    if (fetch_ns > 0) {
      evidence["fetch_ms"] = rounded(fetch_ns / 1e6);
      evidence["fetch_in"] = of.in_process ? "training process" : "worker";
      evidence["batches_per_s_one_worker"] = rounded(1e9 / fetch_ns);
      evidence["batches_per_s_model"] = rounded(1e9 / std::max(1.0, compute_ns));
    }
    if (loader.known) {
      evidence["num_workers"] = loader.workers;
      evidence["batch_size"] = loader.batch_size;
      evidence["pin_memory"] = loader.pin_memory;
      evidence["persistent_workers"] = loader.persistent;
    }
    if (of.cores > 0) evidence["cores"] = of.cores;
    if (of.load.others_cores > 0) evidence["others_cores"] = rounded(of.load.others_cores);
    double not_loading = 0;  // Share of the wait that is for a core: CPUBottleneck explains it.
    if (of.facts != nullptr && of.facts->costs.known()) {
      const FetchCosts& costs = of.facts->costs;
      evidence["fetch_computes"] = rounded(costs.computes());
      evidence["fetch_waits"] = rounded(costs.waits());
      evidence["fetch_waits_for_a_core"] = rounded(costs.delayed());
      not_loading = costs.delayed();
      evidence["fetch_collates"] = rounded(costs.collates());
      if (costs.storage_bytes() > 0) evidence["storage_bytes"] = Rounded(costs.storage_bytes());
      evidence["batch_bytes"] = Rounded(costs.batch_bytes());
      if (const auto top = of.facts->holders.Top(); top.share > 0) {
        evidence["held_by"] = top.library.empty() ? "own code" : top.library;
        evidence["held_share"] = rounded(top.share);
      }
    }
    if (of.load.hand_over_ns > 0) evidence["hand_over_ms"] = rounded(of.load.hand_over_ns / 1e6);
    if (of.repeated != nullptr && of.repeated->again() > 0) {
      evidence["items_again"] = of.repeated->again();
      evidence["items_same"] = of.repeated->same();
    }
    for (auto& [key, value] : advice.evidence.items()) evidence[key] = value;
    evidence[kExplainsSeconds] = Rounded(incident.cost_seconds * (1 - not_loading));
    if (of.slow_items > 0) {
      evidence["slow_items"] = of.slow_items;
      evidence["slowest_item"] = of.slow_item;
      evidence["slowest_item_ms"] = rounded(of.slow_item_ns / 1e6);
    }
    incident.evidence = JsonText(evidence);
  }

  LoaderCase CaseOf(const Process& state, const LoaderFacts& loader, double step_ns,
                    double compute_ns) const {
    const Pid pid(state.writer, state.pid);
    LoaderCase of;
    of.loader_known = loader.known;
    of.in_process = loader.workers == 0 || (loader.workers < 0 && !workers_seen_);
    of.workers = std::max(0, loader.workers);
    of.device = cuda_;
    of.pin_memory = loader.pin_memory;
    of.persistent = loader.persistent;
    of.made_anew = loader.made >= kMadeAnew;
    of.length = loader.length;
    if (const std::deque<double>* fetches = Fetches(state, of.in_process);
        fetches != nullptr && !fetches->empty()) {
      of.fetch_ns = MedianOf({fetches->begin(), fetches->end()});
      of.fetch_mean_ns = std::accumulate(fetches->begin(), fetches->end(), 0.0) /
                         static_cast<double>(fetches->size());
      // One after the other: the long ones cost what they take.
      if (fetches->size() > 2) {
        const double longest = *std::max_element(fetches->begin(), fetches->end());
        const auto count = static_cast<double>(fetches->size());
        of.fetch_usual_ns =
            std::max(of.fetch_ns, (of.fetch_mean_ns * count - longest) / (count - 1));
        if (of.in_process) of.fetch_ns = of.fetch_usual_ns;
      }
    }
    if (of.in_process) {
      if (const auto own = own_facts_.find(pid); own != own_facts_.end()) of.facts = &own->second;
    } else if (const auto all = worker_facts_.find(state.writer); all != worker_facts_.end()) {
      of.facts = &all->second;
    }
    if (const auto found = repeated_.find(state.writer); found != repeated_.end()) {
      of.repeated = &found->second;
    }
    of.steps = static_cast<double>(state.steps);
    of.wait_ns = static_cast<double>(state.wait_ns);
    of.start_up_wait_ns = static_cast<double>(state.start_up_wait_ns);
    of.start_ups = static_cast<double>(state.start_ups);
    TakeSlowItems(&of);
    of.cores = cpus_ > 0 ? cpus_ : static_cast<int>(cores_.size());
    if (limit_ > 0 && (of.cores == 0 || limit_ < of.cores)) {
      of.cores = std::max(1, FewAsInt(limit_));
    }
    of.load = LoadOf(state, of, step_ns, compute_ns);
    return of;
  }

  LoaderLoad LoadOf(const Process& state, const LoaderCase& of, double step_ns,
                    double compute_ns) const {
    LoaderLoad load;
    load.step_ns = step_ns;
    load.compute_ns = compute_ns;
    const double computes = of.facts == nullptr ? 1 : of.facts->costs.computes();
    const double delayed = of.facts == nullptr ? 0 : of.facts->costs.delayed();
    load.fetch_cpu_ns = of.fetch_ns * computes;
    load.fetch_delay_ns = of.fetch_ns * delayed;
    load.fetch_wait_ns = std::max(0.0, of.fetch_ns - load.fetch_cpu_ns - load.fetch_delay_ns);
    load.storage = of.facts != nullptr && of.facts->costs.storage_bytes() > 0;
    load.batch_bytes = of.facts == nullptr ? 0 : of.facts->costs.batch_bytes();
    if (const auto found = hand_over_ns_.find({state.writer, state.pid});
        !of.in_process && found != hand_over_ns_.end()) {
      load.hand_over_ns = found->second;
    }
    load.noise_ns = StandardError(state.window);
    load.cores = of.cores;
    // With a GPU the training's own thread waits for it and keeps a core busy all the same.
    if (const auto cpu = cpu_.find({state.writer, state.pid});
        cpu != cpu_.end() && cpu->second.known && compute_ns > 0) {
      const double own_ns = cpu->second.mean * step_ns - (of.in_process ? load.fetch_cpu_ns : 0);
      load.compute_cores = std::clamp(own_ns / compute_ns, 0.2, std::max(1.0, load.cores));
    }
    const auto busy = busy_.find(state.writer);
    const auto tree = tree_.find(state.writer);
    if (busy != busy_.end() && tree != tree_.end() && busy->second.known && tree->second.known) {
      // Of cores that the training may not use nothing is lost to others.
      const auto all = static_cast<double>(cores_.size());
      const double beyond = std::max(0.0, all - load.cores);
      load.others_cores =
          std::clamp(busy->second.mean * all - tree->second.mean - beyond, 0.0, load.cores);
    }
    return load;
  }

  /// Of the mean of the newest steps.
  static double StandardError(const std::deque<Sample>& window) {
    if (window.size() < 3) return 0;
    double sum = 0;
    double squares = 0;
    for (const Sample& sample : window) {
      const auto ns = static_cast<double>(sample.duration_ns);
      sum += ns;
      squares += ns * ns;
    }
    const auto count = static_cast<double>(window.size());
    const double mean = sum / count;
    return std::sqrt(std::max(0.0, squares / count - mean * mean) / (count - 1));
  }

  const std::size_t window_steps_;
  const std::size_t min_steps_;
  const std::int64_t min_ns_;
  const std::size_t few_steps_;
  const std::int64_t few_ns_;
  const std::int64_t warmup_steps_;
  const double low_;
  const double medium_;
  const double high_;
  const double close_;

  ProcessTable<Process> processes_;
  std::map<Pid, std::vector<LoaderFacts>> loaders_;  ///< Of training processes.
  // Times of the newest fetches: by process in training processes, together in workers.
  std::map<Pid, std::deque<double>> own_fetches_;
  std::deque<double> worker_fetches_;
  std::set<Pid> worker_pids_;  ///< Those that live.
  static constexpr std::size_t kMostSlowItems = 512;
  /// An item of a batch that stood out.
  struct SlowItem {
    Pid worker;
    double ns = 0;
    double mean_ns = 0;               ///< Of the others.
    double begin_ns = 0, end_ns = 0;  ///< Of its batch.
    bool machine = false;             ///< Another worker was held up at the same time.
    std::string what;                 ///< Its file, else its index.
  };
  std::vector<SlowItem> slow_items_;
  std::map<Pid, FetchFacts> own_facts_;               ///< Of training processes.
  std::map<std::uint32_t, FetchFacts> worker_facts_;  ///< Of the workers of a node.
  std::map<std::uint32_t, RepeatedItems> repeated_;   ///< Of a node.
  std::map<Pid, double> hand_over_ns_;                ///< Of training processes.
  std::map<Pid, Recent> cpu_;                         ///< Cores that training processes keep busy.
  std::map<std::uint32_t, Recent> busy_, tree_;       ///< Of a node: share of all cores; cores.
  bool workers_seen_ = false;
  std::int64_t worker_start_ns_ = 0;
  std::set<std::string, std::less<>> cores_;
  int cpus_ = 0;      ///< That the training may run on, where the framework says so.
  double limit_ = 0;  ///< Cores that its control group may use; 0: all.
  bool cuda_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kInputBoundDesc{
    .name = "InputBound",
    .summary = "The model waits for its next batch for too large a share of the step.",
    .formula =
        "share = Σ data_wait / Σ duration over the newest TRAIN steps of one rank, our own time "
        "taken "
        "off: window_steps of them, or as many as span min_seconds; at least min_steps and "
        "min_seconds, or few_steps and few_seconds. The first warmup_steps of an attempt do not "
        "count. Low from low_share, medium from medium_share, high from high_share; no more than "
        "the "
        "share that the cause explains, nor, where a change has a forecast, than what it saves "
        "less its error, nor "
        "than its share of the run's time; info where no change of the loader is expected to gain "
        "anything. It "
        "begins where the excess over low_share is largest when looking back, and is over when "
        "the share of a window falls below close_share or its process ends. Cost = Σ data_wait "
        "since it began. A fetch computes, waits, or waits for a core, as the adapter measures. "
        "Expected step time with N workers = max(compute + hand-over, (fetch + sending) / N), and "
        "not below what both take of the cores that other programs leave (at least half a core); "
        "without workers compute + fetch. Hand-over: measured where there are workers, else 0.9 ms "
        "+ 0.1 ms a MB; sending: 0.5 ms + 0.3 ms a MB in the worker. Error: 40 % of a measured "
        "hand-over or 70 % of an assumed one, 10 % of the expected step or gain (35 % where "
        "workers "
        "share a disk), and the standard error of the steps. A change is advised where its gain is "
        "above its error and above 5 % of the step. As many workers as free cores for a fetch that "
        "computes, 16 for one that waits, none more where makers already wait for cores for 30 % "
        "of "
        "a fetch. Work is the same again where at least 3 of the compared items came twice, cost "
        "half as much again, and 90 % of those with the same result. Single items are the cause "
        "where the workers are fast enough and events dataloader.slow_item account for half of the "
        "wait. Confidence = 0.5 + 0.25 × min(1, steps / window_steps) + 0.25 if the cause is "
        "known.",
    .how_to_fix =
        "Make batches while the model computes (num_workers, persistent_workers), do their work "
        "once ahead of the training, or make it cheaper; the advice says which of these gains, and "
        "how much. A batch that costs less than handing it over is best made in the training "
        "process.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kMetrics),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .standing = {.theme = Theme::kInput, .order = 4},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};
std::unique_ptr<Rule> MakeInputBound(const Parameters& parameters) {
  return std::make_unique<InputBound>(parameters);
}

}  // namespace telltale::rules::input_bound
