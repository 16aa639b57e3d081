// SPDX-License-Identifier: Apache-2.0
// GradientsNotCleared: each step uses the gradients of all steps before, for the loop never calls
// optimizer.zero_grad(). Reads the events `loop.gradients` of the adapter for PyTorch.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::gradients_not_cleared {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_looks", 8, "looks", "Steps that were looked at before anything is said."},
};

class GradientsNotCleared final : public LoopRule<LoopProcess> {
 public:
  explicit GradientsNotCleared(const Parameters& p) : min_looks_(p.Get("min_looks")) {}

 protected:
  std::string Lacks() const override { return "whether gradients are cleared was not recorded"; }
  bool Reads(std::string_view kind) const override { return kind == "loop.gradients"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               LoopProcess* process) override {
    SeesData();
    const std::int64_t since = IntegerIn(data, "since_step");
    const double looked = NumberIn(data, "looked");
    const std::string optimizer = TextIn(data, "class");
    const auto known = process->said.find(optimizer);
    if (FlagIn(data, "cleared", true)) {
      // Another optimizer of this class may be as it should be: only what changed later counts.
      if (known != process->said.end() && since > known->second.first_step + kLaterSteps) {
        TakeBack(process, optimizer);
      }
      return;
    }
    if (looked < min_looks_ || known != process->said.end()) return;
    Incident incident = BeginAt(since, event.time_ns, Severity::kHigh);
    incident.message = fmt::format(
        "Gradients of all steps since step {} add up: zero_grad() is not called between them",
        incident.first_step);
    incident.cause = fmt::format(
        "The gradients that {} had used were still there at the next backward, which added to "
        "them; so it was in each of the newest steps that were looked at, since step {}. The "
        "optimizer follows the sum of all gradients so far and not that of its batch.",
        optimizer, incident.first_step);
    incident.advice =
        "Call optimizer.zero_grad() before loss.backward(); where gradients of several batches "
        "are added on purpose, once behind each optimizer.step().";
    incident.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["optimizer"] = optimizer;
    evidence["since_step"] = incident.first_step;
    evidence["looked"] = looked;
    incident.evidence = JsonText(evidence);
    Say(process, optimizer, std::move(incident));
  }

 private:
  /// The first looks of all optimizers lie within so many steps.
  static constexpr std::int64_t kLaterSteps = 16;

  const double min_looks_;
};

}  // namespace

const RuleDesc kGradientsNotClearedDesc{
    .name = "GradientsNotCleared",
    .summary = "Gradients of earlier steps are never cleared, so they add up.",
    .formula =
        "Events `loop.gradients`: at a backward the gradients that the optimizer had used in its "
        "last step are still there, unchanged, in 8 looks in a row (min_looks in all): high. "
        "Gradients that are added over several batches before a step are not meant: they had not "
        "been used. Over where 8 looks in a row find them cleared, and where the process ends.",
    .how_to_fix =
        "Call optimizer.zero_grad() once a step, before backward() or behind optimizer.step().",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "for x, y in loader: loss_of(model(x), y).backward(); optimizer.step()",
    .standing = {.theme = Theme::kLearning, .order = 0},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeGradientsNotCleared(const Parameters& parameters) {
  return std::make_unique<GradientsNotCleared>(parameters);
}

}  // namespace telltale::rules::gradients_not_cleared
