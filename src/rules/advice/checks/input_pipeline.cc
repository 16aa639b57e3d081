// SPDX-License-Identifier: Apache-2.0
// Steps that wait for their batch, and what the input pipeline does meanwhile.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kInputPipeline{
    "InputPipeline",
    "How much of the time does a step wait for its batch, and for which stage?",
    "PyTorch plug-in: DataLoader; XProf input analyser: input-bound, host split; smart "
    "suggestions: input, host processing",
    "data_loader of the step breakdown over the steps' time: medium from 5 %, high from 20 %, as "
    "InputBound. The pipeline's own time is divided by XProf's stages: enqueue, reading on demand, "
    "reading ahead, preprocessing, unknown. Cost = the wait.",
    "InputBound",
    [](const RunFacts& run, Findings* out) {
      constexpr double kSome = 0.05;
      constexpr double kMuch = 0.2;
      constexpr double kMostlyProcessing = 0.5;
      static constexpr std::array<std::string_view, kInputStageNames.size()> kAdvice = {
          "Combine small chunks into larger ones before they are sent to the device.",
          "Read files ahead: interleave and prefetch (tf.data), more workers (num_workers), larger "
          "files on a near disk.",
          "Tune what reads ahead: prefetch depth (prefetch_factor), cycle_length, buffer_size, "
          "number of parallel reads.",
          "Make a batch cheaper or on more cores: num_workers or num_parallel_calls, vectorised "
          "transforms, what does not change done once and stored.",
          "Make batches beside the model: num_workers above 0, persistent_workers=True, "
          "prefetch (tf.data).",
      };
      return EachRank(run, false, [&](const RankFacts& rank) {
        const Sum wait = rank.role(trace::StepRole::kDataLoader);
        const double share = rank.share(wait);
        if (share < kSome) return;
        Sum all = 0;
        std::size_t most = 0;
        for (std::size_t i = 0; i < rank.input_ns.size(); ++i) {
          all += rank.input_ns[i];
          if (rank.input_ns[i] > rank.input_ns[most]) most = i;
        }
        if (all == 0) most = static_cast<std::size_t>(InputStage::kUnknown);
        Advised a;
        a.severity = share >= kMuch ? Severity::kHigh : Severity::kMedium;
        a.title = share >= kMuch ? "Highly input-bound" : "Moderately input-bound";
        a.evidence["wait_seconds"] = Rounded(Seconds(wait));
        for (std::size_t i = 0; i < rank.input_ns.size(); ++i) {
          a.evidence["stages"][std::string(kInputStageNames[i])] =
              Rounded(ShareOf(rank.input_ns[i], all));
        }
        const double processing =
            ShareOf(rank.input_ns[static_cast<std::size_t>(InputStage::kPreprocessing)], all);
        a.evidence["host_processing"] = Rounded(processing);
        a.cause = fmt::format("A step waits for its batch in {} of its time.", Percent(share));
        if (processing >= kMostlyProcessing) {
          a.cause +=
              fmt::format(" {} of the pipeline's time is preprocessing.", Percent(processing));
        }
        a.advice = kAdvice[most];
        a.cost_seconds = Seconds(wait);
        a.share = share;
        a.assumption = "assumes that each batch is ready when the step asks for it";
        a.confidence = 0.9;
        out->Add(rank, std::move(a));
      });
    }};

}  // namespace telltale::rules::advice
