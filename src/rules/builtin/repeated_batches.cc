// SPDX-License-Identifier: Apache-2.0
// RepeatedBatches: the training is given the same samples again and again: by each worker, or by an
// iterator that is made anew for each step. Reads the events `dataloader.epoch` of the adapter for
// PyTorch.
//
// What is read in order gives the same batches in each pass, and a sampler that draws with
// replacement, or a first tensor that is the same in all batches, gives equal ones within a pass:
// so it is the pattern that counts, each content once by each worker.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rules/builtin/loop_rule.h"
#include "rules/registry.h"

namespace telltale::rules::repeated_batches {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_batches", 16, "batches",
     "Batches of a pass that were compared, before anything is said."},
    {"min_iterators", 100, "iterators",
     "Iterators that were given up after their first batch, before anything is said."},
};

/// One pass over a loader, as its event says it.
struct Pass {
  std::string loader;
  double samples, batches, length, workers, looked, repeated, across, iterators, first_looked,
      first_repeats;
  bool complete, iterable;
};

Pass PassOf(const format::EventRow& event, const nlohmann::json& data) {
  Pass pass;
  pass.loader = std::string(event.subject);
  pass.samples = NumberIn(data, "samples");
  pass.batches = NumberIn(data, "batches");
  pass.length = NumberIn(data, "length");
  pass.workers = NumberIn(data, "workers");
  pass.looked = NumberIn(data, "batches_looked_at");
  pass.repeated = NumberIn(data, "batches_repeated");
  pass.across = NumberIn(data, "repeated_across_workers");
  pass.iterators = NumberIn(data, "iterators");
  pass.first_looked = NumberIn(data, "first_batches_looked_at");
  pass.first_repeats = NumberIn(data, "first_batch_repeats");
  pass.complete = FlagIn(data, "complete");
  pass.iterable = FlagIn(data, "iterable");
  return pass;
}

/// Of the first batches that were compared, so many came again.
constexpr double kRepeats = 0.95;

struct Process : LoopProcess {
  /// By loader, the step and time since which the first batches of its iterators come again.
  std::map<std::string, std::pair<std::int64_t, std::int64_t>, std::less<>> repeats;
};

class RepeatedBatches final : public LoopRule<Process> {
 public:
  explicit RepeatedBatches(const Parameters& p)
      : min_batches_(p.Get("min_batches")), min_iterators_(p.Get("min_iterators")) {}

