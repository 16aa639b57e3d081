// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/loader_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "rules/builtin/loader_cures.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"

namespace telltale::rules {
namespace {

/// What an in-memory data set costs in Python, whatever is done about it.
constexpr double kItemFloorNs = 50'000;
constexpr double kBatchFloorNs = 300'000;
/// An item whose result is kept: it is looked up and copied.
constexpr double kKeptItemNs = 25'000;
constexpr double kKeptNsPerByte = 0.5;
/// So many times the bytes of a batch are read for it where most of them are of no use.
constexpr double kWasted = 8;
/// To take a batch from a worker costs at most this, and a nanosecond a byte.
constexpr double kMostHandOverNs = 10e6;
/// Bytes of a fetch from storage from which it waits for that.
constexpr double kStorageBytes = 65'536;

/// What a change saves of a step even where its forecast is too good by its error.
double SureSavingNs(const LoaderCase& of, const LoaderForecast& forecast) {
  return std::max(0.0, of.load.step_ns - forecast.step_ns - forecast.error_ns);
}

double Items(const LoaderCase& of) { return of.facts == nullptr ? 0 : of.facts->costs.items(); }

/// What most of a fetch is.
struct Doing {
  bool waits = false;
  bool storage = false;
  bool collates = false;
  FetchHolders::Holder holder;
  const LoaderCure* cure = nullptr;
  double share = 0;
};

std::optional<Doing> DoingOf(const LoaderCase& of) {
  if (of.facts == nullptr || !of.facts->costs.known()) return std::nullopt;
  const FetchCosts& costs = of.facts->costs;
  Doing doing;
  doing.holder = of.facts->holders.known() ? of.facts->holders.Top() : FetchHolders::Holder();
  doing.waits = costs.waits() > costs.computes();
  if (const FetchHolders::Holder locks = of.facts->holders.Locks();
      doing.waits && locks.share > 0) {
    doing.holder = locks;
  }
  const LoaderCure& named = CureOf(doing.holder.library, doing.holder.inner, doing.waits);
  const bool waiting = doing.holder.share > 0 && named.waits && !named.library.empty();
  doing.storage = doing.waits && !waiting && costs.storage_bytes() >= kStorageBytes;
  doing.collates = !doing.waits && costs.collates() >= 0.5;
  doing.cure = &named;
  if (doing.waits) {
    doing.share = named.locks ? std::min(costs.waits(), doing.holder.share) : costs.waits();
  } else {
    doing.share = doing.collates           ? costs.collates()
                  : doing.holder.share > 0 ? doing.holder.share
                                           : costs.computes();
  }
  return doing;
}

/// Of an item in the batch, or as the data set gives it; 0 where neither is known.
double ItemBytes(const LoaderCase& of) {
  const FetchCosts& costs = of.facts->costs;
  if (costs.batch_bytes() > 0) return costs.batch_bytes() / std::max(1.0, costs.items());
  return of.repeated != nullptr ? of.repeated->bytes() : 0;
}

/// A file that holds far more than the item is read whole.
bool ReadsTooMuch(const LoaderCase& of) {
  const FetchCosts& costs = of.facts->costs;
  const double read = costs.read_bytes() / std::max(1.0, costs.items());
  const double bytes = ItemBytes(of);
  return bytes > 0 && read >= kWasted * bytes && read >= kStorageBytes;
}

/// Each item may be a view that keeps the whole of what its file holds in memory.
bool LoadsViews(const LoaderCase& of, const Doing& doing) {
  return doing.cure->library == "torch.load" && ReadsTooMuch(of);
}

/// "In 97 % of a batch's time NumPy computes (qr, repeat.py:11)."
std::string WhyText(const LoaderCase& of) {
  const std::optional<Doing> doing = DoingOf(of);
  if (!doing) return {};
  const FetchCosts& costs = of.facts->costs;
  std::string what;
  std::string where;
  if (doing->storage) {
    what = fmt::format("it waits for storage ({} a batch) and does not compute",
                       Bytes(costs.storage_bytes()));
  } else if (doing->collates) {
    what = "the items are put together to a batch (collate_fn)";
  } else {
    what = doing->cure->does;
    if (doing->waits && doing->cure->library.size() > 0) what += " and does not compute";
  }
  if (!doing->collates && doing->holder.share > 0) {
    where = doing->holder.function;
    if (!doing->holder.place.empty()) {
      where = where.empty() ? doing->holder.place : where + ", " + doing->holder.place;
    }
    if (!where.empty()) where = " (" + where + ")";
  }
  std::string text =
      fmt::format(" In {:.0f} % of a batch's time {}{}.", 100 * doing->share, what, where);
  if (ReadsTooMuch(of)) {
    text +=
        fmt::format(" It reads {} for each item of {}.",
                    Bytes(costs.read_bytes() / std::max(1.0, costs.items())), Bytes(ItemBytes(of)));
  }
  if (costs.delayed() >= 0.2) {
    text += fmt::format(" In {:.0f} % it waits for a core.", 100 * costs.delayed());
  }
  return text;
}

std::string_view CureText(const LoaderCase& of) {
  const std::optional<Doing> doing = DoingOf(of);
  if (!doing) return "Vectorise the transform, or apply it once when the data set is made.";
  if (doing->storage) {
    return "Read larger pieces in order, keep the data on a local disk or in memory, and read "
           "ahead in more workers.";
  }
  if (doing->collates) {
    return "Put arrays together by np.stack and torch.from_numpy (torch.tensor converts a list of "
           "arrays number by number), or let the data set give whole batches "
           "(sampler=BatchSampler(...), batch_size=None).";
  }
  if (LoadsViews(of, *doing)) {
    return "torch.save of a view (a slice) writes the whole tensor that it was cut from: save "
           ".clone() of it, and a file holds no more than its item.";
  }
  return doing->cure->cure;
}

std::string Expected(const LoaderCase& of, const LoaderForecast& forecast) {
  const std::string range =
      forecast.error_ns < forecast.step_ns
          ? "± " + Millis(forecast.error_ns)
          : fmt::format("at most {}", Millis(forecast.step_ns + forecast.error_ns));
  return fmt::format("a step then takes about {} ms ({}) instead of {}", Millis(forecast.step_ns),
                     range, Millis(of.load.step_ns));
}

/// "num_workers=4, persistent_workers=True".
std::string Settings(const LoaderCase& of, int workers) {
  std::string text = fmt::format("num_workers={}", workers);
  if (workers > 0 && !of.persistent) text += ", persistent_workers=True";
  if (of.device && of.loader_known && !of.pin_memory) text += ", pin_memory=True";
  return text;
}

/// What would be gained by not doing the same work again.
std::optional<LoaderForecast> KeptResults(const LoaderCase& of) {
  if (of.repeated == nullptr || !of.repeated->SameWork() || Items(of) <= 0) return std::nullopt;
  LoaderLoad load = of.load;
  const double kept_ns =
      load.slowness() * Items(of) * (kKeptItemNs + kKeptNsPerByte * of.repeated->bytes()) +
      of.fetch_ns * of.facts->costs.collates();
  if (kept_ns >= load.fetch_ns()) return std::nullopt;
  load.fetch_cpu_ns = kept_ns;
  load.fetch_wait_ns = load.fetch_delay_ns = 0;
  LoaderForecast forecast = ForecastLoader(load, of.in_process ? 0 : of.workers);
  forecast.error_ns = std::hypot(forecast.error_ns, 0.5 * kept_ns);
  if (!Gains(of.load, forecast)) return std::nullopt;
  return forecast;
}

std::string KeptText(const LoaderCase& of, const LoaderForecast& forecast) {
  const double bytes = of.repeated->bytes() * static_cast<double>(of.length);
  const std::optional<Doing> doing = DoingOf(of);
  const bool views = doing && LoadsViews(of, *doing);
  std::string cache;
  if (of.made_anew || (!of.in_process && !of.persistent)) {
    cache = " (not in the data set: what it keeps is gone with the epoch's " +
            std::string(of.in_process ? "loader" : "workers") + ")";
  } else {
    cache = fmt::format(
        ", or cache the results{}{}",
        bytes > 0 ? fmt::format(" ({} {})", Bytes(bytes),
                                of.in_process || of.workers == 1 ? "in all" : "in each worker")
                  : std::string(),
        views ? ", each as a .clone() (a view keeps all that its file holds in memory)" : "");
  }
  return fmt::format(
      "The work for an item is done again in each epoch, with the same result ({} items were "
      "compared): do it once, ahead of the training{}: {}.",
      of.repeated->again(), cache, Expected(of, forecast));
}

/// Whether a batch costs more than Python's own price of one, by so much that the step feels it.
bool MayBeCheaper(const LoaderCase& of) {
  const double items = Items(of);
  if (items <= 0) return true;
  double spared_ns = of.load.fetch_ns() - items * kItemFloorNs - kBatchFloorNs -
                     kKeptNsPerByte * of.load.batch_bytes;
  if (!of.in_process) spared_ns /= std::max(1, of.workers);
  spared_ns = std::min(spared_ns, of.load.step_ns - of.load.compute_ns);
  return spared_ns > 0.05 * of.load.step_ns + of.load.noise_ns;
}

/// Workers, what is kept, a cheaper batch: whatever of these gains something.
void AdviseBatches(const LoaderCase& of, int least_workers, LoaderAdvice* out) {
  const LoaderForecast more = BestForecast(of.load, least_workers);
  const std::optional<LoaderForecast> kept = KeptResults(of);
  const std::optional<Doing> doing = DoingOf(of);
  // What waits for a lock waits for it in every worker.
  const bool locked = doing && doing->cure->locks;
  const bool by_workers = Gains(of.load, more) && !Crowded(of.load) && !locked;
  const bool waits = doing && doing->waits;
  std::string workers;
  if (by_workers) {
    workers =
        of.made_anew
            ? fmt::format("Make the DataLoader once, before the loop over epochs, with {}: {}.",
                          Settings(of, more.workers), Expected(of, more))
            : fmt::format("Set {} in the DataLoader: {}.", Settings(of, more.workers),
                          Expected(of, more));
    if (waits && of.cores > 0 && more.workers > of.cores) {
      workers += " Workers that wait need no core, so there may be more workers than cores.";
    }
    out->evidence["forecast_workers"] = more.workers;
    out->evidence["forecast_step_ms"] = Rounded(more.step_ns / 1e6);
    out->saved_ns = SureSavingNs(of, more);
    out->evidence["forecast_error_ms"] = Rounded(more.error_ns / 1e6);
  }
  std::string keep;
  if (kept) {
    keep = KeptText(of, *kept);
    out->evidence["kept_step_ms"] = Rounded(kept->step_ns / 1e6);
    out->saved_ns = std::max(out->saved_ns, SureSavingNs(of, *kept));
    out->evidence["kept_error_ms"] = Rounded(kept->error_ns / 1e6);
  }
  if (waits) {
    out->advice = by_workers ? workers : keep;
    if (by_workers && kept) out->advice += " " + keep;
  } else {
    out->advice = kept ? keep : workers;
    if (by_workers && kept) out->advice += " Or: " + workers;
  }
  if (MayBeCheaper(of)) {
    if (out->advice.empty()) {
      out->advice =
          fmt::format("Make batches cheaper: {} ms a batch is too long", Millis(of.fetch_ns));
      if (of.cores > 0 && !waits) {
        out->advice += fmt::format(
            ", and more workers are not sure to gain anything on {} {}{}", of.cores,
            of.cores == 1 ? "core" : "cores",
            of.load.others_cores >= 0.3
                ? fmt::format(", {} of them busy with other programs", Plain(of.load.others_cores))
                : std::string());
      }
      out->advice += ".";
    }
    if (doing && LoadsViews(of, *doing)) {
      out->advice = fmt::format("{} Or: {}", CureText(of), out->advice);
    } else {
      out->advice += fmt::format(" {}", CureText(of));
    }
    if (!kept && of.repeated != nullptr && of.repeated->OtherResults()) {
      out->advice +=
          " Its results differ from epoch to epoch: only what comes before the random part can be "
          "done once.";
    }
    return;
  }
  if (!out->advice.empty()) return;
  out->gains = false;
  out->advice = fmt::format(
      "No change of the loader is sure to gain anything: with {} {} {}. Larger batches, or a data "
      "set that gives whole batches, make these waits fewer.",
      more.workers, more.workers == 1 ? "worker" : "workers", Expected(of, more));
}

void AdviseInProcess(const LoaderCase& of, LoaderAdvice* out) {
  out->cause = fmt::format(
      "The loader runs in the training process (num_workers=0): every batch is made while the "
      "model waits{}.{}",
      of.fetch_ns > 0 ? fmt::format(", {} ms a batch", Millis(of.fetch_ns)) : std::string(),
      WhyText(of));
  if (of.fetch_ns <= 0) {
    out->advice =
        "Make batches while the model computes (num_workers of the DataLoader), or make them "
        "cheaper.";
    return;
  }
  out->explained_ns = std::min(of.wait_ns, of.fetch_ns * of.steps);
  AdviseBatches(of, 1, out);
}

void AdviseStartUps(const LoaderCase& of, LoaderAdvice* out) {
  // next(iter(loader)) in a loop, say.
  const bool each_step = of.start_ups > 0.5 * of.steps;
  out->cause = fmt::format(
      "{} its {} {} anew {}, and the first batches wait for {} ({} ms each time).",
      each_step ? "Each step makes an iterator of the loader (iter(loader)), which starts"
                : "The loader starts",
      of.workers, of.workers == 1 ? "worker" : "workers",
      each_step ? "each time" : "for each epoch", of.workers == 1 ? "it" : "them",
      Millis(of.start_up_wait_ns / std::max(1.0, of.start_ups)));
  // The first batch of an epoch is still waited for.
  const double left_ns = of.start_ups * (of.fetch_ns + HandOverNs(of.load));
  const double spared_ns = std::max(0.0, of.start_up_wait_ns - left_ns) / std::max(1.0, of.steps);
  LoaderForecast forecast;
  forecast.workers = of.workers;
  forecast.step_ns = of.load.step_ns - spared_ns;
  // What is spared was measured in these steps alone: how much the others vary says nothing of it.
  forecast.error_ns = 0.2 * spared_ns;
  out->explained_ns = of.start_up_wait_ns;
  const std::string how = each_step ? "Make one iterator before the loop (batches = iter(loader)), "
                                      "or loop over the loader itself; and set "
                                      "persistent_workers=True"
                          : of.made_anew
                              ? "Make the DataLoader once, before the loop over epochs, with "
                                "persistent_workers=True"
                              : "Set persistent_workers=True in the DataLoader";
  out->gains = Gains(of.load, forecast);
  if (of.cores > 0 && of.workers > of.cores) {
    out->cause += fmt::format(
        " {} workers share {} {}: fewer workers start sooner, and make as many batches where a "
        "batch is computing.",
        of.workers, of.cores, of.cores == 1 ? "core" : "cores");
  }
  out->advice = out->gains ? fmt::format("{}: {}.", how, Expected(of, forecast)) : how + ".";
  if (!out->gains) return;
  out->evidence["forecast_workers"] = of.workers;
  out->evidence["forecast_persistent"] = true;
  out->evidence["forecast_step_ms"] = Rounded(forecast.step_ns / 1e6);
  out->evidence["forecast_error_ms"] = Rounded(forecast.error_ns / 1e6);
  out->saved_ns = SureSavingNs(of, forecast);
}

/// Without workers none are started, either: what the first batches of epochs wait for them is
/// explained too.
void AddStartUps(const LoaderCase& of, LoaderAdvice* out) {
  if (of.persistent || of.start_ups < 2 || of.start_up_wait_ns <= 0) return;
  out->cause += fmt::format(
      " The {} anew in {:.0f} steps, which wait {} ms each.",
      of.workers == 1 ? std::string("worker starts") : fmt::format("{} workers start", of.workers),
      of.start_ups, Millis(of.start_up_wait_ns / of.start_ups));
  out->explained_ns = std::min(of.wait_ns, std::max(0.0, out->explained_ns) + of.start_up_wait_ns);
}

void AdviseNoWorkers(const LoaderCase& of, const LoaderForecast& without, LoaderAdvice* out) {
  AddStartUps(of, out);
  out->advice = fmt::format("Set num_workers=0 in the DataLoader: {}.", Expected(of, without));
  out->evidence["forecast_workers"] = 0;
  out->evidence["forecast_step_ms"] = Rounded(without.step_ns / 1e6);
  out->saved_ns = SureSavingNs(of, without);
  out->evidence["forecast_error_ms"] = Rounded(without.error_ns / 1e6);
}

/// The forecast without workers, where a step is shorter then than with those that there are, and
/// than with more.
std::optional<LoaderForecast> BetterAlone(const LoaderCase& of) {
  LoaderLoad alone = of.load;
  // One after the other: the long fetches cost what they take.
  const double longer = of.fetch_ns > 0 ? std::max(1.0, of.fetch_mean_ns / of.fetch_ns) : 1;
  alone.fetch_wait_ns *= longer;
  alone.fetch_cpu_ns *= longer;
  alone.fetch_delay_ns *= longer;
  const LoaderForecast without = ForecastLoader(alone, 0);
  const LoaderForecast more = BestForecast(of.load, of.workers + 1);
  const bool better = Gains(of.load, without) && without.step_ns <= more.step_ns;
  if (!better || KeptResults(of)) return std::nullopt;
  return without;
}

void AdviseSlowWorkers(const LoaderCase& of, LoaderAdvice* out) {
  const double compute_ns = std::max(1.0, of.load.compute_ns);
  const double batch_ns = std::max(of.fetch_ns, of.fetch_usual_ns);
  out->cause =
      fmt::format("{} {} {} {} batches/s ({} ms a batch{}), the model could take {}.{}", of.workers,
                  of.workers == 1 ? "worker" : "workers", of.workers == 1 ? "makes" : "make",
                  Plain(of.workers * 1e9 / batch_ns), Millis(batch_ns),
                  of.workers == 1 ? "" : " each", Plain(1e9 / compute_ns), WhyText(of));
  if (of.cores > 0 && of.workers > of.cores && of.facts != nullptr &&
      of.facts->costs.delayed() >= 0.3) {
    out->cause += fmt::format(" {} workers share {} {}: fewer workers make as many batches.",
                              of.workers, of.cores, of.cores == 1 ? "core" : "cores");
  }
  const double slower_ns = batch_ns / of.workers - of.load.compute_ns;
  out->explained_ns = std::clamp(slower_ns * of.steps, 0.0, of.wait_ns);
  const std::optional<LoaderForecast> alone = BetterAlone(of);
  if (!alone) {
    AdviseBatches(of, of.workers + 1, out);
    return;
  }
  if (of.load.hand_over_ns > 0) {
    out->cause +=
        fmt::format(" A step waits {} ms for its batch; {} ms of that is its way from the worker.",
                    Millis(of.load.step_ns - of.load.compute_ns), Millis(of.load.hand_over_ns));
  }
  // What a step without workers saves was lost to them, measured or not.
  const double over_ns =
      std::max(slower_ns + of.load.hand_over_ns, of.load.step_ns - alone->step_ns);
  out->explained_ns = std::clamp(over_ns * of.steps, 0.0, of.wait_ns);
  AdviseNoWorkers(of, *alone, out);
  if (MayBeCheaper(of)) out->advice += fmt::format(" {}", CureText(of));
}

/// A few batches take far longer than most: what they take beyond those is a good part of the wait.
bool Uneven(const LoaderCase& of) {
  const double wait_ns = of.load.step_ns - of.load.compute_ns;
  // What all batches wait for on their way is no single one's.
  const double tail_ns = of.fetch_mean_ns - of.fetch_ns;
  return of.slow_items_ns * 2 > of.wait_ns ||
         (tail_ns > 0.4 * wait_ns && 2 * of.load.hand_over_ns < wait_ns);
}

void AdviseSlowItems(const LoaderCase& of, LoaderAdvice* out) {
  out->cause = fmt::format(
      "The {} fast enough on average, but single items hold all batches up: {}",
      of.workers == 1 ? std::string("worker is") : fmt::format("{} workers are", of.workers),
      of.slow_item_ns > 0 ? fmt::format("{} took {} ms, where others take {}.", of.slow_item,
                                        Millis(of.slow_item_ns), Millis(of.slow_item_mean_ns))
                          : fmt::format("a batch takes {} ms in the median and {} in the mean.",
                                        Millis(of.fetch_ns), Millis(of.fetch_mean_ns)));
  out->advice =
      "Look at these items (events dataloader.slow_item): shorten, split or convert them once, or "
      "set a higher prefetch_factor, so that the batches of the other workers bridge the gap.";
  const double tail_ns = std::max(0.0, of.fetch_mean_ns - of.fetch_ns) * of.steps;
  out->explained_ns = std::min(of.wait_ns, std::max(of.slow_items_ns, tail_ns));
}

/// The workers are faster than the training: the way of a batch from a worker is what costs.
bool AdviseHandOver(const LoaderCase& of, LoaderAdvice* out) {
  const double wait_ns = of.load.step_ns - of.load.compute_ns;
  const double measured_ns = of.load.hand_over_ns;
  // So long as that it waits for something else: a core, the worker.
  const bool known =
      measured_ns >= 0.5 * wait_ns && measured_ns <= kMostHandOverNs + of.load.batch_bytes;
  const bool cheap = of.fetch_ns < 0.5 * wait_ns;
  if (!cheap && !known) return false;
  out->cause = !cheap ? fmt::format(
                            "The workers make batches fast enough. The steps wait {} ms for a "
                            "batch, and {} ms of that is "
                            "its way from the worker (a queue, shared memory).",
                            Millis(wait_ns), Millis(measured_ns))
                      : fmt::format(
                            "The workers make a batch in {} ms, and the training waits {} ms for "
                            "it: its way from the "
                            "worker (a queue, shared memory) costs more than making it{}.",
                            Millis(of.fetch_ns), Millis(wait_ns),
                            known ? fmt::format(", {} ms for {}", Millis(measured_ns),
                                                Bytes(of.load.batch_bytes))
                            : of.load.others_cores >= 0.5 * of.cores
                                ? fmt::format(", since other programs have {} of {} cores",
                                              Plain(of.load.others_cores), of.cores)
                                : std::string());
  if (measured_ns > 0) out->explained_ns = std::min(of.wait_ns, measured_ns * of.steps);
  const LoaderForecast without = ForecastLoader(of.load, 0);
  out->gains = Gains(of.load, without);
  if (out->gains) {
    AdviseNoWorkers(of, without, out);
  } else {
    out->advice =
        "No number of workers is sure to gain anything: larger batches, of few large tensors, are "
        "handed over less often.";
  }
  return true;
}

}  // namespace

LoaderAdvice AdviseLoader(const LoaderCase& of) {
  LoaderAdvice out;
  const bool workers = of.workers > 0;
  const bool slow = workers && of.fetch_ns > 0 && of.fetch_ns / of.workers > of.load.compute_ns;
  const double wait_ns = of.load.step_ns - of.load.compute_ns;
  if (of.in_process && (of.loader_known || of.fetch_ns > 0)) {
    AdviseInProcess(of, &out);
  } else if (workers && !of.persistent && of.start_ups >= 2 &&
             of.start_up_wait_ns * 2 > of.wait_ns) {
    AdviseStartUps(of, &out);
  } else if (slow) {
    AdviseSlowWorkers(of, &out);
  } else if (workers && Uneven(of)) {
    AdviseSlowItems(of, &out);
  } else if (workers && of.fetch_ns > 0 && AdviseHandOver(of, &out)) {
    // It has said all.
  } else if (workers && of.slow_item_ns > wait_ns) {
    AdviseSlowItems(of, &out);
  } else {
    out.found = false;
    out.cause = "cause not found";
    out.advice = workers ? "Look at the fetch spans: the workers are fast enough on average, so "
                           "single batches or the hand-over are slow."
                         : "Look at what the loop does between two steps: no DataLoader was seen.";
  }
  return out;
}

}  // namespace telltale::rules
