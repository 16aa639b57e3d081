// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/critical_path.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/trace/kernel_class.h"
#include "analysis/trace/queue_length.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {
namespace {

using StreamKey = std::pair<std::int32_t, std::int64_t>;

/// Calls that return when the device is done: their time is the device's. Not those of HIP: its
/// traces have no sync marks that would put the device's time in their place.
bool IsBlockingCall(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kCalls = {"cudaDeviceSynchronize",
                                                             "cudaStreamSynchronize",
                                                             "cudaEventQuery",
                                                             "cudaEventSynchronize",
                                                             "cudaMemcpy",
                                                             "cudaMemcpyAsync"};
  return std::find(kCalls.begin(), kCalls.end(), name) != kCalls.end();
}

enum class SyncKind : std::uint8_t { kNone, kStream, kContext, kEvent, kStreamWait };
SyncKind SyncKindOf(std::string_view name) {
  if (name == "Stream Sync") return SyncKind::kStream;
  if (name == "Context Sync") return SyncKind::kContext;
  if (name == "Event Sync") return SyncKind::kEvent;
  if (name == "Stream Wait Event") return SyncKind::kStreamWait;
  return SyncKind::kNone;
}

}  // namespace

struct CriticalPath::Builder {
  const Trace& trace;
  const Scope& scope;
  const Window& window;
  CriticalPath& out;

  std::vector<std::uint32_t> begin_node;
  std::vector<std::uint32_t> end_node;
  std::vector<std::int64_t> node_time;

  struct LaunchAt {
    std::int64_t call_begin_ns;
    std::uint32_t work;
  };
  std::map<StreamKey, std::vector<LaunchAt>> launches_on;  ///< All threads.
  std::map<std::tuple<std::uint32_t, std::int32_t, std::int64_t>, std::vector<LaunchAt>>
      launches_of;  ///< By thread and stream.

  bool InWindow(std::size_t row) const {
    return trace.begin_ns[row] >= window.begin_ns && trace.begin_ns[row] <= window.end_ns &&
           trace.duration_ns[row] > 0;
  }
  StreamKey StreamOf(std::size_t row) const {
    const Lane& lane = trace.LaneOf(row);
    return {lane.device, lane.stream};
  }
  /// Operators and calls. Data loading is one whatever the trace calls it; other ranges are none.
  bool IsHostNode(std::size_t row) const {
    switch (trace.category[row]) {
      case Category::kOp:
      case Category::kRuntime:
      case Category::kData:
        return true;
      case Category::kComm:
        return trace.KindOf(row) != "user_annotation";
      default:
        return false;
    }
  }
  bool Launched(std::size_t row) const {
    return trace.launch[row] != kNoRow && scope.Has(row) && InWindow(trace.launch[row]);
  }

  void Edge(std::uint32_t from, std::uint32_t to, PathBound bound, std::uint32_t row,
            bool zero = false, bool assumed = false) {
    std::int64_t weight =
        zero || bound == PathBound::kNothing ? 0 : node_time[to] - node_time[from];
    // An end before the begin it follows: times of nested slices rounded.
    if (weight < 0) weight = 0;
    out.all_.push_back({from, to, weight, row, bound, assumed});
  }

