// SPDX-License-Identifier: Apache-2.0
// Capture plans: files, requests, the words of --collect and --window.
#include "fuzz.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"

namespace telltale::fuzz {
namespace {

void CheckPlan(const Result<plan::CapturePlan>& read) {
  if (!read.ok()) return;
  const auto again = plan::FromJson(plan::ToJson(*read));
  Require(again.ok() && *again == *read);
  static_cast<void>(plan::Compiled::Create(*read));
}

}  // namespace

TELLTALE_FUZZ_TARGET(plan) {
  CheckPlan(plan::FromToml(bytes, "fuzz"));
  CheckPlan(plan::FromJson(bytes));
  static_cast<void>(plan::ParseCollect(bytes));
  static_cast<void>(plan::ParseWindow(bytes));
}

}  // namespace telltale::fuzz
