// SPDX-License-Identifier: Apache-2.0
#include "analysis/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace telltale::analysis {
namespace {

constexpr std::size_t kMostBlocks = 64;
constexpr std::size_t kFewestBlocks = 8;
/// Batches that differ by more make steps that cannot be compared.
constexpr double kSameBatch = 0.01;
/// Of the common steps, the last part in which losses are compared.
constexpr double kLossPart = 0.2;

std::int64_t BeginOf(const Columns& series, std::size_t column) {
  return series.begin() + static_cast<std::int64_t>(column) * series.width();
}

double MeanOfValues(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double MeanOf(const Column& column) { return column.sum / static_cast<double>(column.count); }

/// Means of the columns that begin in [from, to].
std::vector<double> Means(const Columns& series, std::int64_t from, std::int64_t to) {
  std::vector<double> out;
  for (std::size_t i = 0; i < series.columns().size(); ++i) {
    const std::int64_t begin = BeginOf(series, i);
    if (begin < from || begin > to || series.columns()[i].count == 0) continue;
    out.push_back(MeanOf(series.columns()[i]));
  }
  return out;
}

std::vector<double> Means(const Columns& series) {
  if (series.empty()) return {};
  return Means(series, series.begin(), series.last());
}

/// Means of step time by columns; one of the first step alone is left out. Means, for runs of
/// other lengths have columns of other widths: of those any other measure is another one.
std::vector<double> StepMeans(const Columns& series) {
  std::vector<double> out;
  for (std::size_t i = 0; i < series.columns().size(); ++i) {
    const Column& column = series.columns()[i];
    if (column.count == 0 || (i == 0 && column.count == 1)) continue;
    out.push_back(MeanOf(column));
  }
  return out;
}

/// `scale`: what a change is a share of. `sign`: 1 where more is worse, −1 where less is. Means
/// must have changed too: where each tenth step is slow, blocks of seven have other medians than
/// long ones, and the same mean.
void Judge(Measure* measure, double scale, double sign, const CompareOptions& options) {
  measure->change = scale > 0 ? (measure->b - measure->a) / scale : 0;
  if (!measure->p) return;
  measure->verdict = Change::kSame;
  const double of_means = scale > 0 ? (measure->mean_b - measure->mean_a) / scale : 0;
  const double least = measure->change > 0 ? std::min(measure->change, of_means)
                                           : std::min(-measure->change, -of_means);
  if (*measure->p > options.alpha || least < options.threshold || measure->change == 0) return;
  measure->verdict = measure->change * sign > 0 ? Change::kWorse : Change::kBetter;
}

/// Medians, sizes and, where there are enough blocks, the test. `inflated`: it is wider where
/// blocks still correlate. A loss is a curve, whose bend is no wandering.
Measure Of(std::string name, std::string unit, std::vector<double> a, std::vector<double> b,
           const CompareOptions& options, bool inflated = true) {
  Measure out;
  out.name = std::move(name);
  out.unit = std::move(unit);
  a = Blocks(std::move(a), kMostBlocks, kFewestBlocks);
  b = Blocks(std::move(b), kMostBlocks, kFewestBlocks);
  out.a = MedianOfValues(a);
  out.b = MedianOfValues(b);
  out.mean_a = MeanOfValues(a);
  out.mean_b = MeanOfValues(b);
  out.blocks_a = a.size();
  out.blocks_b = b.size();
  if (a.size() < kFewestBlocks || b.size() < kFewestBlocks) return out;
  out.p = MannWhitney(a, b, inflated ? std::max(Inflation(a), Inflation(b)) : 1);
  out.delta = CliffsDelta(a, b);
  if (out.a > 0 && out.b > 0) out.interval = RatioInterval(a, b, options.resamples);
  return out;
}

/// Samples of a step of the rank that is shown; 0 where not known.
double BatchOf(const Summary& summary) {
  const StepGroup* group = summary.Train(summary.train_rank());
  if (group == nullptr || group->steady_ns.count() == 0) return 0;
  return static_cast<double>(group->steady_samples) / static_cast<double>(group->steady_ns.count());
}

/// Of blocks: the mean of rates is no rate.
std::vector<double> Throughput(const std::vector<double>& step_ns, double batch) {
  std::vector<double> out;
  for (const double ns : Blocks(step_ns, kMostBlocks, kFewestBlocks)) {
    if (ns > 0) out.push_back(batch * 1e9 / ns);
  }
  return out;
}

void CompareSteps(const Summary& a, const Summary& b, const CompareOptions& options,
                  Comparison* out) {
  const std::vector<double> steps_a = StepMeans(a.step_ns);
  const std::vector<double> steps_b = StepMeans(b.step_ns);
  if (steps_a.empty() || steps_b.empty()) {
    out->notes.emplace_back("No training steps on one side: nothing is said of speed.");
    return;
  }
  const double batch_a = BatchOf(a);
  const double batch_b = BatchOf(b);
  const bool same_batch = batch_a == 0 || batch_b == 0 ||
                          std::abs(batch_a - batch_b) <= kSameBatch * std::max(batch_a, batch_b);
  Measure step = Of("step time", "ns", steps_a, steps_b, options);
  step.gates = same_batch;
  Judge(&step, step.a, 1, options);
  const double step_ns = step.a;
  if (!step.p) {
    out->notes.emplace_back(
        "Too few steps to tell a change from chance: at least ten on either side are needed, and "
        "more where their times wander.");
  }
  out->measures.push_back(std::move(step));
  if (!same_batch) {
    out->notes.emplace_back("Batch sizes differ: throughput is judged, not step time.");
  }

  std::vector<Measure> phases;
  std::vector<double> p;
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    Measure phase = Of(std::string(kPhases[i]), "ns", Means(a.phases.columns[i]),
                       Means(b.phases.columns[i]), options);
    if (phase.blocks_a == 0 || phase.blocks_b == 0 || (phase.a == 0 && phase.b == 0)) continue;
    if (phase.p) p.push_back(*phase.p);
    phases.push_back(std::move(phase));
  }
  const std::vector<double> corrected = Holm(p);
  std::size_t at = 0;
  for (Measure& phase : phases) {
    if (phase.p) phase.p = corrected[at++];
    Judge(&phase, step_ns, 1, options);
    out->measures.push_back(std::move(phase));
  }

  if (batch_a > 0 && batch_b > 0) {
    Measure measure = Of("throughput", "samples/s", Throughput(steps_a, batch_a),
                         Throughput(steps_b, batch_b), options);
    // Of equal batches it is the step time once more.
    measure.gates = !same_batch;
    Judge(&measure, measure.a, -1, options);
    out->measures.push_back(std::move(measure));
  }
}

/// Largest of each memory metric over the nodes, by "name of subject".
std::map<std::string, double> Peaks(const Summary& summary) {
  std::map<std::string, double> out;
  for (const auto& [key, total] : summary.metrics) {
    const bool memory =
        (key.name == "proc.rss" && key.subject == "proc:tree") || key.name == "gpu.memory_used";
    if (!memory || total.values.count() == 0) continue;
    double& peak = out[key.name + " of " + key.subject];
    peak = std::max(peak, total.values.max());
  }
  return out;
}

void CompareMemory(const Summary& a, const Summary& b, const CompareOptions& options,
                   Comparison* out) {
  const std::map<std::string, double> before = Peaks(a);
  for (const auto& [name, peak] : Peaks(b)) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    Measure measure;
    measure.name = name;
    measure.unit = "bytes";
    measure.a = found->second;
    measure.b = peak;
    Judge(&measure, measure.a, 1, options);
    out->measures.push_back(std::move(measure));
  }
}

