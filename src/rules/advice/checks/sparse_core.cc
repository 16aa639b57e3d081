// SPDX-License-Identifier: Apache-2.0
// Time of an XLA device in its SparseCores.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kSparseCore{
    "SparseCore",
    "Does the step wait for SparseCores?",
    "XProf input analyser: SparseCoreV0; smart suggestions: SparseCore",
    "Time of operations that name SparseCore over the steps' time: low from 1 %, medium from 10 %. "
    "Cost 0: embeddings have to be looked up.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.01;
      constexpr double kMuch = 0.1;
      return EachRank(run, true, [&](const RankFacts& rank) {
        const auto ns = TimeOf(rank, true, [](const NameTotal& name) {
          return HasAny(name.name, {"SparseCore", "sparse-core", "sparsecore"});
        });
        const double share = rank.share(ns);
        if (share < kSome) return;
        Advised a;
        a.severity = share >= kMuch ? Severity::kMedium : Severity::kLow;
        a.title = "SparseCores take part of the step";
        a.evidence["sparse_core_seconds"] = Rounded(Seconds(ns));
        a.cause = fmt::format("Look-ups of embeddings take {} of the time.", Percent(share));
        a.advice =
            "Overlap them with the dense part (pipelined execution with SparseCores), divide "
            "tables "
            "evenly, and remove rows that never occur.";
        a.share = share;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
