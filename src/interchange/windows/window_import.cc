// SPDX-License-Identifier: Apache-2.0
#include "interchange/windows/window_import.h"

#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "interchange/confined.h"
#include "interchange/pstats_import.h"
#include "interchange/run_maker.h"
#include "interchange/scratch_folder.h"
#include "interchange/trace_input.h"
#include "interchange/trace_source.h"
#include "interchange/whole_files.h"
#include "interchange/windows/window_clock.h"
#include "interchange/windows/window_files.h"
#include "interchange/windows/window_sink.h"
#include "store/bulk_writer.h"
#include "store/folder.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::size_t kMostNamedFiles = 20;
/// In the order in which a step has them.
constexpr std::array<std::string_view, 6> kPhases = {"data_wait", "forward",   "backward",
                                                     "optimizer", "comm_wait", "other"};

/// One file of cProfile's: …-train-12-forward-total.pstats.
struct PhaseFile {
  fs::path path;
  std::int64_t step = -1;
  std::size_t phase = kPhases.size();
  std::string timer = "total";
};

std::string_view NameOfPhase(const PhaseFile& file) {
  return file.phase < kPhases.size() ? kPhases[file.phase] : "other";
}

PhaseFile ReadPhaseName(const WindowRecording& recording, const fs::path& path) {
  PhaseFile out{.path = path, .step = recording.first};
  // "-train-12-forward-total.pstats"
  const std::string rest = path.stem().string().substr(recording.stem.size());
  std::vector<std::string> words;
  for (std::size_t at = 1; at <= rest.size();) {
    const std::size_t end = std::min(rest.find('-', at), rest.size());
    words.push_back(rest.substr(at, end - at));
    at = end + 1;
  }
  if (words.size() < 4) return out;
  // Steps of another mode that came between those of the window keep its first.
  std::string mode = words[0];
  for (char& c : mode) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (mode == recording.mode) out.step = std::strtoll(words[1].c_str(), nullptr, 10);
  out.phase = static_cast<std::size_t>(std::ranges::find(kPhases, words[2]) - kPhases.begin());
  // It goes into JSON as it is.
  const bool plain =
      std::ranges::all_of(words[3], [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  if (plain) out.timer = words[3];
  return out;
}

/// What came of one recording.
struct WindowRead {
  std::uint64_t slices = 0;
  std::uint64_t losses = 0;
  WindowClock clock;
};

/// Opens RUN/windows/NAME/FILE. It was a plain file when the folder was listed: what is there by
/// now is looked at once more, and then it is read by this descriptor alone.
Result<UniqueFd> OpenRecording(const fs::path& path) {
  const run_files::RunPath file = run_files::OfSubfolder(path);
  UniqueFd fd = run_files::OpenToRead(file);
  if (fd) return fd;
  const std::string why =
      fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno));
  return {run_files::IsFile(file) ? Code::kIo : Code::kUnusable, why};
}

/// cProfile's statistics have no times: the functions of a step stand behind each other from its
/// begin, phase by phase.
Status ReadPhases(const WindowRecording& recording, const ImportLimits& limits, WindowSink* sink,
                  WindowRead* read) {
  std::vector<PhaseFile> files;
  for (const fs::path& path : recording.files) files.push_back(ReadPhaseName(recording, path));
  std::sort(files.begin(), files.end(), [](const PhaseFile& a, const PhaseFile& b) {
    return std::tie(a.timer, a.step, a.phase, a.path) < std::tie(b.timer, b.step, b.phase, b.path);
  });
  read->clock.by = "steps";
  read->clock.uncertainty_ns = -1;
  const PhaseFile* before = nullptr;
  std::int64_t begin_ns = recording.closed_ns;
  Status first;
  for (const PhaseFile& file : files) {
    const bool new_step =
        before == nullptr || before->step != file.step || before->timer != file.timer;
    before = &file;
    if (new_step) {
      const auto step = recording.steps.find(file.step);
      if (step != recording.steps.end()) {
        begin_ns = step->second.begin_ns;
        ++read->clock.matched;
      }
    }
    sink->SetPhase(NameOfPhase(file), file.timer);
    TraceSource source(sink, file.path.filename().string(), recording.rank);
    std::string damage;
    const auto fd = OpenRecording(file.path);
    const auto bytes = fd.ok() ? ReadTrace({file.path, fd->get()}, MostBytesOfFile(limits), &damage)
                               : Result<std::string>(fd.status());
    Status status = bytes.status();
    const std::uint64_t slices = sink->slices();
    if (status.ok()) status = ImportPstats(*bytes, {begin_ns, file.step}, &source);
    if (sink->slices() > slices) begin_ns = sink->end_ns();
    if (status.code() == Code::kIo) return status;
    if (!status.ok()) {
      source.Damaged(1, status.message());
      if (first.ok()) first = status;
    }
  }
  if (read->clock.matched == 0) read->clock.by = "none";
  return sink->slices() > 0 ? Status() : first;
}

