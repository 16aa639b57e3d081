// SPDX-License-Identifier: Apache-2.0
// Carries actions out, one kind a file. Each returns one line for the audit log of what was done,
// or why it was not; none of them throws. Thread safety: as said; those of `net` may take minutes
// and are for a thread of their own.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "rules/actions/notice.h"
#include "rules/actions/transfer.h"
#include "rules/rule_set.h"

namespace telltale::rules {

struct ActContext {
  std::filesystem::path run;                ///< Empty: of no run, somebody tries the action.
  const std::atomic<bool>* stop = nullptr;  ///< Not null.
  Pause pause;                              ///< Not null.
  std::int64_t unix_ns = 0;                 ///< When it was decided.
  std::uint32_t attempt = 0;                ///< In which attempt of the run; 0: not known.
};

// net: threads of their own.
Result<std::string> ActWebhook(const ActionSpec& spec, const Notice& notice, const ActContext& at);
Result<std::string> ActEmail(const ActionSpec& spec, const Notice& notice, const ActContext& at);
Result<std::string> ActSms(const ActionSpec& spec, const Notice& notice, const ActContext& at);
Result<std::string> ActProgram(const ActionSpec& spec, const Notice& notice, const ActContext& at);

// Requests to the agents (docs/formats/requests.md): one file, at once; written again under the
// same key it is the same request.
Result<std::string> ActStop(const ActionSpec& spec, const Notice& notice, const ActContext& at);
Result<std::string> ActCapture(const ActionSpec& spec, const Notice& notice, const ActContext& at);
Result<std::string> ActProfile(const ActionSpec& spec, const Notice& notice, const ActContext& at);

/// The one of the spec's kind. REQUIRES: CheckAction(spec) is ok.
Result<std::string> Act(const ActionSpec& spec, const Notice& notice, const ActContext& at);
/// Whether it may take long.
bool ActsOnNet(const ActionSpec& spec);

/// The mail as it is sent, for tests: header lines and body, with CRLF.
Result<std::string> MailText(const ActionSpec& spec, const Notice& notice, std::int64_t unix_ns);

}  // namespace telltale::rules
