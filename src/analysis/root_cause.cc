// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "analysis/summary.h"
#include "base/saturate.h"

namespace telltale::analysis {
namespace {

constexpr std::size_t kColumns = 512;
constexpr std::int64_t kFirstWidthNs = 100'000'000;
/// By FactorKind.
constexpr std::array<std::size_t, 6> kMostOf = {128, 7, 64, 128, 64, 64};
constexpr std::size_t kMostRanks = 4096;
constexpr std::size_t kMostCores = 1024;
constexpr std::size_t kMostPending = 4096;
/// Steps that a rank must have made before one can be called slow, and how often that is renewed.
constexpr std::uint64_t kLearnSteps = 20;
constexpr std::uint64_t kRefreshSteps = 32;
constexpr double kSlowFactor = 2;
constexpr double kIdlePercent = 10;
constexpr double kBusyPercent = 90;

constexpr std::uint64_t kFewestDuring = 3;
constexpr std::uint64_t kFewestNormal = 20;
constexpr double kLeastGap = 0.05;
/// Differences below this share of the gap are noise; a metric's below this share of itself.
constexpr double kLeastShare = 0.05;
constexpr double kLeastChange = 0.1;
/// A span that is most of every step explains nothing: it is the step.
constexpr double kWholeStep = 0.9;
constexpr std::size_t kFewestColumns = 4;
/// What a window must cover of a column to be looked for in it, where it covers half of none.
constexpr double kLeastCovered = 0.1;

FactorKind KindOfSpan(std::string_view name) {
  const auto colon = name.rfind(':');
  if (colon != std::string_view::npos && colon + 1 < name.size() &&
      name.substr(0, colon).find('.') != std::string_view::npos &&
      std::all_of(name.begin() + static_cast<std::ptrdiff_t>(colon) + 1, name.end(),
                  [](unsigned char c) { return std::isdigit(c) != 0; })) {
    return FactorKind::kCode;
  }
  return name.find('/') != std::string_view::npos ? FactorKind::kFile : FactorKind::kSpan;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

/// Keeps the newest value of one of a bounded number of subjects.
void Keep(std::map<std::string, double, std::less<>>* values, std::string_view subject,
          double value) {
  const auto found = values->find(subject);
  if (found != values->end()) {
    found->second = value;
  } else if (values->size() < kMostCores) {
    values->emplace(subject, value);
  }
}

}  // namespace

std::string_view Name(FactorKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"metric", "phase", "rank",
                                                      "span",   "file",  "code"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool Contrast::comparable() const {
  return steps_during >= kFewestDuring && steps_normal >= kFewestNormal &&
         gap_ns() >= kLeastGap * step_ns_normal;
}

CauseTrail::CauseTrail() {
  known_.resize(1 + kPhases.size());
  known_[kStep].kind = FactorKind::kPhase;
  known_[kStep].name = "step";
  known_[kStep].unit = "ns";
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    Known& phase = known_[kFirstPhase + i];
    phase.kind = FactorKind::kPhase;
    phase.name = kPhases[i];
    phase.unit = "ns";
  }
}

std::uint32_t CauseTrail::table_mask() {
  return store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
         store::MaskOf(format::TableId::kMetrics);
}

void CauseTrail::OnRecord(const store::OrderedRecord& record) {
  if (const auto* metric = record.As<format::MetricRow>()) {
    OnMetric(*metric);
  } else if (const auto* span = record.As<format::SpanRow>()) {
    OnSpan(*span);
  } else if (const auto* step = record.As<format::StepRow>()) {
    OnStep(*step);
  }
}

std::optional<std::uint32_t> CauseTrail::At(FactorKind kind, std::string_view name,
                                            std::string_view more, std::string_view unit) {
  key_.assign(1, static_cast<char>('0' + static_cast<int>(kind)));
  key_.append(name).append(1, '\x1f').append(more);
  if (const auto found = index_.find(std::string_view(key_)); found != index_.end()) {
    return found->second;
  }
  std::size_t& count = count_of_[static_cast<std::size_t>(kind)];
  if (count >= kMostOf[static_cast<std::size_t>(kind)]) {
    ++folded_;
    return std::nullopt;
  }
  ++count;
  const auto id = static_cast<std::uint32_t>(known_.size());
  Known& known = known_.emplace_back();
  known.kind = kind;
  known.name = std::string(name);
  if (!more.empty()) known.name.append(" of ").append(more);
  known.unit = std::string(unit);
  index_.emplace(key_, id);
  return id;
}

void CauseTrail::Widen() {
  for (Known& known : known_) {
    std::vector<Cell>& cells = known.columns;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i % 2 == 0) {
        cells[i / 2] = cells[i];
      } else {
        cells[i / 2].Add(cells[i]);
      }
    }
    cells.resize((cells.size() + 1) / 2);
  }
  width_ns_ *= 2;
}

