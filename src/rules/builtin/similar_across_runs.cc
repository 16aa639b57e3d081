// SPDX-License-Identifier: Apache-2.0
// SimilarAcrossRuns: tensors of this run differ from those of another at the same step.
//
// What is compared are statistics and digests of values, as both runs recorded them: no tensor is
// read again. The other run is read once, before the first record; what it holds is part of the
// result, so a replay says the same as long as that run is the same.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"
#include "store/reader.h"

namespace telltale::rules::similar_across_runs {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"other_trials", 0, "",
     "Folders of the runs to compare with, separated by commas; what is not absolute begins at the "
     "folder that this run is in.",
     ""},
    {"collection_names", 0, "",
     "Tensors of these collections, separated by commas; with an empty "
     "tensor_regex too: all.",
     ""},
    {"tensor_regex", 0, "", "And those with this in their names.", ""},
    {"rtol", 0, "", "Statistics are the same where they differ by less than this share,"},
    {"atol", 0, "", "and this. Both 0: every bit counts."},
};

constexpr CaptureNeed kCaptures[] = {
    {"{collection_names}", "statistics", 100},
    {"", "statistics", 100, "{tensor_regex}"},
};

/// Captures of the other runs that are kept, of 80 bytes each; what is more is not compared.
constexpr std::size_t kMostCaptures = 1'000'000;
constexpr std::size_t kNamed = 8;  ///< Tensors that the evidence names.
constexpr std::size_t kNumbers = 6;
constexpr std::array<std::string_view, kNumbers> kNumberNames = {"min", "max", "mean",
                                                                 "std", "l1",  "l2"};

/// What was recorded of one tensor at one step.
struct Capture {
  std::int64_t step = -1;
  bool values = false;  ///< A digest; else statistics.
  std::array<double, kNumbers> numbers{};
  std::array<std::uint64_t, 4> counts{};  ///< All, NaN, infinite, zero; or the digest.
};

Capture CaptureOf(const format::StatisticRow& row) {
  Capture out;
  out.step = row.step;
  out.numbers = {row.min, row.max, row.mean, row.std, row.l1, row.l2};
  out.counts = {row.count, row.nan_count, row.inf_count, row.zero_count};
  return out;
}

std::uint64_t Hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

Capture CaptureOf(const format::TensorRow& row) {
  Capture out;
  out.step = row.step;
  out.values = true;
  const auto half = row.digest.size() / 2;
  out.counts = {row.bytes, Hash(row.digest.substr(0, half)), Hash(row.digest.substr(half)),
                Hash(row.shape)};
  return out;
}

std::string KeyOf(std::string_view table, std::string_view name, std::string_view mode,
                  std::int32_t rank) {
  return fmt::format("{}\x1f{}\x1f{}\x1f{}", table, name, mode, rank);
}

/// "runs/a" of "runs/a/": its last part is then its name.
std::filesystem::path WithoutSlash(std::string_view folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);
  return {folder};
}

/// The captures of one tensor of another run, by step.
struct Track {
  std::size_t run = 0;
  std::vector<Capture> captures;
};

class SimilarAcrossRuns final : public Rule {
 public:
  explicit SimilarAcrossRuns(const Parameters& p)
      : others_(p.Text("other_trials")),
        selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        rtol_(std::max(0.0, p.Get("rtol"))),
        atol_(std::max(0.0, p.Get("atol"))) {}

  void Bind(const RuleContext& context) override { run_ = context.run; }

  bool Wants(const Series& series) override {
    const bool statistics = series.table == format::TableId::kStatistics;
    if (!statistics && series.table != format::TableId::kTensors) return false;
    if (!loaded_) Load();
    if (!selection_.empty() && !selection_.Has(series)) return false;
    Place place;
    const std::string key = KeyOf(statistics ? "s" : "t", series.name, series.mode, series.rank);
    for (const auto& tracks : tracks_) {
      const auto found = tracks.find(key);
      if (found != tracks.end()) place.tracks.push_back(&found->second);
    }
    if (place.tracks.empty()) return false;
    place.tensor = Tensor(series.name);
    if (places_.size() <= series.id) places_.resize(series.id + 1);
    places_[series.id] = std::move(place);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      Compare(record, *statistic, CaptureOf(*statistic), reporter);
    } else if (const auto* tensor = record.As<format::TensorRow>()) {
      // Of a shape alone there is nothing to compare.
      if (!tensor->digest.empty()) Compare(record, *tensor, CaptureOf(*tensor), reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "plan") {
        selection_.OnPlan(event->data);
      } else if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return compared_ > 0; }
  /// Nobody said with what to compare.
  bool applies() const override { return !others_.empty(); }
  std::string Missing() const override {
    return others_.empty() ? "no run to compare with was named" : std::string();
  }

