// SPDX-License-Identifier: Apache-2.0
// LoadBalancing: GPUs of one run are not equally used.
//
// SageMaker Debugger's rule of this name compares no two GPUs of one node (its loop over pairs is
// outside the loop that it belongs to), and drops samples of 99 and 100 %, so that a GPU at full
// load has an empty histogram and never differs. Here every pair is compared, those of two nodes
// too, and the last bin holds 100 %.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/node_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::load_balancing {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 0.5, "", "Jensen-Shannon distance (natural logarithm) of two GPUs.", nullptr,
     0.2},
    {"patience", 10, "samples", "Samples of each of the two before they are compared.", nullptr,
     1000},
    {"window", 500, "samples", "Newest samples of each GPU that are compared."},
    {"mean_difference", 10, "% points",
     "Their means must differ by this: few samples make a distance of their own."},
};

constexpr std::size_t kBins = 50;  ///< Of 2 %; the last holds 100.
constexpr std::size_t kPairsSaid = 16;
constexpr std::size_t kGpusCompared = 64;
constexpr std::int64_t kJudgeIntervalNs = 1'000'000'000;
constexpr std::string_view kSubject = "GPUs";

using Histogram = std::array<std::uint64_t, kBins>;

std::size_t BinOf(double percent) {
  return std::min(kBins - 1, static_cast<std::size_t>(std::clamp(percent, 0.0, 100.0) / 2));
}

/// √((KL(p‖m) + KL(q‖m)) / 2) with m = (p + q) / 2; between 0 and √ln 2.
double Distance(const Histogram& a, const Histogram& b, double of_a, double of_b) {
  double sum = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double p = static_cast<double>(a[i]) / of_a;
    const double q = static_cast<double>(b[i]) / of_b;
    const double m = (p + q) / 2;
    if (p > 0) sum += p * std::log(p / m);
    if (q > 0) sum += q * std::log(q / m);
  }
  return std::sqrt(std::max(0.0, sum / 2));
}

