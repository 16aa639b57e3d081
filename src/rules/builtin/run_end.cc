// SPDX-License-Identifier: Apache-2.0
// RunEnd: how the training ended, where it did not end well: the exception with the line of the
// user's own code, the signal, the exit code; which rank or worker died first; what is lost.
//
// One incident an attempt. It is told when all is read, since the account of a death may come
// behind the end of the command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "rules/builtin/known_ends.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/run_deaths.h"
#include "rules/registry.h"

namespace telltale::rules::run_end {
namespace {

constexpr std::size_t kTextShown = 200;
constexpr std::size_t kRanksNamed = 4;
/// Of /dev/shm: from this share on it was full when a process could write no more to it; what the
/// dead one held is free again when it is looked at.
constexpr double kShmFull = 0.5;
/// A machine's or a group's memory from this share on may have been the reason of a SIGKILL.
constexpr double kMemoryFull = 0.9;
/// docker gives 64 MiB of /dev/shm: below this it is scarce for batches.
constexpr double kShmScarce = 1073741824;
/// From the end of a call that saves to the exception that it has raised: what handles it on its
/// way may take a while, but where nothing else tells whether it saved only the next moment counts.
constexpr std::int64_t kToldNs = 1'000'000'000;
constexpr std::int64_t kAtOnceNs = 50'000'000;
/// Seconds from the last step to the end from which they are told apart from the training.
constexpr double kLongAfter = 1;
constexpr std::string_view kReplace =
    " Save to another name and os.replace() it onto the last checkpoint: a save that fails then "
    "leaves the one before as it was.";

std::string Size(double bytes) {
  std::string text = Bytes(bytes);
  for (const std::string_view zeros : {".00 ", ".0 "}) {
    const std::size_t at = text.find(zeros);
    if (at != std::string::npos) return text.erase(at, zeros.size() - 1);
  }
  return text;
}

std::string BaseName(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

/// "torch.cuda.OutOfMemoryError" is OutOfMemoryError.
std::string ShortType(std::string_view type) {
  const std::size_t dot = type.rfind('.');
  return std::string(dot == std::string_view::npos ? type : type.substr(dot + 1));
}

/// Its first line with words, cut at a character.
std::string FirstLine(std::string_view text) {
  while (!text.empty() && (text.front() == '\n' || text.front() == ' ')) text.remove_prefix(1);
  text = text.substr(0, text.find('\n'));
  // Words of ours follow it.
  if (text.ends_with('.') && !text.ends_with("..")) text.remove_suffix(1);
  if (text.size() <= kTextShown) return std::string(text);
  std::size_t end = kTextShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string PlaceOf(const SeenException& seen) {
  if (seen.file.empty()) return "";
  return fmt::format("{}:{}", BaseName(seen.file), seen.line);
}

bool Interrupts(const SeenException& seen) { return ShortType(seen.type) == "KeyboardInterrupt"; }

/// The signal that an exit code of a shell stands for; 0: none.
int SignalOfCode(int code) { return code > 128 && code <= 128 + 64 ? code - 128 : 0; }

class RunEnd final : public Rule {
 public:
  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) return series.name == "checkpoint";
    if (series.table != format::TableId::kMetrics) return false;
    Fact fact = Fact::kNone;
    if (series.name == "proc.rss" && series.pid != 0) {
      fact = Fact::kProcess;
    } else if (series.collection == "cgroup") {
      fact = series.name == "cgroup.mem_limit"   ? Fact::kGroupLimit
             : series.name == "cgroup.mem_used"  ? Fact::kGroupUsed
             : series.name == "cgroup.oom_kills" ? Fact::kGroupKills
                                                 : Fact::kNone;
    } else if (series.collection == "node") {
      fact = series.name == "mem.total"       ? Fact::kHostTotal
             : series.name == "mem.available" ? Fact::kHostAvailable
                                              : Fact::kNone;
    }
    if (fact == Fact::kNone) return false;
    if (facts_.size() <= series.id) facts_.resize(series.id + 1, Fact::kNone);
    facts_[series.id] = fact;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* step = record.As<format::StepRow>()) {
      if (!Enter(step->attempt, reporter)) return;
      attempt_.deaths.OnStep(*step, record.writer);
      if (step->mode == "TRAIN") OnStep(*step);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (!Enter(event->attempt, reporter)) return;
      recorded_ = recorded_ || event->kind == "run.attempt_start";
      attempt_.deaths.OnEvent(*event, record.writer);
      if (event->kind == "checkpoint") OnCheckpoint(*event, record.writer);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      if (Enter(span->attempt, reporter)) OnSave(*span, record.writer);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric, record);
    }
  }

