// SPDX-License-Identifier: Apache-2.0
// How long a training step would take with another number of loader workers, and by how much that
// may be wrong. A forecast is worth telling only where its gain is larger than its error.
#pragma once
#include <algorithm>
#include <cmath>

#include "rules/builtin/numbers.h"

namespace telltale::rules {

/// A step and the batch that it needs, as measured in this run.
struct LoaderLoad {
  double step_ns = 0;
  double compute_ns = 0;     ///< Of the step, what is not the wait for its batch.
  double compute_cores = 1;  ///< Cores that this part keeps busy.
  double fetch_wait_ns = 0;  ///< Making a batch: for so long the maker waits, without a core.
  double fetch_cpu_ns = 0;   ///< For so long it computes.
  double fetch_delay_ns =
      0;  ///< For so long it is ready to compute, and other programs have the cores.
  double batch_bytes = 0;   ///< Of its tensors.
  double hand_over_ns = 0;  ///< Measured where there are workers; 0: not known.
  double noise_ns = 0;      ///< Standard error of the steps that were measured.
  double cores = 0;         ///< That the training may use; 0: not known.
  double others_cores = 0;  ///< That other programs keep busy.
  bool storage = false;     ///< It waits for storage, which several workers share.

  double fetch_ns() const { return fetch_wait_ns + fetch_cpu_ns + fetch_delay_ns; }
  /// How many times longer work takes than it computes, since others have the cores.
  double slowness() const {
    return fetch_cpu_ns > 0 ? std::min(4.0, 1 + fetch_delay_ns / fetch_cpu_ns) : 1;
  }
  /// Cores that are free, or that are got from other programs in any case.
  double free_cores() const { return std::max(std::min(0.5, cores), cores - others_cores); }
};

struct LoaderForecast {
  int workers = 0;
  double step_ns = 0;
  double error_ns = 0;
};

/// What the training process pays to take a batch from a worker, and by how much that may be wrong:
/// it unpickles, and maps shared memory. Measured on machines of 2 and 16 cores with torch 1.13 and
/// 2: 0.3 to 1.1 ms, and 0.05 to 0.1 ms a MB.
inline double HandOverNs(const LoaderLoad& load) {
  return load.hand_over_ns > 0 ? load.hand_over_ns
                               : load.slowness() * (0.9e6 + 0.1 * load.batch_bytes);
}
inline double HandOverErrorNs(const LoaderLoad& load) {
  return (load.hand_over_ns > 0 ? 0.4 : 0.7) * HandOverNs(load);
}

inline LoaderForecast ForecastLoader(const LoaderLoad& load, int workers) {
  LoaderForecast forecast;
  forecast.workers = workers;
  const double fetch_ns = load.fetch_ns();
  const double compute_cpu_ns = load.compute_ns * load.compute_cores;
  if (workers == 0) {
    forecast.step_ns = load.compute_ns + fetch_ns;
    forecast.error_ns = 0.1 * fetch_ns + load.noise_ns;
    return forecast;
  }
  const double hand_over_ns = HandOverNs(load);
  // A worker copies the batch to shared memory and sends it.
  const double sending_ns = load.slowness() * (0.5e6 + 0.3 * load.batch_bytes);
  // Compute and loading overlap: a step takes the longer of the two, ...
  forecast.step_ns = std::max(load.compute_ns + hand_over_ns, (fetch_ns + sending_ns) / workers);
  // ... and no less than the cores take for both.
  if (load.cores > 0) {
    forecast.step_ns = std::max(
        forecast.step_ns,
        (compute_cpu_ns + load.fetch_cpu_ns + hand_over_ns + sending_ns) / load.free_cores());
  }
  const double share = load.storage ? 0.35 : 0.1;
  const double model_ns = share * std::max(forecast.step_ns, load.step_ns - forecast.step_ns);
  forecast.error_ns = std::hypot(HandOverErrorNs(load), model_ns) + load.noise_ns;
  return forecast;
}

/// The most workers that are worth a trial: one that waits needs no core of its own.
inline int MostWorkers(const LoaderLoad& load) {
  const int free_cores = load.cores > 0 ? std::max(1, FewAsInt(load.free_cores() + 0.5)) : 4;
  if (load.fetch_wait_ns <= load.fetch_cpu_ns) return free_cores;
  if (load.storage) return std::max(free_cores, 8);
  return std::max(free_cores, 16);
}

/// The fewest workers that make the step about as short as any number does.
inline LoaderForecast BestForecast(const LoaderLoad& load, int least) {
  LoaderForecast best = ForecastLoader(load, least);
  for (int workers = least + 1; workers <= MostWorkers(load); ++workers) {
    const LoaderForecast forecast = ForecastLoader(load, workers);
    if (forecast.step_ns < 0.97 * best.step_ns) best = forecast;
  }
  return best;
}

/// Whether what the makers compute already waits for cores: how these are shared with others when
/// there are more makers cannot be foreseen.
inline bool Crowded(const LoaderLoad& load) {
  return load.fetch_cpu_ns + load.fetch_delay_ns > load.fetch_wait_ns &&
         load.fetch_delay_ns > 0.3 * load.fetch_ns();
}

/// Whether it is worth following: the gain is above the error, and above a twentieth of the step.
inline bool Gains(const LoaderLoad& load, const LoaderForecast& forecast) {
  const double gain_ns = load.step_ns - forecast.step_ns;
  return gain_ns > forecast.error_ns && gain_ns > 0.05 * load.step_ns;
}

}  // namespace telltale::rules
