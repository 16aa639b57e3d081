// SPDX-License-Identifier: Apache-2.0
#include "stacks/py_spy_trace.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"

namespace telltale::stacks {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::size_t kMaxTextBytes = 512;
constexpr std::size_t kMaxThreadNameBytes = 128;
constexpr std::size_t kMaxDepth = 1024;
/// No piece is longer: times beyond are damage.
constexpr std::int64_t kMostUs = 7'200'000'000;

/// The threads of a round are written one after the other.
constexpr std::int64_t kRoundNs = 2'000'000;

struct Event {
  std::string_view name, phase, file;
  std::int64_t pid = 0, tid = 0, ts_us = -1, line = 0;
};

std::string Cut(std::string_view text, std::size_t most) {
  std::string scratch;
  text = ToValidUtf8(text, &scratch);
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return std::string(text.substr(0, most)) + "…";
}

/// The number behind `prefix`, decimal or 0x.
std::optional<std::int64_t> NumberBehind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return static_cast<std::int64_t>(value & INT64_MAX);
}

/// py-spy's frames above those of Python: `process 4711:"python train.py"`, one a generation, then
/// `thread (4711): MainThread`.
enum class Level { kProcess, kThread, kPython };

struct OpenFrame {
  Level level = Level::kPython;
  std::int64_t number = 0;  ///< Of the process or thread.
  std::uint32_t name = 0;   ///< Of Python's frame, else of the thread's name.
  std::string text;         ///< As the event has it, to find its end.
};

/// What py-spy takes for one thread: it goes by the interpreter's number, which a process has from
/// its parent. So the stacks of several take turns here; each event says of which the next is.
struct Slot {
  std::vector<OpenFrame> stack;
  std::int64_t ts_us = 0;
  std::int64_t pid = 0;
  bool began = false;    ///< A begin was among the events of this moment.
  bool pending = false;  ///< Events since the last observation.
};

class Parser {
 public:
  explicit Parser(std::string_view folder) : folder_(folder) {}

  void Take(const Event& event) {
    if (event.phase != "B" && event.phase != "E") return;
    if (event.ts_us < 0 || event.ts_us > kMostUs) {
      ++out_.damaged;
      return;
    }
    Slot& slot = slots_[event.tid];
    const bool begin = event.phase == "B";
    if (slot.pending &&
        (slot.ts_us != event.ts_us || slot.pid != event.pid || (!begin && slot.began))) {
      Observe(&slot);
    }
    slot.ts_us = event.ts_us;
    slot.pid = event.pid;
    slot.pending = true;
    out_.end_ns = std::max(out_.end_ns, event.ts_us * 1000);
    if (begin) {
      slot.began = true;
      Push(event, &slot);
    } else if (slot.stack.empty()) {
      ++out_.damaged;
    } else {
      if (slot.stack.back().text != event.name) ++out_.damaged;
      slot.stack.pop_back();
    }
  }

  PySpyTrace Finish() {
    for (auto& [tid, slot] : slots_) {
      if (slot.pending) Observe(&slot);
    }
    std::sort(out_.rounds.begin(), out_.rounds.end());
    const auto same_round = [](std::int64_t a, std::int64_t b) { return b - a < kRoundNs; };
    out_.rounds.erase(std::unique(out_.rounds.begin(), out_.rounds.end(), same_round),
                      out_.rounds.end());
    return std::move(out_);
  }

  void Damaged() { ++out_.damaged; }

 private:
  std::uint32_t NameId(std::string text) {
    const auto [at, made] =
        ids_.try_emplace(std::move(text), static_cast<std::uint32_t>(out_.names.size()));
    if (made) out_.names.push_back(at->first);
    return at->second;
  }

  void Push(const Event& event, Slot* slot) {
    OpenFrame frame;
    frame.text = event.name;
    const Level above = slot->stack.empty() ? Level::kProcess : slot->stack.back().level;
    if (above == Level::kProcess && event.file.empty()) {
      if (const auto pid = NumberBehind(event.name, "process ")) {
        frame.level = Level::kProcess;
        frame.number = *pid;
      } else if (const auto tid = NumberBehind(event.name, "thread (")) {
        frame.level = Level::kThread;
        frame.number = *tid;
        const std::size_t colon = event.name.find("): ");
        frame.name = NameId(colon == std::string_view::npos
                                ? std::string()
                                : Cut(event.name.substr(colon + 3), kMaxThreadNameBytes));
      }
    }
    if (frame.level == Level::kPython) {
      frame.name = NameId(FrameText(event.file, event.line, event.name, folder_));
    }
    slot->stack.push_back(std::move(frame));
  }