  void OnEnd(Reporter* reporter) override {
    Incident incident;
    if (Judge(&incident)) reporter->Report(incident);
  }

  bool has_data() const override { return has_data_ || attempt_.deaths.any_ended(); }
  /// A trace that was imported has no processes whose end could be known.
  bool applies() const override { return recorded_ || has_data(); }
  std::string Missing() const override {
    return recorded_ ? "no process has ended yet" : "no process was recorded";
  }

 private:
  enum class Fact : std::uint8_t {
    kNone,
    kProcess,
    kGroupLimit,
    kGroupUsed,
    kGroupKills,
    kHostTotal,
    kHostAvailable,
  };
  struct Checkpoint {
    std::int64_t time_ns = 0;
    std::int64_t step = -1;
    std::string file;
  };
  /// A span: a call that saves, which may have raised.
  struct Call {
    std::int64_t end_ns = 0;
    std::int64_t step = -1;
    std::uint32_t writer = 0;
    std::int32_t pid = 0;
  };
  /// What is left to go on from.
  struct Left {
    Checkpoint checkpoint;
    std::int64_t failed_step = -1;  ///< Of the save that the exception ended.
    bool failed = false;
    bool overwritten = false;  ///< All saves before it wrote to one file.
  };
  struct Attempt {
    std::uint32_t number = 0;
    RunDeaths deaths;
    Checkpoint checkpoint;  ///< The newest that was saved.
    Call call;              ///< The newest, where nobody has said yet that it saved.
    bool told = false;      ///< Calls that saved were followed by an event.
    std::set<std::string> files;
    std::size_t saves = 0;  ///< Of known files.
    std::int64_t first_step_ns = 0;
    std::int64_t last_step = -1;  ///< TRAIN, of all ranks.
    std::int64_t trained_ns = 0;  ///< When the newest of them ended.
    double group_limit = 0, group_used = 0, host_total = 0, host_available = -1;
    double kills_before = -1, kills = -1;
  };

  /// False where the record is of an attempt that is over.
  bool Enter(std::uint32_t attempt, Reporter* reporter) {
    if (attempt == attempt_.number) return true;
    if (attempt < attempt_.number) return false;
    Incident incident;
    if (Judge(&incident)) {
      reporter->Report(incident);
      reporter->Recover(incident);
    }
    has_data_ = has_data();
    attempt_ = Attempt();
    attempt_.number = attempt;
    return true;
  }

  void OnStep(const format::StepRow& step) {
    if (attempt_.first_step_ns == 0) attempt_.first_step_ns = step.time_ns;
    attempt_.last_step = std::max(attempt_.last_step, step.step);
    attempt_.trained_ns = std::max(attempt_.trained_ns, step.time_ns + step.duration_ns);
  }

  void OnCheckpoint(const format::EventRow& event, std::uint32_t writer) {
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    const auto action = data.find("action");
    if (action == data.end() || *action != "save") return;
    Call& call = attempt_.call;
    if (call.end_ns > 0 && call.writer == writer && call.pid == event.pid) {
      attempt_.told = true;
      call = Call();
    }
    Saved(event.time_ns, event.step, std::string(event.subject));
    const auto file = data.find("file");
    if (file == data.end() || !file->is_string()) return;
    ++attempt_.saves;
    if (attempt_.files.size() < 2) attempt_.files.insert(file->get<std::string>());
  }

  /// A span ends where its call has raised too: what comes next tells which it was.
  void OnSave(const format::SpanRow& span, std::uint32_t writer) {
    Call& call = attempt_.call;
    if (call.end_ns > 0) Saved(call.end_ns, call.step, "");
    call = {span.time_ns + span.duration_ns, span.step, writer, span.pid};
  }

