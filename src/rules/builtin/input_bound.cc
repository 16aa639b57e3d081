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
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::input_bound {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"window_steps", 50, "steps",
     "Steps in the sliding window (more where they are short, so that it spans min_seconds)."},
    {"min_steps", 20, "steps", "Fewer steps than this say nothing."},
    {"min_seconds", 2, "s", "Less time than this says nothing."},
    {"warmup_steps", 3, "steps", "First steps of each attempt that do not count."},
    {"medium_share", 5, "%", "Share of step time from which the finding is medium."},
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
  bool pin_memory = false;
  bool persistent = false;
};

class InputBound final : public Rule {
 public:
  explicit InputBound(const Parameters& p)
      : window_steps_(
            static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("window_steps")))),
        min_steps_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("min_steps")))),
        min_ns_(static_cast<std::int64_t>(p.Get("min_seconds") * 1e9)),
        warmup_steps_(p.GetInt("warmup_steps")),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        close_(p.Get("close_share") / 100) {}

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, record.writer, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span, record.writer);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, record.writer, reporter);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      if (metric->name == "cpu.idle" && metric->subject.starts_with("cpu:")) {
        cores_.emplace(metric->subject);
      } else if (metric->name == "cgroup.cpu_limit" && std::isfinite(metric->value)) {
        limit_ = metric->value;
      }
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
    std::int64_t window_ns = 0;
    std::int64_t window_wait_ns = 0;

    std::int64_t described_ns = 0;
    // Over the incident.
    std::int64_t steps = 0;
    std::int64_t time_ns = 0;
    std::int64_t wait_ns = 0;
    std::int64_t start_up_wait_ns = 0;  ///< Of it: in steps during which workers began.
  };

  void OnExit(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    processes_.End(event, writer, [&](Process* process) { End(process, reporter); });
    // Who has its pid next is another.
    const Pid pid(writer, event.pid);
    loaders_.erase(pid);
    own_fetches_.erase(pid);
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
    const bool slow_item = event.kind == "dataloader.slow_item";
    if (event.kind != "dataloader" && event.kind != "framework" && !slow_item) return;
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    if (slow_item) {
      OnSlowItem(data);
      return;
    }
    if (event.kind == "framework") {
      if (const auto cpus = data.find("cpus"); cpus != data.end() && cpus->is_number_integer()) {
        cpus_ = std::clamp(cpus->get<int>(), 0, 65536);
      }
      // "cuda" is what the framework was built with; only this says that a device is there.
      if (const auto cuda = data.find("cuda_available"); cuda != data.end() && cuda->is_boolean()) {
        cuda_ = cuda->get<bool>();
      }
      return;
    }
    LoaderFacts facts;
    facts.known = true;
    const auto number = [&](const char* key, std::int64_t otherwise) {
      const auto found = data.find(key);
      return found != data.end() && found->is_number() ? found->get<std::int64_t>() : otherwise;
    };
    const auto flag = [&](const char* key) {
      const auto found = data.find(key);
      return found != data.end() && found->is_boolean() && found->get<bool>();
    };
    facts.workers = static_cast<int>(std::clamp<std::int64_t>(number("workers", -1), -1, 4096));
    facts.batch_size = number("batch_size", 0);
    facts.pin_memory = flag("pin_memory");
    facts.persistent = flag("persistent_workers");
    auto& loaders = loaders_[{writer, event.pid}];
    for (LoaderFacts& known : loaders) {
      if (known.batch_size == facts.batch_size && known.workers == facts.workers) {
        known = facts;
        return;
      }
    }
    if (loaders.size() < 32) loaders.push_back(facts);
  }

  /// An item of a batch took far longer than the loader's items do: the longest is kept.
  void OnSlowItem(const nlohmann::json& data) {
    const auto number = [&](const char* key) {
      const auto found = data.find(key);
      return found != data.end() && found->is_number() ? found->get<double>() : 0.0;
    };
    ++slow_items_;
    const double ns = number("duration_ns");
    if (!(ns > slow_item_.ns)) return;
    slow_item_ = {ns, number("mean_ns"), {}};
    if (const auto file = data.find("file"); file != data.end() && file->is_string()) {
      slow_item_.what = file->get<std::string>();
    } else if (const auto index = data.find("index"); index != data.end()) {
      slow_item_.what = fmt::format("item {}", index->dump());
    } else {
      slow_item_.what = "one item";
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

  void OnStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter) {
    if (step.mode != "TRAIN") return;
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
        worker_start_ns_ >= step.time_ns && worker_start_ns_ <= step.time_ns + step.duration_ns;
    Push(&state, {step.step, step.time_ns, step.duration_ns, step.data_wait_ns, workers_started});
    if (state.open) {
      ++state.steps;
      state.time_ns += step.duration_ns;
      state.wait_ns += step.data_wait_ns;
      if (workers_started) state.start_up_wait_ns += step.data_wait_ns;
    }
    if (state.window.size() < min_steps_ || state.window_ns < min_ns_) return;
    has_data_ = true;
    const double share =
        static_cast<double>(state.window_wait_ns) / static_cast<double>(state.window_ns);
    if (!state.open) {
      if (share < medium_) return;
      Open(&state);
    } else if (share < close_) {
      CloseIncident(&state, reporter);
      // The next incident needs a window of its own.
      state.window.clear();
      state.window_ns = state.window_wait_ns = 0;
      return;
    }
    // Severity is the highest that the incident had: it does not flicker around a threshold.
    const Severity severity =
        std::max(state.incident.severity, share >= high_ ? Severity::kHigh : Severity::kMedium);
    const std::int64_t end_ns = step.time_ns + step.duration_ns;
    if (severity == state.incident.severity && end_ns < state.described_ns + kDescribeIntervalNs) {
      return;
    }
    state.described_ns = end_ns;
    state.incident.severity = severity;
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
      excess += static_cast<double>(s.wait_ns) - medium_ * static_cast<double>(s.duration_ns);
      if (excess >= best) {
        best = excess;
        begin = i;
      }
    }
    processes_.Open(state, state->window[begin].step, state->window[begin].start_ns);
    state->incident.severity = Severity::kMedium;
    state->described_ns = 0;
    state->steps = state->time_ns = state->wait_ns = state->start_up_wait_ns = 0;
    for (std::size_t i = begin; i < state->window.size(); ++i) {
      const Sample& s = state->window[i];
      ++state->steps;
      state->time_ns += s.duration_ns;
      state->wait_ns += s.wait_ns;
      if (s.workers_started) state->start_up_wait_ns += s.wait_ns;
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

  /// Median time one batch takes to make, and where; 0 where no fetch was recorded.
  double FetchNs(const Process& state, bool in_process) const {
    const auto own = own_fetches_.find({state.writer, state.pid});
    if (in_process && own == own_fetches_.end()) return 0;
    const std::deque<double>& fetches = in_process ? own->second : worker_fetches_;
    return MedianOf({fetches.begin(), fetches.end()});
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
    const bool in_process = loader.workers == 0 || (loader.workers < 0 && !workers_seen_);
    const double fetch_ns = FetchNs(*state, in_process);
    int cores = cpus_ > 0 ? cpus_ : static_cast<int>(cores_.size());
    if (limit_ > 0 && (cores == 0 || limit_ < cores)) cores = std::max(1, static_cast<int>(limit_));

    bool found = true;
    if (in_process && (loader.known || fetch_ns > 0)) {
      incident.cause = fmt::format(
          "The loader runs in the training process (num_workers=0): every batch is made while the "
          "model waits{}.",
          fetch_ns > 0 ? fmt::format(", {} ms a batch", Millis(fetch_ns)) : "");
      incident.advice = AdviseWorkers(0, fetch_ns, compute_ns, step_ns, cores, loader);
    } else if (loader.workers > 0 && !loader.persistent &&
               state->start_up_wait_ns * 2 > state->wait_ns) {
      incident.cause = fmt::format(
          "The loader starts its {} workers anew for each epoch, and the first batches wait for "
          "them.",
          loader.workers);
      incident.advice = "Set persistent_workers=True in the DataLoader.";
    } else if (loader.workers > 0 && fetch_ns > 0 && fetch_ns / loader.workers > compute_ns) {
      incident.cause = fmt::format(
          "{} {} make {} batches/s ({} ms a batch each), the model could take {}.", loader.workers,
          loader.workers == 1 ? "worker" : "workers", Plain(loader.workers * 1e9 / fetch_ns),
          Millis(fetch_ns), Plain(1e9 / std::max(1.0, compute_ns)));
      incident.advice = AdviseWorkers(loader.workers, fetch_ns, compute_ns, step_ns, cores, loader);
    } else if (loader.workers > 0 && slow_item_.ns > wait_ns) {
      // In order: what a worker holds up waits in the others' queue.
      incident.cause = fmt::format(
          "The {} workers are fast enough on average, but single items hold all batches up: {} "
          "took "
          "{} ms, where others take {}.",
          loader.workers, slow_item_.what, Millis(slow_item_.ns), Millis(slow_item_.mean_ns));
      incident.advice =
          "Look at these items (events dataloader.slow_item): shorten or convert them once, or set "
          "a higher prefetch_factor, so that the other workers' batches bridge them.";
    } else {
      found = false;
      incident.cause = "cause not found";
      incident.advice =
          loader.workers > 0
              ? "Look at the fetch spans: the workers are fast enough on average, so single "
                "batches "
                "or the hand-over are slow."
              : "Look at what the loop does between two steps: no DataLoader was seen.";
    }

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
      evidence["fetch_in"] = in_process ? "training process" : "worker";
      evidence["batches_per_s_one_worker"] = rounded(1e9 / fetch_ns);
      evidence["batches_per_s_model"] = rounded(1e9 / std::max(1.0, compute_ns));
    }
    if (loader.known) {
      evidence["num_workers"] = loader.workers;
      evidence["batch_size"] = loader.batch_size;
      evidence["pin_memory"] = loader.pin_memory;
      evidence["persistent_workers"] = loader.persistent;
    }
    if (cores > 0) evidence["cores"] = cores;
    if (slow_items_ > 0) {
      evidence["slow_items"] = slow_items_;
      evidence["slowest_item"] = slow_item_.what;
      evidence["slowest_item_ms"] = rounded(slow_item_.ns / 1e6);
    }
    incident.evidence = JsonText(evidence);
  }

  /// The estimate: compute and loading overlap, so a step takes the longer of the two; without a
  /// device both need the same cores, so it cannot take less than their sum over the cores.
  std::string AdviseWorkers(int workers, double fetch_ns, double compute_ns, double step_ns,
                            int cores, const LoaderFacts& loader) const {
    std::string transform = " Vectorise the transform, or apply it once when the data set is made.";
    if (cuda_ && loader.known && !loader.pin_memory)
      transform = " Set pin_memory=True." + transform;
    if (fetch_ns <= 0) return fmt::format("Set num_workers={} in the DataLoader.", 2) + transform;
    const int limit = cores > 0 ? std::max(1, cuda_ ? cores - 1 : cores) : 16;
    const int needed =
        static_cast<int>(std::min(256.0, std::ceil(fetch_ns / std::max(1.0, compute_ns))));
    const int suggested = std::clamp(needed, 1, limit);
    double expected_ns = std::max(compute_ns, fetch_ns / suggested);
    if (!cuda_ && cores > 0) expected_ns = std::max(expected_ns, (fetch_ns + compute_ns) / cores);
    if (suggested <= workers || expected_ns >= step_ns) {
      return fmt::format("Make a batch cheaper: {} ms each is too slow for {} {}.{}",
                         Millis(fetch_ns), cores > 0 ? cores : workers,
                         cores > 0 ? (cores == 1 ? "core" : "cores") : "workers", transform);
    }
    return fmt::format(
        "Set num_workers={} in the DataLoader: a step then takes about {} ms instead "
        "of {}.{}",
        suggested, Millis(expected_ns), Millis(step_ns), transform);
  }

  const std::size_t window_steps_;
  const std::size_t min_steps_;
  const std::int64_t min_ns_;
  const std::int64_t warmup_steps_;
  const double medium_;
  const double high_;
  const double close_;

  ProcessTable<Process> processes_;
  std::map<Pid, std::vector<LoaderFacts>> loaders_;  ///< Of training processes.
  // Times of the newest fetches: by process in training processes, together in workers.
  std::map<Pid, std::deque<double>> own_fetches_;
  std::deque<double> worker_fetches_;
  std::set<Pid> worker_pids_;  ///< Those that live.
  /// The longest item of a batch among those that stood out.
  struct SlowItem {
    double ns = 0;
    double mean_ns = 0;  ///< Of the others.
    std::string what;    ///< Its file, else its index.
  };
  SlowItem slow_item_;
  std::int64_t slow_items_ = 0;
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
        "share = Σ data_wait / Σ duration over the newest TRAIN steps of one rank: window_steps of "
        "them, or as many as span min_seconds; at least min_steps. The first warmup_steps of an "
        "attempt do not count. Medium from medium_share, high from high_share; an incident keeps "
        "its highest severity, begins where the excess over medium_share is largest when looking "
        "back, and is over when the share of a window falls below close_share or its process ends. "
        "Cost = Σ data_wait since it began. Expected step time = max(compute, fetch / workers), "
        "and not below (fetch + compute) / cores where compute and loading share the cores. Single "
        "items are the cause where the workers are fast enough and an event dataloader.slow_item "
        "took longer than a step waits. Confidence = 0.5 + 0.25 × min(1, steps / window_steps) + "
        "0.25 if the cause is known.",
    .how_to_fix =
        "Make batches beside the model, not before it: num_workers > 0, persistent_workers=True, "
        "pin_memory=True with a GPU. Make a batch cheaper: vectorise the transform, decode once, "
        "keep the data on a local disk or in memory.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kMetrics),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .standing = {.theme = Theme::kInput, .order = 4},
    .severity_by_cost = true,
};
std::unique_ptr<Rule> MakeInputBound(const Parameters& parameters) {
  return std::make_unique<InputBound>(parameters);
}

}  // namespace telltale::rules::input_bound
