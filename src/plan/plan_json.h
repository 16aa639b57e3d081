// SPDX-License-Identifier: Apache-2.0
// The tree of a plan, as JSON objects, between its texts (JSON, TOML, --collect) and the plan
// itself. Thread safety: stateless.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "plan/capture_plan.h"
#include "plan/key_readers.h"

namespace telltale::plan {

/// They may throw what nlohmann::json does; their callers turn that into a Status.
Check PlanFromJson(const nlohmann::ordered_json& in, Stands stands, CapturePlan* out);
Check CollectionFromJson(const std::string& name, const nlohmann::ordered_json& in,
                         const std::string& path, Collection* out);
nlohmann::ordered_json PlanToJson(const CapturePlan& plan);
nlohmann::ordered_json CollectionToJson(const Collection& collection);

/// `in`: the table of keys. `path`: its place, for the error. May throw as PlanFromJson.
Check WindowFromJson(const std::string& name, const nlohmann::ordered_json& in,
                     const std::string& path, Window* out);
/// The keys that differ from what they are when nothing is said.
nlohmann::ordered_json WindowToJson(const Window& window);

}  // namespace telltale::plan