void CompareLoss(const std::string& name, const Columns& a, const Columns& b,
                 const CompareOptions& options, Comparison* out) {
  if (a.empty() != b.empty()) {
    out->notes.push_back("Only " + std::string(a.empty() ? "B" : "A") + " has a " + name + ".");
  }
  if (a.empty() || b.empty()) return;
  const std::int64_t from = std::max(a.begin(), b.begin());
  const std::int64_t to = std::min(a.last(), b.last());
  if (to < from) {
    out->notes.push_back("The runs have no step in common with a " + name + ".");
    return;
  }
  const auto at = [](const Columns& series, std::int64_t step) -> std::optional<double> {
    const auto index = static_cast<std::size_t>((step - series.begin()) / series.width());
    if (index >= series.columns().size() || series.columns()[index].count == 0) return std::nullopt;
    return MeanOf(series.columns()[index]);
  };
  std::int64_t before = from - 1;
  for (std::size_t i = 0; i < Comparison::kLossSteps; ++i) {
    const std::int64_t step = from + (to - from) * static_cast<std::int64_t>(i) /
                                         static_cast<std::int64_t>(Comparison::kLossSteps - 1);
    const auto of_a = at(a, step);
    const auto of_b = at(b, step);
    if (step == before || !of_a || !of_b) continue;
    before = step;
    out->losses.push_back({name, step, *of_a, *of_b});
  }
  const auto part = static_cast<std::int64_t>(static_cast<double>(to - from) * (1 - kLossPart));
  Measure measure =
      Of(name, "", Means(a, from + part, to), Means(b, from + part, to), options, false);
  if (measure.blocks_a == 0 || measure.blocks_b == 0) return;
  measure.gates = true;
  Judge(&measure, std::abs(measure.a), 1, options);
  out->measures.push_back(std::move(measure));
}

