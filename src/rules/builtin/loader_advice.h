// SPDX-License-Identifier: Apache-2.0
// Why a training waits for its batches, and what shortens that: each change with the step time that
// a model of it expects (loader_model.h). No change is advised whose gain is below its error.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "rules/builtin/fetch_facts.h"
#include "rules/builtin/loader_model.h"

namespace telltale::rules {

/// What is known of a training that waits, and of its loader.
struct LoaderCase {
  LoaderLoad load;
  bool loader_known = false;
  bool in_process = false;  ///< Batches are made in the training process.
  int workers = 0;
  int cores = 0;  ///< That the training may use; 0: not known.
  bool device = false;
  bool pin_memory = false;
  bool persistent = false;
  bool made_anew = false;    ///< A DataLoader is made for each epoch.
  std::int64_t length = 0;   ///< Items of the data set; 0: not known.
  double fetch_ns = 0;       ///< Of a batch where it is made, in the median; 0: none was recorded.
  double fetch_mean_ns = 0;  ///< The same in the mean.
  /// The mean without the longest one: what a worker makes in a time follows from it.
  double fetch_usual_ns = 0;
  const FetchFacts* facts = nullptr;
  const RepeatedItems* repeated = nullptr;

  // Over the incident:
  double steps = 0;
  double wait_ns = 0;           ///< Of all of them.
  double start_up_wait_ns = 0;  ///< Of it: in steps during which workers began.
  double start_ups = 0;         ///< Such steps.
  std::int64_t slow_items = 0;
  double slow_items_ns = 0;  ///< What these took beyond the others.
  std::string slow_item;     ///< The slowest.
  double slow_item_ns = 0, slow_item_mean_ns = 0;
};

struct LoaderAdvice {
  std::string cause;
  std::string advice;
  bool found = true;
  /// Something can be gained, or it is not known that nothing can.
  bool gains = true;
  double explained_ns = -1;  ///< Of the wait; negative: all of it.
  /// Of a step's wait, what the best change with a forecast saves, less the forecast's error;
  /// negative: no change has one.
  double saved_ns = -1;
  nlohmann::ordered_json evidence = nlohmann::ordered_json::object();
};

LoaderAdvice AdviseLoader(const LoaderCase& of);

}  // namespace telltale::rules
