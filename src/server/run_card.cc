// SPDX-License-Identifier: Apache-2.0
#include "server/run_card.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/run_files.h"
#include "base/saturate.h"
#include "report/text.h"
#include "server/isolated.h"
#include "store/folder.h"
#include "store/recording_end.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using format::TableId;

constexpr std::size_t kCardRowsAtATime = 4096;
/// All that a run's line needs where run.json says how long it took: steps, and the events that say
/// when an attempt ended. Else that is told by the newest record of any table.
constexpr std::uint32_t kTables = store::MaskOf(TableId::kSteps) | store::MaskOf(TableId::kEvents);

std::string Text(const Json& json) { return JsonText(json); }

/// `facts` null: the records are not read yet. `now_ns`: of a run that goes on, by its clock.
std::string Text(const std::string& id, const store::RunInfo& info, const store::RunState& state,
                 const CardFacts* facts, std::int64_t now_ns = 0) {
  Json out = {{"id", id},
              {"name", info.name.empty() ? id : info.name},
              {"state", state.state},
              {"attempts", info.attempts.size()},
              {"steps", nullptr},
              {"start_unix_ms", info.created_ns / 1'000'000},
              {"duration_ns", nullptr},
              {"verdict", nullptr},
              {"findings", {{"high", 0}, {"medium", 0}, {"low", 0}, {"info", 0}}},
              {"damaged", nullptr}};
  if (facts != nullptr) {
    out["steps"] = facts->steps;
    out["duration_ns"] = facts->duration_ns;
    out["verdict"] = facts->verdict;
    out["damaged"] = facts->damaged;
    for (const auto& [severity, count] : facts->findings) out["findings"][severity] = count;
    return Text(out);
  }
  std::int64_t end = info.attempts.empty() ? 0 : info.attempts.back().end_ns;
  if (end == 0 && state.state == "running") end = now_ns;
  if (end > info.created_ns) out["duration_ns"] = end - info.created_ns;
  return Text(out);
}

std::string Unreadable(const std::string& id, const std::string& why) {
  Json out = Json::parse(Text(id, {}, {"unreadable", {}, {}}, nullptr));
  out["start_unix_ms"] = nullptr;
  out["verdict"] = why;
  return Text(out);
}

CardFacts FactsOf(const report::RunData& data) {
  CardFacts facts;
  facts.steps = data.summary.train_steps();
  facts.duration_ns = SaturatingCast(data.elapsed_seconds() * 1e9);
  facts.verdict = report::Verdict(data);
  facts.damaged = data.replay.salvage.any() || data.replay.state.unrecorded;
  for (const rules::Finding& f : data.replay.findings) {
    ++facts.findings[std::string(rules::Name(f.incident.severity))];
  }
  return facts;
}

std::uint64_t Mixed(std::uint64_t sum, std::int64_t value) {
  return (sum ^ static_cast<std::uint64_t>(value)) * 1099511628211ULL;
}

std::uint64_t MixedFile(std::uint64_t sum, const run_files::RunPath& file) {
  struct stat info {};
  if (!run_files::StatOf(file, &info)) return Mixed(sum, -1);
  sum = Mixed(sum, info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec);
  return Mixed(sum, info.st_size);
}

/// Changes when the run does. Of a run whose supervisor wrote its end only the watcher's folder can
/// still grow: a watcher may be started by hand.
std::uint64_t StampOf(const fs::path& run, bool finished) {
  std::uint64_t sum = MixedFile(14695981039346656037ULL, {run, "run.json"});
  for (const std::string& writer : store::ListWriters(run)) {
    if (finished && !writer.starts_with("watch")) continue;
    // Files that come and go, and the one that grows.
    sum = MixedFile(sum, {run, writer});
    const auto folder = store::ListFolder(run / writer);
    if (folder.ok() && !folder->journals.empty()) {
      const std::string journal = store::JournalFileName(folder->journals.back());
      sum = MixedFile(sum, {run, fs::path(writer) / journal});
    }
  }
  return sum;
}

}  // namespace

std::string CardJson(const std::string& id, const report::RunData& data) {
  const CardFacts facts = FactsOf(data);
  return Text(id, data.replay.info, data.replay.state, &facts);
}

Result<report::RunData> ReadCard(const fs::path& run) {
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  // What the watcher has not judged yet is judged here.
  if (reader->state().state == "running") return report::Load(run, store::RunClockNow(run));
  std::optional<report::RunData> data;
  RunCard card(reader->info().id, run, [&](const report::RunData& whole) { data = whole; });
  card.Look();
  while (card.Advance(std::chrono::steady_clock::time_point::max())) {
  }
  TELLTALE_RETURN_IF_ERROR(card.replay_status());
  if (!data) {
    return Status(Code::kUnusable, run.string() +
                                       ": run.json cannot be read any more: was the run "
                                       "removed meanwhile?");
  }
  return std::move(*data);
}

void RunCard::Look() {
  const Status looked = Isolated(path_, [this] { LookAtFiles(); });
  if (!looked.ok()) GiveUp(looked);
}

void RunCard::GiveUp(const Status& why) {
  json_ = Unreadable(id_, why.message());
  replay_status_ = why;
  reading_.reset();
  facts_.reset();
  looked_ = whole_ = true;
  retry_at_.reset();
  if (why.code() == Code::kLimit) retry_at_ = std::chrono::steady_clock::now() + retry_;
}