  /// The newest save failed where the exception that ended its process came at once, in its step.
  Left LeftAt(const Death& death) const {
    Left left;
    left.checkpoint = attempt_.checkpoint;
    const Call& call = attempt_.call;
    if (call.end_ns == 0 || call.end_ns < left.checkpoint.time_ns) return left;
    const SeenException* raised = death.exception;
    const bool same = raised != nullptr && death.process->writer == call.writer &&
                      death.process->pid == call.pid && raised->step == call.step;
    if (same && raised->time_ns >= call.end_ns &&
        raised->time_ns - call.end_ns <= (attempt_.told ? kToldNs : kAtOnceNs)) {
      left.failed = true;
      left.failed_step = call.step;
      left.overwritten = attempt_.saves > 1 && attempt_.files.size() == 1;
    } else {
      left.checkpoint.time_ns = call.end_ns;
      left.checkpoint.step = std::max(left.checkpoint.step, call.step);
    }
    return left;
  }

  void Saved(std::int64_t time_ns, std::int64_t step, std::string file) {
    Checkpoint& newest = attempt_.checkpoint;
    if (time_ns < newest.time_ns) return;
    newest.time_ns = time_ns;
    newest.step = std::max(newest.step, step);
    if (!file.empty()) newest.file = std::move(file);
  }

  void OnMetric(const format::MetricRow& metric, const Record& record) {
    if (record.series >= facts_.size()) return;
    switch (facts_[record.series]) {
      case Fact::kProcess:
        attempt_.deaths.OnMemory(record.writer, metric.pid, metric.value);
        break;
      case Fact::kGroupLimit:
        attempt_.group_limit = metric.value;
        break;
      case Fact::kGroupUsed:
        attempt_.group_used = metric.value;
        break;
      case Fact::kGroupKills:
        if (attempt_.kills_before < 0) attempt_.kills_before = metric.value;
        attempt_.kills = metric.value;
        break;
      case Fact::kHostTotal:
        attempt_.host_total = metric.value;
        break;
      case Fact::kHostAvailable:
        attempt_.host_available = metric.value;
        break;
      case Fact::kNone:
        break;
    }
  }

  // What is said.

  struct Words {
    Severity severity = Severity::kHigh;
    std::string message;
    std::string cause;
    std::string advice;
    double confidence = 0.95;
  };

  bool Judge(Incident* incident) const {
    const RunDeaths& deaths = attempt_.deaths;
    const auto& end = deaths.end();
    if (deaths.stopped() || (end && end->known() && !end->failed())) return false;
    const std::vector<Death> last = deaths.Last();
    // How a command ended whose supervisor had died is not known: then an exception alone tells.
    if (last.empty()) return false;
    const Death& first = last.front();
    nlohmann::ordered_json evidence;
    Words words = first.exception != nullptr ? OfException(first, last, &evidence)
                  : first.process->end->signal
                      ? OfSignal(first, *first.process->end->signal, last, &evidence)
                      : OfCode(first, last, &evidence);
    const std::int64_t step = StepOf(first);
    const Left left = LeftAt(first);
    const double since_save = LostSeconds(first.time_ns, left.checkpoint.time_ns);
    const double lost = left.overwritten ? LostSeconds(first.time_ns, 0) : since_save;
    const bool interrupted = words.severity == Severity::kLow;
    if (attempt_.last_step >= 0) {
      words.cause +=
          (words.cause.empty() ? "" : " ") + LostWords(left, lost, since_save, first.time_ns);
    }
    if (left.overwritten) words.advice += kReplace;
    incident->subject = attempt_.number > 1 ? fmt::format("attempt {}", attempt_.number) : "run";
    incident->severity = words.severity;
    incident->first_step = step;
    incident->last_step = step;
    incident->start_ns = first.time_ns;
    incident->end_ns = std::max(first.time_ns, end ? end->time_ns : first.time_ns);
    incident->message = std::move(words.message);
    incident->cause = std::move(words.cause);
    incident->advice = std::move(words.advice);
    incident->confidence = words.confidence;
    // Who ends a training himself has decided what to lose.
    incident->cost_seconds = interrupted ? 0 : lost;
    if (step >= 0) evidence["step"] = step;
    if (deaths.ranks() > 1) evidence["rank"] = first.process->rank;
    evidence["pid"] = first.process->pid;
    if (attempt_.last_step >= 0) {
      evidence["lost_s"] = Rounded(lost);
      if (left.checkpoint.time_ns > 0) evidence["checkpoint_step"] = left.checkpoint.step;
      if (left.failed) evidence["failed_save_step"] = left.failed_step;
    }
    incident->evidence = JsonText(evidence);
    return true;
  }