 private:
  struct Place {
    std::vector<const Track*> tracks;  ///< One a run that has the tensor.
    std::size_t tensor = 0;
  };

  struct Process : TrainingProcess {
    std::int64_t compared = 0;
    std::int64_t differing = 0;
    std::int64_t first_compared = -1;  ///< Step.
    std::size_t run = 0;               ///< Of the first difference, as the three that follow.
    std::string tensor, what;
    std::int64_t step = -1;
    std::vector<bool> differs;       ///< By tensor.
    std::vector<std::size_t> order;  ///< Tensors that differ, in the order in which that was seen.
    std::int64_t ns = 0;
  };

  std::size_t Tensor(const std::string& name) {
    const auto [at, added] = tensors_.try_emplace(name, names_.size());
    if (added) names_.push_back(name);
    return at->second;
  }

  void Load() {
    loaded_ = true;
    for (std::string_view rest = others_; !rest.empty();) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      std::string_view name = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      while (name.starts_with(' ')) name.remove_prefix(1);
      while (name.ends_with(' ')) name.remove_suffix(1);
      if (!name.empty()) LoadRun(name);
    }
  }

  /// Throws where there is no such run: the engine shows it as the rule's state.
  void LoadRun(std::string_view name) {
    std::filesystem::path folder = WithoutSlash(name);
    if (folder.is_relative() && !run_.empty()) {
      folder = WithoutSlash(run_).parent_path() / folder;
    }
    const auto fail = [&](const Status& status) {
      throw std::runtime_error(
          fmt::format("other_trials: {}: {}", Printable(name), status.message()));
    };
    const auto reader = store::RunReader::Open(folder);
    if (!reader.ok()) fail(reader.status());
    const std::size_t run = runs_.size();
    runs_.push_back(folder.filename().string());
    auto& tracks = tracks_.emplace_back();
    const auto keep = [&](std::string_view table, const auto& row) {
      if (kept_ >= kMostCaptures) return;
      ++kept_;
      Track& track = tracks[KeyOf(table, row.name, row.mode, row.rank)];
      track.run = run;
      track.captures.push_back(CaptureOf(row));
    };
    store::Salvage salvage;
    const Status read = (*reader)->Scan(
        store::MaskOf(format::TableId::kStatistics) | store::MaskOf(format::TableId::kTensors),
        [&](const std::string&, const format::Rows& rows) {
          for (const format::StatisticRow& row : rows.statistics) keep("s", row);
          for (const format::TensorRow& row : rows.tensors) {
            if (!row.digest.empty()) keep("t", row);
          }
          return kept_ < kMostCaptures;
        },
        &salvage);
    if (!read.ok()) fail(read);
    for (auto& [key, track] : tracks) {
      // Of a step that was made twice (a restart) the last capture stands behind the others.
      std::stable_sort(track.captures.begin(), track.captures.end(),
                       [](const Capture& a, const Capture& b) { return a.step < b.step; });
    }
  }

  template <class Row>
  void Compare(const Record& record, const Row& row, const Capture& capture, Reporter* reporter) {
    if (record.series >= places_.size()) return;
    const Place& place = places_[record.series];
    Process* process = nullptr;
    for (const Track* track : place.tracks) {
      const auto behind =
          std::upper_bound(track->captures.begin(), track->captures.end(), capture.step,
                           [](std::int64_t step, const Capture& c) { return step < c.step; });
      if (behind == track->captures.begin() || std::prev(behind)->step != capture.step) continue;
      if (process == nullptr) {
        process = processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
        if (process == nullptr) return;
      }
      ++compared_;
      ++process->compared;
      if (process->first_compared < 0) process->first_compared = capture.step;
      process->last_step = std::max(process->last_step, capture.step);
      process->ns = row.time_ns;
      const std::string_view what = Difference(capture, *std::prev(behind));
      if (!what.empty()) Note(process, place.tensor, *track, what, capture.step, reporter);
    }
  }

  bool Same(double a, double b) const {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b || std::abs(a - b) <= atol_ + rtol_ * std::abs(b);
  }

  /// What differs; empty: nothing.
  std::string_view Difference(const Capture& a, const Capture& b) const {
    if (a.values) return a.counts == b.counts ? std::string_view() : "values";
    if (a.counts[0] != b.counts[0]) return "number of elements";
    for (std::size_t i = 0; i < kNumbers; ++i) {
      if (!Same(a.numbers[i], b.numbers[i])) return kNumberNames[i];
    }
    if (a.counts[1] != b.counts[1]) return "NaN";
    if (a.counts[2] != b.counts[2]) return "infinities";
    const bool exact = rtol_ == 0 && atol_ == 0;
    return exact && a.counts[3] != b.counts[3] ? "zeros" : std::string_view();
  }

  void Note(Process* process, std::size_t tensor, const Track& track, std::string_view what,
            std::int64_t step, Reporter* reporter) {
    ++process->differing;
    if (process->differs.size() <= tensor) process->differs.resize(names_.size());
    if (!process->differs[tensor]) {
      process->differs[tensor] = true;
      process->order.push_back(tensor);
    }
    if (!process->open) {
      process->run = track.run;
      process->tensor = names_[tensor];
      process->what = what;
      process->step = step;
      processes_.Open(process, std::max<std::int64_t>(0, step), process->ns);
      Describe(process);
      reporter->Report(process->incident);
    } else if (process->ns - process->incident.end_ns >= 1'000'000'000) {
      Describe(process);
      reporter->Report(process->incident);
    }
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    Describe(process);
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process) const {
    Incident& incident = process->incident;
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, process->ns);
    incident.severity = Severity::kMedium;
    incident.message =
        process->order.size() == 1
            ? std::string("1 tensor differs from the other run")
            : fmt::format("{} tensors differ from the other run", process->order.size());
    const bool at_once = process->step == process->first_compared;
    incident.cause = fmt::format(
        "{} is the first that differs from {}, at step {} ({}); {}.", process->tensor,
        runs_[process->run], process->step, process->what,
        at_once
            ? std::string("that is the first step that both recorded, so they began differently")
            : fmt::format("from step {} until then all were the same", process->first_compared));
    incident.advice =
        at_once
            ? "Compare seeds, versions, the initial weights and the first batch of both runs."
            : "Look at what is not determined: the order of the data, dropout, atomic additions "
              "on the device (torch.use_deterministic_algorithms), the number of threads.";
    incident.confidence = 1;
    nlohmann::ordered_json evidence;
    evidence["other"] = runs_[process->run];
    evidence["compared"] = process->compared;
    evidence["differing"] = process->differing;
    evidence["first"] = process->tensor;
    evidence["step"] = process->step;
    evidence["what"] = process->what;
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < std::min(kNamed, process->order.size()); ++i) {
      tensors.push_back(names_[process->order[i]]);
    }
    evidence["tensors"] = std::move(tensors);
    if (kept_ >= kMostCaptures) evidence["captures_of_the_other_left_out"] = true;
    incident.evidence = JsonText(evidence);
  }

  const std::string others_;
  TensorSelection selection_;
  const double rtol_;
  const double atol_;

  std::string run_;
  bool loaded_ = false;
  std::size_t kept_ = 0;
  std::vector<std::string> runs_;  ///< Names of the other runs.
  /// By run: what was recorded of each tensor. A deque: places point into it.
  std::deque<std::map<std::string, Track, std::less<>>> tracks_;
  std::vector<Place> places_;  ///< By series.
  std::map<std::string, std::size_t, std::less<>> tensors_;
  std::vector<std::string> names_;  ///< By tensor.
  ProcessTable<Process> processes_;
  std::int64_t compared_ = 0;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
};

}  // namespace