Status ReadTraces(const WindowRecording& recording, const ImportLimits& limits, WindowSink* sink,
                  WindowRead* read) {
  for (const fs::path& path : recording.files) {
    TELLTALE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRecording(path));
    TELLTALE_ASSIGN_OR_RETURN(const ImportFile file, LookAtFile({path, fd.get()}));
    const Importer* const importer = DetectImporter(file);
    if (importer == nullptr) {
      return {Code::kUnusable,
              fmt::format("{} is of no format that is known here", recording.PathOf(path))};
    }
    MarkSink marks(recording.mode);
    TELLTALE_RETURN_IF_ERROR(importer->import({&file, 1}, limits, &marks));
    read->clock = FitWindowClock(recording, marks.marks());
    sink->SetShift(read->clock.shift_ns);
    // A recording without marks of steps is of one run of a graph (RunMetadata).
    if (importer->name == "run-metadata") sink->SetStep(recording.first);
    TELLTALE_RETURN_IF_ERROR(importer->import({&file, 1}, limits, sink));
  }
  return {};
}

std::string WindowStepsText(const WindowRecording& one) {
  const std::string mode = one.mode == "TRAIN" ? "" : one.mode + " ";
  return one.last == one.first ? fmt::format("{}step {}", mode, one.first)
                               : fmt::format("{}steps {} to {}", mode, one.first, one.last);
}

ordered_json WindowFacts(const WindowRecording& one) {
  ordered_json files = ordered_json::array();
  for (const fs::path& file : one.files) {
    if (files.size() < kMostNamedFiles) files.push_back(one.PathOf(file));
  }
  return {{"window", one.window},
          {"mode", one.mode},
          {"first", one.first},
          {"last", one.last},
          {"files", std::move(files)}};
}

