// SPDX-License-Identifier: Apache-2.0
#include "store/run_info.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "base/json_depth.h"
#include "base/process.h"
#include "base/run_files.h"
#include "format/bounds.h"
#include "store/folder.h"

namespace telltale::store {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// What an attempt's end adds to run.json is less.
constexpr std::size_t kRoomBytes = 4096;
/// More than a long command and thousands of attempts take.
constexpr std::uint64_t kMostRunJsonBytes = 16U << 20;

ordered_json ToJson(const Attempt& attempt) {
  ordered_json out = {{"number", attempt.number},
                      {"start_ns", attempt.start_ns},
                      {"end_ns", attempt.end_ns},
                      {"pid", attempt.pid},
                      {"pid_start_ticks", attempt.pid_start_ticks}};
  if (attempt.exit_code) out["exit_code"] = *attempt.exit_code;
  if (attempt.signal) out["signal"] = *attempt.signal;
  return out;
}

/// A whole number; `standard` where it is missing. Throws where the type does not hold it.
template <std::integral T>
T Number(const json& in, const char* key, T standard) {
  const auto found = in.find(key);
  if (found == in.end()) return standard;
  // What is not below zero is unsigned to the parser.
  const bool fits = found->is_number_unsigned()  ? std::in_range<T>(found->get<std::uint64_t>())
                    : found->is_number_integer() ? std::in_range<T>(found->get<std::int64_t>())
                                                 : false;
  if (!fits) throw std::out_of_range(fmt::format("{} is no whole number that can be", key));
  return found->get<T>();
}

Attempt AttemptOf(const json& in) {
  Attempt attempt;
  if (!in.is_object()) throw std::out_of_range("an attempt is no object");
  attempt.number = Number(in, "number", attempt.number);
  attempt.start_ns = Number(in, "start_ns", attempt.start_ns);
  attempt.end_ns = Number(in, "end_ns", attempt.end_ns);
  attempt.pid = Number(in, "pid", attempt.pid);
  attempt.pid_start_ticks = Number(in, "pid_start_ticks", attempt.pid_start_ticks);
  if (in.contains("exit_code")) attempt.exit_code = Number(in, "exit_code", 0);
  if (in.contains("signal")) attempt.signal = Number(in, "signal", 0);
  return attempt;
}

RunInfo FromJson(const json& in) {
  RunInfo info;
  const json format = in.value("format", json::object());
  if (!format.is_object()) throw std::out_of_range("format is no object");
  info.format_major = Number(format, "major", 0);
  info.format_minor = Number(format, "minor", 0);
  if (info.format_major > kRunFormatMajor) return info;  // The rest may mean something else.
  info.id = in.value("id", info.id);
  info.name = in.value("name", info.name);
  info.command = in.value("command", info.command);
  info.cwd = in.value("cwd", info.cwd);
  info.host = in.value("host", info.host);
  info.boot_id = in.value("boot_id", info.boot_id);
  info.pid_namespace = in.value("pid_namespace", info.pid_namespace);
  info.telltale_version = in.value("telltale_version", info.telltale_version);
  info.supervisor_pid = Number(in, "supervisor_pid", info.supervisor_pid);
  info.supervisor_start_ticks = Number(in, "supervisor_start_ticks", info.supervisor_start_ticks);
  info.created_ns = Number(in, "created_ns", info.created_ns);
  info.interval_ms = Number(in, "interval_ms", info.interval_ms);
  info.overhead_budget = in.value("overhead_budget", info.overhead_budget);
  if (in.contains("plan") && in.at("plan").is_object()) info.plan = JsonText(in.at("plan"));
  if (in.contains("rules") && in.at("rules").is_object()) info.rules = JsonText(in.at("rules"));
  for (const json& attempt : in.value("attempts", json::array())) {
    info.attempts.push_back(AttemptOf(attempt));
  }
  info.finished = in.value("finished", info.finished);
  return info;
}

/// True where the supervisor or an agent has written a moment ago. A watcher's folder says nothing:
/// a watcher can be started by hand, here, on a run that is long over.
bool Moves(const std::filesystem::path& run) {
  const std::int64_t now = Clock::System().RealtimeNs();
  const auto fresh = [&](const std::filesystem::path& file) {
    const std::int64_t changed_ns = run_files::ChangedNs({run, file});
    return changed_ns >= 0 && std::llabs(now - changed_ns) < kMovingNs;
  };
  if (fresh("run.json")) return true;
  for (const std::string& writer : ListWriters(run)) {
    if (writer.starts_with("watch")) continue;
    const auto folder = ListFolder(run / writer);
    if (folder.ok() && !folder->journals.empty() &&
        fresh(std::filesystem::path(writer) / JournalFileName(folder->journals.back()))) {
      return true;
    }
  }
  return false;
}

/// Whether its numbers can be (format/bounds.h): behind them nobody asks again.
bool Possible(const RunInfo& info) {
  const auto possible = [](const Attempt& attempt) {
    return format::kIndexBound.Has(attempt.number) && format::kTimeBound.Has(attempt.start_ns) &&
           format::kTimeBound.Has(attempt.end_ns);
  };
  return format::kTimeBound.Has(info.created_ns) && format::kLengthBound.Has(info.interval_ms) &&
         std::isfinite(info.overhead_budget) &&
         std::all_of(info.attempts.begin(), info.attempts.end(), possible);
}

}  // namespace

