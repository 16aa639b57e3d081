// SPDX-License-Identifier: Apache-2.0
#include "interchange/confined.h"

#include <fcntl.h>
#include <fmt/core.h>
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

#include "base/heap.h"
#include "base/json.h"
#include "base/process.h"
#include "base/unique_fd.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kMaxAnswerBytes = 16 << 20;
constexpr rlim_t kChildFiles = 1024;
constexpr rlim_t kChildFileBytes = 64ULL << 30;

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
  LeaveNoCore();
  SetLimit(RLIMIT_NOFILE, kChildFiles);
  SetLimit(RLIMIT_FSIZE, kChildFileBytes);
  SetLimit(RLIMIT_AS, limits.memory_bytes);
  ::signal(SIGXFSZ, SIG_IGN);
  KeepFreedMemoryOfReading();
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

}  // namespace

Result<ImportSummary> RunHere(const ConfinedImport& import) {
  try {
    return import.body();
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("{} needs more memory than the {} MiB that an import may "
                                      "have: give it more with --max-memory",
                                      import.subject, import.limits.memory_bytes >> 20)};
  } catch (const std::exception& error) {
    return {Code::kUnusable, fmt::format("cannot import {}: {}", import.subject, error.what())};
  }
}

Result<ImportSummary> RunInChild(const ConfinedImport& import, ScratchFolder* scratch) {
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
    ConfineChild(import.limits, parent);
    WriteAnswer(write_end.get(), ToText(RunHere(import)));
    ::_exit(0);
  }
  write_end.reset();
  const std::string answer = ReadAnswer(read_end.get());
  read_end.reset();  // A child that says more than is read must not wait for us for ever.
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    return {WTERMSIG(status) == SIGKILL ? Code::kLimit : Code::kUnusable,
            fmt::format("{}: the process that reads it was ended by signal {}: please report it "
                        "with the file",
                        import.subject, WTERMSIG(status))};
  }
  return FromText(answer);
}

}  // namespace telltale::interchange
