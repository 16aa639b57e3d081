// SPDX-License-Identifier: Apache-2.0
// The tree of a plan, as JSON objects, between its texts (JSON, TOML, --collect) and the plan
// itself. Thread safety: stateless.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plan/capture_plan.h"

namespace telltale::plan {

/// What is wrong with a plan: "collections.weights.interval" "is not a number ...".
struct KeyError {
  std::string key;  ///< Empty: the whole.
  std::string what;
};

/// Both may throw what nlohmann::json does; their callers turn that into a Status.
std::optional<KeyError> PlanFromJson(const nlohmann::ordered_json& in, CapturePlan* out);
std::optional<KeyError> CollectionFromJson(const std::string& name,
                                           const nlohmann::ordered_json& in,
                                           const std::string& path, Collection* out);
nlohmann::ordered_json PlanToJson(const CapturePlan& plan);
nlohmann::ordered_json CollectionToJson(const Collection& collection);

}  // namespace telltale::plan