std::size_t CauseTrail::ColumnOf(std::int64_t time_ns) {
  if (width_ns_ == 0) {
    begin_ns_ = time_ns;
    width_ns_ = kFirstWidthNs;
  }
  // What is from before the first record is late: the first column takes it.
  const std::int64_t since = std::max<std::int64_t>(0, time_ns - begin_ns_);
  while (since / width_ns_ >= static_cast<std::int64_t>(kColumns)) Widen();
  return static_cast<std::size_t>(since / width_ns_);
}

void CauseTrail::Put(std::uint32_t factor, std::int64_t time_ns, double value) {
  const std::size_t column = ColumnOf(time_ns);
  std::vector<Cell>& cells = known_[factor].columns;
  if (cells.size() <= column) cells.resize(column + 1);
  cells[column].Add(value);
}

std::optional<CauseTrail::Class> CauseTrail::DeviceClass() const {
  if (devices_.empty()) return std::nullopt;
  double device = 0;
  for (const auto& [subject, value] : devices_) device += value;
  device /= static_cast<double>(devices_.size());
  if (device >= kBusyPercent) return kBusy;
  const bool core_busy = std::any_of(cores_.begin(), cores_.end(),
                                     [](const auto& core) { return core.second >= kBusyPercent; });
  if (device <= kIdlePercent && core_busy) return kStarved;
  return std::nullopt;
}

void CauseTrail::OnStep(const format::StepRow& row) {
  if (row.mode != "TRAIN" || row.duration_ns <= 0) return;
  if (ranks_.size() >= kMostRanks && !ranks_.contains(row.rank)) {
    ++folded_;
    return;
  }
  Rank& rank = ranks_[row.rank];
  const bool warms_up = rank.attempt != row.attempt || rank.steps == 0;
  rank.attempt = row.attempt;
  rank.pid = row.pid;
  ++rank.steps;
  if (warms_up) {
    rank.pending.clear();
    return;
  }
  const auto duration = static_cast<double>(row.duration_ns);
  std::array<std::optional<Class>, 2> classes;
  if (rank.slow_ns > 0) classes[0] = duration > rank.slow_ns ? kSlow : kUsual;
  classes[1] = DeviceClass();
  rank.duration_ns.Add(duration);
  if (rank.duration_ns.count() >= kLearnSteps &&
      (rank.slow_ns == 0 || rank.steps % kRefreshSteps == 0)) {
    rank.slow_ns = kSlowFactor * rank.duration_ns.At(0.5);
  }

  const auto put = [&](std::uint32_t factor, double ns) {
    Put(factor, row.time_ns, ns);
    for (const auto& one : classes) {
      if (one) known_[factor].classes[*one].Add(ns);
    }
  };
  put(kStep, duration);
  const PhaseTimes phases = PhasesOf(row);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    put(kFirstPhase + static_cast<std::uint32_t>(i), static_cast<double>(phases[i]));
  }
  // What a rank takes while it waits for nobody: who waits is not who is slow.
  if (!rank.factor)
    rank.factor = At(FactorKind::kRank, "rank " + std::to_string(row.rank), {}, "ns");
  if (rank.factor) put(*rank.factor, static_cast<double>(row.duration_ns - row.comm_wait_ns));
  for (const Pending& span : rank.pending) put(span.factor, span.ns);
  rank.pending.clear();
  for (const std::uint32_t factor : fresh_) {
    Known& metric = known_[factor];
    for (const auto& one : classes) {
      if (one) metric.classes[*one].Add(metric.pending);
    }
    metric.pending = {};
  }
  fresh_.clear();
}

void CauseTrail::OnSpan(const format::SpanRow& row) {
  // The phases are known of each step already, exclusive of each other.
  if (row.duration_ns < 0 || row.category == "phase") return;
  // Between TRAIN steps, which it does not lengthen.
  if (row.category == "runtime" && row.name == "evaluation") return;
  if (ranks_.size() >= kMostRanks && !ranks_.contains(row.rank)) return;
  Rank& rank = ranks_[row.rank];
  if (rank.pending.size() >= kMostPending) {
    ++folded_;
    return;
  }
  const auto factor = At(KindOfSpan(row.name), row.name, {}, "ns");
  if (!factor) return;
  if (rank.pid != 0 && row.pid != rank.pid) known_[*factor].beside = true;
  rank.pending.push_back({*factor, static_cast<double>(row.duration_ns)});
}