  void MakeNodes() {
    begin_node.assign(trace.size(), kNoRow);
    end_node.assign(trace.size(), kNoRow);
    struct Point {
      std::int64_t time;
      std::uint32_t row;
      bool end;
    };
    std::vector<Point> points;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const bool host = !OnStream(trace, i) && IsHostNode(i) && scope.Has(i) && InWindow(i);
      const bool device = trace.OnDevice(i) && Launched(i);
      if (!host && !device) continue;
      points.push_back({trace.begin_ns[i], static_cast<std::uint32_t>(i), false});
      points.push_back({trace.end_ns(i), static_cast<std::uint32_t>(i), true});
    }
    std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
      if (a.time != b.time) return a.time < b.time;
      return a.end < b.end;
    });
    node_time.reserve(points.size());
    for (const Point& point : points) {
      (point.end ? end_node : begin_node)[point.row] = static_cast<std::uint32_t>(node_time.size());
      node_time.push_back(point.time);
    }
    out.nodes_ = node_time.size();
  }

  /// Along each thread, as a walk into and out of its operators.
  void HostEdges() {
    out.parent_.assign(trace.size(), kNoRow);
    out.in_data_.assign(trace.size(), false);
    std::vector<std::vector<std::uint32_t>> of_lane(trace.lanes.size());
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (begin_node[i] != kNoRow && !trace.OnDevice(i)) {
        of_lane[trace.lane[i]].push_back(static_cast<std::uint32_t>(i));
      }
    }
    for (const auto& rows : of_lane) {
      std::vector<std::uint32_t> open;
      std::uint32_t last = kNoRow;      // Node.
      std::uint32_t last_row = kNoRow;  // Slice that the next edge within an operator belongs to.
      std::uint32_t last_outer = kNoRow;
      const auto bound_of = [&](std::uint32_t row) {
        return row != kNoRow && out.in_data_[row] ? PathBound::kData : PathBound::kHost;
      };
      const auto leave = [&] {
        const std::uint32_t row = open.back();
        open.pop_back();
        Edge(last, end_node[row], bound_of(row), row, IsBlockingCall(trace.NameOf(row)));
        if (open.empty()) {
          last_outer = end_node[row];
          last = kNoRow;
        } else {
          last = end_node[row];
          last_row = open.back();
        }
      };
      for (const std::uint32_t row : rows) {
        while (!open.empty() && trace.end_ns(open.back()) <= trace.begin_ns[row]) leave();
        if (!open.empty()) out.parent_[row] = open.back();
        out.in_data_[row] =
            trace.category[row] == Category::kData || (!open.empty() && out.in_data_[open.back()]);
        if (open.empty() && last_outer != kNoRow) {
          Edge(last_outer, begin_node[row], PathBound::kNothing, kNoRow);
        }
        if (last != kNoRow) Edge(last, begin_node[row], bound_of(last_row), last_row);
        last = begin_node[row];
        last_row = row;
        open.push_back(row);
      }
      while (!open.empty()) leave();
    }
  }

  void GatherLaunches() {
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (!trace.OnDevice(i) || !scope.Has(i) || trace.launch[i] == kNoRow) continue;
      const std::uint32_t call = trace.launch[i];
      if (!IsLaunchCall(trace.NameOf(call))) continue;
      const LaunchAt at{trace.begin_ns[call], static_cast<std::uint32_t>(i)};
      const StreamKey stream = StreamOf(i);
      launches_on[stream].push_back(at);
      launches_of[{trace.lane[call], stream.first, stream.second}].push_back(at);
    }
    const auto sort = [](auto& by_key) {
      for (auto& [key, list] : by_key) {
        std::stable_sort(list.begin(), list.end(), [](const LaunchAt& a, const LaunchAt& b) {
          return a.call_begin_ns < b.call_begin_ns;
        });
      }
    };
    sort(launches_on);
    sort(launches_of);
  }
  static bool Before(std::int64_t time, const LaunchAt& at) { return time < at.call_begin_ns; }
  /// What was launched last on the stream before `time_ns`; kNoRow where nothing was.
  std::uint32_t LaunchedBefore(const StreamKey& stream, std::int64_t time_ns) const {
    const auto list = launches_on.find(stream);
    if (list == launches_on.end()) return kNoRow;
    const auto at = std::upper_bound(list->second.begin(), list->second.end(), time_ns, Before);
    return at == list->second.begin() ? kNoRow : (at - 1)->work;
  }
  std::uint32_t LaunchedNext(std::uint32_t thread, const StreamKey& stream,
                             std::int64_t time_ns) const {
    const auto list = launches_of.find({thread, stream.first, stream.second});
    if (list == launches_of.end()) return kNoRow;
    const auto at = std::upper_bound(list->second.begin(), list->second.end(), time_ns, Before);
    return at == list->second.end() ? kNoRow : at->work;
  }

  void DeviceEdges() {
    GatherLaunches();
    const std::vector<KernelClass> classes = ClassesOf(trace);
    std::vector<std::int64_t> queue(trace.size(), -1);
    for (const StreamQueue& of : QueueLengthOf(trace, scope)) {
      for (const QueuePoint& point : of.points) queue[point.row] = point.length;
    }
    std::unordered_map<std::uint32_t, const EventWait*> waits;
    // By recording: correlations begin anew in each.
    std::vector<std::unordered_map<std::int64_t, std::uint32_t>> record_calls(
        trace.recording_count());
    for (const EventWait& wait : trace.event_waits) waits[wait.row] = &wait;
    if (!waits.empty()) {
      for (std::size_t i = 0; i < trace.size(); ++i) {
        if (trace.category[i] == Category::kRuntime && trace.NameOf(i) == "cudaEventRecord") {
          record_calls[trace.RecordingAt(trace.begin_ns[i])][trace.correlation[i]] =
              static_cast<std::uint32_t>(i);
        }
      }
    }
    std::vector<std::uint32_t> rows;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (begin_node[i] != kNoRow && trace.OnDevice(i)) {
        rows.push_back(static_cast<std::uint32_t>(i));
      } else if (trace.category[i] == Category::kSync && trace.launch[i] != kNoRow &&
                 scope.Has(i)) {
        const bool in =
            OnStream(trace, i)
                ? InWindow(trace.launch[i]) || SyncKindOf(trace.NameOf(i)) == SyncKind::kStreamWait
                : InWindow(i);
        if (in) rows.push_back(static_cast<std::uint32_t>(i));
      }
    }
    // A sync mark counts where it ends: work that it waited for begins after it does.
    const auto place = [&](std::uint32_t row) {
      return trace.category[row] == Category::kSync ? trace.end_ns(row) : trace.begin_ns[row];
    };
    std::stable_sort(rows.begin(), rows.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return place(a) < place(b); });

    std::map<StreamKey, std::uint32_t> last;  // Work, by stream.
    std::vector<StreamKey> streams;           // In the order of their first work.
    std::unordered_map<std::uint32_t, std::uint32_t> waits_for;  // Work to work.
    const auto to_host = [&](std::uint32_t work, std::uint32_t call) {
      if (end_node[work] != kNoRow && end_node[call] != kNoRow) {
        Edge(end_node[work], end_node[call], PathBound::kNothing, kNoRow);
      }
    };
    for (const std::uint32_t row : rows) {
      const StreamKey stream = StreamOf(row);
      if (trace.category[row] == Category::kSync) {
        const std::uint32_t call = trace.launch[row];
        const SyncKind kind = SyncKindOf(trace.NameOf(row));
        if (kind == SyncKind::kContext) {
          for (const StreamKey& each : streams) to_host(last[each], call);
        } else if (kind == SyncKind::kStream) {
          if (const auto at = last.find(stream); at != last.end()) to_host(at->second, call);
        } else if (kind == SyncKind::kEvent || kind == SyncKind::kStreamWait) {
          const auto wait = waits.find(row);
          if (wait == waits.end()) continue;
          const auto& calls = record_calls[trace.RecordingAt(trace.begin_ns[row])];
          const auto record = calls.find(wait->second->record_correlation);
          if (record == calls.end()) continue;
          // A mark without a stream has no device either: the only one there is.
          const std::int32_t device =
              stream.first >= 0 || streams.empty() ? stream.first : streams.front().first;
          const std::uint32_t source =
              LaunchedBefore({device, wait->second->record_stream}, trace.begin_ns[record->second]);
          if (source == kNoRow) continue;
          if (kind == SyncKind::kEvent) {
            to_host(source, call);
          } else {
            const std::uint32_t next = LaunchedNext(trace.lane[call], stream, trace.begin_ns[call]);
            if (next != kNoRow) waits_for[next] = source;
          }
        }
        continue;
      }
      const PathBound bound = classes[row] == KernelClass::kMemory ? PathBound::kCopies
                              : classes[row] == KernelClass::kCommunication
                                  ? PathBound::kCommunication
                                  : PathBound::kCompute;
      Edge(begin_node[row], end_node[row], bound, row);
      const std::uint32_t call = trace.launch[row];
      std::uint32_t source = kNoRow;
      if (const auto at = waits_for.find(row); at != waits_for.end()) {
        source = end_node[at->second] != kNoRow && at->second != row ? at->second : kNoRow;
      }
      if (source != kNoRow) {
        Edge(end_node[source], begin_node[row], PathBound::kNothing, kNoRow);
      }
      const auto before = last.find(stream);
      const std::int64_t called = trace.begin_ns[call];
      const bool stream_free = before == last.end() || trace.end_ns(before->second) < called;
      const bool source_done = source == kNoRow || trace.end_ns(source) < called;
      bool launch_counts = false;
      if (queue[call] == 1 && queue[row] == 0 && stream_free && source_done) {
        if (begin_node[call] != kNoRow) {
          Edge(begin_node[call], begin_node[row], PathBound::kLaunch, row);
          launch_counts = true;
        }
      } else if (before != last.end() &&
                 (source == kNoRow || trace.end_ns(source) < trace.end_ns(before->second))) {
        Edge(end_node[before->second], begin_node[row], PathBound::kGaps, before->second);
      }
      if (!launch_counts && begin_node[call] != kNoRow) {
        Edge(begin_node[call], begin_node[row], PathBound::kNothing, kNoRow, true, true);
      }
      if (before == last.end()) streams.push_back(stream);
      last[stream] = row;
    }
  }

  /// One edge for each pair of nodes: the last one counts, in the place of the first.
  void DropDoubles() {
    std::vector<std::uint32_t> order(out.all_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const PathEdge& x = out.all_[a];
      const PathEdge& y = out.all_[b];
      return std::tuple(x.assumed, x.to, x.from, a) < std::tuple(y.assumed, y.to, y.from, b);
    });
    std::vector<bool> drop(out.all_.size(), false);
    bool any = false;
    for (std::size_t i = 0; i < order.size();) {
      std::size_t j = i + 1;
      const PathEdge first = out.all_[order[i]];
      while (j < order.size() && out.all_[order[j]].assumed == first.assumed &&
             out.all_[order[j]].to == first.to && out.all_[order[j]].from == first.from) {
        drop[order[j]] = any = true;
        ++j;
      }
      if (j > i + 1) out.all_[order[i]] = out.all_[order[j - 1]];
      i = j;
    }
    if (!any) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < out.all_.size(); ++i) {
      if (!drop[i]) out.all_[kept++] = out.all_[i];
    }
    out.all_.resize(kept);
  }
};

