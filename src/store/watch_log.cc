// SPDX-License-Identifier: Apache-2.0
#include "store/watch_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "format/event_number.h"
#include "store/folder.h"

namespace telltale::store {

using format::TableId;

namespace {
constexpr std::int64_t kBegin = std::numeric_limits<std::int64_t>::min();
}  // namespace

void SeenEnd::Take(const format::EventRow& row) {
  if (row.kind != "recording.lost" || row.attempt < attempt) return;
  const auto ended = format::EventNumber(ParseJson(row.data), "ended_ns", format::kTimeBound);
  if (!ended) return;
  attempt = row.attempt;
  ns = *ended;
}

bool WatchLog::Advance(bool final, const Visitor& visit) {
  for (const std::string& name : ListWriters(run_)) {
    if (!name.starts_with("watch") || folders_.contains(name)) continue;
    const std::uint32_t mask = table_mask_ | MaskOf(TableId::kEvents) | MaskOf(TableId::kLedger);
    folders_[name] = std::make_unique<WriterFollower>(run_ / name, name, mask, final, &salvage_);
  }
  bool any = false;
  for (auto& [name, folder] : folders_) {
    while (true) {
      std::unique_ptr<RowChunk> chunk;
      const Result<bool> progress = folder->Advance(&chunk);
      if (!progress.ok() || !*progress) break;
      if (chunk == nullptr) continue;
      any = true;
      for (const format::EventRow& row : chunk->rows.events) OnEvent(row);
      for (const format::LedgerRow& row : chunk->rows.ledger) {
        attempt_ = std::max(attempt_, row.attempt);
      }
      if (visit) visit(chunk->rows);
    }
  }
  return any;
}

void WatchLog::OnEvent(const format::EventRow& row) {
  attempt_ = std::max(attempt_, row.attempt);
  seen_end_.Take(row);
  if (row.kind == "order.readmitted") {
    auto admission = AdmissionFromJson(row.data);
    if (!admission.ok()) return;
    gave_up_.erase(admission->writer);
    admissions_.push_back(std::move(admission).value());
  } else if (row.kind == "order.gave_up") {
    const auto data = ParseJson(row.data);
    if (!data.is_object() || !data.contains("writer") || !data["writer"].is_string()) return;
    const auto from = format::EventNumber(data, "from_ns", format::kTimeBound);
    gave_up_[data["writer"].get<std::string>()] = from.value_or(kBegin);
  }
}

void WatchLog::Readmit(Cursor* cursor) {
  for (const Admission& admission : std::exchange(admissions_, {})) cursor->Readmit(admission);
}

void WatchLog::GiveUp(Cursor* cursor) {
  for (std::uint32_t i = 0; i < cursor->writers().size(); ++i) {
    const auto found = gave_up_.find(cursor->writers()[i]);
    if (found == gave_up_.end()) continue;
    // One that stands behind our frontier already would hold us up before we get to that place.
    if (cursor->frontier_ns() < found->second && cursor->watermarks()[i] > cursor->frontier_ns()) {
      continue;
    }
    gave_up_.erase(found);
    cursor->GiveUpOn(i);
  }
}

bool WatchLog::CameToItsEnd(const RunInfo& info) const {
  const std::uint32_t newest = info.attempts.empty() ? 1 : info.attempts.back().number;
  return !folders_.empty() && attempt_ >= newest &&
         std::all_of(folders_.begin(), folders_.end(),
                     [](const auto& folder) { return folder.second->ended(); });
}

std::int64_t WatchLog::watermark_ns() const {
  std::int64_t newest = kBegin;
  for (const auto& [name, folder] : folders_) newest = std::max(newest, folder->watermark_ns());
  return newest;
}

}  // namespace telltale::store