void CauseTrail::OnMetric(const format::MetricRow& row) {
  if (!std::isfinite(row.value)) return;
  if (first_node_.empty()) first_node_ = row.node;
  const bool idle = row.name == "cpu.idle";
  const double value = idle ? 100 - row.value : row.value;
  const auto subject = [&] {
    std::string text(row.subject == "node" ? std::string_view() : row.subject);
    if (row.node != first_node_) text.append(text.empty() ? "" : " on ").append(row.node);
    return text;
  };
  if (row.subject.starts_with("cpu:")) {
    if (idle) Keep(&cores_, subject(), value);
    return;
  }
  if (row.subject.starts_with("proc:") && row.subject != "proc:tree") return;
  if (row.name == "gpu.utilization") Keep(&devices_, subject(), value);
  const auto factor =
      At(FactorKind::kMetric, idle ? std::string_view("cpu.busy") : row.name, subject(), row.unit);
  if (!factor) return;
  Put(*factor, row.time_ns, value);
  Cell& pending = known_[*factor].pending;
  if (pending.count == 0) fresh_.push_back(*factor);
  pending.Add(value);
}

std::vector<bool> CauseTrail::In(std::span<const Window> windows, bool sought) const {
  std::vector<double> shares(kColumns, 0);
  double most = 0;
  for (std::size_t i = 0; i < kColumns && width_ns_ > 0; ++i) {
    // Columns that nothing was entered in may lie beyond the end of all times.
    const Sum begin = Sum(begin_ns_) + Sum(i) * width_ns_;
    const Sum end = begin + width_ns_;
    Sum covered = 0;
    for (const Window& window : windows) {
      covered += std::max<Sum>(
          0, std::min<Sum>(window.end_ns, end) - std::max<Sum>(window.begin_ns, begin));
      if (covered * 2 >= width_ns_) break;
    }
    shares[i] = static_cast<double>(covered) / static_cast<double>(width_ns_);
    most = std::max(most, shares[i]);
  }
  // Columns of a long run are longer than a short incident: it is in those that have most of it.
  const double least = sought && most < 0.5 ? std::max(kLeastCovered, most / 2) : 0.5;
  std::vector<bool> out(kColumns, false);
  for (std::size_t i = 0; i < kColumns; ++i) out[i] = shares[i] >= least;
  return out;
}

double CauseTrail::Follows(const Known& metric, const std::vector<bool>& columns) const {
  const std::vector<Cell>& steps = known_[kStep].columns;
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < std::min(steps.size(), metric.columns.size()); ++i) {
    const Cell& x = metric.columns[i];
    const Cell& y = steps[i];
    if (!columns[i] || x.count == 0 || y.count == 0) continue;
    points.emplace_back(x.sum / static_cast<double>(x.count), y.sum / static_cast<double>(y.count));
  }
  if (points.size() < kFewestColumns) return 0;
  double mean_x = 0;
  double mean_y = 0;
  for (const auto& [x, y] : points) {
    mean_x += x;
    mean_y += y;
  }
  mean_x /= static_cast<double>(points.size());
  mean_y /= static_cast<double>(points.size());
  double xx = 0;
  double yy = 0;
  double xy = 0;
  for (const auto& [x, y] : points) {
    xx += (x - mean_x) * (x - mean_x);
    yy += (y - mean_y) * (y - mean_y);
    xy += (x - mean_x) * (y - mean_y);
  }
  const double both = xx * yy;
  return both > 0 ? std::clamp(xy * xy / both, 0.0, 1.0) : 0;
}