bool CriticalPath::Longest(const std::vector<double>& weights, bool assumed, double* length,
                           std::vector<PathEdge>* path) const {
  // Edges by the node they leave and by the node they reach, in the order in which they were added.
  const auto used = [&](std::size_t e) { return assumed || !all_[e].assumed; };
  std::vector<std::uint32_t> out_begin(nodes_ + 1, 0);
  std::vector<std::uint32_t> in_begin(nodes_ + 1, 0);
  for (std::size_t e = 0; e < all_.size(); ++e) {
    if (!used(e)) continue;
    ++out_begin[all_[e].from + 1];
    ++in_begin[all_[e].to + 1];
  }
  for (std::size_t n = 0; n < nodes_; ++n) {
    out_begin[n + 1] += out_begin[n];
    in_begin[n + 1] += in_begin[n];
  }
  std::vector<std::uint32_t> outgoing(out_begin[nodes_]);
  std::vector<std::uint32_t> incoming(in_begin[nodes_]);
  {
    std::vector<std::uint32_t> next_out(out_begin.begin(), out_begin.end() - 1);
    std::vector<std::uint32_t> next_in(in_begin.begin(), in_begin.end() - 1);
    for (std::uint32_t e = 0; e < all_.size(); ++e) {
      if (!used(e)) continue;
      outgoing[next_out[all_[e].from]++] = e;
      incoming[next_in[all_[e].to]++] = e;
    }
  }
  std::vector<std::uint32_t> open(nodes_);  // Edges that still lead to it.
  std::vector<std::uint32_t> order;
  order.reserve(nodes_);
  for (std::uint32_t n = 0; n < nodes_; ++n) {
    open[n] = in_begin[n + 1] - in_begin[n];
    if (open[n] == 0) order.push_back(n);
  }
  std::vector<double> distance(nodes_, 0);
  std::vector<std::uint32_t> by(nodes_, kNoRow);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t node = order[i];
    for (std::uint32_t k = in_begin[node]; k < in_begin[node + 1]; ++k) {
      const std::uint32_t e = incoming[k];
      const double through = distance[all_[e].from] + weights[e];
      if (k == in_begin[node] || through > distance[node]) {
        distance[node] = through;
        by[node] = e;
      }
    }
    for (std::uint32_t k = out_begin[node]; k < out_begin[node + 1]; ++k) {
      const std::uint32_t to = all_[outgoing[k]].to;
      if (--open[to] == 0) order.push_back(to);
    }
  }
  if (order.size() != nodes_) return false;
  std::uint32_t furthest = order.front();
  for (const std::uint32_t node : order) {
    if (distance[node] > distance[furthest]) furthest = node;
  }
  *length = distance[furthest];
  if (path != nullptr) {
    path->clear();
    for (std::uint32_t at = furthest; by[at] != kNoRow; at = all_[by[at]].from) {
      path->push_back(all_[by[at]]);
    }
    std::reverse(path->begin(), path->end());
  }
  return true;
}