  /// The step that an exception came in; else the last one that ended before. Of a worker the step
  /// of the process that it works for.
  std::int64_t StepOf(const Death& death) const {
    if (death.exception != nullptr && death.exception->step >= 0) return death.exception->step;
    if (death.process->last_step >= 0) return death.process->last_step;
    const SeenProcess* parent =
        attempt_.deaths.Find(death.process->writer, death.process->parent_pid);
    if (parent != nullptr && parent->last_step >= 0) return parent->last_step;
    return attempt_.last_step;
  }

  double LostSeconds(std::int64_t until_ns, std::int64_t saved_ns) const {
    if (attempt_.last_step < 0) return 0;
    const std::int64_t since = std::max(attempt_.first_step_ns, saved_ns);
    return static_cast<double>(std::max<std::int64_t>(0, until_ns - since)) / 1e9;
  }

  static std::string Time(double seconds) {
    return seconds < 0.095  ? fmt::format("{:.0f} ms", std::max(1.0, 1e3 * seconds))
           : seconds < 9.95 ? fmt::format("{:.1f} s", seconds)
                            : Lasting(seconds);
  }

  /// `since_save`: seconds since the newest checkpoint that was saved.
  std::string LostWords(const Left& left, double lost, double since_save,
                        std::int64_t until_ns) const {
    const Checkpoint& saved = left.checkpoint;
    // A wait behind the last step is lost too, and is no training.
    double after = static_cast<double>(until_ns - attempt_.trained_ns) / 1e9;
    if (after < kLongAfter || after < 0.1 * lost || after >= lost) after = 0;
    const std::string time = Time(lost - after);
    const std::string more =
        after > 0 ? fmt::format(", and {} that passed after its last step", Time(after))
                  : std::string();
    const std::string failed = !left.failed ? std::string()
                               : left.failed_step < 0
                                   ? std::string("The save of a checkpoint failed. ")
                                   : fmt::format("The save in step {} failed. ", left.failed_step);
    if (saved.time_ns == 0) {
      return fmt::format("{}No checkpoint was saved: {} of training are lost{}.", failed, time,
                         more);
    }
    const std::string file =
        saved.file.empty() ? std::string() : fmt::format(" ({})", BaseName(saved.file));
    if (left.overwritten) {
      return fmt::format(
          "{}All saves before it wrote to one file{}: where this one did too, that file is damaged "
          "and {} of training are lost{}, else the {} since step {}.",
          failed, file, time, more, Time(since_save), saved.step);
    }
    if (saved.step < 0) {
      return fmt::format("{}The last checkpoint{} is {} old.", failed, file, Time(lost));
    }
    return fmt::format(
        "{}The last checkpoint{} was saved in step {}: {} of training since then are lost{}.",
        failed, file, saved.step, time, more);
  }

  /// "The training", "Rank 1", "DataLoader worker 0".
  std::string Who(const Death& death) const {
    const SeenProcess& process = *death.process;
    std::string who = "The training";
    if (process.kind == "worker") {
      who = process.worker_id >= 0 ? fmt::format("DataLoader worker {}", process.worker_id)
                                   : std::string("A DataLoader worker");
      if (attempt_.deaths.ranks() > 1) who += fmt::format(" of rank {}", RankOf(death));
    } else if (attempt_.deaths.ranks() > 1) {
      who = fmt::format("Rank {}", process.rank);
    }
    return who;
  }
  /// The same inside of a sentence.
  std::string Whom(const Death& death) const {
    std::string who = Who(death);
    if (!who.starts_with("DataLoader")) who[0] = static_cast<char>(who[0] + ('a' - 'A'));
    return who;
  }

  std::int32_t RankOf(const Death& death) const {
    const SeenProcess* parent =
        attempt_.deaths.Find(death.process->writer, death.process->parent_pid);
    return death.process->kind == "worker" && parent != nullptr ? parent->rank
                                                                : death.process->rank;
  }