class LoadBalancing final : public Rule {
 public:
  explicit LoadBalancing(const Parameters& p)
      : threshold_(p.Get("threshold")),
        patience_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("patience")))),
        window_(std::max(patience_, static_cast<std::size_t>(
                                        std::clamp<std::int64_t>(p.GetInt("window"), 1, 100'000)))),
        mean_difference_(p.Get("mean_difference")) {}

  bool Wants(const Series& series) override { return sampler_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish([&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
    Judge(reporter);
    if (std::exchange(open_, false)) reporter->Close(incident_);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return gpus_.size() > 1 || has_data_ || !samples_seen_; }
  std::string Missing() const override {
    return gpus_.size() == 1 ? "only one GPU was seen" : std::string();
  }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [key, gpu] : gpus_) {
      if (gpu.values.empty()) continue;
      out["gpus"][gpu.name] = {{"samples", gpu.values.size()},
                               {"mean", Rounded(gpu.mean())},
                               {"histogram", gpu.histogram}};
    }
    for (const Pair& pair : Pairs()) {
      nlohmann::ordered_json said = {
          {"a", pair.a->name}, {"b", pair.b->name}, {"distance", Rounded(pair.distance)}};
      out["pairs"].push_back(std::move(said));
      if (out["pairs"].size() >= kPairsSaid) break;
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  struct Gpu {
    std::string name;
    std::deque<double> values;
    Histogram histogram{};
    double sum = 0;
    double mean() const { return values.empty() ? 0 : sum / static_cast<double>(values.size()); }
    bool used() const { return !values.empty() && histogram[0] < values.size(); }
  };
  struct Pair {
    const Gpu* a;
    const Gpu* b;
    double distance;
    double difference() const { return std::abs(a->mean() - b->mean()); }
  };

  void OnSample(const NodeSampler::Node& node, const NodeSample& sample, Reporter* reporter) {
    samples_seen_ = true;
    if (sample.attempt > attempt_) {
      if (std::exchange(open_, false)) reporter->Close(incident_);
      gpus_.clear();
      first_ns_ = 0;
      attempt_ = sample.attempt;
    }
    if (!sample.training() || sample.attempt < attempt_) return;
    for (const auto& [number, values] : sample.gpus) {
      if (!std::isfinite(values.utilization)) continue;
      const std::pair key(node.writer, number);
      if (gpus_.size() >= kGpusCompared && !gpus_.contains(key)) continue;
      Gpu& gpu = gpus_[key];
      if (gpu.name.empty()) gpu.name = GpuName(node, number);
      const double value = std::clamp(values.utilization, 0.0, 100.0);
      gpu.values.push_back(value);
      ++gpu.histogram[BinOf(value)];
      gpu.sum += value;
      if (gpu.values.size() <= window_) continue;
      --gpu.histogram[BinOf(gpu.values.front())];
      gpu.sum -= gpu.values.front();
      gpu.values.pop_front();
    }
    if (first_ns_ == 0) {
      first_ns_ = sample.from_ns;
      first_step_ = sample.first_step;
    }
    last_ns_ = std::max(last_ns_, sample.to_ns);
    last_step_ = std::max(last_step_, sample.last_step);
    if (last_ns_ < judged_ns_ + kJudgeIntervalNs) return;
    judged_ns_ = last_ns_;
    Judge(reporter);
  }

  /// All pairs that can be compared, the farthest first. A GPU that is not used has no load to
  /// balance: IdleAccelerators'.
  std::vector<Pair> Pairs() const {
    std::vector<Pair> pairs;
    for (auto a = gpus_.begin(); a != gpus_.end(); ++a) {
      if (a->second.values.size() < patience_ || !a->second.used()) continue;
      for (auto b = std::next(a); b != gpus_.end(); ++b) {
        if (b->second.values.size() < patience_ || !b->second.used()) continue;
        pairs.push_back({&a->second, &b->second,
                         Distance(a->second.histogram, b->second.histogram,
                                  static_cast<double>(a->second.values.size()),
                                  static_cast<double>(b->second.values.size()))});
      }
    }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& x, const Pair& y) { return x.distance > y.distance; });
    return pairs;
  }

  void Judge(Reporter* reporter) {
    const std::vector<Pair> pairs = Pairs();
    if (pairs.empty()) return;
    has_data_ = true;
    const double least = open_ ? mean_difference_ / 2 : mean_difference_;
    const double farthest = open_ ? 0.8 * threshold_ : threshold_;
    const Pair* worst = nullptr;
    std::size_t apart = 0;
    for (const Pair& pair : pairs) {
      if (pair.distance <= farthest || pair.difference() < least) continue;
      ++apart;
      if (worst == nullptr || pair.difference() > worst->difference()) worst = &pair;
    }
    if (worst == nullptr) {
      if (std::exchange(open_, false)) reporter->Recover(incident_);
      return;
    }
    if (!open_) {
      open_ = true;
      incident_ = Incident();
      incident_.subject = kSubject;
      incident_.first_step = first_step_;
      incident_.start_ns = first_ns_;
    }
    incident_.last_step = last_step_;
    incident_.end_ns = last_ns_;
    const Gpu& high = worst->a->mean() >= worst->b->mean() ? *worst->a : *worst->b;
    const Gpu& low = &high == worst->a ? *worst->b : *worst->a;
    incident_.severity = Severity::kMedium;
    incident_.message = "GPUs are not equally used";
    incident_.cause = fmt::format(
        "{} is busy for {:.0f} % on average, {} for {:.0f} % (distance {}); {} of {} pairs differ "
        "so much.",
        high.name, high.mean(), low.name, low.mean(), Plain(worst->distance), apart, pairs.size());
    incident_.advice =
        "Give every GPU as much work: DistributedDataParallel instead of DataParallel, shards of "
        "one size, batches of like lengths; look at Straggler for the rank that is late.";
    incident_.confidence = 0.8;
    nlohmann::ordered_json evidence;
    evidence["pairs"] = pairs.size();
    evidence["pairs_apart"] = apart;
    evidence["distance"] = Rounded(worst->distance);
    evidence["farthest"] = Rounded(pairs.front().distance);
    evidence["mean_high"] = Rounded(high.mean());
    evidence["mean_low"] = Rounded(low.mean());
    evidence["high"] = high.name;
    evidence["low"] = low.name;
    evidence["samples"] = std::min(high.values.size(), low.values.size());
    incident_.evidence = JsonText(evidence);
    reporter->Report(incident_);
  }

  const double threshold_;
  const std::size_t patience_;
  const std::size_t window_;
  const double mean_difference_;

  NodeSampler sampler_;
  std::map<std::pair<std::uint32_t, int>, Gpu> gpus_;  ///< By writer and number.
  std::uint32_t attempt_ = 0;
  std::int64_t first_ns_ = 0;
  std::int64_t last_ns_ = 0;
  std::int64_t judged_ns_ = 0;
  std::int64_t first_step_ = -1;
  std::int64_t last_step_ = -1;
  bool samples_seen_ = false;
  bool open_ = false;
  Incident incident_;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kLoadBalancingDesc{
    .name = "LoadBalancing",
    .summary = "GPUs of one run are not equally used.",
    .formula =
        "Histograms of each GPU's utilization, in 50 bins of 2 % (the last holds 100), over its "
        "newest `window` samples between which TRAIN steps of its node took at least half of the "
        "time. For every pair with `patience` samples each, of one node or two: √((KL(p‖m) + "
        "KL(q‖m)) / 2), m = (p + q) / 2, natural logarithm, so 0 to 0.833. An incident where a "
        "pair's distance > threshold and its means differ by at least mean_difference; one "
        "incident for all pairs. Over where no pair is above 0.8 × threshold with half of that "
        "difference, or the attempt ends. A GPU below 2 % in all samples is not used and not "
        "compared. Medium. Cost 0: who waits for whom, Straggler says.",
    .how_to_fix =
        "Use DistributedDataParallel instead of DataParallel, shards and batches of one size.",
    .table_mask = NodeSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example = "torch.nn.DataParallel, whose first GPU gathers all outputs and computes the loss.",
    .standing = {.theme = Theme::kRanks, .order = 1},
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kGpuLoad, Datum::kSteps),
};

std::unique_ptr<Rule> MakeLoadBalancing(const Parameters& parameters) {
  return std::make_unique<LoadBalancing>(parameters);
}

}  // namespace telltale::rules::load_balancing