bool CanAskProcesses(const RunInfo& info) {
  const std::string own = PidNamespace();
  return info.boot_id == BootId() && !own.empty() && info.pid_namespace == own;
}

Result<RunInfo> ReadRunInfo(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "run.json";
  const Result<std::string> text = ReadRunFile(run_files::OfRun(path), kMostRunJsonBytes);
  if (!text.ok()) {
    return {text.status().code(),
            fmt::format("{} is no run: {}; name a folder made by telltale run", run.string(),
                        text.status().message())};
  }
  if (JsonTooDeep(*text)) {
    return {Code::kUnusable, fmt::format("{} nests deeper than {} levels: it is not a run of ours "
                                         "or damaged; restore it from a copy",
                                         path.string(), kDeepestJson)};
  }
  try {
    // Throws where it is no JSON: its words say the place, which ParseJson does not.
    const json in = json::parse(*text);
    RunInfo info = FromJson(in.is_object() ? in : json::object());
    if (info.format_major > kRunFormatMajor) {
      return {Code::kVersion,
              fmt::format("{} was written by format {}, this telltale reads up to {}: install a "
                          "newer telltale",
                          path.string(), info.format_major, kRunFormatMajor)};
    }
    if (info.format_major < 1) {
      return {Code::kUnusable, fmt::format("{} names no format version: it is not a run of ours or "
                                           "damaged; restore it from a copy",
                                           path.string())};
    }
    if (!Possible(info)) {
      return {Code::kUnusable, fmt::format("{} names a time or a number that cannot be: it is "
                                           "damaged; restore it from a copy",
                                           path.string())};
    }
    return info;
  } catch (const std::exception& error) {
    return {Code::kUnusable, fmt::format("{} cannot be read: {}; restore it from a copy",
                                         path.string(), JsonTrouble(error))};
  }
}

Status WriteRunInfo(const std::filesystem::path& run, const RunInfo& info) {
  try {
    ordered_json out = {{"format", {{"major", info.format_major}, {"minor", info.format_minor}}},
                        {"id", info.id},
                        {"name", info.name},
                        {"command", info.command},
                        {"cwd", info.cwd},
                        {"host", info.host},
                        {"boot_id", info.boot_id},
                        {"pid_namespace", info.pid_namespace},
                        {"telltale_version", info.telltale_version},
                        {"supervisor_pid", info.supervisor_pid},
                        {"supervisor_start_ticks", info.supervisor_start_ticks},
                        {"created_ns", info.created_ns},
                        {"interval_ms", info.interval_ms},
                        {"overhead_budget", info.overhead_budget},
                        {"attempts", ordered_json::array()},
                        {"finished", info.finished}};
    for (const Attempt& attempt : info.attempts) out["attempts"].push_back(ToJson(attempt));
    const std::pair<const char*, const std::string*> documents[] = {{"plan", &info.plan},
                                                                    {"rules", &info.rules}};
    for (const auto& [key, text] : documents) {
      if (text->empty()) continue;
      ordered_json document = ParseOrderedJson(*text);
      if (document.is_object()) out[key] = std::move(document);
    }
    // Arguments may hold any bytes; what is no UTF-8 is replaced, never a reason to fail.
    const std::string text = out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
    Status status = ReplaceFile(run / "run.json", text, kRoomBytes);
    // A full disk takes no new file; how the run ended must be known all the same.
    if (!status.ok() && OverwriteText(run / "run.json", text).ok()) return {};
    return status;
  } catch (const std::exception& error) {
    return {Code::kIo,
            fmt::format("cannot write {}: {}", (run / "run.json").string(), error.what())};
  }
}

RunState DeriveRunState(const RunInfo& info, const std::filesystem::path& run) {
  const Attempt* last = info.attempts.empty() ? nullptr : &info.attempts.back();
  RunState state;
  if (last != nullptr) {
    state.exit_code = last->exit_code;
    state.signal = last->signal;
  }
  const bool over = info.finished || state.exit_code || state.signal;
  if (!info.finished) {
    bool running = false;
    if (CanAskProcesses(info)) {
      // A new attempt may be about to begin as long as the supervisor lives.
      running = ProcessAlive(info.supervisor_pid, info.supervisor_start_ticks) ||
                (last != nullptr && !over && ProcessAlive(last->pid, last->pid_start_ticks));
    } else {
      running = Moves(run);
    }
    if (running) return {.state = "running"};
  }
  if (!over) {
    state.state = "lost";
  } else if (state.signal) {
    state.state = "killed";
  } else if (state.exit_code.value_or(0) != 0) {
    state.state = "failed";
  } else {
    state.state = "finished";
  }
  return state;
}

}  // namespace telltale::store
