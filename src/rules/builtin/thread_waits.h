// SPDX-License-Identifier: Apache-2.0
// What a thread waits for, in words, from the agent's look into /proc (event process.stacks).
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "rules/builtin/event_data.h"

namespace telltale::rules {

/// In a word what a thread waits for, from the agent's look into /proc.
inline std::string WaitsFor(const nlohmann::json& thread) {
  const std::string state = TextIn(thread, "state");
  const std::string call = TextIn(thread, "syscall");
  const std::string where = TextIn(thread, "wait");
  if (state == "R") return "computes";
  if (state == "D") {
    return "waits in the kernel for a device or file system" +
           (where.empty() ? std::string() : " (" + where + ")");
  }
  if (state == "T" || state == "t") return "is stopped";
  const auto has = [&](std::string_view word) {
    return call.find(word) != std::string::npos || where.find(word) != std::string::npos;
  };
  if (has("futex")) return "waits for a lock or another thread (futex)";
  if (has("poll") || has("select")) return "waits for a socket or pipe (poll)";
  if (has("recv") || has("tcp") || has("sk_wait")) return "waits for a socket";
  if (has("pipe") || has("read")) return "waits to read from a pipe or file";
  if (has("wait4") || has("waitid") || has("do_wait")) return "waits for a child process";
  if (has("nanosleep")) return "sleeps";
  if (!call.empty()) return "waits in the system call " + call;
  if (!where.empty()) return "waits in the kernel in " + where;
  return "waits";
}

/// The same of the thread that trains, the first of the process: in the data of an event
/// process.stacks. Empty where that does not say.
inline std::string MainThreadWaits(const std::string& stacks, std::int32_t pid) {
  const auto data = ParseJson(stacks);
  if (!data.is_object()) return "";
  const auto threads = data.find("threads");
  if (threads == data.end() || !threads->is_array()) return "";
  for (const auto& thread : *threads) {
    if (!thread.is_object()) continue;
    if (const auto tid = thread.find("tid");
        tid != thread.end() && tid->is_number_integer() && tid->get<std::int64_t>() == pid) {
      return WaitsFor(thread);
    }
  }
  return "";
}

}  // namespace telltale::rules