Result<CriticalPath> CriticalPath::Of(const Trace& trace, const Scope& scope,
                                      const Window& window) {
  CriticalPath out;
  out.trace_ = &trace;
  Builder builder{trace, scope, window, out, {}, {}, {}, {}, {}};
  builder.MakeNodes();
  if (out.nodes_ == 0) {
    return Status(Code::kUnusable,
                  fmt::format("rank {}: no operator or launch begins within the window: choose "
                              "another with --annotation and --instance",
                              trace.rank));
  }
  builder.HostEdges();
  builder.DeviceEdges();
  builder.DropDoubles();
  std::vector<double> weights;
  weights.reserve(out.all_.size());
  for (const PathEdge& edge : out.all_) weights.push_back(static_cast<double>(edge.weight_ns));
  double length = 0;
  if (!out.Longest(weights, false, &length, &out.path_)) {
    return Status(Code::kUnusable,
                  fmt::format("rank {}: the trace's sync marks contradict its times (work would "
                              "wait for itself): there is no critical path in this window",
                              trace.rank));
  }
  out.length_ns_ = SaturatingCast(length);
  return out;
}

std::array<Sum, kPathBoundNames.size()> CriticalPath::by_bound() const {
  std::array<Sum, kPathBoundNames.size()> out{};
  for (const PathEdge& edge : path_) out[static_cast<std::size_t>(edge.bound)] += edge.weight_ns;
  return out;
}

