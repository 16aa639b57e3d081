// SPDX-License-Identifier: Apache-2.0
// What an event `memory.held` says (docs/formats/events.md): the memory of a process that belongs
// to no file, and what Python holds in it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rules/builtin/event_data.h"

namespace telltale::rules {

struct HeldFacts {
  /// A list, a dict or another that holds entries.
  struct Container {
    std::string name, type, holds;
    double entries = 0, first = 0;  ///< Now, and at the first look.
    double bytes_each = 0;          ///< 0: not known.
    double bound = -1;              ///< Most entries that it takes; -1: none is set.
    double length = -1;             ///< Of the data set that has it; -1: not known.
    bool graph = false;             ///< Tensors with their graph.
    bool data_set = false;          ///< An attribute of the data set.

    double grown() const { return (entries - first) * bytes_each; }
    double bytes() const { return entries * bytes_each; }
  };
  struct Array {
    std::string name;
    double bytes = 0;
    std::int64_t digest = -1;  ///< -1: not known.
    double own = 0;            ///< Share of its pages that no other process has.
  };
  struct Graphs {
    double looked = 0, kept = 0, early_looked = 0, early_kept = 0;
    std::int64_t since_step = -1;
    double steps = 0;        ///< That those that were looked at belong to.
    double bytes_each = -1;  ///< Saved by a graph that is kept, at least; -1: not known.

    /// What those of so many steps have saved, at least.
    double held(double of_steps) const {
      return steps > 0 ? std::max(0.0, bytes_each) * kept / steps * of_steps : 0;
    }
    /// Graphs that no backward has freed are there since the first looks: not those of an episode
    /// whose backward is yet to come.
    bool are_kept() const {
      const double late = looked - early_looked;
      if (kept < 8 || early_looked <= 0 || late <= 0) return false;
      return early_kept / early_looked >= 0.5 * (kept - early_kept) / late && early_kept >= 4;
    }
  };

  double own_bytes = 0;
  std::int64_t step = -1;
  std::string data_set;
  double figures = -1, figure_bytes = 0;  ///< −1: pyplot is not loaded.
  Graphs graphs;
  std::vector<Container> containers;
  std::vector<Array> arrays;

  static HeldFacts Of(const nlohmann::json& data) {
    HeldFacts facts;
    facts.own_bytes = NumberIn(data, "own_bytes");
    facts.step = IntegerIn(data, "step", -1);
    facts.data_set = TextIn(data, "data_set");
    facts.figures = NumberIn(data, "figures", -1);
    facts.figure_bytes = NumberIn(data, "figure_bytes");
    if (const auto found = data.find("graphs"); found != data.end() && found->is_object()) {
      facts.graphs = {NumberIn(*found, "looked"),          NumberIn(*found, "kept"),
                      NumberIn(*found, "early_looked"),    NumberIn(*found, "early_kept"),
                      IntegerIn(*found, "since_step", -1), NumberIn(*found, "steps"),
                      NumberIn(*found, "bytes_each", -1)};
    }
    for (const nlohmann::json* each : ObjectsIn(data, "containers")) {
      facts.containers.push_back({TextIn(*each, "name"), TextIn(*each, "type"),
                                  TextIn(*each, "holds"), NumberIn(*each, "entries"),
                                  NumberIn(*each, "first"), NumberIn(*each, "bytes_each"),
                                  NumberIn(*each, "bound", -1), NumberIn(*each, "length", -1),
                                  FlagIn(*each, "graph"), FlagIn(*each, "data_set")});
    }
    for (const nlohmann::json* each : ObjectsIn(data, "arrays")) {
      facts.arrays.push_back({TextIn(*each, "name"), NumberIn(*each, "bytes"),
                              IntegerIn(*each, "digest", -1), NumberIn(*each, "own")});
    }
    return facts;
  }

 private:
  static std::vector<const nlohmann::json*> ObjectsIn(const nlohmann::json& data,
                                                      const char* name) {
    constexpr std::size_t kMost = 16;
    std::vector<const nlohmann::json*> objects;
    const auto found = data.find(name);
    if (found == data.end() || !found->is_array()) return objects;
    for (const nlohmann::json& each : *found) {
      if (each.is_object() && objects.size() < kMost) objects.push_back(&each);
    }
    return objects;
  }
};

}  // namespace telltale::rules
