// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "analysis/trace/shape_flops.h"

namespace telltale::analysis::trace {
namespace {

constexpr std::array<std::string_view, kCategories> kWords = {"op",
                                                              "python",
                                                              "module",
                                                              "runtime",
                                                              "kernel",
                                                              "memcpy",
                                                              "memset",
                                                              "sync",
                                                              "comm",
                                                              "annotation",
                                                              "device_annotation",
                                                              "step",
                                                              "data",
                                                              "compile",
                                                              "gc",
                                                              "memory",
                                                              "io",
                                                              "other"};

/// Kinds beyond this share the last id: what a source calls its categories are a few words.
constexpr std::size_t kMostKinds = 255;

constexpr float kNotSaid = std::numeric_limits<float>::quiet_NaN();

template <class T>
void Permute(const std::vector<std::uint32_t>& order, std::vector<T>* values) {
  if (values->empty()) return;
  std::vector<T> sorted(values->size());
  for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = (*values)[order[i]];
  values->swap(sorted);
}

}  // namespace

std::string_view Name(Category category) { return kWords[static_cast<std::size_t>(category)]; }

Category CategoryOf(std::string_view word) {
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  return found == kWords.end() ? Category::kOther : static_cast<Category>(found - kWords.begin());
}

double NumberIn(std::string_view json, std::string_view key) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t at = json.find(key); at != std::string_view::npos; at = json.find(key, at + 1)) {
    const std::size_t end = at + key.size();
    // Within a text the quotes would be escaped.
    if (at == 0 || json[at - 1] != '"' || (at > 1 && json[at - 2] == '\\')) continue;
    if (end >= json.size() || json[end] != '"') continue;
    std::size_t value = end + 1;
    while (value < json.size() && (json[value] == ' ' || json[value] == ':')) ++value;
    double number = 0;
    const auto read = std::from_chars(json.data() + value, json.data() + json.size(), number);
    return read.ec == std::errc() ? number : kNone;
  }
  return kNone;
}