const RuleDesc kSimilarAcrossRunsDesc{
    .name = "SimilarAcrossRuns",
    .summary = "Tensors differ from those of another run at the same step.",
    .formula =
        "Of each tensor that both runs recorded at the same step, mode and rank: the statistics "
        "min, max, mean, standard deviation, l1 and l2 differ where |a − b| > atol + rtol × |b|, "
        "or where one alone is NaN; numbers of elements, NaN and infinities must be the same, and "
        "with both tolerances 0 the zeros too. Values are compared by their digests, bit by bit. "
        "Where the other run made a step twice its last capture counts. Medium at the first "
        "difference, until the process ends. The other run is read when the first tensor comes: "
        "what it records later does not count, nor what is beyond a million captures. Costs no "
        "time.",
    .how_to_fix =
        "Where the runs should be the same: the same seeds (torch.manual_seed, numpy, random, the "
        "loader's generator), versions, number of threads and ranks; "
        "torch.use_deterministic_algorithms(True). Where only roughly: rtol=1e-3.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .by_default = false,
    .example =
        "`telltale run --rule SimilarAcrossRuns:other_trials=yesterday -- python train.py` "
        "where train.py sets no seed."};

std::unique_ptr<Rule> MakeSimilarAcrossRuns(const Parameters& parameters) {
  return std::make_unique<SimilarAcrossRuns>(parameters);
}

}  // namespace telltale::rules::similar_across_runs