  void Observe(Slot* slot) {
    slot->pending = false;
    slot->began = false;
    std::vector<std::int64_t> processes;
    std::optional<OpenFrame> thread;
    Observation seen{slot->ts_us * 1000, {}};
    for (const OpenFrame& frame : slot->stack) {
      if (frame.level == Level::kProcess) processes.push_back(frame.number);
      if (frame.level == Level::kThread) thread = frame;
      if (frame.level == Level::kPython && seen.frames.size() < kMaxDepth) {
        seen.frames.push_back(frame.name);
      }
    }
    if (slot->stack.empty()) return;  // py-spy ends everything where it ends itself.
    if (!thread) {
      ++out_.damaged;
      return;
    }
    if (processes.empty()) processes.push_back(slot->pid);
    out_.rounds.push_back(seen.at_ns);
    const std::int64_t pid = processes.back();
    const auto [at, made] = threads_.try_emplace({pid, thread->number}, out_.threads.size());
    if (made) {
      ThreadTimeline& timeline = out_.threads.emplace_back();
      timeline.pid = pid;
      timeline.tid = thread->number;
      timeline.name = out_.names[thread->name];
      processes.pop_back();
      timeline.ancestors = std::move(processes);
    }
    std::vector<Observation>& all = out_.threads[at->second].seen;
    // Where several take turns each of them is said anew each time.
    if (!all.empty() && all.back().frames == seen.frames) return;
    if (!all.empty() && seen.at_ns <= all.back().at_ns) {
      all.back().frames = std::move(seen.frames);
      return;
    }
    all.push_back(std::move(seen));
  }

  const std::string_view folder_;
  PySpyTrace out_;
  std::map<std::int64_t, Slot> slots_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> threads_;
  std::unordered_map<std::string, std::uint32_t> ids_;
};

bool ReadArgs(ondemand::object args, Event* event) {
  for (auto field : args) {
    std::string_view key;
    if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
    if (key == "filename") {
      if (field.value().get_string().get(event->file) != simdjson::SUCCESS) return false;
    } else if (key == "line") {
      // null where py-spy does not know it.
      std::int64_t line = 0;
      if (field.value().get_int64().get(line) == simdjson::SUCCESS) event->line = line;
    }
  }
  return true;
}

bool ReadEvent(ondemand::object object, Event* event) {
  for (auto field : object) {
    std::string_view key;
    if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
    auto value = field.value();
    if (key == "name") {
      if (value.get_string().get(event->name) != simdjson::SUCCESS) return false;
    } else if (key == "ph") {
      if (value.get_string().get(event->phase) != simdjson::SUCCESS) return false;
    } else if (key == "pid") {
      if (value.get_int64().get(event->pid) != simdjson::SUCCESS) return false;
    } else if (key == "tid") {
      std::uint64_t tid = 0;
      if (value.get_uint64().get(tid) != simdjson::SUCCESS) return false;
      event->tid = static_cast<std::int64_t>(tid & INT64_MAX);
    } else if (key == "ts") {
      if (value.get_int64().get(event->ts_us) != simdjson::SUCCESS) return false;
    } else if (key == "args") {
      ondemand::object args;
      if (value.get_object().get(args) != simdjson::SUCCESS || !ReadArgs(args, event)) return false;
    }
  }
  return true;
}

std::string_view WithoutFolders(std::string_view file, std::string_view folder) {
  for (const std::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const std::size_t at = file.rfind(packages);
    if (at != std::string_view::npos) return file.substr(at + packages.size());
  }
  constexpr std::string_view kLibrary = "/lib/python";
  if (const std::size_t at = file.rfind(kLibrary); at != std::string_view::npos) {
    const std::size_t end = file.find('/', at + kLibrary.size());
    if (end != std::string_view::npos) return file.substr(end + 1);
  }
  if (!folder.empty() && file.starts_with(folder) && file.size() > folder.size() + 1 &&
      file[folder.size()] == '/') {
    return file.substr(folder.size() + 1);
  }
  return file;
}

}  // namespace

std::string FrameText(std::string_view file, std::int64_t line, std::string_view function,
                      std::string_view folder) {
  const std::string name = Cut(function, kMaxTextBytes);
  if (file.empty()) return name;
  return fmt::format("{}({}): {}", Cut(WithoutFolders(file, folder), kMaxTextBytes), line, name);
}

Result<PySpyTrace> ParsePySpyTrace(std::string_view json, std::string_view folder) {
  ondemand::parser reader;
  const simdjson::padded_string padded(json);
  ondemand::document document;
  ondemand::array events;
  if (reader.iterate(padded).get(document) != simdjson::SUCCESS ||
      document.get_array().get(events) != simdjson::SUCCESS) {
    return {Code::kUnusable, "no trace of py-spy: a list of events was expected"};
  }
  Parser parser(folder);
  for (auto item : events) {
    ondemand::object object;
    Event event;
    if (item.get_object().get(object) != simdjson::SUCCESS || !ReadEvent(object, &event)) {
      parser.Damaged();  // What follows cannot be told apart any more.
      break;
    }
    parser.Take(event);
  }
  return parser.Finish();
}

}  // namespace telltale::stacks
