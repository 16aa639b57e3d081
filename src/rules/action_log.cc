// SPDX-License-Identifier: Apache-2.0
#include "rules/action_log.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace telltale::rules {
namespace {

std::string Text(const nlohmann::json& data, const char* key) {
  const auto found = data.find(key);
  return found != data.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

void ActionLog::OnEvent(std::string_view kind, std::string_view data) {
  const auto json = ParseJson(data);
  if (!json.is_object()) return;
  std::string key = Text(json, "key");
  if (key.empty()) return;
  if (kind == "action.decided") {
    if (actions_.size() >= kMost || by_key_.contains(key)) return;
    by_key_.emplace(key, actions_.size());
    ActionTaken& taken = actions_.emplace_back();
    taken.key = std::move(key);
    taken.action = Text(json, "action");
    taken.rule = Text(json, "rule");
    taken.incident = Text(json, "incident");
    if (std::string held = Text(json, "held"); !held.empty()) taken.outcome = std::move(held);
    return;
  }
  if (kind != "action.done") return;
  // One message may tell of several findings.
  std::vector<std::string> keys = {std::move(key)};
  if (const auto more = json.find("keys"); more != json.end() && more->is_array()) {
    for (const nlohmann::json& each : *more) {
      if (each.is_string()) keys.push_back(each.get<std::string>());
    }
  }
  for (const std::string& each : keys) {
    const auto found = by_key_.find(each);
    if (found == by_key_.end()) continue;
    ActionTaken& taken = actions_[found->second];
    taken.outcome = Text(json, "outcome");
    taken.detail = Text(json, "detail");
  }
}

}  // namespace telltale::rules