std::size_t TraceBuilder::LaneHash::operator()(const LaneKey& key) const {
  std::uint64_t hash = 0;
  for (const std::int64_t part : {key.pid, key.tid, key.stream, std::int64_t{key.device}}) {
    hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

TraceBuilder::TraceBuilder(std::int32_t rank, Needs needs) : needs_(needs) { trace_.rank = rank; }

std::uint32_t TraceBuilder::NameId(std::string_view text) {
  const auto [at, added] =
      name_ids_.try_emplace(std::string(text), static_cast<std::uint32_t>(trace_.names.size()));
  if (added) trace_.names.emplace_back(text);
  return at->second;
}

std::uint8_t TraceBuilder::KindId(std::string_view text) {
  if (const auto found = kind_ids_.find(std::string(text)); found != kind_ids_.end()) {
    return found->second;
  }
  if (trace_.kinds.size() > kMostKinds) return static_cast<std::uint8_t>(kMostKinds);
  const auto id = static_cast<std::uint8_t>(trace_.kinds.size());
  kind_ids_.emplace(text, id);
  trace_.kinds.emplace_back(text);
  return id;
}

std::uint32_t TraceBuilder::LaneId(std::int64_t pid, std::int64_t tid, std::int32_t device,
                                   std::int64_t stream, std::string_view name) {
  const LaneKey key{pid, tid, stream, device};
  if (last_lane_ != kNoRow && key == last_key_) return last_lane_;
  const auto [at, added] =
      lane_ids_.try_emplace(key, static_cast<std::uint32_t>(trace_.lanes.size()));
  if (added) trace_.lanes.push_back({pid, tid, stream, device, std::string(name)});
  last_key_ = key;
  last_lane_ = at->second;
  return at->second;
}

void TraceBuilder::Add(const format::SliceRow& row) {
  const Category category = CategoryOf(row.category);
  const std::uint8_t kind = KindId(row.kind);
  if (IsMark(category, kind)) return;
  Add({.begin_ns = row.time_ns,
       .duration_ns = row.duration_ns,
       .name = NameId(row.name),
       .lane = LaneId(row.pid, row.tid, row.device, row.stream, row.lane),
       .category = category,
       .kind = kind,
       .correlation = row.correlation,
       .external = row.external,
       .bytes = row.bytes,
       .flops = row.flops,
       .args = row.args});
}

bool TraceBuilder::IsMark(Category category, std::uint8_t kind) const {
  const std::string& word = trace_.kinds[kind];
  return category == Category::kOther && (word == "Trace" || word.empty());
}

void TraceBuilder::AddRecording(Span when) {
  when.end = std::max(when.end, when.begin);
  // One of no length is one all the same.
  if (when.end < std::numeric_limits<std::int64_t>::max()) ++when.end;
  trace_.recordings.push_back(when);
}

void TraceBuilder::Reserve(std::size_t rows) {
  // Doubling is the vectors' own; only the first piece of many is worth a word.
  if (trace_.begin_ns.capacity() >= trace_.size() + rows) return;
  if (!trace_.empty()) return;
  trace_.begin_ns.reserve(rows);
  trace_.duration_ns.reserve(rows);
}

void TraceBuilder::Add(const Row& row) {
  // A row beyond what 32 bits count cannot be referred to.
  if (trace_.size() >= kNoRow) return;
  const auto at = static_cast<std::uint32_t>(trace_.size());
  trace_.begin_ns.push_back(row.begin_ns);
  // Ends must stay numbers, whatever a broken source says.
  const std::int64_t most = row.begin_ns > 0
                                ? std::numeric_limits<std::int64_t>::max() - row.begin_ns
                                : std::numeric_limits<std::int64_t>::max();
  trace_.duration_ns.push_back(std::clamp<std::int64_t>(row.duration_ns, 0, most));
  trace_.name.push_back(row.name);
  trace_.lane.push_back(row.lane);
  trace_.category.push_back(row.category);
  trace_.kind.push_back(row.kind);
  trace_.correlation.push_back(row.correlation);
  trace_.external.push_back(row.external);
  if (needs_.bytes) trace_.bytes.push_back(row.bytes);
  if (needs_.flops) {
    const ShapeCost cost =
        row.category == Category::kOp ? ShapeCostOf(trace_.names[row.name], row.args) : ShapeCost{};
    trace_.flops.push_back(row.flops > 0 ? row.flops : cost.flops);
    trace_.moved_bytes.push_back(cost.bytes);
  }
  if (needs_.facts) {
    const bool kernel = row.category == Category::kKernel;
    const bool copy = row.category == Category::kMemcpy || row.category == Category::kMemset;
    const auto fact = [&](bool has, std::string_view key) {
      return has ? static_cast<float>(NumberIn(row.args, key)) : kNotSaid;
    };
    trace_.blocks_per_sm.push_back(fact(kernel, "blocks per SM"));
    trace_.occupancy.push_back(fact(kernel, "est. achieved occupancy %"));
    trace_.gbps.push_back(fact(copy, "memory bandwidth (GB/s)"));
  }
  if (needs_.events && row.category == Category::kSync) {
    const double record = NumberIn(row.args, "wait_on_cuda_event_record_corr_id");
    const double stream = NumberIn(row.args, "wait_on_stream");
    constexpr double kMost = 9e15;  // Whole numbers up to here are themselves as doubles.
    if (record >= 0 && record < kMost && stream >= 0 && stream < kMost) {
      trace_.event_waits.push_back(
          {at, static_cast<std::int64_t>(record), static_cast<std::int64_t>(stream)});
    }
  }
}

void TraceBuilder::Sort() {
  const std::size_t rows = trace_.size();
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    if (trace_.begin_ns[a] != trace_.begin_ns[b]) return trace_.begin_ns[a] < trace_.begin_ns[b];
    if (trace_.duration_ns[a] != trace_.duration_ns[b]) {
      return trace_.duration_ns[a] > trace_.duration_ns[b];
    }
    return a < b;
  };
  bool sorted = true;
  for (std::size_t i = 1; i < rows && sorted; ++i) {
    sorted = !before(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i - 1));
  }
  if (sorted) return;
  std::vector<std::uint32_t> order(rows);
  {
    struct Key {
      std::int64_t begin_ns;
      std::int64_t duration_ns;
      std::uint32_t row;
    };
    std::vector<Key> keys(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      keys[i] = {trace_.begin_ns[i], trace_.duration_ns[i], static_cast<std::uint32_t>(i)};
    }
    std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
      if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
      if (a.duration_ns != b.duration_ns) return a.duration_ns > b.duration_ns;
      return a.row < b.row;
    });
    for (std::size_t i = 0; i < rows; ++i) order[i] = keys[i].row;
  }
  Permute(order, &trace_.begin_ns);
  Permute(order, &trace_.duration_ns);
  Permute(order, &trace_.name);
  Permute(order, &trace_.lane);
  Permute(order, &trace_.category);
  Permute(order, &trace_.kind);
  Permute(order, &trace_.correlation);
  Permute(order, &trace_.external);
  Permute(order, &trace_.bytes);
  Permute(order, &trace_.flops);
  Permute(order, &trace_.moved_bytes);
  Permute(order, &trace_.blocks_per_sm);
  Permute(order, &trace_.occupancy);
  Permute(order, &trace_.gbps);
  if (!trace_.event_waits.empty()) {
    std::vector<std::uint32_t> place(rows);
    for (std::size_t i = 0; i < rows; ++i) place[order[i]] = static_cast<std::uint32_t>(i);
    for (EventWait& wait : trace_.event_waits) wait.row = place[wait.row];
  }
}

