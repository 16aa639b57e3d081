// SPDX-License-Identifier: Apache-2.0
// RecompileStorm: the model is compiled again and again while it trains.
//
// To compile at the first steps is what torch.compile is for; later each new shape, or each change
// of a number that a graph has taken for a constant, costs seconds. Reads the adapters' events
// `compile`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::recompile_storm {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"warmup_steps", 20, "steps", "Compilations in these belong to the start."},
    {"n_compiles", 5, "compilations", "Fewer than this in window_steps say nothing."},
    {"window_steps", 500, "steps", "Steps over which they are counted."},
    {"low_share", 2, "%", "Share of the steps' time, below it nothing."},
    {"medium_share", 10, "%", "Share from which the finding is medium."},
    {"high_share", 30, "%", "Share from which it is high."},
};

constexpr std::size_t kMaxCompiles = 4096;  ///< In the window, of a process.
constexpr std::size_t kMaxFrameName = 64;

class RecompileStorm final : public Rule {
 public:
  explicit RecompileStorm(const Parameters& p)
      : warmup_(p.GetInt("warmup_steps")),
        n_compiles_(static_cast<std::size_t>(std::max<std::int64_t>(2, p.GetInt("n_compiles")))),
        window_(std::max<std::int64_t>(10, p.GetInt("window_steps"))),
        low_(p.Get("low_share") / 100),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100) {}

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "compile") {
        OnCompile(*event, reporter);
      } else if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return compiles_; }
  std::string Missing() const override {
    return compiles_ ? std::string() : "no compiled model was seen";
  }

 private:
  struct Compile {
    std::int64_t step = -1;
    std::int64_t time_ns = 0;
    double ns = 0;
    std::int64_t batch = -1;  ///< Of the step in which it was, once that has ended.
    std::string frame;        ///< Of Dynamo; empty where not known.
  };
  struct Step {
    std::int64_t step;
    double ns;
  };
  struct Process : TrainingProcess {
    std::int64_t first_step = -1;
    std::deque<Step> steps;  ///< In the window.
    double steps_ns = 0;
    std::deque<Compile> compiles;  ///< In the window, after the warm-up.
    std::int64_t count = 0;
    double cost_ns = 0;
    bool torch = true;  ///< torch.compile compiles, nobody else.
  };

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
  }

  void OnCompile(const format::EventRow& event, Reporter* reporter) {
    compiles_ = true;
    Process* process = Find(event, reporter);
    if (process == nullptr) return;
    // In the steps before the first has ended, or in the warm-up: the start.
    if (process->first_step < 0 || process->last_step - process->first_step + 1 < warmup_) return;
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    const auto duration = data.find("duration_ns");
    if (duration == data.end() || !duration->is_number()) return;
    const double ns = std::max(0.0, duration->get<double>());
    const auto by = data.find("by");
    process->torch = by == data.end() || *by == "torch.compile";
    Compile compile{std::max(event.step, process->last_step + 1), event.time_ns, ns, -1, {}};
    if (const auto id = data.find("id"); id != data.end() && id->is_string()) {
      const std::string text = id->get<std::string>();
      compile.frame = text.substr(0, std::min(text.find('/'), kMaxFrameName));
    }
    process->compiles.push_back(std::move(compile));
    if (process->compiles.size() > kMaxCompiles) process->compiles.pop_front();
    ++process->count;
    process->cost_ns += ns;
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    Process* process = Find(row, reporter);
    if (process == nullptr || row.duration_ns <= 0 || !process->BeginStep(row.step)) return;
    if (process->first_step < 0) process->first_step = row.step;
    if (row.step - process->first_step + 1 >= warmup_) has_data_ = compiles_;
    process->steps.push_back({row.step, static_cast<double>(WithoutProbe(row).duration_ns)});
    process->steps_ns += process->steps.back().ns;
    while (process->steps.front().step + window_ <= row.step) {
      process->steps_ns -= process->steps.front().ns;
      process->steps.pop_front();
    }
    while (!process->compiles.empty() && process->compiles.front().step + window_ <= row.step) {
      process->compiles.pop_front();
    }
    bool fresh = false;
    for (auto at = process->compiles.rbegin(); at != process->compiles.rend(); ++at) {
      if (at->batch >= 0 || at->step > row.step) break;
      at->batch = row.batch_size;
      fresh = true;
    }
    if (process->compiles.empty()) {
      process->count = 0;
      process->cost_ns = 0;
      if (process->open) reporter->Recover(process->incident);
      process->open = false;
      return;
    }
    if (!fresh) return;
    double ns = 0;
    for (const Compile& c : process->compiles) ns += c.ns;
    const double share = process->steps_ns > 0 ? std::min(1.0, ns / process->steps_ns) : 0;
    if (!process->open && (process->compiles.size() < n_compiles_ || share < low_)) return;
    if (!process->open) {
      processes_.Open(process, process->compiles.front().step, process->compiles.front().time_ns);
    }
    Describe(process, row, ns, share);
    reporter->Report(process->incident);
  }

  void Describe(Process* process, const format::StepRow& row, double ns, double share) {
    Incident& incident = process->incident;
    incident.last_step = std::max(incident.first_step, row.step);
    incident.end_ns = std::max(incident.start_ns, row.time_ns + row.duration_ns);
    incident.cost_seconds = process->cost_ns / 1e9;
    const Severity severity = share >= high_     ? Severity::kHigh
                              : share >= medium_ ? Severity::kMedium
                                                 : Severity::kLow;
    incident.severity = std::max(incident.severity, severity);
    const auto in_window = static_cast<double>(process->compiles.size());
    incident.message = fmt::format("Compiled again {} times while training", process->count);
    std::map<std::string, std::int64_t> frames;
    std::set<std::int64_t> batches;
    for (const Compile& c : process->compiles) {
      if (!c.frame.empty()) ++frames[c.frame];
      if (c.batch >= 0) batches.insert(c.batch);
    }
    const auto most =
        std::max_element(frames.begin(), frames.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::string frame = most != frames.end() && most->second > 1
                                  ? fmt::format(", {} of them frame {}", most->second, most->first)
                                  : std::string();
    const std::string times = fmt::format(
        "After the start {} compilations of {} ms each took {} % of the newest {} "
        "steps{}",
        process->compiles.size(), Millis(ns / in_window), Figure(100 * share),
        process->steps.size(), frame);
    if (batches.size() * 2 > process->compiles.size() && batches.size() > 2) {
      incident.cause =
          fmt::format("{}; {} different batch sizes came in them.", times, batches.size());
      incident.advice =
          process->torch
              ? "Give all batches one size (drop_last, pad to a few lengths), or compile with "
                "dynamic=True; torch._dynamo.mark_dynamic names the dimension."
              : "Give all batches one size: drop the last one (drop_remainder=True), pad to a few "
                "lengths.";
      incident.confidence = 0.9;
    } else {
      incident.cause = fmt::format("{}; the batch size does not explain them.", times);
      incident.advice =
          !process->torch
              ? "Look at the shapes and Python values that a compiled function is called with: pad "
                "to a few lengths, give numbers as arrays; jax_explain_cache_misses=True (JAX) or "
                "an input_signature (tf.function) names what differs."
              : "Run with TORCH_LOGS=recompiles, which names the guard that failed: mostly a "
                "length or a "
                "Python number that changes in each step; pad, mark it dynamic, or make it a "
                "tensor.";
      incident.confidence = 0.8;
    }
    nlohmann::ordered_json evidence;
    evidence["compilations"] = process->count;
    evidence["in_window"] = process->compiles.size();
    evidence["seconds"] = Rounded(process->cost_ns / 1e9);
    evidence["share"] = Rounded(share);
    evidence["batch_sizes"] = batches.size();
    if (most != frames.end()) {
      evidence["frame"] = most->first;
      evidence["of_that_frame"] = most->second;
    }
    incident.evidence = JsonText(evidence);
  }

  /// No record of the process follows.
  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  const std::int64_t warmup_;
  const std::size_t n_compiles_;
  const std::int64_t window_;
  const double low_;
  const double medium_;
  const double high_;

  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool compiles_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kRecompileStormDesc{
    .name = "RecompileStorm",
    .summary = "The model is compiled again and again while it trains.",
    .formula =
        "Events `compile` after warmup_steps. With n_compiles of them in the newest window_steps: "
        "share = Σ their durations / Σ duration of the TRAIN steps; low from low_share, medium "
        "from medium_share, high from high_share. The cause is the batch size where more than two "
        "sizes came in them, and more than half as many as there were compilations. Over when "
        "there was none in window_steps, and where the process ends. Cost = Σ their durations. Not "
        "applicable where nothing is compiled.",
    .how_to_fix =
        "Give all batches one shape (drop_last, padding to a few lengths), compile with "
        "dynamic=True, and keep Python numbers that change in each step out of the model; "
        "TORCH_LOGS=recompiles names the guard that failed.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "model = torch.compile(model, dynamic=False)  # and each batch has another length",
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeRecompileStorm(const Parameters& parameters) {
  return std::make_unique<RecompileStorm>(parameters);
}

}  // namespace telltale::rules::recompile_storm
