// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/build.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/profile/parameters.h"
#include "base/json.h"
#include "query/slice_order.h"
#include "store/folder.h"
#include "store/window_folder.h"

namespace telltale::analysis::profile {
namespace {

using format::SliceRow;

constexpr NodeId kNoNode = UINT32_MAX;
constexpr std::string_view kNoPython = "(no Python stack)";
constexpr std::string_view kNoOperator = "(launched outside of these)";
constexpr std::string_view kNoLaunch = "(launch not recorded)";

bool IsOperator(const SliceRow& slice) {
  return slice.category == "op" || slice.category == "comm";
}

/// What of the host a device's slice goes back to.
struct Cause {
  std::int64_t id;
  std::uint32_t recording;  ///< Ids begin anew in each.
  std::int32_t rank;
  NodeId node;  ///< kNoNode: none of the view.
  bool counted;
  friend bool operator<(const Cause& a, const Cause& b) {
    return std::tie(a.recording, a.rank, a.id) < std::tie(b.recording, b.rank, b.id);
  }
};

/// Causes by id, once all are known.
class Causes {
 public:
  void Add(const Cause& cause) { all_.push_back(cause); }
  void Sort() { std::stable_sort(all_.begin(), all_.end()); }
  const Cause* Find(std::uint32_t recording, std::int32_t rank, std::int64_t id) const {
    if (id == 0) return nullptr;
    const Cause wanted{id, recording, rank, 0, false};
    const auto at = std::lower_bound(all_.begin(), all_.end(), wanted);
    return at != all_.end() && !(wanted < *at) ? &*at : nullptr;
  }