Contrast CauseTrail::Make(const Take& during, const Take& normal,
                          const std::vector<bool>& columns) const {
  Contrast out;
  const Cell steps_during = during(known_[kStep]);
  const Cell steps_normal = normal(known_[kStep]);
  out.steps_during = steps_during.count;
  out.steps_normal = steps_normal.count;
  if (steps_during.count == 0 || steps_normal.count == 0) return out;
  const auto count_during = static_cast<double>(steps_during.count);
  const auto count_normal = static_cast<double>(steps_normal.count);
  out.step_ns_during = steps_during.sum / count_during;
  out.step_ns_normal = steps_normal.sum / count_normal;
  const bool slower = out.comparable();

  std::vector<double> rank_changes;
  const auto rank_change = [&](const Known& known) -> std::optional<double> {
    const Cell a = during(known);
    const Cell b = normal(known);
    if (a.count == 0 || b.count == 0) return std::nullopt;
    return a.sum / static_cast<double>(a.count) - b.sum / static_cast<double>(b.count);
  };
  for (const Known& known : known_) {
    if (known.kind != FactorKind::kRank) continue;
    if (const auto change = rank_change(known)) rank_changes.push_back(*change);
  }

  double data_wait = 0;
  std::vector<std::pair<Factor, bool>> times;
  for (std::size_t id = kFirstPhase; id < known_.size(); ++id) {
    const Known& known = known_[id];
    const Cell a = during(known);
    const Cell b = normal(known);
    Factor factor;
    factor.kind = known.kind;
    factor.name = known.name;
    factor.unit = known.unit;
    if (known.kind == FactorKind::kMetric) {
      if (a.count == 0 || b.count == 0) continue;
      factor.during = a.sum / static_cast<double>(a.count);
      factor.normal = b.sum / static_cast<double>(b.count);
      const double scale = std::max(std::abs(factor.during), std::abs(factor.normal));
      if (std::abs(factor.during - factor.normal) < kLeastChange * scale || scale == 0) continue;
      factor.share = Follows(known, columns);
      if (factor.share >= kLeastShare) out.metrics.push_back(std::move(factor));
      continue;
    }
    if (!slower) continue;
    if (known.kind == FactorKind::kRank) {
      // Slower than the others became: where all do, none is the cause.
      if (rank_changes.size() < 2 || a.count == 0 || b.count == 0) continue;
      factor.during = a.sum / static_cast<double>(a.count);
      factor.normal = b.sum / static_cast<double>(b.count);
      std::vector<double> others = rank_changes;
      const double change = factor.during - factor.normal;
      const auto own = std::find(others.begin(), others.end(), change);
      if (own != others.end()) others.erase(own);
      factor.share = (change - Median(std::move(others))) / out.gap_ns();
    } else {
      factor.during = a.sum / count_during;
      factor.normal = b.sum / count_normal;
      if (known.kind != FactorKind::kPhase && !known.beside &&
          factor.normal >= kWholeStep * out.step_ns_normal) {
        continue;
      }
      factor.share = (factor.during - factor.normal) / out.gap_ns();
      if (id == kFirstPhase) data_wait = factor.share;
    }
    if (factor.share >= kLeastShare) times.emplace_back(std::move(factor), known.beside);
  }

  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) {
    if (a.first.share != b.first.share) return a.first.share > b.first.share;
    if (a.first.kind != b.first.kind) return a.first.kind > b.first.kind;
    return a.first.name < b.first.name;
  });
  if (times.size() > Contrast::kShown) times.resize(Contrast::kShown);
  for (auto& [factor, aside] : times) {
    // What goes on beside the step slows it only where the step waits for it.
    const bool may_be = factor.share >= kCoverage && (!aside || data_wait >= kCoverage);
    if (may_be && (!out.cause || factor.kind > out.times[*out.cause].kind)) {
      out.cause = out.times.size();
    }
    out.times.push_back(std::move(factor));
  }
  std::sort(out.metrics.begin(), out.metrics.end(), [](const Factor& a, const Factor& b) {
    return a.share != b.share ? a.share > b.share : a.name < b.name;
  });
  if (out.metrics.size() > Contrast::kShown) out.metrics.resize(Contrast::kShown);
  return out;
}

Contrast CauseTrail::Between(std::span<const Window> during, std::span<const Window> apart) const {
  const std::vector<bool> in = In(during, true);
  std::vector<bool> out = In(apart, false);
  std::vector<bool> either(kColumns);
  for (std::size_t i = 0; i < kColumns; ++i) {
    out[i] = !in[i] && !out[i];
    either[i] = in[i] || out[i];
  }
  const auto sum = [](const std::vector<bool>& columns) {
    return [&columns](const Known& known) {
      Cell all;
      for (std::size_t i = 0; i < known.columns.size(); ++i) {
        if (columns[i]) all.Add(known.columns[i]);
      }
      return all;
    };
  };
  return Make(sum(in), sum(out), either);
}

Contrast CauseTrail::SlowSteps() const {
  return Make([](const Known& known) { return known.classes[kSlow]; },
              [](const Known& known) { return known.classes[kUsual]; },
              std::vector<bool>(kColumns, true));
}

Contrast CauseTrail::StarvedSteps() const {
  return Make([](const Known& known) { return known.classes[kStarved]; },
              [](const Known& known) { return known.classes[kBusy]; },
              std::vector<bool>(kColumns, true));
}

}  // namespace telltale::analysis
