// SPDX-License-Identifier: Apache-2.0
#include "report/stack_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <queue>
#include <system_error>

#include "analysis/profile/build.h"
#include "analysis/profile/view.h"
#include "report/svg.h"
#include "report/text.h"
#include "store/folder.h"
#include "store/window_folder.h"

namespace telltale::report {
namespace {

namespace fs = std::filesystem;
namespace profile = analysis::profile;
using profile::NodeId;

/// Slices in more bytes than this take too long beside a training.
constexpr std::uintmax_t kMostSliceBytes = 128 << 20;
constexpr std::size_t kMemoryBytes = 24 << 20;
constexpr std::size_t kOwnRows = 10;
constexpr std::string_view kStacksFolder = "stacks";
constexpr std::string_view kAgentFolder = "agent";
constexpr std::string_view kImportedFolder = "agent-imported";

/// "train.py(12): step" as "step · train.py:12": a narrow box has room for the function.
std::string FunctionFirst(std::string_view name) {
  const auto colon = name.rfind("): ");
  const auto open = colon == std::string_view::npos ? colon : name.rfind('(', colon);
  if (open == std::string_view::npos || open == 0 || colon + 3 == name.size()) {
    return std::string(name);
  }
  return fmt::format("{} · {}:{}", name.substr(colon + 3), name.substr(0, open),
                     name.substr(open + 1, colon - open - 1));
}

/// Frames of one file look alike.
unsigned HueOf(std::string_view name) {
  unsigned hash = 7;
  for (const char c : name.substr(0, name.find('('))) {
    hash = hash * 31 + static_cast<unsigned char>(c);
  }
  return hash % 360;
}

class Drawing {
 public:
  Drawing(const StackGraph& graph, std::string_view id) : graph_(graph), id_(id) {}

  std::string Text() {
    Box(0);
    return std::move(out_);
  }

 private:
  double whole() const { return graph_.frames.front().ns; }
  long Parts(double ns) const { return std::max(1L, std::lround(ns / whole() * 1e5)); }

  void Box(std::uint32_t at) {
    const StackGraph::Frame& frame = graph_.frames[at];
    fmt::format_to(std::back_inserter(out_),
                   "<div class=\"fn\" style=\"flex:{2}\"><a id=\"{0}{1}\" href=\"#{0}{1}\" "
                   "style=\"--h:{3}\" title=\"{4}, {5}, {6}\">{7}</a>",
                   id_, at, Parts(frame.ns), HueOf(frame.name), Escape(frame.name),
                   Duration(frame.ns / 1e9), Percent(frame.ns / whole()),
                   Escape(FunctionFirst(frame.name)));
    if (!frame.below.empty()) {
      out_ += "<div class=\"fk\">";
      double rest = frame.ns;
      for (const std::uint32_t child : frame.below) {
        Box(child);
        rest -= graph_.frames[child].ns;
      }
      if (rest / whole() >= 1e-5) {
        fmt::format_to(std::back_inserter(out_), "<i style=\"flex:{}\"></i>", Parts(rest));
      }
      out_ += "</div>";
    }
    out_ += "</div>";
  }

