// SPDX-License-Identifier: Apache-2.0
#include "server/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

#include "base/saturate.h"
#include "report/text.h"
#include "server/json_text.h"

namespace telltale::server {
namespace {

constexpr std::size_t kMaxDropped = 200;
constexpr std::size_t kMaxCounters = 20'000;
constexpr std::size_t kMaxStepMarks = 1 << 21;
/// How often the bound of points is looked at.
constexpr std::size_t kLookEvery = 1 << 16;
/// Losses that lie closer together than this are one.
constexpr std::int64_t kMergeNs = 2'000'000'000;
constexpr std::string_view kDuration = "duration";
/// Beyond these, on average, a cell of a heat map takes the maxima of buckets.
constexpr std::size_t kPointsACell = 256;

/// An empty column after each one that is followed by nothing for long, so that no chart draws a
/// line over what was not recorded.
SeriesColumns WithBreaks(const SeriesColumns& in, const std::vector<analysis::Gap>& gaps,
                         std::int64_t begin_ns, bool sampled) {
  if (in.t.size() < 2) return in;
  const std::int64_t mean =
      SaturatingSub(in.t.back(), in.t.front()) / static_cast<std::int64_t>(in.t.size() - 1);
  const std::int64_t limit =
      std::max<std::int64_t>(SaturatingMul(8, std::max(mean, in.width_ns)), 1);
  SeriesColumns out;
  out.width_ns = in.width_ns;
  for (std::size_t i = 0; i < in.t.size(); ++i) {
    if (i > 0) {
      const std::int64_t left = in.t[i - 1];
      const std::int64_t right = in.t[i];
      const std::int64_t apart = SaturatingSub(right, left);
      bool broken = sampled && apart > limit;
      for (const analysis::Gap& gap : gaps) {
        broken = broken ||
                 (gap.to_ns - begin_ns > left && gap.from_ns - begin_ns < right &&
                  gap.from_ns - begin_ns > SaturatingSub(left, in.width_ns) && apart > in.width_ns);
      }
      if (broken && apart > 1) {
        out.t.push_back(left + std::max<std::int64_t>(1, std::min(in.width_ns, apart - 1)));
        for (auto* values : {&out.min, &out.max, &out.med}) {
          values->push_back(std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
    out.t.push_back(in.t[i]);
    out.min.push_back(in.min[i]);
    out.max.push_back(in.max[i]);
    out.med.push_back(in.med[i]);
  }
  return out;
}

/// How many pieces of a length it takes to cover all of it.
std::int64_t Pieces(std::int64_t all, std::int64_t length) {
  return all / length + (all % length == 0 ? 0 : 1);
}

/// cpu:2 before cpu:10.
bool NaturalLess(const std::string& a, const std::string& b) {
  const auto number = [](const std::string& text) {
    const auto at = text.find_last_not_of("0123456789") + 1;
    long long value = -1;
    std::from_chars(text.data() + at, text.data() + text.size(), value);
    return std::pair(text.substr(0, at), value);
  };
  return number(a) < number(b);
}

bool IsLoss(const format::LedgerRow& row) {
  // What was skipped for a reason, or is counted under another name, left no hole in time.
  return row.loss && row.unit == "records" && row.name != "probe.skipped" &&
         row.name != "probe.names_folded";
}

}  // namespace

std::size_t RunView::KeyHash::operator()(const Key& key) const {
  const std::hash<std::string_view> hash;
  std::size_t sum = static_cast<std::size_t>(key.kind) + 31 * static_cast<std::size_t>(key.rank);
  for (const std::string_view part : {key.name, key.subject, key.node}) {
    sum = sum * 1099511628211ULL + hash(part);
  }
  return sum;
}

RunView::Entry* RunView::At(const Key& key, std::string_view unit) {
  if (const auto found = index_.find(key); found != index_.end()) return found->second;
  if (entries_.size() >= kMaxSeries) {
    ++data.summary.folded;
    return nullptr;
  }
  Entry& entry = *entries_.emplace_back(std::make_unique<Entry>(Entry{key.kind,
                                                                      std::string(key.name),
                                                                      std::string(key.subject),
                                                                      std::string(key.node),
                                                                      std::string(unit),
                                                                      key.rank,
                                                                      {}}));
  index_.emplace(Key{key.kind, entry.name, entry.subject, entry.node, entry.rank}, &entry);
  return &entry;
}

void RunView::Put(Entry* entry, std::int64_t time_ns, double value) {
  if (entry == nullptr) return;
  entry->series.Add(time_ns - begin_ns, value);
  if (++added_ % kLookEvery != 0) return;
  if (kept() <= max_points_) return;
  for (const auto& one : entries_) one->series.Thin();
}

void RunView::LimitPoints(std::size_t points) {
  max_points_ = points;
  // Each pass gives up half of what is left.
  for (std::size_t before = kept() + 1; kept() > max_points_ && kept() < before;) {
    before = kept();
    for (const auto& one : entries_) one->series.Thin();
  }
}

std::size_t RunView::kept() const {
  std::size_t sum = 0;
  for (const auto& one : entries_) sum += one->series.kept();
  return sum;
}

void RunView::OnRecord(const store::OrderedRecord& record) {
  if (begin_ns == 0) begin_ns = record.ord_ns;
  data.summary.OnRecord(record);
  data.trail.OnRecord(record);
  data.usage.OnRecord(record);
  if (const auto* metric = record.As<format::MetricRow>()) {
    if (first_node_.empty()) first_node_ = metric->node;
    // Idle time is what the kernel counts; busy is what people read.
    const bool idle = metric->name == "cpu.idle";
    const std::string_view name = idle ? "cpu.busy" : metric->name;
    Put(At({SeriesKind::kMetric, name, metric->subject, metric->node, 0}, metric->unit),
        metric->time_ns, idle ? 100 - metric->value : metric->value);
  } else if (const auto* step = record.As<format::StepRow>()) {
    OnStep(*step);
  } else if (const auto* scalar = record.As<format::ScalarRow>()) {
    OnScalar(*scalar);
  } else if (const auto* row = record.As<format::LedgerRow>()) {
    OnLedger(*row);
  }
}

void RunView::OnStep(const format::StepRow& row) {
  if (row.mode != "TRAIN" || row.duration_ns < 0) return;
  const std::int32_t shown = data.summary.train_rank();
  if (shown != train_rank_) ForgetRanksAbove(shown);
  if (row.rank != shown) return;
  Put(At({SeriesKind::kSteps, kDuration, {}, {}, shown}, "ns"), row.time_ns,
      static_cast<double>(row.duration_ns));
  const analysis::PhaseTimes times = analysis::PhasesOf(row);
  for (std::size_t i = 0; i < times.size(); ++i) {
    Put(At({SeriesKind::kSteps, analysis::kPhases[i], {}, {}, shown}, "ns"), row.time_ns,
        static_cast<double>(times[i]));
  }
  if (steps_seen_++ % step_stride_ != 0) return;
  const std::int64_t t = row.time_ns - begin_ns;
  if (!step_at_.empty() && step_at_.back().first > t) return;
  step_at_.emplace_back(t, row.step);
  if (step_at_.size() < kMaxStepMarks) return;
  for (std::size_t i = 0; i * 2 < step_at_.size(); ++i) step_at_[i] = step_at_[i * 2];
  step_at_.resize((step_at_.size() + 1) / 2);
  step_stride_ *= 2;
}

/// Until a rank trains nobody knows whose scalars will be shown; afterwards it can only be a lower
/// one.
void RunView::OnScalar(const format::ScalarRow& row) {
  if (train_rank_ >= 0 && row.rank > train_rank_) return;
  Put(At({SeriesKind::kScalar, row.name, row.mode, {}, row.rank}, ""), row.time_ns, row.value);
}

void RunView::ForgetRanksAbove(std::int32_t rank) {
  train_rank_ = rank;
  const auto gone = [rank](const Entry& entry) {
    return entry.kind != SeriesKind::kMetric && entry.rank > rank;
  };
  // The index first: its keys are in the entries.
  std::erase_if(index_, [&](const auto& item) { return gone(*item.second); });
  std::erase_if(entries_, [&](const auto& entry) { return gone(*entry); });
  step_at_.clear();
  step_stride_ = 1;
  steps_seen_ = 0;
}

void RunView::OnLedger(const format::LedgerRow& row) {
  if (!IsLoss(row)) return;
  std::string key = fmt::format("{}\n{}\n{}\n{}", row.name, row.subject, row.attempt, row.pid);
  if (counters_.size() >= kMaxCounters && !counters_.contains(key)) return;
  Counter& counter = counters_[std::move(key)];
  if (row.value > counter.value) {
    const std::uint64_t count = row.value - counter.value;
    const std::int64_t from = counter.time_ns == 0 ? row.time_ns : counter.time_ns;
    const auto same = std::find_if(dropped.rbegin(), dropped.rend(), [&](const Dropped& one) {
      return one.name == row.name && from - one.to_ns <= kMergeNs;
    });
    if (same != dropped.rend()) {
      same->to_ns = std::max(same->to_ns, row.time_ns);
      same->count += count;
    } else if (dropped.size() < kMaxDropped) {
      dropped.push_back({from, row.time_ns, std::string(row.name), count});
    } else {
      dropped.back().to_ns = std::max(dropped.back().to_ns, row.time_ns);
      dropped.back().count += count;
    }
  }
  counter = {row.value, row.time_ns};
}

std::string RunView::Subject(const Entry& entry) const {
  if (entry.node.empty() || entry.node == first_node_) return entry.subject;
  return entry.node + "/" + entry.subject;
}

std::vector<MetricEntry> RunView::metrics() const {
  std::map<std::string, MetricEntry> by_name;
  for (const auto& entry : entries_) {
    if (entry->kind != SeriesKind::kMetric) continue;
    MetricEntry& metric = by_name[entry->name];
    metric.name = entry->name;
    metric.unit = entry->unit;
    std::string subject = Subject(*entry);
    std::string label = report::ProcessLabel(data.summary, entry->node, entry->subject);
    if (!label.empty()) {
      if (entry->node != first_node_) label += " on " + entry->node;
      metric.labels.emplace(subject, std::move(label));
    }
    metric.subjects.push_back(std::move(subject));
  }
  std::vector<MetricEntry> out;
  for (auto& [name, metric] : by_name) {
    std::sort(metric.subjects.begin(), metric.subjects.end(), NaturalLess);
    out.push_back(std::move(metric));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> RunView::scalars() const {
  std::vector<std::pair<std::string, std::string>> out;
  const std::int32_t shown = data.summary.shown_rank();
  for (const auto& entry : entries_) {
    if (entry->kind != SeriesKind::kScalar || entry->rank != shown) continue;
    out.emplace_back(entry->name, entry->subject);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::int64_t RunView::Newest() const {
  return std::max<std::int64_t>(1, data.summary.last_ns - begin_ns + 1);
}

std::int64_t RunView::StepAt(std::int64_t t) const {
  const bool further = outline_ && (step_at_.empty() || t > step_at_.back().first);
  const auto& marks = further ? outline_->marks : step_at_;
  const auto after = std::upper_bound(marks.begin(), marks.end(),
                                      std::pair(t, std::numeric_limits<std::int64_t>::max()));
  return after == marks.begin() ? -1 : std::prev(after)->second;
}

bool RunView::OutlineServes(const Entry& entry) const {
  return outline_ && entry.kind == SeriesKind::kSteps && entry.name == kDuration &&
         entry.rank == outline_->rank && outline_->duration.last() > entry.series.last();
}

Result<std::string> RunView::SeriesJson(const SeriesQuery& query) const {
  const Entry* found = nullptr;
  const std::int32_t shown = data.summary.shown_rank();
  for (const auto& entry : entries_) {
    if (entry->kind != query.kind || entry->name != query.name) continue;
    if (query.kind != SeriesKind::kMetric && entry->rank != shown) continue;
    if (query.kind == SeriesKind::kScalar && !query.mode.empty() && entry->subject != query.mode) {
      continue;
    }
    if (query.kind == SeriesKind::kMetric && !query.subject.empty() &&
        Subject(*entry) != query.subject) {
      continue;
    }
    found = entry.get();
    break;
  }
  if (found == nullptr) {
    return Status(Code::kUnusable,
                  fmt::format("no series '{}' in this run: the overview lists those that there are",
                              query.name));
  }
  const bool outlined = OutlineServes(*found);
  const Series& series = outlined ? outline_->duration : found->series;
  const std::int64_t newest = outlined ? std::max(Newest(), series.last() + 1) : Newest();
  const std::int64_t to = query.to_ns == 0 ? newest : query.to_ns;
  const std::vector<analysis::Gap>& gaps = data.summary.gaps;
  // Of gaps that were not read yet an outline knows nothing but that there are no steps.
  const SeriesColumns columns = WithBreaks(series.Query(query.from_ns, to, query.points), gaps,
                                           begin_ns, outlined || query.kind == SeriesKind::kMetric);
  std::string out;
  out.reserve(64 + columns.t.size() * 48);
  fmt::format_to(std::back_inserter(out), R"({{"name":{},"unit":{},"from":{},"to":{},)",
                 Quoted(found->name), Quoted(found->unit), query.from_ns, to);
  AppendArray(&out, "t", columns.t);
  out += ',';
  AppendArray(&out, "min", columns.min);
  out += ',';
  AppendArray(&out, "max", columns.max);
  out += ',';
  AppendArray(&out, "med", columns.med);
  if (query.with_step) {
    std::vector<std::int64_t> steps;
    for (const std::int64_t t : columns.t) steps.push_back(StepAt(t));
    out += ',';
    AppendArray(&out, "step", steps);
  }
  out += ",\"gaps\":[";
  bool first = true;
  for (const analysis::Gap& gap : gaps) {
    const std::int64_t gap_from = gap.from_ns - begin_ns;
    const std::int64_t gap_to = gap.to_ns - begin_ns;
    if (gap_to < query.from_ns || gap_from > to) continue;
    fmt::format_to(std::back_inserter(out), "{}[{},{},{}]", first ? "" : ",", gap_from, gap_to,
                   Quoted(gap.cause));
    first = false;
  }
  out += "]}";
  return out;
}

Result<HeatMap> RunView::Heatmap(const HeatmapQuery& query) const {
  std::vector<std::pair<std::string, const Entry*>> rows;
  HeatMap map;
  for (const auto& entry : entries_) {
    if (entry->kind != SeriesKind::kMetric || entry->name != query.name) continue;
    map.unit = entry->unit;
    // The sum over the machine is no row among its parts.
    if (entry->subject == "node" || entry->subject == "proc:tree") continue;
    rows.emplace_back(Subject(*entry), entry.get());
  }
  if (rows.empty()) {
    return Status(
        Code::kUnusable,
        fmt::format("no metric '{}' with parts in this run: the overview lists those that "
                    "there are",
                    query.name));
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return NaturalLess(a.first, b.first); });
  const std::int64_t from = query.from_ns;
  const std::int64_t to =
      std::max(SaturatingAdd(from, 1), query.to_ns == 0 ? Newest() : query.to_ns);
  // No narrower than the samples lie apart: a cell without one would look like a hole.
  std::int64_t interval = 1;
  const SeriesColumns sample = rows[0].second->series.Query(from, to, query.columns);
  if (sample.t.size() > 2) {
    std::vector<std::int64_t> apart;
    for (std::size_t i = 1; i < sample.t.size(); ++i) {
      apart.push_back(SaturatingSub(sample.t[i], sample.t[i - 1]));
    }
    const auto middle = apart.begin() + static_cast<std::ptrdiff_t>(apart.size() / 2);
    std::nth_element(apart.begin(), middle, apart.end());
    interval = *middle;
  }
  const auto wanted = static_cast<std::int64_t>(std::max<std::size_t>(1, query.columns));
  const std::int64_t span = SaturatingSub(to, from);
  const std::int64_t width =
      std::max({SaturatingAdd(interval, interval / 8), Pieces(span, wanted), std::int64_t{1}});
  map.from_ns = from;
  map.width_ns = width;
  map.columns = static_cast<std::size_t>(Pieces(span, width));
  map.values.resize(rows.size() * map.columns);
  const std::span<float> cells(map.values);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].second->series.Maxima(from, to, width, map.columns * kPointsACell,
                                  cells.subspan(i * map.columns, map.columns));
    map.rows.push_back(std::move(rows[i].first));
  }
  return map;
}

}  // namespace telltale::server