void RunCard::LookAtFiles() {
  // One that runs may end without a word in its files.
  const bool retry = retry_at_ && std::chrono::steady_clock::now() >= *retry_at_;
  if (!retry && looked_ && over_ && StampOf(path_, info_.finished) == stamp_) return;
  retry_at_.reset();
  auto reader = store::RunReader::Open(path_);
  // Before the files are read: what changes meanwhile is seen by the next look.
  stamp_ = StampOf(path_, reader.ok() && (*reader)->info().finished);
  if (!reader.ok()) {
    json_ = Unreadable(id_, reader.status().message());
    reading_.reset();
    created_ns_ = 0;
    looked_ = whole_ = over_ = true;
    info_ = {};
    facts_.reset();
    return;
  }
  state_ = (*reader)->state();
  info_ = (*reader)->info();
  if (created_ns_ != info_.created_ns) {
    // Recorded anew in the same place.
    reading_.reset();
    facts_.reset();
  }
  created_ns_ = info_.created_ns;
  const bool over = state_.state != "running";
  // What is over is read from its begin: no record may be missing from what is then kept. So is one
  // that goes on after all: what was read last was taken for its end.
  if (over || over_) reading_.reset();
  looked_ = true;
  whole_ = begun_ = false;
  over_ = over;
  // What was known before stands until more is.
  json_ = Text(id_, info_, state_, facts_ ? &*facts_ : nullptr,
               over || facts_ ? 0 : store::RunClockNow(path_));
}

void RunCard::Begin() {
  begun_ = true;
  replay_status_ = {};
  if (!reading_) {
    reading_ = std::make_unique<Reading>(path_);
    const bool timed = over_ && !info_.attempts.empty() && info_.attempts.back().end_ns > 0;
    reading_->tables = timed ? kTables : analysis::Summary::table_mask();
  }
  Reading& r = *reading_;
  r.data.path = path_;
  r.data.replay.info = info_;
  r.data.replay.state = state_;
  r.data.replay.ended = over_;
  r.watched.Advance(over_);
  if (over_ && !r.watched.log().CameToItsEnd(info_)) {
    OpenReplayer();
  }
  for (const std::string& name : store::ListWriters(path_)) {
    const bool known = std::any_of(r.writers.begin(), r.writers.end(),
                                   [&](const auto& one) { return one->name() == name; });
    if (known || name.starts_with("watch")) continue;
    r.writers.push_back(
        std::make_unique<store::WriterFollower>(path_ / name, name, r.tables, over_, &r.salvage));
  }
}

bool RunCard::Advance(std::chrono::steady_clock::time_point deadline) {
  if (whole_) return false;
  bool more = false;
  const Status read = Isolated(path_, [&] { more = ReadOn(deadline); });
  if (!read.ok()) GiveUp(read);
  return more && read.ok();
}

bool RunCard::ReadOn(std::chrono::steady_clock::time_point deadline) {
  if (!begun_) Begin();
  if (reading_->replayer ? Replay(deadline) : ReadWriters(deadline)) return true;
  Finish();
  return !whole_;
}

/// Each writer by itself: their order matters to no number here, and so none waits for another.
bool RunCard::ReadWriters(std::chrono::steady_clock::time_point deadline) {
  for (const auto& writer : reading_->writers) {
    while (true) {
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = writer->Advance(&chunk);
      // What cannot be read is left out, and the line says so: `damaged`.
      if (!progress.ok() || !*progress) break;
      if (chunk != nullptr) {
        format::ForEachTable(chunk->rows, [&](const auto& rows) {
          using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
          for (const Row& row : rows) {
            reading_->data.summary.OnRecord({row.ord_ns, 0, Row::kTable, &row});
          }
        });
      }
      if (std::chrono::steady_clock::now() >= deadline) return true;
    }
  }
  return false;
}

bool RunCard::Replay(std::chrono::steady_clock::time_point deadline) {
  std::vector<store::OrderedRecord> records;
  do {
    const auto more = reading_->replayer->Next(kCardRowsAtATime, &records);
    if (!more.ok()) {
      replay_status_ = more.status();
      reading_->replayer.reset();
      return false;
    }
    if (!*more) return false;
    for (const store::OrderedRecord& record : records) {
      if ((reading_->tables & store::MaskOf(record.table)) == 0) continue;
      reading_->data.summary.OnRecord(record);
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return true;
}

void RunCard::OpenReplayer() {
  auto replayer = rules::Replayer::Open(path_, reading_->tables);
  reading_->replayed = true;
  if (!replayer.ok()) {
    replay_status_ = replayer.status();
    return;
  }
  reading_->replayer = std::move(replayer).value();
  reading_->data.summary = {};
}

void RunCard::Finish() {
  Reading& r = *reading_;
  // Records that the watcher did not live to see, of whatever table.
  const std::int64_t watched_ns = r.watched.log().watermark_ns();
  const bool unseen = std::any_of(r.writers.begin(), r.writers.end(), [&](const auto& writer) {
    return writer->watermark_ns() > watched_ns;
  });
  if (over_ && !r.replayed && (unseen || r.data.summary.last_ns >= watched_ns)) {
    OpenReplayer();
    if (r.replayer) return;
  }
  if (r.replayer) {
    r.data.replay = r.replayer->Take();
  } else {
    r.data.replay.findings = r.watched.findings(&r.data.replay.findings_left_out);
    r.data.replay.rules = r.watched.rules();
    r.data.replay.salvage = r.salvage;
    r.data.replay.seen_end_ns = r.watched.log().seen_end_ns();
  }
  facts_ = FactsOf(r.data);
  if (seen_) seen_(r.data);
  json_ = Text(id_, r.data.replay.info, r.data.replay.state, &*facts_);
  whole_ = true;
  if (over_) reading_.reset();
}

}  // namespace telltale::server