 protected:
  std::string Lacks() const override {
    return loader_ ? "no epoch of a data loader has ended" : "no data loader was seen";
  }
  bool Reads(std::string_view kind) const override {
    return kind == "dataloader.epoch" || kind == "dataloader";
  }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    loader_ = true;
    if (event.kind == "dataloader") return;
    SeesData();
    const Pass pass = PassOf(event, data);
    const std::int64_t took_ns = std::clamp<std::int64_t>(
        ToInteger(1e9 * NumberIn(data, "seconds")), 0, std::max<std::int64_t>(0, event.time_ns));
    const std::int64_t begin = event.time_ns - took_ns;
    const std::int64_t step = std::max<std::int64_t>(0, event.step - ToInteger(pass.batches));
    Incident incident = BeginAt(step, begin, Severity::kHigh);
    const bool repeats =
        pass.first_looked > 0 && pass.first_repeats >= kRepeats * pass.first_looked;
    if (!repeats) process->repeats.erase(pass.loader);
    const auto since = repeats
                           ? process->repeats.try_emplace(pass.loader, step, begin).first->second
                           : std::pair(step, begin);
    if (EachGivesAll(pass)) {
      SayAll(pass, &incident);
    } else if (EachDrawsTheSame(pass, TextIn(data, "sampler"))) {
      SaySame(pass, &incident);
    } else if (StartsAnew(pass, *process)) {
      incident.first_step = since.first;
      incident.start_ns = since.second;
      SayFirst(pass, &incident);
    } else {
      // A pass that was given up, or another epoch, says nothing against it.
      return;
    }
    nlohmann::ordered_json evidence;
    evidence["loader"] = pass.loader;
    for (const char* name : {"samples", "length", "workers", "batches", "iterable", "sampler",
                             "batches_looked_at", "batches_repeated", "repeated_across_workers",
                             "iterators", "first_batches_looked_at", "first_batch_repeats"}) {
      if (const auto value = data.find(name); value != data.end()) evidence[name] = *value;
    }
    incident.evidence = JsonText(evidence);
    Say(process, pass.loader, std::move(incident));
  }

 private:
  /// Each content came once from each worker: as many different ones as batches by workers.
  bool OncePerWorker(const Pass& pass) const {
    if (pass.workers < 2 || pass.looked < std::max(min_batches_, 4 * pass.workers)) return false;
    const double different = pass.looked - pass.repeated;
    const double expected = pass.looked / pass.workers;
    return pass.across >= 0.9 * pass.repeated && different >= 0.8 * expected &&
           different <= 1.25 * expected && different >= 2;
  }

  bool EachGivesAll(const Pass& pass) const {
    if (!pass.iterable || pass.workers < 2) return false;
    if (OncePerWorker(pass)) return true;
    const double all = pass.workers * pass.length;
    return pass.complete && pass.length > 0 && pass.across > 0 &&
           std::abs(pass.samples - all) <= 0.01 * all;
  }

  bool EachDrawsTheSame(const Pass& pass, std::string_view sampler) const {
    // Batches of one sample are equal where a sampler draws it twice.
    return !pass.iterable && pass.samples >= 2 * pass.batches &&
           sampler != "WeightedRandomSampler" && OncePerWorker(pass);
  }

  /// next(iter(loader)) in each step of a loader that does not shuffle.
  bool StartsAnew(const Pass& pass, const Process& process) const {
    return !pass.complete && pass.batches <= 1 && pass.iterators >= min_iterators_ &&
           pass.iterators >= 0.5 * static_cast<double>(process.steps) &&
           pass.first_looked >= min_batches_ && pass.first_repeats >= kRepeats * pass.first_looked;
  }

  static void SayAll(const Pass& pass, Incident* incident) {
    if (pass.length > 0) {
      incident->message = fmt::format(
          "{} samples in an epoch where the data set has {}: each of "
          "{} workers gives all of them",
          pass.samples, pass.length, pass.workers);
    } else {
      incident->message =
          fmt::format("Each of {} workers gives all samples of the data set", pass.workers);
    }
    incident->cause = fmt::format(
        "The data set is an IterableDataset, which each worker goes through by itself: {} of {} "
        "batches that were compared came from another worker before. An epoch shows each sample {} "
        "times.",
        pass.repeated, pass.looked, pass.workers);
    incident->advice =
        "Let __iter__ of the data set take the worker's part alone: info = "
        "torch.utils.data.get_worker_info(), then every info.num_workers-th sample from info.id "
        "on (itertools.islice, or a list of files split by it).";
    incident->confidence = 0.95;
  }

  static void SaySame(const Pass& pass, Incident* incident) {
    const double samples = pass.batches > 0 ? pass.samples / pass.batches : 0;
    incident->message = fmt::format("The {} workers give equal batches: {} different of {}",
                                    pass.workers, pass.looked - pass.repeated, pass.looked);
    incident->cause = fmt::format(
        "{} of {} batches that were compared are equal to one that another worker gave (about {} "
        "of {} samples are different): the workers draw the same random numbers, from a random "
        "generator that was made before they were forked and copied into each.",
        pass.across, pass.looked, Figure((pass.looked - pass.repeated) * samples),
        Figure(pass.looked * samples));
    incident->advice =
        "Seed the generator in each worker: DataLoader(worker_init_fn=...) with "
        "torch.initial_seed() or get_worker_info().seed, or make it in the worker.";
    incident->confidence = 0.9;
  }

  static void SayFirst(const Pass& pass, Incident* incident) {
    // A model that is to overfit one batch is fed so on purpose.
    incident->severity = Severity::kMedium;
    incident->message = fmt::format(
        "The same batch again and again: the first batch of {} iterators", pass.iterators);
    incident->cause = fmt::format(
        "The loader was started anew {} times, and its first batch was the same as the one before "
        "in {} of {} that were compared: next(iter(loader)) in each step takes the "
        "first batch of a loader that does not shuffle.",
        pass.iterators, pass.first_repeats, pass.first_looked);
    incident->advice =
        "Keep one iterator outside the loop, or write for batch in loader; shuffle=True for "
        "training.";
    incident->confidence = 0.9;
  }

  const double min_batches_;
  const double min_iterators_;
  bool loader_ = false;  ///< One was seen.
};

}  // namespace

const RuleDesc kRepeatedBatchesDesc{
    .name = "RepeatedBatches",
    .summary = "Workers, or iterators that are made anew, give the same batches again and again.",
    .formula =
        "Events `dataloader.epoch`. Once by each worker: of at least min_batches batches that were "
        "compared (and 4 for each worker) as many are different as batches / workers, within a "
        "quarter, and nine in ten repeats came from another worker. So of an iterable data set, or "
        "where its samples are workers × length: high, each worker gives all samples; of another "
        "one with at least two samples a batch and no WeightedRandomSampler: high, the workers "
        "draw the same random numbers. At least min_iterators iterators, half as many as TRAIN "
        "steps, were given up after their first batch, and 95 % of their first batches are the "
        "same: medium. That a loader without shuffling gives the same batches in each pass is no "
        "finding. An incident lasts until its process ends.",
    .how_to_fix =
        "Divide an IterableDataset by get_worker_info(); seed generators of your own in "
        "worker_init_fn; keep one iterator for the whole pass.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "for step in range(800): x, y = next(iter(loader))",
    .standing = {.theme = Theme::kFit, .order = 0},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeRepeatedBatches(const Parameters& parameters) {
  return std::make_unique<RepeatedBatches>(parameters);
}

}  // namespace telltale::rules::repeated_batches
