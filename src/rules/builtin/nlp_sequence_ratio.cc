// SPDX-License-Identifier: Apache-2.0
// NLPSequenceRatio: a large share of the tokens of sequences is one token: padding, mostly.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "base/saturate.h"
#include "rules/builtin/batch_tokens.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::nlp_sequence_ratio {
namespace {

constexpr std::string_view kSageMakersRegex = ".*embedding0_input_0";

constexpr ParameterDesc kParameters[] = {
    {"tensor_regex", 0, "",
     "Sequences are tensors with this in their names; as it is here, also "
     "what an embedding, or the root as input_ids, is given.",
     ".*embedding0_input_0"},
    {"token_values", 0, "", "Tokens to look for, separated by commas.", "0"},
    {"token_thresholds_percent", 0, "%",
     "For each of them the share above which there are too many, separated by commas; one for all.",
     "50"},
    {"captures", 3, "captures", "Captures whose sequences are looked at together."},
};

constexpr CaptureNeed kCaptures[] = {
    {.collection = "input_sequence",
     .take = "values",
     .interval = 50,
     .include = "{tensor_regex}",
     .asked_only = true},
    {.collection = "token_inputs",
     .take = "values",
     .interval = 50,
     .include = "(?i)(?:^|[./])[a-z_0-9]*emb[a-z_0-9]*\\.input\\.0$"
                "|^input\\.input_ids$",
     .asked_only = true},
};

constexpr std::size_t kMostElements = std::size_t{1} << 20U;

/// "0, 2" as numbers. Throws where it is no list of them: the engine shows it as the rule's state.
std::vector<double> Numbers(std::string_view text, std::string_view name) {
  std::vector<double> out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) {
      throw std::runtime_error(
          fmt::format("{}: '{}' is no list of numbers", name, Printable(text)));
    }
    out.push_back(value);
  }
  if (out.empty()) throw std::runtime_error(fmt::format("{}: it is empty", name));
  return out;
}

/// Of an embedding, by the name of its module or of its argument.
bool IsTokens(std::string_view name) {
  if (name.find('#') != std::string_view::npos) return false;
  if (name == "input.input_ids") return true;
  if (!name.ends_with(".input.0")) return false;
  name.remove_suffix(8);
  const auto part = name.find_last_of("./");
  std::string module(part == std::string_view::npos ? name : name.substr(part + 1));
  for (char& c : module) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return module.find("emb") != std::string::npos && module.find("pos") == std::string::npos;
}