std::int64_t CriticalPath::SavedBy(const WhatIf& what_if) const {
  std::vector<bool> named(trace_->size(), false);
  if (what_if.bound < 0) {
    std::vector<bool> matches(trace_->names.size());
    for (std::size_t i = 0; i < matches.size(); ++i) {
      matches[i] = trace_->names[i].find(what_if.name) != std::string::npos;
    }
    for (std::size_t i = 0; i < named.size(); ++i) {
      named[i] = matches[trace_->name[i]] || (parent_[i] != kNoRow && named[parent_[i]]);
    }
  }
  std::vector<double> before;
  std::vector<double> after;
  before.reserve(all_.size());
  after.reserve(all_.size());
  for (const PathEdge& edge : all_) {
    const auto weight = static_cast<double>(edge.weight_ns);
    const bool changed = what_if.bound >= 0
                             ? static_cast<int>(edge.bound) == what_if.bound
                             : edge.row != kNoRow && edge.bound != PathBound::kGaps &&
                                   edge.bound != PathBound::kLaunch && named[edge.row];
    before.push_back(weight);
    after.push_back(changed ? weight * what_if.factor : weight);
  }
  double old_length = 0;
  double new_length = 0;
  // Without a launch's edge where the two contradict each other: the path itself has none.
  const bool assumed = Longest(before, true, &old_length, nullptr);
  if (!assumed && !Longest(before, false, &old_length, nullptr)) return 0;
  if (!Longest(after, assumed, &new_length, nullptr)) return 0;
  return SaturatingCast(old_length - new_length);
}

Result<WhatIf> ParseWhatIf(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  WhatIf out;
  out.text = text;
  if (equals != std::string_view::npos && equals > 0) {
    const std::string_view number = text.substr(equals + 1);
    const auto read = std::from_chars(number.data(), number.data() + number.size(), out.factor);
    const bool whole = read.ec == std::errc() && read.ptr == number.data() + number.size();
    if (whole && out.factor >= 0 && out.factor <= 1000) {
      const std::string_view what = text.substr(0, equals);
      for (std::size_t i = 0; i < static_cast<std::size_t>(PathBound::kNothing); ++i) {
        if (kPathBoundNames[i] == what) out.bound = static_cast<int>(i);
      }
      if (out.bound < 0) out.name = what;
      return out;
    }
  }
  return Status(Code::kUsage,
                fmt::format("'{}' is no what-if: give host, data, compute, communication, copies, "
                            "launch, gaps or part of a name, and a factor: data=0, aten::mm=0.5",
                            text));
}