std::int64_t WindowEventTime(const WindowRecording& one) {
  if (one.closed_ns > 0) return one.closed_ns;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

format::EventRow WindowEventRow(const WindowRecording& one) {
  format::EventRow row;
  row.time_ns = row.ord_ns = WindowEventTime(one);
  row.severity = "info";
  row.subject = "windows";
  row.step = one.last;
  row.rank = one.rank;
  row.pid = one.pid;
  row.attempt = one.attempt;
  return row;
}

void SayImported(const WindowRecording& recording, const WindowRead& read, TraceSink* sink) {
  ordered_json data = WindowFacts(recording);
  data["slices"] = read.slices;
  data["losses"] = read.losses;
  data["clock"] = {
      {"by", read.clock.by}, {"shift_ns", read.clock.shift_ns}, {"matched", read.clock.matched}};
  if (read.clock.uncertainty_ns >= 0) data["clock"]["uncertainty_ns"] = read.clock.uncertainty_ns;
  const std::string text = JsonText(data);
  std::string message = fmt::format("window {}: {} of rank {}: {} slices", recording.window,
                                    WindowStepsText(recording), recording.rank, read.slices);
  if (read.clock.uncertainty_ns >= 0) {
    message += fmt::format("; their times are the run's within {:.3f} ms",
                           static_cast<double>(read.clock.uncertainty_ns) / 1e6);
  }
  format::EventRow row = WindowEventRow(recording);
  row.kind = "window.imported";
  row.message = message;
  row.data = text;
  sink->Event(row);
}

/// Makes `folder` with the recording's folder in it.
Result<ImportSummary> ReadRecording(const WindowRecording& recording,
                                    const WindowImportRequest& request, const fs::path& folder) {
  TELLTALE_ASSIGN_OR_RETURN(const auto maker, RunMaker::Create(folder, recording.FolderPrefix()));
  WindowSink sink(maker.get(), recording);
  WindowRead read;
  TELLTALE_RETURN_IF_ERROR(recording.python ? ReadPhases(recording, request.limits, &sink, &read)
                                            : ReadTraces(recording, request.limits, &sink, &read));
  read.slices = sink.slices();
  read.losses = sink.losses();
  if (read.slices == 0) return {Code::kUnusable, "there is no event in it"};
  SayImported(recording, read, maker.get());
  return maker->Finish({.id = recording.Folder(),
                        .name = recording.window,
                        .format = "window",
                        .telltale_version = request.telltale_version});
}

Status SyncAll(const fs::path& folder) {
  std::vector<run_files::Entry> entries;
  if (const int error = run_files::List({folder, "."}, &entries); error != 0) {
    return {Code::kIo,
            fmt::format("cannot list {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  for (const run_files::Entry& entry : entries) {
    const UniqueFd fd = run_files::OpenToRead({folder, entry.name});
    if (!fd || ::fsync(fd.get()) != 0) {
      return {Code::kIo, fmt::format("cannot sync {}: {}", (folder / entry.name).string(),
                                     run_files::WhyNot(errno))};
    }
  }
  return store::SyncFolder(folder);
}

Status PublishFolder(const fs::path& made, const fs::path& folder) {
  TELLTALE_RETURN_IF_ERROR(SyncAll(made));
  const int error = run_files::Rename(run_files::OfRun(made), run_files::OfRun(folder));
  if (error != 0) {
    return {Code::kIo,
            fmt::format("cannot name {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  return store::SyncFolder(folder.parent_path());
}

/// A folder with one event: it is not tried again by itself.
Status SayFailed(const WindowRecording& recording, const std::string& why, const fs::path& made,
                 const fs::path& run) {
  TELLTALE_ASSIGN_OR_RETURN(const auto writer,
                            store::BulkWriter::Create(made, recording.FailedFolder()));
  ordered_json data = WindowFacts(recording);
  data["why"] = why;
  const std::string text = JsonText(data);
  const std::string message =
      fmt::format("window {}: {} of rank {} could not be imported: {}", recording.window,
                  WindowStepsText(recording), recording.rank, why);
  format::Rows rows;
  format::EventRow row = WindowEventRow(recording);
  row.kind = "window.import_failed";
  row.severity = "low";
  row.message = message;
  row.data = text;
  rows.events.push_back(row);
  TELLTALE_RETURN_IF_ERROR(writer->Close(&rows, row.ord_ns));
  return PublishFolder(made, run / recording.FailedFolder());
}

/// Who holds it is the only one who imports windows of the run.
Result<UniqueFd> LockWindows(const fs::path& run) {
  const fs::path path = run / "windows";
  UniqueFd fd = run_files::OpenFolder(run_files::OfRun(path));
  if (!fd) {
    return {Code::kIo, fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno))};
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return {errno == EWOULDBLOCK ? Code::kRunning : Code::kIo,
            fmt::format("cannot lock {}: {}", path.string(),
                        errno == EWOULDBLOCK ? "the windows of this run are being imported already"
                                             : std::strerror(errno))};
  }
  return fd;
}

bool IsThere(const fs::path& path) { return run_files::Exists(run_files::OfRun(path)); }

}  // namespace

Result<WindowImportReport> ImportWindows(const WindowImportRequest& request) {
  // Before the first of Arrow's pools is made: others than this take address space beforehand.
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
  const fs::path run = fs::absolute(request.run);
  WindowImportReport report;
  TELLTALE_ASSIGN_OR_RETURN(std::vector<WindowRecording> found, FindWindowRecordings(run));
  if (found.empty()) return report;
  TELLTALE_ASSIGN_OR_RETURN(const UniqueFd lock, LockWindows(run));
  std::vector<WindowRecording> due;
  for (WindowRecording& one : found) {
    if (IsThere(run / one.Folder()) || (!request.again && IsThere(run / one.FailedFolder()))) {
      ++report.before;
    } else if (!one.said && !request.all) {
      ++report.waiting;
    } else {
      due.push_back(std::move(one));
    }
  }
  if (due.empty()) return report;
  TELLTALE_RETURN_IF_ERROR(ReadRunSteps(run, &due));
  TELLTALE_ASSIGN_OR_RETURN(ScratchFolder scratch, ScratchFolder::Create(run, ".windows."));
  std::size_t number = 0;
  for (const WindowRecording& one : due) {
    const fs::path made = scratch.path() / std::to_string(number++);
    const ConfinedImport import{.limits = request.limits,
                                .subject = one.PathOf(one.files.front()),
                                .body = [&] { return ReadRecording(one, request, made); }};
    const auto read = request.in_child ? RunInChild(import, &scratch) : RunHere(import);
    WindowImportReport::Window& said = report.windows.emplace_back();
    said.window = one.window;
    said.mode = one.mode;
    said.rank = one.rank;
    said.first = one.first;
    said.last = one.last;
    if (read.ok()) {
      TELLTALE_RETURN_IF_ERROR(PublishFolder(made / one.Folder(), run / one.Folder()));
      said.folder = one.Folder();
      said.slices = read->slices;
      said.partial = read->partial();
    } else if (read.status().code() == Code::kIo) {
      return read.status();
    } else {
      said.folder = one.FailedFolder();
      said.failure = read.status().message();
      if (IsThere(run / said.folder)) continue;  // It was said before.
      const fs::path event = scratch.path() / fmt::format("failed-{}", number);
      TELLTALE_RETURN_IF_ERROR(SayFailed(one, said.failure, event, run));
    }
  }
  return report;
}

}  // namespace telltale::interchange
