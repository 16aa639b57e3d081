// SPDX-License-Identifier: Apache-2.0
#include "interchange/windows/window_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "base/saturate.h"
#include "store/column_scan.h"
#include "store/folder.h"
#include "store/run_info.h"
#include "store/window_folder.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPstatsEnding = ".pstats";
constexpr std::string_view kUnfinishedEnding = ".part";

constexpr std::int64_t kMostNumber = 1LL << 53;

struct ModeWord {
  std::string_view word;  ///< Of the files' names.
  std::string_view mode;
};
constexpr ModeWord kModeWords[] = {{"step", "TRAIN"}, {"eval", "EVAL"}, {"predict", "PREDICT"}};

template <class T>
bool TakeNumber(std::string_view* text, T* value) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc() || *value < 0 || *value > kMostNumber) return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return true;
}

bool TakeWord(std::string_view* text, std::string_view word) {
  if (!text->starts_with(word)) return false;
  text->remove_prefix(word.size());
  return true;
}

/// Of a window that nobody has ended: so many steps of it are looked for.
constexpr std::int64_t kMostUnsaidSteps = 10'000;

std::int64_t LastStepOf(const WindowRecording& one) {
  return one.said ? one.last : one.first + kMostUnsaidSteps;
}

/// A recording's place among all: window, stem, of cProfile.
using RecordingKey = std::tuple<std::string, std::string, bool>;
RecordingKey KeyOf(const WindowRecording& one) { return {one.window, one.stem, one.python}; }

struct ClockAnchor {
  std::int64_t run_ns = 0, monotonic_ns = 0, realtime_ns = 0;
};

std::int64_t IntOf(const nlohmann::json& data, const char* key) {
  const auto found = data.find(key);
  return found != data.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

class RunEvents {
 public:
  explicit RunEvents(std::map<RecordingKey, WindowRecording>* recordings)
      : recordings_(recordings) {}

  Status Take(store::ScanPiece& piece) {
    const auto& c = piece.columns;
    for (std::size_t i = 0; i < piece.rows; ++i) {
      const std::string_view kind = c[1].Text(i);
      if (kind == "window.closed") {
        Closed(piece, i);
      } else if (kind == "clock.anchor") {
        const nlohmann::json data = ParseJson(c[2].Text(i));
        if (!data.is_object()) continue;
        anchors_[std::string(piece.writer)].push_back(
            {IntOf(data, "run_ns"), IntOf(data, "monotonic_ns"), IntOf(data, "realtime_ns")});
      }
    }
    return {};
  }

  /// When all were taken.
  void Anchor() {
    for (auto& [key, one] : *recordings_) {
      if (!one.said) continue;
      for (const ClockAnchor& anchor : anchors_[writer_[key]]) {
        if (anchor.run_ns == 0 || anchor.run_ns > one.closed_ns) continue;
        one.anchored = true;
        one.monotonic_to_run_ns = SaturatingSub(anchor.run_ns, anchor.monotonic_ns);
        one.realtime_to_run_ns = SaturatingSub(anchor.run_ns, anchor.realtime_ns);
      }
    }
  }

 private:
  void Closed(const store::ScanPiece& piece, std::size_t i) {
    const auto& c = piece.columns;
    const nlohmann::json data = ParseJson(c[2].Text(i));
    if (!data.is_object() || !data.contains("files") || !data["files"].is_object() ||
        data["files"].empty()) {
      return;
    }
    const fs::path file = data["files"].begin().key();
    auto named = ReadWindowFileName(file.filename().string());
    if (!named) return;
    named->window = file.parent_path().filename().string();
    const auto found = recordings_->find(KeyOf(*named));
    if (found == recordings_->end()) return;
    WindowRecording& one = found->second;
    one.said = true;
    one.last = std::max(one.first, IntOf(data, "last"));
    const auto early = data.find("early");
    one.early = early != data.end() && early->is_string() && !early->get<std::string>().empty();
    one.monotonic_ns = IntOf(data, "monotonic_ns");
    one.realtime_ns = IntOf(data, "realtime_ns");
    one.closed_ns = c[0].Int(i);
    one.pid = static_cast<std::int32_t>(c[3].Int(i));
    one.rank = static_cast<std::int32_t>(std::max<std::int64_t>(c[5].Int(i), 0));
    one.attempt = static_cast<std::uint32_t>(std::max<std::int64_t>(c[4].Int(i), 1));
    const std::string_view writer = piece.writer;
    writer_[found->first] = writer;
    one.node = store::MachineOf(writer);
  }

  std::map<RecordingKey, WindowRecording>* const recordings_;
  std::map<RecordingKey, std::string> writer_;
  std::map<std::string, std::vector<ClockAnchor>> anchors_;
};

/// Which recordings a step lies in, without a look at all of them.
class WindowsOfProcesses {
 public:
  /// Mode, rank, pid.
  using Process = std::tuple<std::string_view, std::int64_t, std::int64_t>;

  /// They must stay where they are.
  explicit WindowsOfProcesses(std::vector<WindowRecording>* recordings) {
    for (WindowRecording& one : *recordings) {
      of_[{one.mode, one.rank, one.pid}].push_back({one.first, LastStepOf(one), 0, &one});
    }
    for (auto& [process, windows] : of_) {
      std::sort(windows.begin(), windows.end(),
                [](const Window& a, const Window& b) { return a.first < b.first; });
      std::int64_t furthest = 0;
      for (Window& window : windows) {
        furthest = std::max(furthest, window.last);
        window.furthest = furthest;
      }
    }
  }

  void Add(const Process& process, std::int64_t number, std::int64_t attempt,
           const RunStep& step) const {
    const auto found = of_.find(process);
    if (found == of_.end()) return;
    const std::vector<Window>& windows = found->second;
    auto at = std::upper_bound(windows.begin(), windows.end(), number,
                               [](std::int64_t n, const Window& w) { return n < w.first; });
    while (at != windows.begin() && (at - 1)->furthest >= number) {
      --at;
      if (at->last < number || (at->recording->said && attempt != at->recording->attempt)) continue;
      at->recording->steps[number] = step;
    }
  }

 private:
  struct Window {
    std::int64_t first, last;
    std::int64_t furthest;  ///< Last step of this one or any before it.
    WindowRecording* recording;
  };
  std::map<Process, std::vector<Window>> of_;
};

void ListWindow(const fs::path& folder, std::map<RecordingKey, WindowRecording>* out) {
  std::vector<run_files::Entry> entries;
  run_files::List(run_files::OfFolder(folder), &entries);
  for (const run_files::Entry& entry : entries) {
    const std::string& name = entry.name;
    auto named = ReadWindowFileName(name);
    if (!named || name.ends_with(kUnfinishedEnding) || entry.kind != run_files::Kind::kFile) {
      continue;
    }
    named->window = folder.filename().string();
    const RecordingKey key = KeyOf(*named);
    out->try_emplace(key, std::move(*named)).first->second.files.push_back(folder / name);
  }
}

void ListWindows(const fs::path& run, std::map<RecordingKey, WindowRecording>* out) {
  std::vector<run_files::Entry> entries;
  run_files::List({run, "windows"}, &entries);
  for (const run_files::Entry& entry : entries) {
    if (entry.name.starts_with('.') || entry.kind != run_files::Kind::kFolder) continue;
    ListWindow(run / "windows" / entry.name, out);
  }
}

}  // namespace

