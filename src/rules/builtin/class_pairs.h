// SPDX-License-Identifier: Apache-2.0
// Two classes that a classifier takes for each other while it has learned the others, by the
// events `batch.classes`. A model that has not learned yet takes many for many, and one that learns
// by heart hides the pair in the training in the end: so the newest counts and those before them
// are judged, each in its time. Thread safety: none. Memory: the counts of some thousand samples.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/batch_classes.h"
#include "rules/builtin/loop_rule.h"

namespace telltale::rules {

struct ClassPairsProcess : LoopProcess {
  std::array<std::deque<ClassCounts>, 2> newest;  ///< Training, evaluation; the newest last.
};

class ClassPairs final : public LoopRule<ClassPairsProcess> {
 protected:
  std::string Lacks() const override {
    if (classes_ > 0 && classes_ < kLeastClasses) {
      return fmt::format("the loss has {} classes, and pairs are judged from {} classes on",
                         classes_, kLeastClasses);
    }
    return LabelsLacking(samples_, Enough(classes_));
  }
  bool Reads(std::string_view kind) const override { return kind == "batch.classes"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               ClassPairsProcess* process) override {
    auto counts = ClassCountsOf(data, kMostClasses);
    // Of the two classes of a GAN's or of a sampled loss none is to be learned before the other.
    if (!counts) return;
    classes_ = counts->classes;
    if (classes_ < kLeastClasses) return;
    const bool evaluation = TextIn(data, "mode") == "EVAL";
    auto& newest = process->newest[evaluation ? 1 : 0];
    if (!newest.empty() && newest.back().classes != counts->classes) newest.clear();
    newest.push_back(std::move(*counts));
    Judge(event, newest, evaluation, process);
  }

 private:
  static constexpr std::size_t kMostClasses = 256;
  static constexpr std::size_t kMostKept = 128;
  // Of a pool: samples at least, and of each class on the average.
  static constexpr std::uint64_t kLeastSamples = 250;
  static constexpr std::size_t kLeastClasses = 4;
  static constexpr std::uint64_t kOfClass = 25;
  static constexpr std::uint64_t kLeastOfClass = 10;
  static constexpr std::uint64_t kLeastOfOthers = 100;
  /// Of the others, the share that is predicted right where they are learned.
  static constexpr double kLearned = 0.9;
  /// Of the pair's labels the share that is taken for the other one, beyond doubt (z).
  static constexpr double kConfused = 0.25;
  static constexpr double kDoubt = 2.6;
  static constexpr double kOver = 0.15;
  /// Of the mistakes of both classes the share that the other one gets.
  static constexpr double kBetweenThem = 0.8;

  static std::uint64_t Enough(std::size_t classes) {
    return std::max<std::uint64_t>(kLeastSamples, kOfClass * classes);
  }

  struct Pool {
    std::vector<std::uint64_t> labels, right, counts;  ///< counts[label * classes + predicted].
    std::size_t classes = 0;
    std::uint64_t samples = 0;
    std::int64_t first_step = -1;
    std::int64_t last_step = -1;

    explicit Pool(std::size_t of_classes)
        : labels(of_classes),
          right(of_classes),
          counts(of_classes * of_classes),
          classes(of_classes) {}
    void Add(const ClassCounts& more) {
      for (const ClassCounts::Pair& pair : more.pairs) {
        labels[pair.label] += pair.count;
        if (pair.label == pair.predicted) right[pair.label] += pair.count;
        counts[pair.label * classes + pair.predicted] += pair.count;
      }
      samples += more.samples;
      first_step = first_step < 0 ? more.first_step : std::min(first_step, more.first_step);
      last_step = std::max(last_step, more.step);
    }
  };

  /// Two classes in a pool.
  struct Pair {
    std::size_t a = 0;
    std::size_t b = 0;
    std::uint64_t labels = 0;
    std::uint64_t taken = 0;  ///< Of them, for the other one.
    double share = 0;
    double least_share = 0;
    double between = 0;  ///< Of the mistakes of both.
    double others_right = 0;
    std::uint64_t others = 0;

    bool OthersLearned() const { return others >= kLeastOfOthers && others_right >= kLearned; }
  };

  static Pair PairOf(const Pool& pool, std::size_t a, std::size_t b) {
    Pair out{.a = a, .b = b, .labels = pool.labels[a] + pool.labels[b]};
    out.taken = pool.counts[a * pool.classes + b] + pool.counts[b * pool.classes + a];
    const std::uint64_t right_of_both = pool.right[a] + pool.right[b];
    const auto labels = static_cast<double>(out.labels);
    out.share = out.labels == 0 ? 0 : static_cast<double>(out.taken) / labels;
    out.least_share = LeastShare(static_cast<double>(out.taken), labels, kDoubt);
    const std::uint64_t mistakes = out.labels - right_of_both;
    out.between =
        mistakes == 0 ? 0 : static_cast<double>(out.taken) / static_cast<double>(mistakes);
    std::uint64_t right = 0;
    for (const std::uint64_t of_class : pool.right) right += of_class;
    out.others = pool.samples - out.labels;
    if (out.others > 0) {
      out.others_right =
          static_cast<double>(right - right_of_both) / static_cast<double>(out.others);
    }
    return out;
  }

