// SPDX-License-Identifier: Apache-2.0
// What an action tells of, and the texts and JSON that its receivers get. What rules say may quote
// the user's program: here it becomes plain lines. Thread safety: values and stateless functions.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rules/engine.h"

namespace telltale::rules {

struct Notice {
  std::string key;   ///< Idempotency key: of the first finding and the action.
  std::string run;   ///< Id of the run.
  std::string name;  ///< Its name for people.
  std::string host;
  std::string path;               ///< Of its folder.
  std::vector<Finding> findings;  ///< At least one, the one that set it off first.
  std::size_t held = 0;           ///< Findings of the same rule that only counted since the last.
  bool test = false;              ///< Nobody's finding: somebody tries the action.
};

/// One line without control characters, at most `limit` bytes of whole characters.
std::string OneLine(std::string_view text, std::size_t limit);
/// "[high] LossNotDecreasing: loss has not fallen (train-7)".
std::string SubjectLine(const Notice& notice);
/// For a telephone: at most 300 bytes.
std::string ShortText(const Notice& notice);
/// Lines for people.
std::string PlainText(const Notice& notice);
/// Version 1 of docs/guide/actions.md; also what a program gets on its standard input.
std::string NoticeJson(const Notice& notice);
/// What an incoming webhook of Slack takes.
std::string SlackJson(const Notice& notice);

}  // namespace telltale::rules