void CompareNotFinite(const Summary& a, const Summary& b, Comparison* out) {
  const std::uint64_t before = a.scalars().loss_not_finite;
  const std::uint64_t after = b.scalars().loss_not_finite;
  if (before == 0 && after == 0) return;
  Measure measure;
  measure.name = "losses that are no number";
  measure.a = static_cast<double>(before);
  measure.b = static_cast<double>(after);
  // Chance makes none of a sound training: no test is needed.
  measure.gates = true;
  measure.verdict = before == 0 ? Change::kWorse : after == 0 ? Change::kBetter : Change::kSame;
  out->measures.push_back(std::move(measure));
}

/// One of several gates shuts by chance more often than one alone.
void CorrectGates(const CompareOptions& options, Comparison* out) {
  std::vector<Measure*> gates;
  std::vector<double> p;
  for (Measure& measure : out->measures) {
    if (!measure.gates || !measure.p) continue;
    gates.push_back(&measure);
    p.push_back(*measure.p);
  }
  const std::vector<double> corrected = Holm(p);
  for (std::size_t i = 0; i < gates.size(); ++i) {
    gates[i]->p = corrected[i];
    if (corrected[i] > options.alpha) gates[i]->verdict = Change::kSame;
  }
}

}  // namespace

const std::string_view kCompareMethod =
    "Mann-Whitney test, two-sided, on means of blocks of consecutive steps (at most 64 a run, made "
    "longer until neighbours correlate by 0.3 at most; at least 8, and where times still do the "
    "test is made wider by it), effect: Cliff's delta and the ratio of medians with a 95 % "
    "bootstrap interval over blocks; medians and means must both have changed by the threshold. "
    "Phases are corrected together (Holm), and so is what gates; losses are compared in the last "
    "fifth of the common steps. Chance between two starts of one training is not in it: compare "
    "runs of the same machine.";

std::string_view Name(Change change) {
  constexpr std::array<std::string_view, 4> kNames = {"same", "worse", "better", "untested"};
  return kNames[static_cast<std::size_t>(change)];
}

bool Comparison::regression() const {
  return std::any_of(measures.begin(), measures.end(),
                     [](const Measure& m) { return m.gates && m.verdict == Change::kWorse; });
}

bool Comparison::judged() const {
  return std::any_of(measures.begin(), measures.end(),
                     [](const Measure& m) { return m.gates && m.verdict != Change::kUntested; });
}

Comparison Compare(const Summary& a, const Summary& b, const CompareOptions& options) {
  Comparison out;
  CompareSteps(a, b, options, &out);
  CompareMemory(a, b, options, &out);
  CompareLoss("loss", a.scalars().loss, b.scalars().loss, options, &out);
  CompareLoss("eval loss", a.scalars().eval_loss, b.scalars().eval_loss, options, &out);
  CompareNotFinite(a, b, &out);
  CorrectGates(options, &out);
  return out;
}

}  // namespace telltale::analysis
