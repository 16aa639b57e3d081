// SPDX-License-Identifier: Apache-2.0
#include "support/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "store/folder.h"
#include "store/follower.h"
#include "store/journal_reader.h"

namespace telltale::testing {
namespace {

namespace fs = std::filesystem;
using format::TableId;

constexpr std::uint32_t kMask = store::MaskOf(TableId::kScalars) | store::MaskOf(TableId::kSpans) |
                                store::MaskOf(TableId::kLedger);
constexpr std::chrono::milliseconds kLook(2);

/// What the agent adds to CLOCK_MONOTONIC, from the head of its first journal.
std::optional<std::int64_t> RunOffset(const fs::path& folder) {
  auto file = store::JournalFile::Open(folder / store::JournalFileName(1));
  if (!file.ok()) return std::nullopt;
  StringPool pool;
  store::JournalChunk head;
  if (!(*file)->Read(false, 1, &pool, &head).ok() || !head.header) return std::nullopt;
  return head.header->monotonic_to_run_ns;
}

}  // namespace

Recording::Recording(const fs::path& folder, long records_a_second, long seconds)
    : folder_(folder) {
  fs::create_directories(root());
  started_ = fault::StartRun(run(), {"--no-serve", "--quiet"},
                             {fs::path(fault::TrainerPath()).replace_filename("steady_trainer"),
                              folder_, std::to_string(records_a_second), std::to_string(seconds)},
                             folder_ / "err");
}

bool Recording::AwaitReady() {
  return fault::Await([&] { return fs::exists(folder_ / "ready"); });
}

void Recording::Go() { std::ofstream(folder_ / "go") << '1'; }

bool Recording::Follow(Recorded* out) {
  std::string name;
  const auto agent_there = [&] {
    for (const std::string& writer : store::ListWriters(run())) {
      if (writer.starts_with("agent-")) name = writer;
    }
    return !name.empty();
  };
  if (!fault::Await(agent_there)) return false;
  const std::optional<std::int64_t> offset = RunOffset(run() / name);
  if (!offset) return false;
  store::Salvage salvage;
  store::WriterFollower follower(run() / name, name, kMask, false, &salvage);
  std::vector<bool> seen;
  std::map<std::string, std::uint64_t> dropped;  // Newest, by subject.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!follower.ended()) {
    std::unique_ptr<store::RowChunk> chunk;
    const Result<bool> progress = follower.Advance(&chunk);
    if (!progress.ok() || std::chrono::steady_clock::now() > deadline) return false;
    if (!*progress) {
      std::this_thread::sleep_for(kLook);
      continue;
    }
    if (chunk == nullptr) continue;
    const std::int64_t now = Clock::System().MonotonicNs() + *offset;
    for (const format::ScalarRow& row : chunk->rows.scalars) {
      if (row.name != "n") continue;
      const auto number = static_cast<std::size_t>(row.value);
      if (number >= seen.size()) seen.resize(number + 1);
      out->twice += seen[number] ? 1 : 0;
      seen[number] = true;
      ++out->values;
      if (out->first_ns == 0) out->first_ns = row.time_ns;
      out->last_ns = std::max(out->last_ns, row.time_ns);
      out->lag_ms.push_back(static_cast<double>(now - row.time_ns) / 1e6);
    }
    for (const format::SpanRow& row : chunk->rows.spans) out->spans += row.name == "work" ? 1 : 0;
    for (const format::LedgerRow& row : chunk->rows.ledger) {
      if (row.name == "probe.records_dropped") dropped[std::string(row.subject)] = row.value;
      if (row.name == "agent.cpu_ns") out->agent_cpu_s = static_cast<double>(row.value) / 1e9;
    }
  }
  out->missing = static_cast<std::uint64_t>(std::count(seen.begin(), seen.end(), false));
  for (const auto& [subject, count] : dropped) out->dropped += count;
  return started_.Wait() == 0;
}

}  // namespace telltale::testing
