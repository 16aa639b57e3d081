// SPDX-License-Identifier: Apache-2.0
#include "report/stack_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <system_error>

#include "analysis/profile/build.h"
#include "analysis/profile/view.h"
#include "base/run_files.h"
#include "base/saturate.h"
#include "base/utf8.h"
#include "report/svg.h"
#include "report/text.h"
#include "store/folder.h"
#include "store/segment.h"
#include "store/window_folder.h"

namespace telltale::report {
namespace {

namespace fs = std::filesystem;
namespace profile = analysis::profile;
using profile::NodeId;

constexpr std::size_t kMemoryBytes = 24 << 20;
constexpr std::size_t kOwnRows = 10;
constexpr std::string_view kStacksFolder = "stacks";
constexpr std::string_view kImportedFolder = "agent-imported";
constexpr std::string_view kWatchFolder = "watch";

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
  std::int64_t Parts(double ns) const {
    return std::max<std::int64_t>(1, SaturatingRound(ns / whole() * 1e5));
  }

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

/// Of the files that a graph is read from; slices by what segments say, as long as there is room,
/// and by their names then. Journals are small.
StackBound SizeOf(const fs::path& folder, const StackBound& left) {
  StackBound size{0, 0};
  const auto listing = store::ListFolder(folder);
  if (!listing.ok()) return size;
  const auto add = [&](const std::string& file) {
    struct stat info {};
    if (run_files::StatOf(run_files::OfFolder(folder / file), &info) && S_ISREG(info.st_mode)) {
      size.file_bytes += static_cast<std::uint64_t>(info.st_size);
    }
  };
  for (const std::uint64_t number : listing->journals) add(store::JournalFileName(number));
  for (const store::SegmentName& segment : listing->segments) {
    if (segment.table == format::TableId::kSlices || segment.table == format::TableId::kSpans ||
        segment.table == format::TableId::kSteps) {
      add(segment.file);
      // As the file says where it can be asked: a name may say anything.
      std::uint64_t rows = segment.last_seq - std::min(segment.first_seq, segment.last_seq);
      if (size.file_bytes <= left.file_bytes && size.slices <= left.slices) {
        const auto info = store::ReadSegmentInfo(folder / segment.file);
        if (info.ok()) rows = std::max(rows, info->rows);
      }
      constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
      size.slices = rows >= kMost - size.slices ? kMost : size.slices + rows + 1;
    }
  }
  return size;
}

/// Folders that one graph is made of, and those that are too much.
struct Recordings {
  std::vector<std::string> read;
  std::uint64_t unread = 0;
  StackBound unread_size{0, 0};
};

std::string Counted(std::uint64_t count, std::string_view of) {
  return fmt::format("{} {}{}", Thousands(static_cast<std::int64_t>(count)), of,
                     count == 1 ? "" : "s");
}

/// Takes what there is room for in `*left`.
Recordings Choose(const fs::path& run, const std::vector<std::string>& writers, StackBound* left) {
  Recordings out;
  for (const std::string& writer : writers) {
    const StackBound size = SizeOf(run / writer, *left);
    if (size.file_bytes == 0) continue;
    if (size.file_bytes > left->file_bytes || size.slices > left->slices) {
      ++out.unread;
      out.unread_size.file_bytes += size.file_bytes;
      out.unread_size.slices += size.slices;
      continue;
    }
    left->file_bytes -= size.file_bytes;
    left->slices -= size.slices;
    out.read.push_back(writer);
  }
  return out;
}

std::string SizeWords(const StackBound& size) {
  return fmt::format("{}, {}", Bytes(static_cast<double>(size.file_bytes)),
                     Counted(size.slices, "slice"));
}

/// Whether there is something to draw. Of `most`, for all graphs together, `*left` is left.
bool LoadGraph(const fs::path& run, profile::SliceSource source,
               const std::vector<std::string>& writers, const StackBound& most, StackBound* left,
               StackGraph* graph) {
  const Recordings recordings = Choose(run, writers, left);
  std::string partly;
  if (recordings.unread > 0) {
    partly = fmt::format("{} of {} ({}) left out: this page reads {} at most.",
                         Thousands(static_cast<std::int64_t>(recordings.unread)),
                         Counted(recordings.read.size() + recordings.unread, "recording"),
                         SizeWords(recordings.unread_size), SizeWords(most));
  }
  if (recordings.read.empty()) {
    graph->why = std::move(partly);
    return !graph->why.empty();
  }
  const auto built = profile::BuildProfile(
      run, profile::kStackView,
      {.sum = true, .source = source, .memory_bytes = kMemoryBytes, .writers = recordings.read});
  if (!built.ok()) {
    graph->why = fmt::format("They could not be read: {}.", built.status().message());
    if (!partly.empty()) graph->why += " " + partly;
    return true;
  }
  if (const std::string damage = Damage(built->salvage); !damage.empty()) {
    partly += (partly.empty() ? "" : " ") + damage;
  }
  if (!built->sampled && !built->traced) {
    graph->why = std::move(partly);
    return !graph->why.empty();
  }
  StackGraph made = MakeStackGraph(built->tree);
  made.title = std::move(graph->title);
  made.what = std::move(graph->what);
  made.partly = std::move(partly);
  if (made.frames.empty()) made.why = made.partly;
  *graph = std::move(made);
  return !graph->frames.empty() || !graph->why.empty();
}

/// The first character; of broken text the first byte.
std::string_view FirstOf(std::string_view text) {
  return text.substr(0, std::max<std::size_t>(Utf8Length(text), 1));
}

std::string_view LastOf(std::string_view text) {
  for (std::size_t n = 2; n <= std::min<std::size_t>(text.size(), 4); ++n) {
    if (Utf8Length(text.substr(text.size() - n)) == n) return text.substr(text.size() - n);
  }
  return text.substr(text.size() - 1);
}

/// What of `text` fits into `most` bytes of the page: its begin, or its end.
std::string_view Fit(std::string_view text, std::size_t most, bool end) {
  std::size_t kept = 0;
  for (std::size_t bytes = 0; kept < text.size();) {
    const std::string_view next =
        end ? LastOf(text.substr(0, text.size() - kept)) : FirstOf(text.substr(kept));
    bytes += Escape(next).size();
    if (bytes > most) break;
    kept += next.size();
  }
  return end ? text.substr(text.size() - kept) : text.substr(0, kept);
}

}  // namespace

std::string ShortFrameName(std::string_view name) {
  // Escape() makes nothing shorter.
  if (name.size() <= StackGraph::kMostNameBytes &&
      Escape(name).size() <= StackGraph::kMostNameBytes) {
    return std::string(name);
  }
  constexpr std::string_view kCut = "…";
  constexpr std::size_t kHalfBytes = StackGraph::kMostNameBytes / 2 - kCut.size();
  const auto colon = name.rfind("): ");
  const auto open = colon == std::string_view::npos ? colon : name.rfind('(', colon);
  std::string out;
  std::size_t room = StackGraph::kMostNameBytes - kCut.size();
  if (open != std::string_view::npos && open > 0) {
    const std::string_view file = name.substr(0, open);
    const std::string_view last = Fit(file, kHalfBytes, true);
    if (last.size() < file.size()) out = kCut;
    out += last;
    room = kHalfBytes;
    name.remove_prefix(open);
  }
  const std::string_view first = Fit(name, room, false);
  out += first;
  if (first.size() < name.size()) out += kCut;
  return out;
}

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
    out.frames.push_back(
        {wide.id == profile::kRoot ? "all" : ShortFrameName(node.name), wide.ns, {}});
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
  std::vector<std::pair<std::string_view, double>> most(own.begin(), own.end());
  const std::size_t rows = std::min(kOwnRows, most.size());
  std::partial_sort(most.begin(), most.begin() + static_cast<std::ptrdiff_t>(rows), most.end(),
                    [](const auto& a, const auto& b) {
                      return a.second != b.second ? a.second > b.second : a.first < b.first;
                    });
  most.resize(rows);
  for (const auto& [name, ns] : most) out.by_own.emplace_back(ShortFrameName(name), ns);
  return out;
}