 private:
  std::vector<Cause> all_;
};

/// The shapes of an operator's inputs as tfprof prints them: "0:32x3x224x224|1:64"; empty where the
/// slice does not say.
std::string ShapesOf(const SliceRow& slice) {
  if (slice.args.find("Input ") == std::string_view::npos) return {};
  const auto args = ParseJson(slice.args);
  if (!args.is_object()) return {};
  auto dims = args.find("Input Dims");
  if (dims == args.end()) dims = args.find("Input dims");
  if (dims == args.end() || !dims->is_array()) return {};
  std::string out;
  for (std::size_t i = 0; i < dims->size(); ++i) {
    out += fmt::format("{}{}:", i == 0 ? "" : "|", i);
    const auto& shape = (*dims)[i];
    if (!shape.is_array() || shape.empty()) {
      out += "unknown";
      continue;
    }
    for (std::size_t k = 0; k < shape.size(); ++k) {
      if (k > 0) out += 'x';
      out += JsonText(shape[k]);
    }
  }
  return out;
}

/// The Python stack that an operator carries, outermost first; PyTorch writes the innermost first.
std::vector<std::string> CallStackOf(const SliceRow& slice) {
  if (slice.args.find("\"Call stack\"") == std::string_view::npos) return {};
  const auto args = ParseJson(slice.args);
  if (!args.is_object() || !args.contains("Call stack") || !args["Call stack"].is_string()) {
    return {};
  }
  std::vector<std::string> frames;
  const std::string text = args["Call stack"].get<std::string>();
  for (std::string_view left = text; !left.empty();) {
    const std::size_t end = left.find(';');
    if (end != 0) frames.emplace_back(left.substr(0, end));
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

/// Windows of detail have few steps of many: what is recorded of all is no part of an average over
/// theirs.
bool HasWindows(const std::filesystem::path& run) {
  const std::vector<std::string> writers = store::ListWriters(run);
  return std::any_of(writers.begin(), writers.end(), [](const std::string& writer) {
    return writer.starts_with(store::kWindowFolderPrefix) && !writer.ends_with("-failed");
  });
}

/// Spans and steps of the run itself are of no window.
bool IsTraced(const query::Lane& lane) {
  return !lane.window.empty() && lane.window != query::kSampledStacks;
}

class ProfileBuilder {
 public:
  ProfileBuilder(const View& view, const BuildOptions& options) : view_(view), options_(options) {}

  Result<Profile> Run(const std::filesystem::path& run) {
    const bool windows = HasWindows(run);
    const bool average = !options_.sum && options_.step < 0;
    query::SliceOrderOptions wanted{
        .memory_bytes = options_.memory_bytes,
        .recorded = !windows && options_.source != SliceSource::kSampled,
        .rank = options_.rank,
        .writers = options_.writers};
    if (options_.source == SliceSource::kSampled) wanted.sampled = true;
    if (options_.source == SliceSource::kTrace ||
        (options_.source == SliceSource::kAll && windows && average)) {
      wanted.sampled = false;
    }
    TELLTALE_ASSIGN_OR_RETURN(const auto order, query::SliceOrder::Load(run, wanted));
    profile_.slices = order->slices();
    profile_.steps = order->steps();
    profile_.salvage = order->salvage();
    const auto visit_host = [this](const SliceRow& slice) {
      HostSlice(slice);
      return Status();
    };
    const auto visit_device = [this](const SliceRow& slice) {
      DeviceSlice(slice);
      return Status();
    };
    for (const query::Lane& lane : order->lanes()) {
      profile_.sampled = profile_.sampled || lane.window == query::kSampledStacks;
      profile_.traced = profile_.traced || IsTraced(lane);
    }
    const bool apart = options_.source == SliceSource::kBoth && profile_.sampled;
    bool sorted = false;
    for (const query::Lane& lane : order->lanes()) {
      if (apart && !IsTraced(lane)) {
        // Spans say what the phases of the sampled stacks say.
        if (lane.window != query::kSampledStacks) continue;
        if (profile_.traced) top_ = profile_.tree.Child(kRoot, kSampledNode);
      } else {
        top_ = apart ? profile_.tree.Child(kRoot, kTraceNode) : kRoot;
      }
      device_name_ = query::DeviceName(lane.rank, lane.device);
      recording_ = RecordingOf(lane.window);
      if (lane.host()) {
        TELLTALE_RETURN_IF_ERROR(order->Visit(lane, visit_host));
        while (!open_.empty()) Close();
        continue;
      }
      if (!std::exchange(sorted, true)) {
        launches_.Sort();
        operators_.Sort();
      }
      TELLTALE_RETURN_IF_ERROR(order->Visit(lane, visit_device));
    }
    if (options_.step >= 0 && counted_ == 0) {
      return {Code::kUsage, fmt::format("no step {}: it has {} steps with slices in them",
                                        options_.step, profile_.steps)};
    }
    profile_.outside = profile_.slices - counted_;
    Finish();
    if (view_.parameters && (options_.parameters || options_.tensor_values)) {
      TELLTALE_RETURN_IF_ERROR(
          AddParameters(run, options_.tensor_values, &profile_.tree, &profile_.salvage));
    }
    if (view_.list && !view_.kernels_only) profile_.tree = Flatten(profile_.tree);
    return std::move(profile_);
  }

 private:
  struct Open {
    std::int64_t end_ns;
    NodeId node;  ///< Own where kept, else that of the nearest kept around; kNoNode: none.
    bool kept;
    bool counted;
    bool within_operator;
    std::size_t nearest;  ///< Index of the nearest kept one, itself too; npos: none.
    double allocated = 0;
    double peak = 0;
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  bool Counts(const SliceRow& slice) {
    bool counts = true;
    if (options_.step >= 0) {
      counts = slice.step == options_.step;
    } else if (!options_.sum && profile_.steps > 0) {
      counts = slice.step >= 0;
    }
    counted_ += counts;
    return counts;
  }

  std::uint32_t RecordingOf(std::string_view window) {
    const auto next = static_cast<std::uint32_t>(recordings_.size());
    return recordings_.try_emplace(window, next).first->second;
  }

  Stats& SelfOf(NodeId id) { return profile_.tree.node(id).self; }

  void Close() {
    const Open& top = open_.back();
    if (top.kept && top.counted) SelfOf(top.node).peak_bytes += top.peak;
    open_.pop_back();
  }

  void Memory(const SliceRow& slice) {
    if (open_.empty() || open_.back().nearest == kNone) return;
    Open& at = open_[open_.back().nearest];
    const auto bytes = static_cast<double>(slice.bytes);
    at.allocated += bytes;
    at.peak = std::max(at.peak, at.allocated);
    if (!at.counted) return;
    Stats& self = SelfOf(at.node);
    if (bytes > 0) self.requested_bytes += bytes;
    self.residual_bytes += bytes;
  }

  /// Where an operator that no node encloses counts.
  NodeId Adopt(const SliceRow& slice) {
    if (slice.flow != 0) {
      const auto forward = flows_.find({recording_, slice.rank, slice.flow});
      if (forward != flows_.end() && forward->second != kNoNode) return forward->second;
    }
    NodeId node = top_;
    for (const std::string& frame : CallStackOf(slice)) node = profile_.tree.Child(node, frame);
    return node == top_ ? profile_.tree.Child(top_, kNoPython) : node;
  }

  void HostSlice(const SliceRow& slice) {
    const std::int64_t begin = slice.time_ns;
    std::int64_t end = query::EndOf(slice);
    while (!open_.empty() && !query::Encloses(open_.back().end_ns, begin, end)) Close();
    const bool counted = Counts(slice);
    if (slice.category == "memory") return Memory(slice);
    if (!open_.empty()) end = std::min(end, open_.back().end_ns);
    const std::size_t around = open_.empty() ? kNone : open_.back().nearest;
    const bool within_operator = !open_.empty() && open_.back().within_operator;
    const bool is_operator = IsOperator(slice);
    NodeId node = around == kNone ? kNoNode : open_[around].node;
    bool kept = false;
    if (view_.keeps(slice)) {
      kept = true;
      NodeId parent = node == kNoNode ? top_ : node;
      if (view_.backward_below_forward && slice.flow != 0) {
        const auto forward = flows_.find({recording_, slice.rank, slice.flow});
        if (forward != flows_.end()) parent = forward->second;
      }
      node = profile_.tree.Child(parent, slice.name);
    } else if (view_.adopts_operators && is_operator && around == kNone && !within_operator) {
      kept = true;
      node = Adopt(slice);
    }
    if (slice.flow != 0 && is_operator) {
      flows_.try_emplace({recording_, slice.rank, slice.flow}, node);
    }
    if (kept) Count(slice, node, around, begin, end, counted);
    if (!kept && node != kNoNode && counted) SelfOf(node).float_ops += slice.flops;
    if (slice.correlation != 0) {
      launches_.Add({slice.correlation, recording_, slice.rank, node, counted});
    }
    if (slice.external != 0 && is_operator) {
      operators_.Add({slice.external, recording_, slice.rank, node, counted});
    }
    if (begin == end) {
      return;  // Nothing lies within an instant.
    }
    open_.push_back(
        {end, node, kept, counted, within_operator || is_operator, kept ? open_.size() : around});
  }

  void Count(const SliceRow& slice, NodeId node, std::size_t around, std::int64_t begin,
             std::int64_t end, bool counted) {
    const auto length = static_cast<double>(end - begin);
    if (around != kNone && open_[around].counted) SelfOf(open_[around].node).host_ns -= length;
    if (!counted) return;
    Stats& self = SelfOf(node);
    self.host_ns += length;
    self.occurrence += 1;
    self.float_ops += slice.flops;
    profile_.tree.AddType(node, slice.category);
    profile_.tree.AddType(node, device_name_);
    if (!IsOperator(slice)) return;
    profile_.tree.AddType(node, slice.name);
    if (!options_.input_shapes) return;
    std::string shapes = ShapesOf(slice);
    if (!shapes.empty()) profile_.tree.AddShape(node, std::move(shapes), {1, length});
  }

  void DeviceSlice(const SliceRow& slice) {
    const bool is_operator = IsOperator(slice);
    if (!is_operator && slice.category != "kernel" && slice.category != "memcpy" &&
        slice.category != "memset") {
      Counts(slice);
      return;
    }
    const Cause* cause = launches_.Find(recording_, slice.rank, slice.correlation);
    if (cause == nullptr) cause = operators_.Find(recording_, slice.rank, slice.external);
    bool counted = false;
    if (cause != nullptr) {
      counted = cause->counted;
      counted_ += counted;
    } else {
      counted = Counts(slice);
      profile_.unplaced += !is_operator;
    }
    if (!counted) return;
    Tree& tree = profile_.tree;
    NodeId node = top_;
    if (view_.kernels_only) {
      node = tree.Child(top_, slice.name);
    } else {
      if (cause != nullptr && cause->node != kNoNode) {
        node = cause->node;
      } else if (!is_operator) {
        node = tree.Child(top_, cause == nullptr ? kNoLaunch : kNoOperator);
      }
      if (view_.kernel_leaves || is_operator) node = tree.Child(node, slice.name);
    }
    Stats& self = SelfOf(node);
    self.device_ns += static_cast<double>(query::EndOf(slice) - slice.time_ns);
    if (view_.kernels_only || view_.kernel_leaves || is_operator) self.occurrence += 1;
    if (slice.category == "memcpy") self.output_bytes += static_cast<double>(slice.bytes);
    tree.AddType(node, device_name_);
    if (!view_.kernels_only && !is_operator) return;
    tree.AddType(node, slice.category);
    tree.AddType(node, slice.name);
  }

  void Finish() {
    const bool average = !options_.sum && options_.step < 0 && profile_.steps > 0;
    for (NodeId id = 1; id < profile_.tree.size(); ++id) {
      Stats& self = SelfOf(id);
      if (self.occurrence > 0) self.definitions = 1;
      if (average) self.Divide(static_cast<double>(profile_.steps));
    }
  }

  const View& view_;
  const BuildOptions options_;
  Profile profile_;
  NodeId top_ = kRoot;  ///< Above what the lane has.
  std::vector<Open> open_;
  std::map<std::string_view, std::uint32_t> recordings_;  ///< Numbers by the window of slices.
  std::uint32_t recording_ = 0;                           ///< Of the lane.
  /// By recording, rank and number.
  std::map<std::tuple<std::uint32_t, std::int32_t, std::int64_t>, NodeId> flows_;
  Causes launches_;
  Causes operators_;
  std::uint64_t counted_ = 0;
  std::string device_name_;
};

}  // namespace

Result<Profile> BuildProfile(const std::filesystem::path& run, const View& view,
                             const BuildOptions& options) {
  return ProfileBuilder(view, options).Run(run);
}

}  // namespace telltale::analysis::profile