  /// "; rank 0 followed": the other ranks that died after it.
  std::string Followed(const std::vector<Death>& last, nlohmann::ordered_json* evidence) const {
    if (attempt_.deaths.ranks() < 2) return "";
    std::set<std::int32_t> ranks;
    for (const Death& death : last) {
      if (death.process->kind == "trainer") ranks.insert(death.process->rank);
    }
    ranks.erase(RankOf(last.front()));
    if (ranks.empty()) return "";
    (*evidence)["followed"] = ranks;
    if (ranks.size() > kRanksNamed) return fmt::format("; {} ranks followed", ranks.size());
    return fmt::format("; rank{} {} followed", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  }

  Words OfException(const Death& first, const std::vector<Death>& last,
                    nlohmann::ordered_json* evidence) const {
    const SeenException* const thread = RunDeaths::ThreadBefore(first);
    const SeenException& raised = thread != nullptr ? *thread : *first.exception;
    const SeenException& seen = *attempt_.deaths.OriginOf(raised);
    const std::string place = PlaceOf(seen);
    const std::string at = place.empty() ? std::string() : " in " + place;
    const std::int64_t step = thread != nullptr ? thread->step : StepOf(first);
    const std::string in_step = step < 0 ? std::string() : fmt::format(", step {}", step);
    const std::string text = FirstLine(seen.text);
    const std::string followed = Followed(last, evidence);

    std::string who;
    if (seen.worker_id >= 0) {
      who = fmt::format("DataLoader worker {}: ", seen.worker_id);
    } else if (seen.where == "thread" && raised.raised_again.empty()) {
      who = fmt::format("Thread {}: ", seen.thread.empty() ? "without a name" : seen.thread);
    }
    if (attempt_.deaths.ranks() > 1) {
      const std::string_view how = followed.empty() ? ": " : " died first: ";
      who = fmt::format("Rank {}{}{}", first.process->rank, how, who);
    }
    Words words;
    words.message = fmt::format("{}{}{}{}{}{}{}", who, ShortType(seen.type), at, in_step,
                                text.empty() ? "" : ": ", text, followed);
    if (thread != nullptr) {
      words.cause = fmt::format(
          "The thread died, and the main thread waited for its result until it gave up: {} in {}, "
          "step {}.",
          ShortType(first.exception->type), PlaceOf(*first.exception), StepOf(first));
    }
    Explain(first, raised, seen, &words);

    (*evidence)["type"] = seen.type;
    if (!seen.text.empty()) (*evidence)["text"] = seen.text;
    if (!seen.file.empty()) {
      (*evidence)["file"] = seen.file;
      (*evidence)["line"] = seen.line;
      (*evidence)["function"] = seen.function;
    }
    if (!seen.frames.empty()) (*evidence)["frames"] = seen.frames;
    (*evidence)["where"] = seen.where;
    if (!raised.mode.empty()) (*evidence)["mode"] = raised.mode;
    if (seen.worker_id >= 0) (*evidence)["worker"] = seen.worker_id;
    if (!seen.caused_by.empty()) (*evidence)["caused_by"] = seen.caused_by;
    if (first.process->end && first.process->end->code) {
      (*evidence)["exit_code"] = *first.process->end->code;
    }
    return words;
  }

  void Explain(const Death& first, const SeenException& raised, const SeenException& seen,
               Words* words) const {
    if (Interrupts(seen)) {
      words->severity = Severity::kLow;
      words->cause = "Somebody pressed Ctrl-C, or sent SIGINT.";
      return;
    }
    if (ShortType(seen.type) == "SignalException") words->severity = Severity::kMedium;
    if (first.exception->where == "thread" && !raised.main_thread) {
      words->confidence = 0.7;
      words->cause = "This exception ended a thread; then the process ended without another one.";
    }
    if (const auto memory = CudaMemoryOf(seen.text)) return OfCudaMemory(*memory, raised, words);
    if (const KnownEnd* known = FindKnownEnd(seen.type, seen.text)) {
      const bool with = HadWorkers() && !known->cause_with_workers.empty();
      words->cause += (words->cause.empty() ? "" : " ") +
                      std::string(with ? known->cause_with_workers : known->cause);
      words->advice = with ? known->advice_with_workers : known->advice;
      return;
    }
    if (seen.frames.size() > 1) {
      words->cause +=
          fmt::format("{}It was raised in {}, called by {}.", words->cause.empty() ? "" : " ",
                      BaseName(seen.frames[0]), BaseName(seen.frames[1]));
    }
    if (!seen.caused_by.empty()) {
      words->cause += fmt::format("{}It came up while {} was being handled.",
                                  words->cause.empty() ? "" : " ", ShortType(seen.caused_by));
    }
    if (!seen.file.empty()) words->advice = fmt::format("Look at {}:{}.", seen.file, seen.line);
  }

  bool HadWorkers() const {
    const auto& all = attempt_.deaths.processes();
    return std::any_of(all.begin(), all.end(),
                       [](const SeenProcess& process) { return process.kind == "worker"; });
  }

  static void OfCudaMemory(const CudaMemory& memory, const SeenException& raised, Words* words) {
    words->cause = fmt::format("The GPU was asked for {}", Size(memory.wanted));
    if (memory.free) words->cause += fmt::format(" and had {} free", Size(*memory.free));
    if (memory.total) words->cause += fmt::format(" of {}", Size(*memory.total));
    words->cause += ".";
    if (memory.allocated) {
      words->cause += fmt::format(" Tensors took {}", Size(*memory.allocated));
      if (memory.idle) {
        words->cause +=
            fmt::format(", {} more were reserved by PyTorch and not in use", Size(*memory.idle));
      }
      words->cause += ".";
    }
    const bool scattered = memory.idle && *memory.idle >= memory.wanted;
    if (scattered) {
      words->advice =
          "The memory is in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (before torch "
          "2.1 max_split_size_mb:128). Else make the batch smaller.";
    } else if (raised.mode == "EVAL" || raised.mode == "PREDICT") {
      words->advice =
          "Evaluate under torch.no_grad(), which keeps no graph, or with a smaller batch; keep "
          "outputs as numbers or on the CPU.";
    } else {
      words->advice =
          "Make the batch smaller (accumulating gradients keeps its effect), use mixed precision "
          "or "
          "activation checkpointing. Where it came after many steps, look for losses that are kept "
          "with their graph: loss.item().";
    }
  }

  Words OfSignal(const Death& first, int signal, const std::vector<Death>& last,
                 nlohmann::ordered_json* evidence) const {
    (*evidence)["signal"] = SignalName(signal);
    if (first.process->kind == "worker") (*evidence)["worker"] = first.process->worker_id;
    const std::string followed = Followed(last, evidence);
    const std::int64_t step = StepOf(first);
    const std::string after = step < 0 ? std::string() : fmt::format(" after step {}", step);
    if (signal == SIGKILL && OfMemory(first)) return OfHostMemory(first, followed, evidence);
    if (signal == SIGBUS && first.process->end->shm_size) {
      Words words;
      if (OfShm(first, *first.process->end, &words, evidence)) return words;
    }
    const KnownSignal* known = FindKnownSignal(signal);
    Words words;
    words.message = fmt::format(
        "{} {}{}{}", Who(first),
        known != nullptr ? std::string(known->what) : "was ended by " + SignalName(signal), after,
        followed);
    if (known != nullptr) {
      words.cause = known->cause;
      const bool in_worker = first.process->kind == "worker" && !known->advice_in_worker.empty();
      words.advice = in_worker ? known->advice_in_worker : known->advice;
    }
    words.severity = SeverityOf(signal);
    if (signal == SIGKILL) AddMemory(&words, evidence);
    return words;
  }

  static Severity SeverityOf(int signal) {
    switch (signal) {
      case SIGINT:
      case SIGQUIT:
        return Severity::kLow;
      case SIGTERM:
      case SIGHUP:
      case SIGPIPE:
      case SIGUSR1:
      case SIGUSR2:
      case SIGALRM:
      case SIGXCPU:
        return Severity::kMedium;
      default:
        return Severity::kHigh;
    }
  }

  /// The kernel says that it has ended processes for want of memory.
  bool OfMemory(const Death& death) const {
    const SeenEnd& end = *death.process->end;
    return end.oom_kills.value_or(0) > 0 || end.host_oom_kills.value_or(0) > 0 || GroupKilled();
  }
  bool GroupKilled() const { return attempt_.kills > attempt_.kills_before; }

  Words OfHostMemory(const Death& first, const std::string& followed,
                     nlohmann::ordered_json* evidence) const {
    const SeenEnd& end = *first.process->end;
    const bool group = end.oom_kills.value_or(0) > 0 || GroupKilled();
    const bool limited = group && attempt_.group_limit > 0 &&
                         !(attempt_.host_total > 0 && attempt_.group_limit >= attempt_.host_total);
    Words words;
    words.message = fmt::format("The kernel's out-of-memory killer ended {}", Whom(first));
    if (limited) {
      words.message += fmt::format(": the control group's limit is {}", Size(attempt_.group_limit));
    } else if (attempt_.host_total > 0) {
      words.message += fmt::format(": the machine has {}", Size(attempt_.host_total));
    }
    words.message += followed;
    words.confidence = group ? 0.95 : 0.8;
    (*evidence)["oom_kills"] = std::max(end.oom_kills.value_or(0), end.host_oom_kills.value_or(0));
    if (limited) (*evidence)["limit_bytes"] = attempt_.group_limit;
    AddMemory(&words, evidence);
    const std::size_t workers = Workers();
    words.advice =
        workers > 0
            ? fmt::format("Use fewer workers ({} now) or a smaller prefetch_factor, or", workers)
            : "Make the batch smaller, or";
    words.advice += limited
                        ? " raise the limit (docker run --memory, sbatch --mem, limits.memory of "
                          "the pod)."
                        : " train on a machine with more memory.";
    words.advice += " Look for what grows from step to step: lists of losses or outputs, caches.";
    return words;
  }

  std::size_t Workers() const {
    std::set<std::int32_t> ids;
    for (const SeenProcess& process : attempt_.deaths.processes()) {
      if (process.kind == "worker") ids.insert(process.worker_id);
    }
    return ids.size();
  }

  /// What memory was like at the newest sample.
  void AddMemory(Words* words, nlohmann::ordered_json* evidence) const {
    const auto say = [&](const std::string& text) {
      words->cause += (words->cause.empty() ? "" : " ") + text;
    };
    const bool limited = attempt_.group_limit > 0 &&
                         !(attempt_.host_total > 0 && attempt_.group_limit >= attempt_.host_total);
    const double total = limited ? attempt_.group_limit : attempt_.host_total;
    const double used = limited ? attempt_.group_used
                        : attempt_.host_available < 0
                            ? 0
                            : attempt_.host_total - attempt_.host_available;
    if (total > 0 && used > 0) {
      (*evidence)["memory_used_bytes"] = used;
      (*evidence)["memory_bytes"] = total;
      // Where it was not nearly full nothing says that it was the reason.
      if (words->confidence < 0.95 || !words->message.starts_with("The kernel")) {
        if (used < kMemoryFull * total) return;
      }
      say(fmt::format("At the newest sample {} of {} were in use.", Size(used), Size(total)));
    }
    const SeenProcess* largest = nullptr;
    for (const SeenProcess& process : attempt_.deaths.processes()) {
      if (largest == nullptr || process.rss > largest->rss) largest = &process;
    }
    if (largest == nullptr || largest->rss <= 0) return;
    say(fmt::format("The largest process was {} with {}.", Whom({largest, nullptr, 0}),
                    Size(largest->rss)));
    (*evidence)["largest_pid"] = largest->pid;
    (*evidence)["largest_bytes"] = largest->rss;
  }

  /// False where /dev/shm has nothing to do with it.
  bool OfShm(const Death& first, const SeenEnd& end, Words* words,
             nlohmann::ordered_json* evidence) const {
    const double size = *end.shm_size;
    const double used = end.shm_used.value_or(0);
    const bool full = size > 0 && used >= kShmFull * size;
    if (!full && (first.process->kind != "worker" || size > kShmScarce)) return false;
    words->message = fmt::format("{} was killed by SIGBUS: /dev/shm ({}) was {}", Who(first),
                                 Size(size), full ? "full" : "most likely full");
    words->cause = fmt::format(
        "The workers of a DataLoader hand over their batches through /dev/shm; {} of {} were in "
        "use "
        "just after.",
        Size(used), Size(size));
    words->advice =
        "Make /dev/shm larger (docker run --shm-size=8g, or --ipc=host), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system'); fewer workers and a smaller "
        "prefetch_factor need less of it.";
    words->confidence = full ? 0.95 : 0.8;
    (*evidence)["shm_bytes"] = size;
    (*evidence)["shm_used_bytes"] = used;
    return true;
  }

  Words OfCode(const Death& first, const std::vector<Death>& last,
               nlohmann::ordered_json* evidence) const {
    const int code = first.process->end->code.value_or(1);
    (*evidence)["exit_code"] = code;
    const std::int64_t step = StepOf(first);
    const std::string after = step < 0 ? std::string() : fmt::format(" after step {}", step);
    const std::string followed = Followed(last, evidence);
    Words words;
    words.severity = Severity::kMedium;
    words.message =
        fmt::format("{} ended with exit code {}{}{}", Who(first), code, after, followed);
    if (first.process->root && first.process->kind.empty() && (code == 126 || code == 127)) {
      words.cause = code == 127 ? "A command was not found." : "A file could not be executed.";
      words.advice = "Read the last lines of its output for the name.";
      return words;
    }
    if (const int signal = SignalOfCode(code)) {
      const KnownSignal* known = FindKnownSignal(signal);
      words.severity = SeverityOf(signal);
      words.cause =
          fmt::format("This exit code is how a shell says that {} has ended one of its commands.",
                      SignalName(signal));
      if (signal == SIGKILL && GroupKilled()) {
        words.message = fmt::format("The kernel's out-of-memory killer ended a process of {}{}",
                                    Whom(first), followed);
        AddMemory(&words, evidence);
      }
      if (known != nullptr) words.advice = known->advice;
      return words;
    }
    words.cause =
        "No exception ended it: it called sys.exit or os._exit, or it is not a Python program.";
    if (code == 2 && step < 0) {
      words.cause = "Programs say by this exit code that their arguments make no sense.";
    }
    words.advice = "Read the last lines of its output.";
    // It may be what the command reports by its code.
    for (const Death& death : attempt_.deaths.All()) {
      if (death.exception == nullptr || death.time_ns > first.time_ns) continue;
      const SeenException& seen = *attempt_.deaths.OriginOf(*death.exception);
      words.cause += fmt::format(" Before it a process had failed: {}{}{}.", ShortType(seen.type),
                                 seen.file.empty() ? "" : " in ", PlaceOf(seen));
      break;
    }
    return words;
  }

  std::vector<Fact> facts_;  ///< By series.
  Attempt attempt_;
  bool recorded_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kRunEndDesc{
    .name = "RunEnd",
    .summary =
        "How the training ended, where it failed: the error and its line, which process died "
        "first, what is lost.",
    .formula =
        "One finding for an attempt that ended with another exit code than 0 or by a signal, and "
        "that Telltale has not stopped. Processes that ended badly belong to the end of the run "
        "where each is another rank, a parent or a child of a later one, or died less than 30 s "
        "before it; the finding names the earliest, the other ranks followed. A process that ended "
        "by SIGSEGV, SIGBUS, SIGILL, SIGFPE or the kernel's out-of-memory killer, or a worker that "
        "was killed, counts as 2 s earlier, because its end is seen later than the exception that "
        "it causes elsewhere. Not named: a worker that did not crash by a signal, since the "
        "training process reports it or has ended it; a process that SIGTERM, SIGINT or SIGHUP has "
        "ended where a parent failed without an exception, since sys.exit ends the children first; "
        "and trainings that failed before another one began that ended well, where it is the "
        "command that failed. A process ended by its uncaught exception (process.exception), else "
        "by its signal or exit code. SIGKILL comes from the out-of-memory killer where the kernel "
        "has counted such a kill since the attempt began. SIGBUS comes from a full /dev/shm where "
        "half of it was in use just after, or where a worker died and /dev/shm has at most 1 GiB. "
        "High; medium for an exit code without an exception and for SIGTERM, SIGHUP and the like; "
        "low for Ctrl-C. Cost = the time since the last checkpoint was saved, or without a "
        "checkpoint, or where the exception ended a save and all saves before it wrote to one "
        "file, since the first TRAIN step; 0 for Ctrl-C.",
    .how_to_fix =
        "Look at the line that the finding names. Save a checkpoint every few minutes: then a "
        "failure costs no more than that.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = {},
    .family = Family::kOwn,
    .example = "The last batch of an epoch has one sample, and BatchNorm raises ValueError.",
    .standing = {.theme = Theme::kEnd},
};

std::unique_ptr<Rule> MakeRunEnd(const Parameters&) { return std::make_unique<RunEnd>(); }

}  // namespace telltale::rules::run_end