Result<Tables> RunCriticalPath(TraceSource& source, const Options& options) {
  std::vector<WhatIf> what_ifs;
  std::vector<std::string> texts = options.what_if;
  if (texts.empty()) texts = {"data=0", "communication=0", "copies=0", "launch=0", "gaps=0"};
  for (const std::string& text : texts) {
    TELLTALE_ASSIGN_OR_RETURN(WhatIf one, ParseWhatIf(text));
    what_ifs.push_back(std::move(one));
  }
  Tables out;
  Table& windows = out.Add("window", "The window, and the longest chain in it",
                           {"rank", "name", "begin_ns", "wall_ns", "path_ns", "nodes", "edges"});
  Table& bounds = out.Add("bounds", "What bounds it", {"rank", "bound", "sum_ns", "share"});
  Table& slices = out.Add("slices", "What it is made of",
                          {"rank", "bound", "name", "sum_ns", "share", "pieces"});
  slices.shown = options.top;
  Table& changes = out.Add("what_if", "How long a step would take if ...",
                           {"rank", "change", "saved_ns", "step_ns"});
  Table* each = nullptr;
  if (options.series) {
    each = &out.Add("path", "The chain", {"rank", "bound", "name", "ns"});
    each->shown = options.top;
  }
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {.events = true}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    CriticalPath::Window window{std::numeric_limits<std::int64_t>::min(),
                                std::numeric_limits<std::int64_t>::max()};
    std::string name = "everything";
    std::int64_t wall = 0;
    if (!options.annotation.empty()) {
      std::vector<bool> matches(trace.names.size());
      for (std::size_t i = 0; i < matches.size(); ++i) {
        matches[i] = trace.names[i].find(options.annotation) != std::string::npos;
      }
      std::int64_t seen = 0;
      std::uint32_t found = kNoRow;
      for (std::size_t i = 0; i < trace.size(); ++i) {
        if (!matches[trace.name[i]] || !scope.Has(i)) continue;
        if (trace.category[i] == Category::kDeviceAnnotation) continue;
        if (seen++ == options.instance) found = static_cast<std::uint32_t>(i);
      }
      if (found == kNoRow) {
        return Status(
            Code::kUnusable,
            fmt::format("rank {}: {} slices have '{}' in their name, so there is no number {}: "
                        "give --annotation and --instance of one that the trace has, or "
                        "--annotation '' for all of it",
                        rank, seen, options.annotation, options.instance));
      }
      window = {trace.begin_ns[found], trace.end_ns(found)};
      name = trace.NameOf(found);
      wall = trace.duration_ns[found];
    } else if (!trace.empty()) {
      std::int64_t end = trace.end_ns(0);
      for (std::size_t i = 0; i < trace.size(); ++i) end = std::max(end, trace.end_ns(i));
      wall = end - trace.begin_ns[0];
    }
    TELLTALE_ASSIGN_OR_RETURN(const CriticalPath path, CriticalPath::Of(trace, scope, window));
    windows.Add({Int(rank), Text(name), options.annotation.empty() ? Cell() : Cell(window.begin_ns),
                 wall, path.length_ns(), Int(path.nodes()), Int(path.edges().size())});
    const auto sums = path.by_bound();
    for (std::size_t i = 0; i < static_cast<std::size_t>(PathBound::kNothing); ++i) {
      bounds.Add(
          {Int(rank), Text(kPathBoundNames[i]), Int(sums[i]), Share(sums[i], path.length_ns())});
    }
    std::map<std::pair<PathBound, std::uint32_t>, std::pair<Sum, std::int64_t>> by_name;
    for (const PathEdge& edge : path.edges()) {
      if (edge.row == kNoRow) continue;
      auto& [sum, pieces] = by_name[{edge.bound, trace.name[edge.row]}];
      sum += edge.weight_ns;
      ++pieces;
      if (each != nullptr) {
        each->Add({Int(rank), Text(kPathBoundNames[static_cast<std::size_t>(edge.bound)]),
                   Text(trace.NameOf(edge.row)), edge.weight_ns});
      }
    }
    std::vector<std::pair<std::pair<PathBound, std::uint32_t>, std::pair<Sum, std::int64_t>>> order(
        by_name.begin(), by_name.end());
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
    for (const auto& [key, sum] : order) {
      slices.Add({Int(rank), Text(kPathBoundNames[static_cast<std::size_t>(key.first)]),
                  Text(trace.names[key.second]), Int(sum.first), Share(sum.first, path.length_ns()),
                  sum.second});
    }
    for (const WhatIf& what_if : what_ifs) {
      const std::int64_t saved = path.SavedBy(what_if);
      changes.Add({Int(rank), Text(what_if.text), saved,
                   std::max<std::int64_t>(0, SaturatingSub(wall, saved))});
    }
    bool synced = false;
    for (std::size_t i = 0; i < trace.size() && !synced; ++i) {
      synced = trace.category[i] == Category::kSync;
    }
    if (!synced) {
      out.notes.push_back(
          fmt::format("rank {}: the trace marks no synchronisation, so the host's "
                      "waits for the device are not on the path: record it with "
                      "torch.profiler's enable_cuda_sync_events",
                      rank));
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