class NLPSequenceRatio final : public Rule {
 public:
  explicit NLPSequenceRatio(const Parameters& p)
      : pattern_(p.Text("tensor_regex")),
        any_embedding_(p.Text("tensor_regex") == kSageMakersRegex),
        token_values_(p.Text("token_values")),
        token_thresholds_(p.Text("token_thresholds_percent")),
        captures_(
            static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("captures"), 1, 100))) {}

  void Bind(const RuleContext& context) override { values_ = context.values; }

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kTensors) return false;
    if (pattern_.Matches(series.name) || series.collection == "input_sequence") return true;
    return any_embedding_ && series.collection == "inputs" && IsTokens(series.name);
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    // Where values are captured they say more.
    if (!has_data_) batch_tokens_.OnRecord(record, reporter);
    if (tokens_.empty()) ReadParameters();
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind != "process.exit") return;
      processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
    }
  }

  void OnEnd(Reporter* reporter) override {
    batch_tokens_.OnEnd(reporter);
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_ || batch_tokens_.has_data(); }
  std::string Missing() const override { return batch_tokens_.Missing(); }

 private:
  struct Token {
    double value = 0;
    double threshold = 0;  ///< Share, 0 to 1.
  };
  struct Capture {
    std::int64_t step = -1;
    std::int64_t ns = 0;
    double elements = 0;
    std::vector<double> counts;  ///< By token.
  };
  struct Process : TrainingProcess {
    std::uint32_t series = kNoSeries;  ///< Of its sequences.
    std::string name;
    std::deque<Capture> captures;  ///< The newest.
  };

  void ReadParameters() {
    const auto values = Numbers(token_values_, "token_values");
    const auto thresholds = Numbers(token_thresholds_, "token_thresholds_percent");
    if (thresholds.size() != 1 && thresholds.size() != values.size()) {
      throw std::runtime_error(
          fmt::format("token_thresholds_percent: {} of them for {} tokens: give one, or one each",
                      thresholds.size(), values.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      tokens_.push_back({values[i], thresholds[thresholds.size() == 1 ? 0 : i] / 100});
    }
  }

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    // The first that comes: several embeddings (of types, of segments) are not one sequence.
    if (process->series != kNoSeries && process->series != record.series) return;
    const auto samples = ReadSamples(record, row, values_, kMostElements);
    if (!samples) return;
    Capture capture;
    capture.step = row.step;
    capture.ns = row.time_ns;
    capture.elements = static_cast<double>(samples->elements.size());
    capture.counts.resize(tokens_.size());
    for (const double value : samples->elements) {
      // Embedded already, or one-hot with weights: no tokens.
      if (value != std::floor(value)) return;
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        if (value == tokens_[i].value) ++capture.counts[i];
      }
    }
    process->series = record.series;
    process->name = row.name;
    process->last_step = std::max(process->last_step, row.step);
    process->captures.push_back(std::move(capture));
    if (process->captures.size() > captures_) process->captures.pop_front();
    if (process->captures.size() == captures_) Judge(process, reporter);
  }

  /// Share of a token in the newest captures.
  static double ShareOf(const Process& process, std::size_t token) {
    double found = 0;
    double all = 0;
    for (const Capture& capture : process.captures) {
      found += capture.counts[token];
      all += capture.elements;
    }
    return all > 0 ? found / all : 0;
  }

  void Judge(Process* process, Reporter* reporter) {
    has_data_ = true;
    std::size_t worst = tokens_.size();
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const double share = ShareOf(*process, i);
      if (share <= tokens_[i].threshold) continue;
      if (worst == tokens_.size() || share > ShareOf(*process, worst)) worst = i;
    }
    if (worst == tokens_.size()) {
      if (process->open) reporter->Recover(process->incident);
      process->open = false;
      return;
    }
    if (!process->open) {
      const Capture& first = process->captures.front();
      processes_.Open(process, std::max<std::int64_t>(0, first.step), first.ns);
    }
    Describe(process, worst);
    reporter->Report(process->incident);
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process, std::size_t worst) const {
    Incident& incident = process->incident;
    const double share = ShareOf(*process, worst);
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, process->captures.back().ns);
    incident.severity = share > 0.9 ? Severity::kHigh : Severity::kMedium;
    incident.message =
        fmt::format("{} % of all tokens are {:.0f}", Plain(100 * share), tokens_[worst].value);
    incident.cause = fmt::format(
        "Token {:.0f} is {} % of the tokens of {}, more than the {} % that are meant to be the "
        "most.",
        tokens_[worst].value, Plain(100 * share), process->name,
        Plain(100 * tokens_[worst].threshold));
    incident.advice =
        "If it is padding: sort sequences by length into batches (buckets), pad to the longest of "
        "the batch, or pack several into one; and leave it out of loss and attention.";
    incident.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["tensor"] = process->name;
    double elements = 0;
    for (const Capture& capture : process->captures) elements += capture.elements;
    evidence["tokens"] = SaturatingCast(elements);
    evidence["captures"] = process->captures.size();
    nlohmann::ordered_json percent = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      percent[fmt::format("{:.0f}", tokens_[i].value)] = Rounded(100 * ShareOf(*process, i));
    }
    evidence["percent"] = std::move(percent);
    incident.evidence = JsonText(evidence);
  }

  const TensorPattern pattern_;
  const bool any_embedding_;
  const std::string token_values_, token_thresholds_;
  const std::size_t captures_;

  TensorValues* values_ = nullptr;
  BatchTokens batch_tokens_;
  std::vector<Token> tokens_;
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kNLPSequenceRatioDesc{
    .name = "NLPSequenceRatio",
    .summary = "A large share of the tokens is one token, padding mostly.",
    .formula =
        "Sequences are the tensors that tensor_regex or the collection input_sequence names; with "
        "the regex as SageMaker has it, else the input of the first embedding of a process, or "
        "the root's input_ids. share of a token = its elements / all, over the newest `captures` "
        "captures together, whole numbers alone. Medium where a share is > its threshold, high "
        "where it is above 90 % too; over where all are not. Costs are not given: whether the "
        "token is padding, and whether it is computed, only the model knows. Where no values are "
        "captured: of the newest 8 events `batch.tokens`, at least 3 with 1000 tokens: medium "
        "where "
        "the padding is > 50 % of all tokens, high > 90 %; it is padding_idx of the embedding, or, "
        "where that is not given, the token with which more than half of the rows end or begin.",
    .how_to_fix =
        "Sort sequences by length into batches, pad to the longest of a batch and not of the data "
        "set (DataCollatorWithPadding), or pack several into one row.",
    .table_mask = store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .example =
        "`tokenizer(texts, padding=\"max_length\", max_length=512)` of sentences of 40 "
        "tokens."};

std::unique_ptr<Rule> MakeNLPSequenceRatio(const Parameters& parameters) {
  return std::make_unique<NLPSequenceRatio>(parameters);
}

}  // namespace telltale::rules::nlp_sequence_ratio
