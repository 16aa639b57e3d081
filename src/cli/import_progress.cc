// SPDX-License-Identifier: Apache-2.0
#include "cli/import_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "cli/output.h"
#include "interchange/trace_input.h"

namespace telltale::cli {
namespace {

constexpr std::int64_t kFirstNs = 1'000'000'000;
constexpr std::int64_t kBetweenNs = 250'000'000;
constexpr const char* kTakeAway = "\r\x1b[K";

// Of the process that reads too, which is a fork.
std::uint64_t g_total_bytes = 0;  ///< 0: a folder, of which nobody knows.
std::atomic<std::int64_t> g_next_ns = 0;

void ShowRead(std::uint64_t bytes) {
  const std::int64_t now = Clock::System().MonotonicNs();
  std::int64_t next = g_next_ns.load();
  if (now < next || !g_next_ns.compare_exchange_strong(next, now + kBetweenNs)) return;
  if (g_total_bytes == 0) {
    Say("{}telltale import: {} MiB read", kTakeAway, bytes >> 20);
    return;
  }
  // What does not fit into memory is read twice: once for names and steps, then to write it.
  const bool again = bytes > g_total_bytes;
  const std::uint64_t of_pass = again ? bytes - g_total_bytes : bytes;
  Say("{}telltale import: {} {} of {} MiB", kTakeAway, again ? "written" : "read", of_pass >> 20,
      g_total_bytes >> 20);
}

}  // namespace

ImportProgress::ImportProgress(const std::vector<std::string>& paths) {
  if (::isatty(STDERR_FILENO) != 1) return;
  g_total_bytes = 0;
  for (const std::string& path : paths) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (!error) g_total_bytes += size;
  }
  g_next_ns = Clock::System().MonotonicNs() + kFirstNs;
  interchange::ReportInput(ShowRead);
  shown_ = true;
}

void ImportProgress::End() {
  if (!shown_) return;
  interchange::ReportInput(nullptr);
  WriteErr(kTakeAway);
  shown_ = false;
}

}  // namespace telltale::cli