void TraceBuilder::Link() {
  const std::size_t rows = trace_.size();
  trace_.launch.assign(rows, kNoRow);
  struct Launch {
    std::uint32_t recording;  // Profilers count anew in each.
    std::uint32_t row;
    std::int64_t correlation;
  };
  const auto recording_of = [&](std::size_t row) {
    return static_cast<std::uint32_t>(trace_.RecordingAt(trace_.begin_ns[row]));
  };
  std::vector<Launch> launches;
  for (std::size_t i = 0; i < rows; ++i) {
    if (trace_.category[i] == Category::kRuntime && trace_.correlation[i] != 0) {
      launches.push_back({recording_of(i), static_cast<std::uint32_t>(i), trace_.correlation[i]});
    }
  }
  const auto less = [](const Launch& a, const Launch& b) {
    return a.correlation != b.correlation ? a.correlation < b.correlation
                                          : a.recording < b.recording;
  };
  std::stable_sort(launches.begin(), launches.end(), less);
  for (std::size_t i = 0; i < rows; ++i) {
    const Category category = trace_.category[i];
    if (!IsDeviceWork(category) && category != Category::kSync) continue;
    if (trace_.correlation[i] == 0) continue;
    const Launch wanted{recording_of(i), 0, trace_.correlation[i]};
    const auto after = std::upper_bound(launches.begin(), launches.end(), wanted, less);
    if (after == launches.begin()) continue;
    const Launch& found = *(after - 1);
    if (!less(found, wanted)) trace_.launch[i] = found.row;
  }
}

std::size_t Trace::RecordingAt(std::int64_t time_ns) const {
  const auto after =
      std::upper_bound(recordings.begin(), recordings.end(), time_ns,
                       [](std::int64_t time, const Span& span) { return time < span.begin; });
  return after == recordings.begin() ? 0 : static_cast<std::size_t>(after - recordings.begin()) - 1;
}

Trace TraceBuilder::Finish() {
  trace_.recordings = Merged(std::move(trace_.recordings));
  if (trace_.recordings.size() < 2) trace_.recordings.clear();
  Sort();
  Link();
  return std::move(trace_);
}

}  // namespace telltale::analysis::trace
