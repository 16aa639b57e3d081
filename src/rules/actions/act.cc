// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/act.h"

#include <exception>

namespace telltale::rules {

bool ActsOnNet(const ActionSpec& spec) {
  return spec.kind == "webhook" || spec.kind == "email" || spec.kind == "sms" ||
         spec.kind == "program";
}

Result<std::string> Act(const ActionSpec& spec, const Notice& notice, const ActContext& at) {
  try {
    if (spec.kind == "stop") return ActStop(spec, notice, at);
    if (spec.kind == "capture") return ActCapture(spec, notice, at);
    if (spec.kind == "profile") return ActProfile(spec, notice, at);
    if (spec.kind == "webhook") return ActWebhook(spec, notice, at);
    if (spec.kind == "email") return ActEmail(spec, notice, at);
    if (spec.kind == "sms") return ActSms(spec, notice, at);
    if (spec.kind == "program") return ActProgram(spec, notice, at);
  } catch (const std::exception& error) {
    return Status(Code::kIo, error.what());
  }
  return Status(Code::kUsage, "there is no action '" + spec.kind + "'");
}

}  // namespace telltale::rules