std::vector<StackGraph> StackGraphsOf(const fs::path& run, const StackBound& most) {
  std::vector<std::string> sampled;
  std::vector<std::string> of_windows;
  std::vector<std::string> others;
  bool live = false;
  for (const std::string& writer : store::ListWriters(run)) {
    if (writer == kStacksFolder) {
      sampled.push_back(writer);
    } else if (writer.starts_with(store::kWindowFolderPrefix)) {
      if (!writer.ends_with("-failed")) of_windows.push_back(writer);
    } else if (writer.starts_with(store::kAgentPrefix) && !writer.starts_with(kImportedFolder)) {
      live = true;
    } else if (!writer.starts_with(kWatchFolder)) {
      others.push_back(writer);
    }
  }
  std::vector<StackGraph> out;
  StackBound left = most;
  StackGraph stacks;
  stacks.title = "Sampled stacks";
  stacks.what =
      "Python all through the run: thread, phase, then functions; time of the clock, waiting too";
  if (LoadGraph(run, profile::SliceSource::kSampled, sampled, most, &left, &stacks)) {
    out.push_back(stacks);
  }
  const bool windows = !of_windows.empty();
  const auto& recorded = live || windows ? of_windows : others;
  StackGraph traced;
  traced.title = windows ? "Windows of detail" : "Recorded stacks";
  traced.what = "what a profiler recorded of some steps; time on the host";
  if (LoadGraph(run, profile::SliceSource::kTrace, recorded, most, &left, &traced)) {
    out.push_back(traced);
  }
  return out;
}

std::string Draw(const StackGraph& graph, std::string_view id) {
  std::string out = fmt::format("<div class=\"gap\"><h3>{} <small>{}</small></h3>\n",
                                Escape(graph.title), Escape(graph.what));
  if (graph.frames.empty()) {
    return out + fmt::format("<p class=\"m\">{}</p></div>\n", Escape(graph.why));
  }
  if (!graph.partly.empty()) {
    out += fmt::format("<p class=\"s warn\">{}</p>\n", Escape(graph.partly));
  }
  // What a frame under the pointer is stands over the hint.
  out += fmt::format(
      "<div class=\"fg\" role=\"group\" aria-label=\"Flame graph, outermost frames at the "
      "top\"><p class=\"xs q\"><a class=\"skip\" href=\"#{0}after\">Past this graph</a> A click or "
      "Enter widens a frame, <a href=\"#stacks\">the whole graph</a> comes "
      "back.{1}</p>\n{2}</div>\n",
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
