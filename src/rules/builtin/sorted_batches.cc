// SPDX-License-Identifier: Apache-2.0
// SortedBatches: each batch holds samples of one class, since the data is sorted by class and not
// shuffled. Reads the events `loss.labels` of the adapter for PyTorch.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::sorted_batches {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_batches", 20, "batches", "Fewer batches than this say nothing."},
    {"one_class_share", 80, "%", "Share of the batches with labels of one class."},
};

struct Process : LoopProcess {};

class SortedBatches final : public LoopRule<Process> {
 public:
  explicit SortedBatches(const Parameters& p)
      : min_batches_(p.Get("min_batches")), share_(p.Get("one_class_share") / 100) {}

 protected:
  std::string Lacks() const override {
    if (looks_ == 0) return "no batch of 8 labels or more of a cross-entropy loss was looked at";
    return fmt::format("the labels of {:.0f} batches were looked at, {:.0f} are needed", looks_,
                       min_batches_);
  }
  bool Reads(std::string_view kind) const override { return kind == "loss.labels"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    const double looks = NumberIn(data, "looks");
    looks_ = std::max(looks_, looks);
    if (!(looks >= min_batches_)) return;
    SeesData();
    const double one = NumberIn(data, "one_class");
    const double classes = NumberIn(data, "classes_alone");
    // Where all batches hold the same class, the data has no other: ClassImbalance's.
    if (one < share_ * looks || classes < 2) {
      TakeBack(process, "");
      return;
    }
    // Two classes that take turns are often meant so: a discriminator's real and made samples.
    Incident incident =
        BeginAt(0, event.time_ns, classes > 2 ? Severity::kHigh : Severity::kMedium);
    incident.message = "Each batch holds samples of a single class";
    incident.cause = fmt::format(
        "{:.0f} of {:.0f} batches that were looked at, of {:.0f} samples each, had labels of a "
        "single class, and {:.0f} classes had such batches: the samples seem to be sorted by class "
        "and not shuffled. Each batch makes the model forget the classes of the batches before it, "
        "and the loss of a batch says little about the others.",
        one, looks, NumberIn(data, "batch_size"), classes);
    incident.advice =
        "Set shuffle=True in the DataLoader; where it has a sampler, shuffle there (RandomSampler, "
        "DistributedSampler with shuffle=True). Where it reads a stream (IterableDataset), shuffle "
        "the files once, and samples in a buffer of some thousand.";
    incident.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["batches"] = looks;
    evidence["one_class"] = one;
    evidence["classes"] = classes;
    evidence["batch_size"] = NumberIn(data, "batch_size");
    incident.evidence = JsonText(evidence);
    Say(process, "", std::move(incident));
  }

 private:
  double looks_ = 0;  ///< Batches of labels that were looked at.
  const double min_batches_;
  const double share_;
};

}  // namespace

const RuleDesc kSortedBatchesDesc{
    .name = "SortedBatches",
    .summary = "Each batch holds samples of one class: the data is sorted and not shuffled.",
    .formula =
        "Events `loss.labels`: of at least min_batches batches, of at least 8 samples each, "
        "one_class_share had labels of a single class, and at least two classes had such batches. "
        "High, of two classes medium. Over where a later event says otherwise, and where the "
        "process ends.",
    .how_to_fix = "Shuffle the samples: shuffle=True in the DataLoader.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "DataLoader(ImageFolder(path), batch_size=32)  # no shuffle=True",
    .standing = {.theme = Theme::kLearning, .order = 1},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeSortedBatches(const Parameters& parameters) {
  return std::make_unique<SortedBatches>(parameters);
}

}  // namespace telltale::rules::sorted_batches
