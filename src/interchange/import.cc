// SPDX-License-Identifier: Apache-2.0
#include "interchange/import.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/given_name.h"
#include "interchange/confined.h"
#include "interchange/run_maker.h"
#include "interchange/scratch_folder.h"
#include "interchange/sync_tree.h"
#include "store/folder.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

/// "a.pt.trace" of "a.pt.trace.json.gz": what a run of it is called.
std::string StemOf(const fs::path& path) {
  std::string name = fs::absolute(path).lexically_normal().filename().string();
  if (name.empty()) name = fs::absolute(path).lexically_normal().parent_path().filename().string();
  for (const std::string_view ending : {".gz", ".json"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) {
      name.resize(name.size() - ending.size());
    }
  }
  return name.empty() ? "trace" : name;
}

struct Chosen {
  const Importer* importer = nullptr;
  std::vector<ImportFile> files;
};

std::string KnownFormats() {
  std::string names;
  for (const Importer& one : Importers()) {
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  return names;
}

Result<Chosen> Choose(const ImportRequest& request) {
  Chosen chosen;
  if (request.paths.empty()) return {Code::kUsage, "no file to import: name one"};
  if (!request.format.empty()) {
    chosen.importer = FindImporter(request.format);
    if (chosen.importer == nullptr) {
      return {Code::kUsage,
              fmt::format("no format '{}': choose one of {}", request.format, KnownFormats())};
    }
  }
  for (const fs::path& path : request.paths) {
    TELLTALE_ASSIGN_OR_RETURN(ImportFile file, LookAtFile(path));
    if (request.format.empty()) {
      const Importer* const importer = DetectImporter(file);
      if (importer == nullptr) {
        return {file.folder ? Code::kUsage : Code::kUnusable,
                fmt::format("{} is of no format that is known here ({}): name it with --format if "
                            "it is one of them",
                            path.string(), KnownFormats())};
      }
      if (chosen.importer != nullptr && chosen.importer != importer) {
        return {Code::kUsage,
                fmt::format("{} is of the format {}, the files before it of {}: import them apart",
                            path.string(), importer->name, chosen.importer->name)};
      }
      chosen.importer = importer;
    }
    chosen.files.push_back(std::move(file));
  }
  return chosen;
}

Result<ImportSummary> ImportInto(const ImportRequest& request, const Chosen& chosen,
                                 const fs::path& folder) {
  TELLTALE_ASSIGN_OR_RETURN(const auto maker, RunMaker::Create(folder));
  TELLTALE_RETURN_IF_ERROR(chosen.importer->import(chosen.files, request.limits, maker.get()));
  RunMaker::Description description{.id = fs::absolute(request.run).lexically_normal().filename(),
                                    .name = StemOf(request.paths.front()),
                                    .format = std::string(chosen.importer->name),
                                    .telltale_version = request.telltale_version};
  for (const fs::path& path : request.paths) description.sources.push_back(path.string());
  auto summary = maker->Finish(description);
  if (!summary.ok() && summary.status().code() == Code::kUnusable) {
    return {Code::kUnusable,
            fmt::format("{}: {}", request.paths.front().string(), summary.status().message())};
  }
  return summary;
}

/// Gives the run its name.
Status Publish(const fs::path& made, const fs::path& run) {
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, run.c_str(), RENAME_NOREPLACE) == 0) return {};
  const int error = errno;
  // Not every file system knows that flag.
  std::error_code ignored;
  if (error == EINVAL && !fs::exists(run, ignored) && ::rename(made.c_str(), run.c_str()) == 0) {
    return {};
  }
  return {error == EEXIST ? Code::kUsage : Code::kIo,
          fmt::format("cannot name the run {}: {}", run.string(), std::strerror(error))};
}

Result<ImportSummary> ImportAs(const ImportRequest& request, bool in_child) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(request.run, error))) {
    return {Code::kUsage, fmt::format("{} is there already: name a folder that is to be made",
                                      request.run.string())};
  }
  TELLTALE_ASSIGN_OR_RETURN(const Chosen chosen, Choose(request));
  const fs::path run = fs::absolute(request.run).lexically_normal();
  const fs::path target = run.has_filename() ? run : run.parent_path();
  TELLTALE_ASSIGN_OR_RETURN(
      ScratchFolder scratch,
      ScratchFolder::Create(target.parent_path(), "." + target.filename().string() + "."));
  const fs::path folder = scratch.path() / "run";
  const ConfinedImport import{.limits = request.limits,
                              .subject = request.paths.front().string(),
                              .body = [&] { return ImportInto(request, chosen, folder); }};
  auto summary = in_child ? RunInChild(import, &scratch) : RunHere(import);
  if (!summary.ok()) return summary;
  if (request.durable) TELLTALE_RETURN_IF_ERROR(SyncTree(folder));
  TELLTALE_RETURN_IF_ERROR(Publish(folder, target));
  if (request.durable) TELLTALE_RETURN_IF_ERROR(store::SyncFolder(target.parent_path()));
  return summary;
}

}  // namespace

bool ImportSummary::partial() const {
  return std::any_of(counters.begin(), counters.end(),
                     [](const Counter& counter) { return counter.loss && counter.value > 0; });
}

Result<ImportSummary> ImportFiles(const ImportRequest& request) { return ImportAs(request, true); }
Result<ImportSummary> ImportFilesHere(const ImportRequest& request) {
  return ImportAs(request, false);
}

TemporaryRun::TemporaryRun() = default;
TemporaryRun::TemporaryRun(TemporaryRun&&) noexcept = default;
TemporaryRun& TemporaryRun::operator=(TemporaryRun&&) noexcept = default;
TemporaryRun::~TemporaryRun() = default;

Result<TemporaryRun> TemporaryRun::Import(const std::vector<fs::path>& paths,
                                          const std::string& telltale_version) {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) return {Code::kIo, fmt::format("no folder for temporary files: {}", error.message())};
  TELLTALE_ASSIGN_OR_RETURN(ScratchFolder scratch, ScratchFolder::Create(parent, "telltale-"));
  TemporaryRun run;
  run.scratch_ = std::make_unique<ScratchFolder>(std::move(scratch));
  run.run_ = run.scratch_->path() / StemOf(paths.empty() ? fs::path("trace") : paths.front());
  if (!paths.empty()) {
    run.given_ = std::make_unique<GivenName>(run.run_.string(), paths.front().string());
  }
  ImportRequest request{
      .paths = paths, .run = run.run_, .telltale_version = telltale_version, .durable = false};
  TELLTALE_ASSIGN_OR_RETURN(run.summary_, ImportFiles(request));
  return run;
}

}  // namespace telltale::interchange
