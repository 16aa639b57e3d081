// SPDX-License-Identifier: Apache-2.0
// What bounds the device: its arithmetic, its memory, or neither.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kRooflineBound{
    "RooflineBound",
    "Is the device bound by arithmetic, by memory, or by neither?",
    "XProf smart suggestions: compute-bound, memory-bound, latency-bound",
    "Arithmetic: operations of matrix products over the steps' time and the device's peak (TF32). "
    "Memory: share of the steps' time in which kernels run that do little but read and write "
    "(elementwise, reductions, normalisation, copies), an estimate. Above 70 % is high, below 50 % "
    "low. High arithmetic with low memory: compute-bound, info. High memory with arithmetic low or "
    "not known: memory-bound, low. Both low: latency-bound, info, with the largest of input, idle "
    "time and SparseCore from 10 % on. Cost 0: what it names counts it.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kHigh = 0.7;
      constexpr double kLow = 0.5;
      constexpr double kReason = 0.1;
      return EachRank(run, true, [&](const RankFacts& rank) {
        double arithmetic = kNotKnown;
        if (rank.peak_flops > 0 && rank.flops > 0 && rank.flops_wall_ns > 0) {
          arithmetic = rank.flops / Seconds(rank.flops_wall_ns) / rank.peak_flops /
                       static_cast<double>(rank.devices.size());
        }
        const auto moving = TimeOf(rank, true, [](const NameTotal& name) {
          if (name.category != trace::Category::kKernel) {
            return name.category == trace::Category::kMemcpy ||
                   name.category == trace::Category::kMemset;
          }
          return HasAny(name.name, {"elementwise", "Elementwise", "reduce_kernel",
                                    "ReduceOp",    "softmax",     "Softmax",
                                    "SoftMax",     "norm",        "Norm",
                                    "bn_fw",       "bn_bw",       "copy",
                                    "Copy",        "CatArray",    "index",
                                    "Index",       "embedding",   "multi_tensor_apply",
                                    "dropout",     "transpose",   "pool",
                                    "triton_poi",  "triton_red",  "triton_per"});
        });
        const double memory =
            std::min(1.0, rank.share(moving) / static_cast<double>(rank.devices.size()));
        Advised a;
        if (std::isfinite(arithmetic)) a.evidence["arithmetic"] = Rounded(arithmetic);
        a.evidence["memory_kernels"] = Rounded(memory);
        a.confidence = 0.5;
        if (arithmetic > kHigh && memory < kLow) {
          a.title = "Compute-bound";
          a.cause = fmt::format("The device reaches {} of its peak.", Percent(arithmetic));
          a.advice =
              "Little is left to gain but narrower types (FP8), sparsity, or a faster device.";
        } else if (memory > kHigh && !(arithmetic >= kLow)) {
          a.severity = Severity::kLow;
          a.title = "Memory-bound";
          a.cause = fmt::format("Kernels that do little but read and write take {} of the time.",
                                Percent(memory));
          a.advice =
              "Fuse them (torch.compile, fused optimizer and normalisation, FlashAttention), and "
              "keep activations in 16 bits.";
          a.share = memory;
        } else if (arithmetic < kLow && memory < kLow) {
          std::int64_t busy = 0;
          for (const DeviceFacts& device : rank.devices) busy = std::max(busy, device.busy_ns);
          const double input = rank.share(rank.role(trace::StepRole::kDataLoader));
          const double idle = 1 - rank.share(busy);
          const double sparse = rank.share(TimeOf(rank, true, [](const NameTotal& name) {
            return HasAny(name.name, {"SparseCore", "sparse-core", "sparsecore"});
          }));
          if (std::max({input, idle, sparse}) < kReason) return;
          a.title = "Latency-bound";
          a.evidence["input"] = Rounded(input);
          a.evidence["idle"] = Rounded(idle);
          a.evidence["sparse_core"] = Rounded(sparse);
          a.cause = fmt::format(
              "Neither arithmetic ({}) nor memory ({}) is near its limit; the device idles in {} "
              "of "
              "the time, {} is wait for input.",
              Percent(arithmetic), Percent(memory), Percent(idle), Percent(input));
          a.advice = input >= std::max(idle - input, sparse)
                         ? "Begin with the input: see InputPipeline."
                     : sparse > idle ? "Begin with SparseCore."
                                     : "Begin with what the device waits for: see "
                                       "AcceleratorUtilization.";
        } else {
          return;
        }
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
