// SPDX-License-Identifier: Apache-2.0
// Sequences that are padding for the most part, by the events `batch.tokens`: what an embedding is
// given. Thread safety: none. Memory: the newest few events of a process.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/saturate.h"
#include "rules/builtin/loop_rule.h"

namespace telltale::rules {

struct BatchTokensProcess : LoopProcess {
  struct Look {
    double tokens = 0;
    double share = 0;  ///< Of the one that stands for padding.
    bool padding = false;
    std::int64_t token = 0;
    std::int64_t step = -1;
    std::int64_t ns = 0;
  };
  std::deque<Look> looks;  ///< The newest.
};

class BatchTokens final : public LoopRule<BatchTokensProcess> {
 protected:
  std::string Lacks() const override {
    if (looks_ == 0) return "no embedding was given rows of tokens";
    if (looks_ < kFewestLooks) {
      return fmt::format("the tokens of {} {} were looked at, {} batches are needed", looks_,
                         looks_ == 1 ? "batch" : "batches", kFewestLooks);
    }
    return fmt::format("{:.0f} tokens were looked at, {:.0f} are needed", tokens_, kLeastTokens);
  }
  bool Reads(std::string_view kind) const override { return kind == "batch.tokens"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               BatchTokensProcess* process) override {
    BatchTokensProcess::Look look;
    look.tokens = NumberIn(data, "tokens");
    look.share = NumberIn(data, "share");
    if (!(look.tokens >= 1 && look.tokens <= 1e9) || !(look.share >= 0 && look.share <= 1)) return;
    // Where the model names no padding, it is what most rows end or begin with.
    look.padding = FlagIn(data, "named") || NumberIn(data, "edges") > kMostRows;
    look.token = static_cast<std::int64_t>(std::clamp(NumberIn(data, "token"), -1e15, 1e15));
    look.step = std::max<std::int64_t>(0, event.step);
    look.ns = event.time_ns;
    process->looks.push_back(look);
    if (process->looks.size() > kLooks) process->looks.pop_front();
    Judge(process);
  }

 private:
  static constexpr std::size_t kLooks = 8;
  static constexpr std::size_t kFewestLooks = 3;
  static constexpr double kLeastTokens = 1000;
  static constexpr double kMostRows = 0.5;
  static constexpr double kMost = 0.5;
  static constexpr double kNearlyAll = 0.9;

  void Judge(BatchTokensProcess* process) {
    double tokens = 0;
    double padding = 0;
    bool same = true;
    for (const auto& look : process->looks) {
      tokens += look.tokens;
      padding += look.padding ? look.share * look.tokens : 0;
      same = same && look.token == process->looks.front().token;
    }
    looks_ = std::max(looks_, process->looks.size());
    tokens_ = std::max(tokens_, tokens);
    if (process->looks.size() < kFewestLooks || tokens < kLeastTokens) return;
    SeesData();
    const double share = padding / tokens;
    if (!same || share <= kMost) {
      TakeBack(process, "");
      return;
    }
    const auto& first = process->looks.front();
    Incident incident =
        BeginAt(first.step, first.ns, share > kNearlyAll ? Severity::kHigh : Severity::kMedium);
    incident.message =
        fmt::format("{:.0f} % of the tokens that the model is given are padding", 100 * share);
    incident.cause = fmt::format(
        "Of {:.0f} tokens that were looked at in the input of the embedding, {:.0f} % are token "
        "{}{}: each costs as much as one that says something.",
        tokens, 100 * share, first.token,
        process->looks.back().padding ? ", with which the rows are filled up" : "");
    incident.advice =
        "Sort sequences by length into batches (buckets), pad to the longest of the batch and not "
        "of the data set, or pack several into one row; and leave the padding out of loss and "
        "attention.";
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["tokens"] = SaturatingCast(tokens);
    evidence["token"] = first.token;
    evidence["share"] = Rounded(share);
    incident.evidence = JsonText(evidence);
    Say(process, "", std::move(incident));
  }

  std::size_t looks_ = 0;  ///< Batches that were looked at together.
  double tokens_ = 0;      ///< Theirs.
};

}  // namespace telltale::rules
