// SPDX-License-Identifier: Apache-2.0
// The table of importers, and what they are asked about.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "interchange/chrome/chrome_import.h"
#include "interchange/importer.h"
#include "interchange/smdebug_profile/profile_import.h"
#include "interchange/trace_input.h"
#include "interchange/whole_files.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kHeadBytes = 64 << 10;

/// One line a format; those that know their files by more come first.
constexpr Importer kImporters[] = {
    // clang-format off
    {"nsys", "Nsight Systems' export to SQLite", DetectNsys, ImportNsysFiles, true},
    {"cprofile", "statistics of Python's cProfile and profile", DetectPstats, ImportPstatsFiles},
    {"smdebug-profile", "SageMaker Debugger's profiler: its output folder, or files of it", DetectSmdebugProfile, ImportSmdebugProfile, true},
    {"horovod", "Horovod's timeline", DetectHorovod, ImportHorovod, true},
    {"xspace", "XSpace of TensorFlow's, JAX's and XLA's profilers (*.xplane.pb)", DetectXSpace, ImportXSpaceFiles},
    {"tfprof", "tfprof's ProfileProto", DetectTfprof, ImportTfprofFiles},
    {"run-metadata", "TensorFlow's RunMetadata and StepStats", DetectStepStats, ImportStepStatsFiles},
    {"perfetto", "Perfetto's track events", DetectPerfetto, ImportPerfettoFiles},
    {"chrome", "PyTorch/Kineto and any other Chrome trace: JSON, also gzipped", DetectChrome, ImportChrome},
    // clang-format on
};

/// What can be told by the first bytes to be unreadable for every importer.
Status CheckHead(const ImportFile& file) {
  const std::string_view head = file.head;
  if (file.gzip && head.starts_with("\x1f\x8b")) {
    return {Code::kLimit,
            fmt::format("{} is gzip inside gzip, which is inflated once only: inflate "
                        "it yourself (gunzip) and import what comes of it",
                        file.path.string())};
  }
  const auto wide = [&](std::size_t at) {
    return head.size() > at + 1 && (head[at] == '{' || head[at] == '[') && head[1 - at] == '\0';
  };
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff") || wide(0) || wide(1)) {
    return {Code::kUnusable,
            fmt::format("{} is text in UTF-16: make it UTF-8 first (iconv -f UTF-16 "
                        "-t UTF-8)",
                        file.path.string())};
  }
  return {};
}

}  // namespace

std::span<const Importer> Importers() { return kImporters; }

const Importer* FindImporter(std::string_view name) {
  const auto* const found = std::ranges::find(kImporters, name, &Importer::name);
  return found == std::end(kImporters) ? nullptr : found;
}

const Importer* DetectImporter(const ImportFile& file) {
  const auto* const found = std::ranges::find_if(kImporters, [&](const Importer& one) {
    return (file.held < 0 || !one.by_path) && one.detect(file);
  });
  return found == std::end(kImporters) ? nullptr : found;
}

Result<ImportFile> LookAtFile(const InputFile& named) {
  const std::filesystem::path& path = named.path;
  struct stat info {};
  if ((named.held < 0 ? ::stat(path.c_str(), &info) : ::fstat(named.held, &info)) != 0) {
    return {errno == EACCES ? Code::kIo : Code::kUnusable,
            fmt::format("cannot read {}: {}", path.string(), std::strerror(errno))};
  }
  ImportFile file{.path = path, .name = path.filename().string(), .held = named.held};
  if (file.name.empty()) file.name = path.parent_path().filename().string();
  if (S_ISDIR(info.st_mode)) {
    file.folder = true;
    return file;
  }
  if (!S_ISREG(info.st_mode)) {
    return {
        Code::kUsage,
        fmt::format("{} is neither a file nor a folder: name the recording itself", path.string())};
  }
  file.bytes = static_cast<std::uint64_t>(info.st_size);
  if (file.bytes == 0) return {Code::kUnusable, fmt::format("{} is empty", path.string())};
  TELLTALE_ASSIGN_OR_RETURN(const auto input, TraceInput::Open(named));
  file.gzip = input->gzip();
  file.head.resize(kHeadBytes);
  TELLTALE_ASSIGN_OR_RETURN(const std::size_t n, input->Read(file.head.data(), kHeadBytes));
  file.head.resize(n);
  TELLTALE_RETURN_IF_ERROR(CheckHead(file));
  return file;
}

}  // namespace telltale::interchange
