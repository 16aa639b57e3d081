// SPDX-License-Identifier: Apache-2.0
// BoostedModel: what is wrong with a model of boosted trees by what it is at the end of its
// training. FeatureImportanceOverweight, TreeDepth, Confusion and ClassImbalance look at the same
// things over captures that a user asks for; here a few figures that cost next to nothing are
// enough, and only what they say beyond doubt is told. What is said is in boosted_verdicts.cc.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "rules/builtin/boosted_verdicts.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::boosted_model {
namespace {

struct Part {
  std::string_view name;  ///< In subjects: one training may have several findings.
  Verdict (*judge)(const Model&);
};
constexpr std::array<Part, 4> kParts = {{{"leak", LeakOf},
                                         {"depth", DeepTreesOf},
                                         {"confusion", ConfusedPairOf},
                                         {"classes", RareClassesOf}}};

class BoostedModel final : public Rule {
 public:
  bool Wants(const Series& series) override {
    static_cast<void>(series);
    return false;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    const auto* event = record.As<format::EventRow>();
    if (event == nullptr) return;
    if (event->kind == "process.exit") {
      processes_.End(*event, record.writer, [&](Process* process) { Say(process, reporter); });
      return;
    }
    const bool begins = event->kind == "boosting.start";
    if (!begins && event->kind != "boosting.model") return;
    begun_ = true;
    Process* const process =
        processes_.Find(*event, record.writer, [&](Process* former) { Say(former, reporter); });
    if (process == nullptr) return;
    if (begins) {
      Say(process, reporter);
      process->first_step = std::max<std::int64_t>(0, event->step);
      process->start_ns = event->time_ns;
    } else if (auto model = ModelOf(event->data)) {
      has_data_ = true;
      process->model = std::move(model);
      process->last_step = std::max<std::int64_t>(0, event->step);
      process->end_ns = event->time_ns;
      // Its training goes on: what is said of it later counts.
      process->open = !process->model->final;
      if (process->model->final) Say(process, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Say(&process, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return begun_; }
  std::string Missing() const override {
    return begun_ ? "the boosted trees were not recorded" : "no boosted trees were trained";
  }

 private:
  struct Process : TrainingProcess {
    std::optional<Model> model;  ///< That was not judged yet.
    std::int64_t first_step = 0;
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
  };

  /// The training is over, by itself or not.
  void Say(Process* process, Reporter* reporter) {
    process->open = false;
    if (!process->model) return;
    const Model model = *std::exchange(process->model, std::nullopt);
    for (const Part& part : kParts) {
      Verdict verdict = part.judge(model);
      if (!verdict) continue;
      processes_.Open(process, process->first_step, process->start_ns);
      verdict->subject =
          fmt::format("{}, training {}, {}", process->incident.subject, model.training, part.name);
      verdict->first_step = process->first_step;
      verdict->last_step = std::max(process->first_step, process->last_step);
      verdict->start_ns = process->start_ns;
      verdict->end_ns = std::max(process->start_ns, process->end_ns);
      reporter->Report(*verdict);
      reporter->Close(*verdict);
      process->open = false;
    }
  }

  ProcessTable<Process> processes_;
  bool begun_ = false;  ///< Boosting was seen.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kBoostedModelDesc{
    .name = "BoostedModel",
    .summary =
        "An XGBoost model has a feature that may leak the target, trees that are too deep, or "
        "confused or rare classes.",
    .formula =
        "Judges the last event boosting.model of each training; medium each. Leak: one of at least "
        "4 features has 95 % of the total gain, and of at least 50 rows of the last evaluation set "
        "(without one, of the training data) 99 % are predicted right while no class has more than "
        "90 % of them. Depth: max_depth was set above 6, rows < 4 × 2^max_depth, 40 % of the "
        "leaves of the first round have 5 rows or fewer, the validation loss is above twice the "
        "training loss, and with the same trees cut at depth max_depth / 2 the validation loss is "
        "no higher; a large depth alone is not reported. Confusion, of three classes or more and "
        "of an evaluation set: of the rows of two classes (30, and 10 of each) 35 % are predicted "
        "as the other one, beyond doubt 25 % (two standard errors), while 80 % of all other rows "
        "are right. Classes: one has fewer than 20 rows of the training data and at most a tenth "
        "of the median class, and rows are not weighted; a small share alone is not reported. "
        "Costs no time: the result is at stake.",
    .how_to_fix =
        "Leak: remove features that are not known at the time of prediction. Depth: a smaller "
        "max_depth, a larger min_child_weight. Confusion: look at the labels of the two classes, "
        "then at what tells them apart. Classes: more rows, weights by class, or leave the class "
        "out. FeatureImportanceOverweight, TreeDepth, Confusion and ClassImbalance look closer, "
        "with thresholds of your own.",
    .table_mask = store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = {},
    .captures = {},
    .example = "A column that was made of the label: `df[\"score\"] = df[\"churned\"] + noise`.",
    .standing = {.theme = Theme::kNone, .order = 0},
};

std::unique_ptr<Rule> MakeBoostedModel(const Parameters& parameters) {
  static_cast<void>(parameters);
  return std::make_unique<BoostedModel>();
}

}  // namespace telltale::rules::boosted_model
