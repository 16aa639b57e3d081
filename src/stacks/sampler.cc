// SPDX-License-Identifier: Apache-2.0
#include "stacks/sampler.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/units.h"
#include "store/folder.h"
#include "store/reader.h"

namespace telltale::stacks {
namespace {

namespace fs = std::filesystem;
using format::TableId;

constexpr std::uint64_t kMostPieceBytes = 64 << 20;
constexpr int kFirstPieceSeconds = 5;  ///< So that the first stacks are soon to be seen.
constexpr std::int64_t kReadPeriodNs = 2 * kSecond;
constexpr std::int64_t kBatchPeriodNs = 250 * kMs;
constexpr std::int64_t kLedgerPeriodNs = 5 * kSecond;
constexpr std::int64_t kFirstPauseNs = 500 * kMs;
constexpr std::int64_t kMostPauseNs = 15 * kSecond;
constexpr std::int64_t kGracePeriodNs = 10 * kSecond;  ///< For a py-spy that is late.
constexpr std::int64_t kKillNs = 3 * kSecond;
constexpr std::int64_t kAgentPatienceNs = 5 * kSecond;
constexpr int kMostFailures = 8;
constexpr int kCheapPieces = 4;
constexpr std::int64_t kReadDelayNs = 15 * kSecond;  ///< Phases are told when they have ended.
constexpr int kMostPieceSeconds = 120;
constexpr std::int64_t kLeftPatienceNs = 30 * kSecond;
constexpr double kIdleCores = 0.5;
constexpr double kMostOfACore = 0.25;

std::pair<std::uint64_t, std::uint64_t> IdleTicks() {
  std::ifstream in("/proc/stat");
  std::string word;
  in >> word;
  std::uint64_t idle = 0;
  std::uint64_t all = 0;
  for (int i = 0; i < 8; ++i) {
    std::uint64_t ticks = 0;
    if (!(in >> ticks)) break;
    all += ticks;
    if (i == 3 || i == 4) idle += ticks;
  }
  return {idle, all};
}

std::int64_t ThisProcessCpuNs() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

}  // namespace

int NextRate(int rate, int asked, double cpu_share, double idle_cores, unsigned cores,
             double budget) {
  const double allowed = idle_cores >= kIdleCores
                             ? kMostOfACore
                             : std::min(kMostOfACore, budget / 2 * std::max(1U, cores));
  if (cpu_share > allowed) {
    return std::clamp(static_cast<int>(rate * allowed / cpu_share), 1, std::max(1, rate));
  }
  // Twice as many would have to fit.
  return cpu_share * 2 <= allowed ? std::min(asked, rate * 2) : rate;
}

Result<std::unique_ptr<Sampler>> Sampler::Open(fs::path run, SamplerOptions options) {
  std::unique_ptr<Sampler> sampler(new Sampler(std::move(run), options));
  TELLTALE_ASSIGN_OR_RETURN(sampler->info_, store::ReadRunInfo(sampler->run_));
  if (sampler->info_.attempts.empty()) {
    return {Code::kUnusable, fmt::format("{}: it has no attempt", sampler->run_.string())};
  }
  sampler->attempt_ = sampler->info_.attempts.back();
  TELLTALE_ASSIGN_OR_RETURN(sampler->writer_,
                            store::Writer::Open(sampler->run_ / "stacks", "stacks"));
  sampler->pieces_.emplace(sampler->run_ / "logs" / "stacks");
  const run_files::RunPath pieces = run_files::OfFolder(sampler->pieces_->path());
  run_files::MakeFolder({pieces.run, pieces.beneath.parent_path()});
  run_files::MakeFolder(pieces);
  sampler->opened_ns_ = sampler->Now();
  const std::string& command =
      sampler->info_.command.empty() ? std::string() : sampler->info_.command[0];
  sampler->program_ = FindPySpy(command);
  sampler->idle_ticks_ = IdleTicks();
  sampler->FindLeftPieces();
  if (sampler->program_.empty()) {
    sampler->Refuse("py-spy was not found: pip install py-spy, or set TELLTALE_PY_SPY", "");
  } else if (!run_files::OpenFolder(pieces)) {
    // py-spy opens its output by its path, so this must be a folder of the run.
    sampler->Refuse(fmt::format("{} cannot be used: {}", sampler->pieces_->path().string(),
                                run_files::WhyNot(errno)),
                    "");
  }
  return sampler;
}

/// What a sampler before us has left, which its py-spy writes at its end.
void Sampler::FindLeftPieces() {
  for (RecordedPiece& piece : pieces_->Left(Now(), kKillNs, &counts_.pieces_lost)) {
    recorded_.push_back(std::move(piece));
  }
  std::sort(recorded_.begin(), recorded_.end(),
            [](const RecordedPiece& a, const RecordedPiece& b) { return a.start_ns < b.start_ns; });
}

bool Sampler::TrainingLives() {
  if (attempt_.pid == 0) {
    if (auto info = store::ReadRunInfo(run_); info.ok() && !info->attempts.empty()) {
      attempt_ = info->attempts.back();
    }
    // Where the disk refused the pid it may never come.
    if (attempt_.pid == 0) {
      return attempt_.end_ns == 0 &&
             ProcessAlive(info_.supervisor_pid, info_.supervisor_start_ticks);
    }
  }
  return ProcessAlive(attempt_.pid, attempt_.pid_start_ticks);
}

void Sampler::Refuse(std::string why, std::string_view words) {
  over_ = refused_ = true;
  events_.push_back({"stacks.refused", "low", "No stacks are sampled: " + why,
                     JsonText(nlohmann::ordered_json{{"why", why}, {"py_spy", words}})});
}

void Sampler::StartPiece(std::int64_t now) {
  const int seconds =
      said_start_ ? piece_seconds_ : std::min(kFirstPieceSeconds, options_.piece_seconds);
  PySpyOptions options{.program = program_,
                       .target = attempt_.pid,
                       .rate = rate_,
                       .seconds = seconds,
                       .pause = options_.pause,
                       .native = options_.native,
                       .output = pieces_->Begin(now, rate_),
                       .log = pieces_->path() / "py-spy.log"};
  auto started = PySpyChild::Start(options);
  if (!started.ok()) {
    std::fprintf(stderr, "stacks: %s\n", started.status().message().c_str());
    next_start_ns_ = now + kMostPauseNs;
    return;
  }
  child_.emplace(std::move(started).value());
  recording_ = {options.output, child_->started_ns(), rate_, 0};
  piece_end_ns_ = now + seconds * kSecond;
}

void Sampler::PieceEnded(const PySpyEnd& end, std::int64_t now) {
  const std::int64_t wall_ns = std::max<std::int64_t>(1, now - recording_.start_ns);
  counts_.cpu_ns += static_cast<std::uint64_t>(end.cpu_ns);
  counts_.unread += end.errors;
  next_start_ns_ = now;
  if (end.well) {
    failures_ = 0;
    ++counts_.pieces;
    recording_.due_ns = now + kReadDelayNs;
    recorded_.push_back(recording_);
    if (!std::exchange(said_start_, true)) {
      events_.push_back(
          {"stacks.start", "info",
           fmt::format("Python stacks are sampled {} times a second", rate_),
           JsonText(nlohmann::ordered_json{{"rate", rate_},
                                           {"native", options_.native},
                                           {"pause", options_.pause || options_.native},
                                           {"py_spy", program_.string()}})});
    }
    Govern(end, wall_ns);
    return;
  }
  run_files::Remove(run_files::OfSubfolder(recording_.file));
  if (end.refused) {
    Refuse(
        "py-spy may not read the training: it needs the same user, CAP_SYS_PTRACE in a container, "
        "and kernel.yama.ptrace_scope below 2: see `telltale doctor`",
        end.words);
    return;
  }
  const std::int64_t pause = std::min(kMostPauseNs, kFirstPauseNs << std::min(failures_, 5));
  next_start_ns_ = now + pause;
  ++failures_;
  if (training_gone_ns_ != 0) {
    // Nothing is lost where it ended before py-spy had looked.
    if (!end.no_python && wall_ns > kKillNs) ++counts_.pieces_lost;
    return;
  }
  if (end.no_python) {
    if (failures_ < kMostFailures || std::exchange(said_waiting_, true)) return;
    events_.push_back({"stacks.waiting", "low",
                       "No Python is found in the training: it is looked for again and again",
                       JsonText(nlohmann::ordered_json{{"py_spy", end.words}})});
    return;
  }
  ++counts_.pieces_lost;
  std::fprintf(stderr, "stacks: py-spy failed: %s\n", end.words.c_str());
  if (failures_ >= kMostFailures) Refuse("py-spy fails again and again", end.words);
}

void Sampler::Govern(const PySpyEnd& end, std::int64_t wall_ns) {
  const auto ticks = IdleTicks();
  const std::uint64_t all = ticks.second - idle_ticks_.second;
  const auto cores = static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const double idle =
      all == 0 || ticks.second < idle_ticks_.second
          ? 0
          : static_cast<double>(ticks.first - idle_ticks_.first) / static_cast<double>(all) * cores;
  idle_ticks_ = ticks;
  const double share = static_cast<double>(end.cpu_ns) / static_cast<double>(wall_ns);
  int next = NextRate(rate_, options_.rate, share, idle, cores, options_.overhead_budget);
  if (next > rate_) {
    // Slowly: what was cheap once may be so by chance.
    if (++cheap_pieces_ < kCheapPieces) next = rate_;
  }
  // To begin a piece costs too.
  if (next < rate_)
    piece_seconds_ = std::max(piece_seconds_, std::min(kMostPieceSeconds, piece_seconds_ * 2));
  if (next == rate_) return;
  cheap_pieces_ = 0;
  events_.push_back({"stacks.rate", "info",
                     fmt::format("Stacks are sampled {} times a second, to keep the budget", next),
                     JsonText(nlohmann::ordered_json{{"rate", next},
                                                     {"before", rate_},
                                                     {"asked", options_.rate},
                                                     {"cpu_share", share},
                                                     {"idle_cores", idle}})});
  rate_ = next;
}

void Sampler::Take(const format::Rows& rows) {
  for (const format::SpanRow& row : rows.spans) phases_.AddSpan(row);
  for (const format::StepRow& row : rows.steps) {
    phases_.AddStep(row);
    processes_.trainers[row.pid] = row.rank;
  }
  for (const format::EventRow& row : rows.events) {
    if (row.kind == "process.exit") processes_.ended_ns[row.pid] = row.time_ns;
    if (row.kind == "process.start") {
      const auto data = ParseJson(row.data);
      const bool trainer = data.is_object() && data.value("kind", nlohmann::json()) == "trainer";
      if (trainer) processes_.trainers.try_emplace(row.pid, row.rank);
      processes_.ended_ns.erase(row.pid);
    }
  }
}

/// True where every agent has said its last word.
bool Sampler::ReadAgents() {
  for (const std::string& name : store::ListWriters(run_)) {
    if (!name.starts_with(store::kAgentPrefix) || agents_.contains(name)) continue;
    const std::uint32_t mask = store::MaskOf(TableId::kSpans) | store::MaskOf(TableId::kSteps) |
                               store::MaskOf(TableId::kEvents);
    agents_[name] =
        std::make_unique<store::WriterFollower>(run_ / name, name, mask, false, &salvage_);
  }
  // What is to be read, or is being recorded, begins here or later.
  std::int64_t keep_ns =
      recorded_.empty() ? (child_ ? recording_.start_ns : Now()) : recorded_.front().start_ns;
  // A py-spy that was left may be about to write its piece.
  if (Now() - opened_ns_ < kLeftPatienceNs) {
    keep_ns = std::min(keep_ns, opened_ns_ - kMostPieceSeconds * kSecond);
  }
  keep_ns += writer_->monotonic_to_run_ns();
  bool all_ended = !agents_.empty();
  for (auto& [name, agent] : agents_) {
    while (true) {
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = agent->Advance(&chunk);
      if (!progress.ok() || !*progress) break;
      if (chunk == nullptr) continue;
      Take(chunk->rows);
      // At once: a run may have days of them before us.
      phases_.DropBefore(keep_ns - kReadDelayNs);
    }
    all_ended = all_ended && agent->ended();
  }
  phases_.DropBefore(keep_ns - kReadDelayNs);
  return all_ended;
}

void Sampler::Import(const RecordedPiece& piece) {
  const run_files::RunPath file = run_files::OfSubfolder(piece.file);
  const auto text = store::ReadRunFile(file, kMostPieceBytes);
  run_files::Remove(file);
  auto trace = text.ok() ? ParsePySpyTrace(*text, info_.cwd) : Result<PySpyTrace>(text.status());
  if (!trace.ok()) {
    ++counts_.pieces_lost;
    std::fprintf(stderr, "stacks: %s: %s\n", piece.file.c_str(), trace.status().message().c_str());
    return;
  }
  // A training of one process without steps has no rank in the records: it is the command itself.
  Processes processes = processes_;
  if (processes.trainers.empty()) processes.trainers[attempt_.pid] = 0;
  StringPool pool;
  // Some at a time: of many ranks it would be hundreds of MiB.
  const auto write = [&](std::vector<format::SliceRow>* rows) {
    const std::uint64_t count = rows->size();
    // The watermark stays where it is until all are written: rows of the next ones end before now.
    format::Batch batch;
    batch.rows.slices = std::move(*rows);
    if (const Status written = writer_->Append(std::move(batch)); written.ok()) {
      counts_.slices += count;
    } else {
      counts_.dropped += count;
      std::fprintf(stderr, "stacks: %s\n", written.message().c_str());
    }
  };
  counts_.samples += MakeSlices(*trace,
                                {.start_ns = piece.start_ns + writer_->monotonic_to_run_ns(),
                                 .period_ns = kSecond / piece.rate,
                                 .attempt = attempt_.number},
                                processes, &phases_, &pool, write);
  counts_.damaged += trace->damaged;
  if (writer_->counters().journal_bytes < options_.most_bytes || over_) return;
  over_ = true;
  events_.push_back(
      {"stacks.full", "low",
       fmt::format("No more stacks are sampled: {} MiB of them are enough",
                   options_.most_bytes >> 20),
       JsonText(nlohmann::ordered_json{{"bytes", writer_->counters().journal_bytes}})});
}

Status Sampler::Flush(std::int64_t now, bool force) {
  if (!force && events_.empty() && now - last_batch_ns_ < kBatchPeriodNs) return {};
  const std::int64_t run_now = now + writer_->monotonic_to_run_ns();
  format::Batch batch;
  batch.watermark_ns = run_now;
  for (const PendingEvent& event : events_) {
    format::EventRow row;
    row.time_ns = row.ord_ns = run_now;
    row.kind = event.kind;
    row.severity = event.severity;
    row.subject = "stacks";
    row.message = event.message;
    row.data = event.data;
    row.step = -1;
    row.pid = ::getpid();
    row.attempt = attempt_.number;
    batch.rows.events.push_back(row);
  }
  const bool ledger = force || now - last_ledger_ns_ >= kLedgerPeriodNs;
  if (ledger) {
    const auto count = [&](std::string_view name, std::uint64_t value, std::string_view unit,
                           bool loss) {
      format::LedgerRow row;
      row.time_ns = row.ord_ns = run_now;
      row.name = name;
      row.subject = "stacks";
      row.value = value;
      row.unit = unit;
      row.loss = loss;
      row.pid = ::getpid();
      row.attempt = attempt_.number;
      batch.rows.ledger.push_back(row);
    };
    count("stacks.samples", counts_.samples, "records", false);
    count("stacks.slices", counts_.slices, "records", false);
    count("stacks.pieces", counts_.pieces, "files", false);
    count("stacks.unread", counts_.unread, "records", false);
    count("stacks.cpu_ns", counts_.cpu_ns + static_cast<std::uint64_t>(ThisProcessCpuNs()), "ns",
          false);
    count("stacks.journal_bytes", writer_->counters().journal_bytes, "bytes", false);
    count("stacks.pieces_lost", counts_.pieces_lost, "files", true);
    count("stacks.slices_dropped", counts_.dropped, "records", true);
    count("stacks.damaged_events", counts_.damaged, "records", true);
  }
  TELLTALE_RETURN_IF_ERROR(writer_->Append(std::move(batch)));
  events_.clear();
  last_batch_ns_ = now;
  if (ledger) last_ledger_ns_ = now;
  return {};
}

Result<bool> Sampler::Poll() {
  const std::int64_t now = Now();
  if (training_gone_ns_ == 0 && !TrainingLives()) training_gone_ns_ = now;
  const bool gone = training_gone_ns_ != 0;
  if (child_) {
    PySpyEnd end;
    if (child_->Ended(&end)) {
      child_.reset();
      PieceEnded(end, now);
    } else {
      // py-spy sees by itself that the training has ended.
      const std::int64_t late =
          gone ? now - training_gone_ns_ : now - piece_end_ns_ - kGracePeriodNs;
      if (gone ? late > kSecond : late > 0) child_->Stop(late > kKillNs);
    }
  }
  if (!child_ && !over_ && !gone && attempt_.pid != 0 && now >= next_start_ns_) StartPiece(now);
  const bool ending = !child_ && (gone || over_);
  bool agents_ended = false;
  if (now >= next_read_ns_ || ending) {
    next_read_ns_ = now + kReadPeriodNs;
    FindLeftPieces();
    agents_ended = ReadAgents();
  }
  const bool last =
      ending && (agents_ended || (gone && now - training_gone_ns_ > kAgentPatienceNs));
  while (!recorded_.empty() && (last || recorded_.front().due_ns <= now)) {
    const RecordedPiece piece = recorded_.front();
    recorded_.pop_front();
    Import(piece);
  }
  const bool done = ending && recorded_.empty() && (last || over_);
  const Status written = Flush(now, done);
  if (const Status status = written.ok() ? writer_->Tick() : written; !status.ok()) {
    std::fprintf(stderr, "stacks: %s\n", status.message().c_str());
  }
  if (!done) return false;
  run_files::Remove(run_files::OfSubfolder(pieces_->path() / "py-spy.log"));
  run_files::RemoveFolder(run_files::OfFolder(pieces_->path()));
  TELLTALE_RETURN_IF_ERROR(writer_->Close(true));
  return true;
}

Status Sampler::Stop() {
  if (child_) {
    child_->Stop(false);
    const std::int64_t until = Now() + kKillNs;
    PySpyEnd end;
    while (!child_->Ended(&end) && Now() < until) {
      const timespec pause{0, 20'000'000};
      ::nanosleep(&pause, nullptr);
    }
    child_.reset();
  }
  // The pieces stay: whoever follows reads them.
  TELLTALE_RETURN_IF_ERROR(Flush(Now(), true));
  return writer_->Close(false);
}

}  // namespace telltale::stacks