std::string WindowRecording::FolderPrefix() const {
  // The stem without its rank, which the writer's name ends with.
  const std::string_view rest = std::string_view(stem).substr(stem.find('-') + 1);
  return fmt::format("{}{}-{}{}{}-rank", store::kWindowFolderPrefix, window, rest,
                     python ? "-python" : "", attempt > 1 ? fmt::format("-a{}", attempt) : "");
}

std::string WindowRecording::PathOf(const fs::path& file) const {
  return fmt::format("windows/{}/{}", window, file.filename().string());
}

std::optional<WindowRecording> ReadWindowFileName(std::string_view name) {
  WindowRecording out;
  std::string_view rest = name;
  if (!TakeWord(&rest, "rank") || !TakeNumber(&rest, &out.rank) || !TakeWord(&rest, "-")) {
    return std::nullopt;
  }
  for (const ModeWord& one : kModeWords) {
    if (!TakeWord(&rest, one.word)) continue;
    out.mode = one.mode;
    break;
  }
  if (out.mode.empty() || !TakeNumber(&rest, &out.first) || !TakeWord(&rest, "-") ||
      !TakeNumber(&rest, &out.pid) || rest.empty() || (rest[0] != '.' && rest[0] != '-')) {
    return std::nullopt;
  }
  out.stem = name.substr(0, name.size() - rest.size());
  out.last = out.first;
  out.python = name.ends_with(kPstatsEnding);
  return out;
}

Result<std::vector<WindowRecording>> FindWindowRecordings(const fs::path& run) {
  TELLTALE_RETURN_IF_ERROR(store::ReadRunInfo(run).status());
  std::map<RecordingKey, WindowRecording> found;
  ListWindows(run, &found);
  std::vector<WindowRecording> out;
  if (found.empty()) return out;
  RunEvents events(&found);
  store::Salvage ignored;  // What of the run is damaged its own readers say.
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
      run,
      {.table = format::TableId::kEvents,
       .columns = {"time_ns", "kind", "data", "pid", "attempt", "rank"}},
      [&](store::ScanPiece& piece) { return events.Take(piece); }, &ignored));
  events.Anchor();
  // Once more: the event that a recording is whole may be younger than the first look at its files.
  for (auto& [key, one] : found) one.files.clear();
  ListWindows(run, &found);
  std::erase_if(found, [](const auto& one) { return one.second.files.empty(); });
  for (auto& [key, one] : found) {
    std::sort(one.files.begin(), one.files.end());
    out.push_back(std::move(one));
  }
  return out;
}

Status ReadRunSteps(const fs::path& run, std::vector<WindowRecording>* recordings) {
  if (recordings->empty()) return {};
  store::StepRange range{std::numeric_limits<std::int64_t>::max(), 0};
  for (const WindowRecording& one : *recordings) {
    range.first = std::min(range.first, one.first);
    range.last = std::max(range.last, LastStepOf(one));
  }
  WindowsOfProcesses by_process(recordings);
  const auto take = [&](store::ScanPiece& piece) -> Status {
    const auto& c = piece.columns;
    for (std::size_t i = 0; i < piece.rows; ++i) {
      by_process.Add({c[3].Text(i), c[4].Int(i), c[5].Int(i)}, c[2].Int(i), c[6].Int(i),
                     {c[0].Int(i), SaturatingAdd(c[0].Int(i), c[1].Int(i))});
    }
    return {};
  };
  store::Salvage ignored;
  return store::ScanColumns(
      run,
      {.table = format::TableId::kSteps,
       .columns = {"time_ns", "duration_ns", "step", "mode", "rank", "pid", "attempt"},
       .steps = range},
      take, &ignored);
}

}  // namespace telltale::interchange
