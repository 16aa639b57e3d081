// SPDX-License-Identifier: Apache-2.0
#include "interchange/whole_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "interchange/nsys_import.h"
#include "interchange/perfetto_import.h"
#include "interchange/pstats_import.h"
#include "interchange/pstats_reader.h"
#include "interchange/step_stats_import.h"
#include "interchange/tfprof_import.h"
#include "interchange/trace_input.h"
#include "interchange/trace_source.h"
#include "interchange/xspace_import.h"

namespace telltale::interchange {
namespace {

using ReadSource = std::function<Status(const ImportFile&, TraceSource*)>;
using ReadBytes = Status (*)(std::string_view, TraceSource*);

/// Each file is a rank. A file of several that is unusable is counted; where all are, it is said.
Status EachFile(std::span<const ImportFile> files, TraceSink* sink, const ReadSource& read) {
  Status first;
  std::int32_t rank = 0;
  bool any = false;
  for (const ImportFile& file : files) {
    TraceSource source(sink, file.name, rank++);
    Status status = read(file, &source);
    if (status.ok()) {
      any = true;
    } else if (status.code() == Code::kUnusable) {
      source.Damaged(1, status.message());
      if (first.ok()) {
        first = {Code::kUnusable, fmt::format("{}: {}", file.path.string(), status.message())};
      }
    } else {
      return status;
    }
    if (!sink->ok()) break;
  }
  return any ? Status() : first;
}

Status EachWhole(std::span<const ImportFile> files, const ImportLimits& limits, TraceSink* sink,
                 ReadBytes read) {
  return EachFile(files, sink, [&](const ImportFile& file, TraceSource* source) -> Status {
    std::string damage;
    std::string trailing;
    TELLTALE_ASSIGN_OR_RETURN(const std::string bytes,
                              ReadTrace(file.input(), MostBytesOfFile(limits), &damage, &trailing));
    if (!damage.empty()) source->Damaged(1, damage);
    if (!trailing.empty()) source->Note(trailing + ": they were left out");
    return read(bytes, source);
  });
}

}  // namespace

std::uint64_t MostBytesOfFile(const ImportLimits& limits) {
  return std::min(limits.inflated_bytes, limits.memory_bytes / 2);
}

bool DetectXSpace(const ImportFile& file) { return LooksLikeXSpace(file.head); }
Status ImportXSpaceFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink) {
  return EachWhole(files, limits, sink, ImportXSpace);
}

bool DetectTfprof(const ImportFile& file) { return LooksLikeTfprof(file.head); }
Status ImportTfprofFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink) {
  return EachWhole(files, limits, sink, ImportTfprof);
}

bool DetectStepStats(const ImportFile& file) {
  return LooksLikeRunMetadata(file.head) || LooksLikeStepStats(file.head);
}
Status ImportStepStatsFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                            TraceSink* sink) {
  return EachWhole(files, limits, sink, ImportStepStats);
}

bool DetectPerfetto(const ImportFile& file) { return LooksLikePerfetto(file.head); }
Status ImportPerfettoFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                           TraceSink* sink) {
  return EachWhole(files, limits, sink, ImportPerfetto);
}

bool DetectPstats(const ImportFile& file) { return LooksLikePstats(file.head); }
Status ImportPstatsFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                         TraceSink* sink) {
  return EachWhole(files, limits, sink, [](std::string_view bytes, TraceSource* source) {
    return ImportPstats(bytes, {}, source);
  });
}

bool DetectNsys(const ImportFile& file) { return !file.gzip && LooksLikeSqlite(file.head); }
Status ImportNsysFiles(std::span<const ImportFile> files, const ImportLimits& limits,
                       TraceSink* sink) {
  static_cast<void>(limits);  // SQLite reads page by page.
  return EachFile(files, sink, [](const ImportFile& file, TraceSource* source) {
    return ImportNsys(file.path, source);
  });
}

}  // namespace telltale::interchange