  /// The pair that is confused the most.
  static Pair WorstOf(const Pool& pool) {
    Pair worst;
    for (std::size_t a = 0; a < pool.classes; ++a) {
      for (std::size_t b = a + 1; b < pool.classes; ++b) {
        if (pool.labels[a] < kLeastOfClass || pool.labels[b] < kLeastOfClass) continue;
        Pair pair = PairOf(pool, a, b);
        if (pair.least_share > worst.least_share) worst = pair;
      }
    }
    return worst;
  }

  /// The newest counts, and those before them, each at least so many samples; false: too few came.
  static bool Fill(const std::deque<ClassCounts>& newest, std::uint64_t least, Pool* now,
                   std::uint64_t least_before, Pool* before) {
    for (auto counts = newest.rbegin(); counts != newest.rend() && before->samples < least_before;
         ++counts) {
      (now->samples < least ? *now : *before).Add(*counts);
    }
    return now->samples >= least && before->samples >= least_before;
  }

  /// A pool of few samples leaves doubt where a larger one does not.
  static constexpr std::uint64_t kLargest = 4;  ///< Times the smallest.

  void Judge(const format::EventRow& event, std::deque<ClassCounts>& newest, bool evaluation,
             ClassPairsProcess* process) {
    const std::size_t classes = newest.back().classes;
    const std::uint64_t enough = Enough(classes);
    if (newest.size() > kMostKept) newest.pop_front();
    Pool smallest(classes);
    Pool none(classes);
    Fill(newest, enough, &smallest, 1, &none);
    samples_ = std::max(samples_, smallest.samples);
    if (smallest.samples < enough) return;
    SeesData();
    const std::string about = evaluation ? "evaluation" : "";
    if (IsSaid(*process, about)) {
      const Pair pair = WorstOf(smallest);
      if (pair.share < kOver) {
        TakeBack(process, about);
      } else {
        Describe(event, smallest, pair, evaluation, process);
      }
      return;
    }
    for (std::uint64_t times = 1; times <= kLargest; times *= 2) {
      Pool now(classes);
      Pool before(classes);
      if (!Fill(newest, times * enough, &now, enough / 2, &before)) return;
      const Pair pair = WorstOf(now);
      if (pair.labels == 0) continue;
      const Pair earlier = PairOf(before, pair.a, pair.b);
      const bool lasts = earlier.labels >= 2 * kLeastOfClass && earlier.share > kConfused &&
                         earlier.others_right >= kLearned;
      if (pair.least_share > kConfused && pair.between >= kBetweenThem && pair.OthersLearned() &&
          lasts) {
        Describe(event, now, pair, evaluation, process);
        return;
      }
    }
  }

  void Describe(const format::EventRow& event, const Pool& pool, const Pair& pair, bool evaluation,
                ClassPairsProcess* process) {
    Incident incident =
        BeginAt(std::max<std::int64_t>(0, pool.first_step), event.time_ns, Severity::kMedium);
    const char* const of = evaluation ? "evaluation" : "training";
    incident.message = fmt::format("The model confuses classes {} and {} with each other in the {}",
                                   pair.a, pair.b, of);
    incident.cause = fmt::format(
        "Of {} labels of these two classes in steps {} to {}, {:.0f} % are predicted as the other "
        "one, while {:.0f} % of the labels of the other classes are predicted right.",
        pair.labels, pool.first_step, pool.last_step, 100 * pair.share, 100 * pair.others_right);
    incident.advice = fmt::format(
        "Look at samples of classes {} and {} with their labels: labels that were mixed up look "
        "like this, and so do classes that the inputs do not tell apart.",
        pair.a, pair.b);
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["of"] = of;
    evidence["classes"] = {pair.a, pair.b};
    evidence["labels"] = pair.labels;
    evidence["taken_for_the_other"] = pair.taken;
    evidence["share"] = Rounded(pair.share);
    evidence["others"] = pair.others;
    evidence["others_right"] = Rounded(pair.others_right);
    incident.evidence = JsonText(evidence);
    Say(process, evaluation ? "evaluation" : "", std::move(incident));
  }

  std::size_t classes_ = 0;    ///< Of the newest labels.
  std::uint64_t samples_ = 0;  ///< Labels that were looked at together.
};

}  // namespace telltale::rules
