// SPDX-License-Identifier: Apache-2.0
#include "interchange/import.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/unique_fd.h"
#include "interchange/run_maker.h"
#include "interchange/scratch_folder.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxAnswerBytes = 16 << 20;
constexpr rlim_t kChildFiles = 1024;
constexpr rlim_t kChildFileBytes = 64ULL << 30;
/// The largest that malloc allows.
constexpr int kHeapBytes = 32 << 20;
constexpr int kKeptBytes = 256 << 20;

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
  try {
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
  } catch (const std::bad_alloc&) {
    return {Code::kLimit,
            fmt::format("{} needs more memory than the {} MiB that an import may "
                        "have: give it more with --max-memory",
                        request.paths.front().string(), request.limits.memory_bytes >> 20)};
  } catch (const std::exception& error) {
    return {Code::kUnusable,
            fmt::format("cannot import {}: {}", request.paths.front().string(), error.what())};
  }
}

std::string ToText(const Result<ImportSummary>& result) {
  if (!result.ok()) {
    const nlohmann::json error = {{"code", static_cast<int>(result.status().code())},
                                  {"message", result.status().message()}};
    return JsonText(error);
  }
  nlohmann::json counters = nlohmann::json::array();
  for (const auto& counter : result->counters) {
    counters.push_back({counter.name, counter.subject, counter.value, counter.loss});
  }
  const nlohmann::json summary = {
      {"format", result->format},    {"ranks", result->ranks},     {"slices", result->slices},
      {"steps", result->steps},      {"metrics", result->metrics}, {"events", result->events},
      {"other", result->other_rows}, {"counters", counters},       {"notes", result->notes}};
  return JsonText(summary);
}

Result<ImportSummary> FromText(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.contains("code")) {
      return {static_cast<Code>(json.at("code").get<int>()), json.at("message").get<std::string>()};
    }
    ImportSummary summary;
    json.at("format").get_to(summary.format);
    json.at("ranks").get_to(summary.ranks);
    json.at("slices").get_to(summary.slices);
    json.at("steps").get_to(summary.steps);
    json.at("metrics").get_to(summary.metrics);
    json.at("events").get_to(summary.events);
    json.at("other").get_to(summary.other_rows);
    json.at("notes").get_to(summary.notes);
    for (const auto& counter : json.at("counters")) {
      summary.counters.push_back({counter.at(0), counter.at(1), counter.at(2), counter.at(3)});
    }
    return summary;
  } catch (const std::exception& error) {
    return {Code::kIo, fmt::format("the importing process gave no answer: {}", error.what())};
  }
}

void SetLimit(int resource, rlim_t value) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, value);
  limit.rlim_max = limit.rlim_cur;
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

/// What reads the files may be fooled by them, so it may do little.
void ConfineChild(const ImportLimits& limits, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0);
  SetLimit(RLIMIT_CORE, 0);
  SetLimit(RLIMIT_NOFILE, kChildFiles);
  SetLimit(RLIMIT_FSIZE, kChildFileBytes);
  SetLimit(RLIMIT_AS, limits.memory_bytes);
  ::signal(SIGXFSZ, SIG_IGN);
  // What is freed is soon taken again: given back to the kernel it would have to be cleared anew.
  ::mallopt(M_MMAP_THRESHOLD, kHeapBytes);
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  // Others of Arrow's take address space beforehand.
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
}

void WriteAnswer(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string ReadAnswer(int fd) {
  std::string text;
  char buffer[4096];
  while (text.size() < kMaxAnswerBytes) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

Result<ImportSummary> ImportInChild(const ImportRequest& request, const Chosen& chosen,
                                    ScratchFolder* scratch, const fs::path& folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {Code::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno))};
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0)
    return {Code::kIo, fmt::format("cannot start a process: {}", std::strerror(errno))};
  if (child == 0) {
    read_end.reset();
    scratch->CloseInChild();
    ConfineChild(request.limits, parent);
    WriteAnswer(write_end.get(), ToText(ImportInto(request, chosen, folder)));
    ::_exit(0);
  }
  write_end.reset();
  const std::string answer = ReadAnswer(read_end.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    return {WTERMSIG(status) == SIGKILL ? Code::kLimit : Code::kUnusable,
            fmt::format("{}: the process that reads it was ended by signal {}: please report it "
                        "with the file",
                        request.paths.front().string(), WTERMSIG(status))};
  }
  return FromText(answer);
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
  auto summary = in_child ? ImportInChild(request, chosen, &scratch, folder)
                          : ImportInto(request, chosen, folder);
  if (!summary.ok()) return summary;
  TELLTALE_RETURN_IF_ERROR(Publish(folder, target));
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
  ImportRequest request{.paths = paths, .run = run.run_, .telltale_version = telltale_version};
  TELLTALE_ASSIGN_OR_RETURN(run.summary_, ImportFiles(request));
  return run;
}

}  // namespace telltale::interchange