  const StackGraph& graph_;
  const std::string_view id_;
  std::string out_;
};

std::uintmax_t BytesOf(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("slices-") && !name.starts_with("journal-")) continue;
    std::error_code ignored;
    const std::uintmax_t size = at->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

/// Whether there is something to draw.
bool LoadGraph(const fs::path& run, profile::SliceSource source, std::uintmax_t bytes,
               StackGraph* graph) {
  if (bytes == 0) return false;
  if (bytes > kMostSliceBytes) {
    graph->why =
        fmt::format("They are {}: too many for this page.", Bytes(static_cast<double>(bytes)));
    return true;
  }
  const auto built = profile::BuildProfile(
      run, profile::kStackView, {.sum = true, .source = source, .memory_bytes = kMemoryBytes});
  if (!built.ok()) {
    graph->why = fmt::format("They could not be read: {}.", built.status().message());
    return true;
  }
  if (!built->sampled && !built->traced) return false;
  StackGraph made = MakeStackGraph(built->tree);
  made.title = std::move(graph->title);
  made.what = std::move(graph->what);
  *graph = std::move(made);
  return !graph->frames.empty();
}

}  // namespace

StackGraph MakeStackGraph(const profile::Tree& tree) {
  StackGraph out;
  // A child comes behind its parent: from the back each has the sum of all below it.
  std::vector<double> total(tree.size());
  std::map<std::string_view, double> own;
  for (std::size_t i = tree.size(); i-- > 0;) {
    const profile::Node& node = tree.node(static_cast<NodeId>(i));
    const double self = std::max(0.0, node.self.host_ns);
    if (i > 0 && self > 0) own[node.name] += self;
    total[i] += self;
    if (i > 0) total[node.parent] += total[i];
  }
  const double whole = total.empty() ? 0 : total[profile::kRoot];
  if (!(whole > 0)) return out;
  struct Wide {
    double ns;
    NodeId id;
    std::uint32_t parent;
    std::size_t depth;
    bool operator<(const Wide& other) const {
      return ns != other.ns ? ns < other.ns : id > other.id;
    }
  };
  std::priority_queue<Wide> next;
  next.push({whole, profile::kRoot, 0, 0});
  while (!next.empty() && out.frames.size() < StackGraph::kMostFrames) {
    const Wide wide = next.top();
    next.pop();
    const auto at = static_cast<std::uint32_t>(out.frames.size());
    const profile::Node& node = tree.node(wide.id);
    out.frames.push_back({wide.id == profile::kRoot ? "all" : std::string(node.name), wide.ns, {}});
    if (at > 0) out.frames[wide.parent].below.push_back(at);
    if (wide.depth == StackGraph::kMostDepth) continue;
    for (const NodeId child : node.children) {
      if (total[child] < whole * StackGraph::kLeastShare) continue;
      next.push({total[child], child, at, wide.depth + 1});
    }
  }
  const auto with_time =
      std::count_if(total.begin(), total.end(), [](double ns) { return ns > 0; });
  out.left_out = static_cast<std::uint64_t>(with_time) - out.frames.size();
  for (const auto& [name, ns] : own) out.by_own.emplace_back(std::string(name), ns);
  const std::size_t rows = std::min(kOwnRows, out.by_own.size());
  std::partial_sort(out.by_own.begin(), out.by_own.begin() + static_cast<std::ptrdiff_t>(rows),
                    out.by_own.end(), [](const auto& a, const auto& b) {
                      return a.second != b.second ? a.second > b.second : a.first < b.first;
                    });
  out.by_own.resize(rows);
  return out;
}

std::vector<StackGraph> StackGraphsOf(const fs::path& run) {
  std::uintmax_t sampled = 0;
  std::uintmax_t of_windows = 0;
  std::uintmax_t others = 0;
  bool live = false;
  for (const std::string& writer : store::ListWriters(run)) {
    if (writer == kStacksFolder) {
      sampled += BytesOf(run / writer);
    } else if (writer.starts_with(store::kWindowFolderPrefix)) {
      if (!writer.ends_with("-failed")) of_windows += BytesOf(run / writer);
    } else if (writer.starts_with(kAgentFolder) && !writer.starts_with(kImportedFolder)) {
      live = true;
    } else {
      others += BytesOf(run / writer);
    }
  }
  std::vector<StackGraph> out;
  StackGraph stacks;
  stacks.title = "Sampled stacks";
  stacks.what =
      "Python all through the run: thread, phase, then functions; time of the clock, waiting too";
  if (LoadGraph(run, profile::SliceSource::kSampled, sampled, &stacks)) out.push_back(stacks);
  // Beside its agents and windows a run has the watcher's folder alone.
  const bool windows = of_windows > 0;
  const std::uintmax_t recorded = live || windows ? of_windows : others;
  StackGraph traced;
  traced.title = windows ? "Windows of detail" : "Recorded stacks";
  traced.what = "what a profiler recorded of some steps; time on the host";
  if (LoadGraph(run, profile::SliceSource::kTrace, recorded, &traced)) out.push_back(traced);
  return out;
}

std::string Draw(const StackGraph& graph, std::string_view id) {
  std::string out = fmt::format("<div class=\"gap\"><h3>{} <small>{}</small></h3>\n",
                                Escape(graph.title), Escape(graph.what));
  if (graph.frames.empty()) {
    return out + fmt::format("<p class=\"m\">{}</p></div>\n", Escape(graph.why));
  }
  out += fmt::format(
      "<p class=\"xs q\"><a class=\"skip\" href=\"#{0}after\">Past this graph</a> A click or Enter "
      "widens a frame, <a href=\"#stacks\">the whole graph</a> comes back.{1}</p>\n"
      "<div class=\"fg\" role=\"group\" aria-label=\"Flame graph, outermost frames at the "
      "top\">{2}</div>\n",
      id,
      graph.left_out == 0 ? std::string()
                          : fmt::format(" {} narrow or deep frames are left out.",
                                        Thousands(static_cast<std::int64_t>(graph.left_out))),
      Drawing(graph, id).Text());
  out += fmt::format(
      "<table class=\"gap\" id=\"{}after\" tabindex=\"-1\"><thead><tr><th scope=\"col\">Most by "
      "itself</th><th scope=\"col\" class=\"r\">time</th><th scope=\"col\" "
      "class=\"r\">share</th></tr></thead><tbody>\n",
      id);
  for (const auto& [name, ns] : graph.by_own) {
    out += fmt::format("<tr><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>\n",
                       Escape(FunctionFirst(name)), Duration(ns / 1e9),
                       Percent(ns / graph.frames.front().ns));
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace telltale::report
