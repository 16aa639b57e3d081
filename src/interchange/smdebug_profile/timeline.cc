// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_profile/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/string_pool.h"
#include "base/units.h"
#include "base/utf8.h"
#include "interchange/json_scan.h"

namespace telltale::interchange {
namespace {

constexpr std::string_view kStepPrefix = "Step:ModeKeys.";
constexpr std::size_t kMaxPhases = 1U << 20;
constexpr std::size_t kMaxLanesOfTimeline = 1U << 20;
constexpr std::size_t kMaxOpenOfTimeline = 1U << 20;
constexpr std::size_t kMaxTimelineNameBytes = 4096;
constexpr std::size_t kMaxArgsOfEvent = 8192;
constexpr std::size_t kMaxArgsOfBlock = 64U << 20;
constexpr std::size_t kMaxNames = 1U << 20;
constexpr std::int64_t kMostTicks = INT64_MAX / kUs / 4;

/// "TRAIN" of "Step:ModeKeys.TRAIN".
std::optional<std::string_view> StepMode(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view mode = name.substr(kStepPrefix.size());
  for (const std::string_view known : {"TRAIN", "EVAL", "PREDICT"}) {
    if (mode == known) return known;
  }
  return std::nullopt;
}

bool AnyOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

/// A phase: what smdebug makes a "process" of the timeline.
struct Phase {
  std::string_view name;
  std::string_view category = "other";
  std::int32_t device = -1;
  bool is_step = false;
  bool waits = false;  ///< Its events are the training's waits for a batch.
  std::uint32_t kind = 0;
};

Phase DescribePhase(std::string_view name, bool communication) {
  Phase phase;
  phase.name = name;
  if (communication) {
    phase.category = "comm";
  } else if (name.starts_with("Step:")) {
    phase.category = "step";
    phase.is_step = true;
  } else if (AnyOf(name, {"Forward", "Backward"})) {
    phase.category = "module";
  } else if (name.starts_with("cpu_functions")) {
    phase.category = "op";
  } else if (name.starts_with("gpu_functions")) {
    phase.category = "kernel";
    phase.device = 0;
    const std::size_t colon = name.rfind(':');
    if (colon != std::string_view::npos) {
      std::from_chars(name.data() + colon + 1, name.data() + name.size(), phase.device);
    }
    phase.device = std::clamp(phase.device, 0, 1 << 20);
  } else if (AnyOf(name, {"DataLoader", "DataIterator", "Dataset", "dataset"})) {
    phase.category = "data";
    phase.waits = name == "DataLoaderIter";
  } else if (AnyOf(name, {"Nccl", "NCCL", "Horovod", "AllReduce", "smdataparallel"})) {
    phase.category = "comm";
  }
  return phase;
}

struct TimelineEvent {
  JsonValue name, args;
  char phase = 0;
  std::int64_t pid = 0;
  std::optional<std::int64_t> tid;
  std::optional<std::int64_t> ts;  ///< Nanoseconds, as all.
  std::optional<std::int64_t> duration;
};

/// What the columns need of an event's args.
struct TimelineArgs {
  std::optional<std::int64_t> step, pid, tid, bytes, stream, base_us;
  JsonValue name;
  bool has_name = false;
};

bool ReadRaw(JsonScanner* scanner, TimelineEvent* event) {
  return scanner->ReadObject([&](std::string_view key, const JsonValue& value) {
    if (key == "name") {
      event->name = value;
    } else if (key == "ph") {
      event->phase = value.text.size() == 1 ? value.text[0] : '\0';
    } else if (key == "ts") {
      event->ts = value.Scaled(3);
    } else if (key == "dur") {
      event->duration = value.Scaled(3);
    } else if (key == "pid") {
      event->pid = value.Integer().value_or(0);
    } else if (key == "tid") {
      event->tid = value.Integer();
    } else if (key == "args" && value.kind == JsonValue::Kind::kObject) {
      event->args = value;
    }
  });
}

bool IsJsonWord(const JsonValue& value) {
  return value.text == "true" || value.text == "false" || value.text == "null";
}

/// A JSON number is narrower than what a scanner lets through: "1e", "-", "01".
bool IsJsonNumber(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9') return false;
  if (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return false;
  if (digits.back() == '.') return false;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

class TimelineReader {
 public:
  TimelineReader(std::string_view text, const TimelineOptions& options,
                 const std::function<void(store::SliceBlock*)>& put)
      : scanner_(text), options_(options), put_(put) {
    block_.windows.push_back(options.window);
  }

  Timeline Read() {
    while (scanner_.FindObject()) {
      TimelineEvent event;
      if (!ReadRaw(&scanner_, &event) || event.phase == 0) {
        ++out_.damaged;
        continue;
      }
      Take(event);
      if (block_.rows() >= store::kSliceBlockRows || block_.args.size() >= kMaxArgsOfBlock) Put();
    }
    for (const auto& [track, open] : open_) out_.unclosed += open.size();
    Put();
    return std::move(out_);
  }

 private:
  struct Open {
    std::int64_t begin_ns;
    std::uint32_t name;
    std::string args;
    std::int64_t step;
  };

  /// Hands the rows over; names and lanes keep their numbers.
  void Put() {
    if (block_.rows() == 0) return;
    out_.slices += block_.rows();
    put_(&block_);
    for (auto* column : {&block_.time_ns, &block_.duration_ns, &block_.step, &block_.correlation,
                         &block_.external, &block_.flow, &block_.bytes}) {
      column->clear();
    }
    block_.flops.clear();
    for (auto* column :
         {&block_.name, &block_.category, &block_.kind, &block_.lane, &block_.window}) {
      column->clear();
    }
    block_.args_end.clear();
    block_.args.clear();
  }

  void Take(const TimelineEvent& event) {
    if (event.phase == 'M') return TakeName(event);
    if (event.phase == 'C' || event.phase == 's' || event.phase == 't' || event.phase == 'f') {
      ++out_.left_out;
      return;
    }
    if (!event.ts || *event.ts < 0 || *event.ts > kMostTicks * kUs) {
      ++out_.damaged;
      return;
    }
    std::int64_t begin_ns = 0;
    if (__builtin_add_overflow(base_ns_, *event.ts, &begin_ns)) {
      ++out_.damaged;
      return;
    }
    const TimelineArgs args = ReadArgs(event.args);
    const std::int64_t tid = args.tid.value_or(event.tid.value_or(0));
    Phase& phase = PhaseOf(event.pid);
    switch (event.phase) {
      case 'X': {
        const std::int64_t duration = event.duration.value_or(0);
        if (duration < 0 || duration > INT64_MAX - begin_ns) {
          ++out_.damaged;
          return;
        }
        Add(event, args, &phase, begin_ns, duration, tid);
        break;
      }
      case 'i':
      case 'I':
        Add(event, args, &phase, begin_ns, 0, tid);
        break;
      case 'B':
        if (open_count_ >= kMaxOpenOfTimeline) {
          ++out_.damaged;
          return;
        }
        ++open_count_;
        open_[{event.pid, tid}].push_back(
            {begin_ns, NameOf(event.name), ArgsText(event.args), args.step.value_or(-1)});
        break;
      case 'E': {
        const auto open = open_.find({event.pid, tid});
        if (open == open_.end() || open->second.empty()) {
          ++out_.damaged;
          return;
        }
        const Open began = std::move(open->second.back());
        open->second.pop_back();
        --open_count_;
        if (begin_ns < began.begin_ns) {
          ++out_.damaged;
          return;
        }
        const std::string_view name = block_.names[began.name];
        Push(&phase, CategoryOf(phase, name), began.name, began.begin_ns, begin_ns - began.begin_ns,
             began.step, args, tid, began.args);
        break;
      }
      default:
        ++out_.left_out;
    }
  }

  void Add(const TimelineEvent& event, const TimelineArgs& args, Phase* phase,
           std::int64_t begin_ns, std::int64_t duration_ns, std::int64_t tid) {
    const std::uint32_t name = NameOf(event.name);
    const std::string_view text = block_.names[name];
    const std::int64_t end_ns = begin_ns + duration_ns;
    if (phase->is_step || phase->name.empty()) {
      if (const auto mode = StepMode(text); mode && args.step) {
        out_.steps.push_back({*args.step, begin_ns, end_ns, args.pid.value_or(0), *mode});
      }
    }
    if (phase->waits || text.starts_with("DataLoaderIter::")) {
      out_.waits.push_back({begin_ns, end_ns});
    }
    Push(phase, CategoryOf(*phase, text), name, begin_ns, duration_ns, args.step.value_or(-1), args,
         tid, ArgsText(event.args));
  }

  static std::string_view CategoryOf(const Phase& phase, std::string_view name) {
    if (phase.category != "kernel") return phase.category;
    if (AnyOf(name, {"Memcpy", "memcpy"})) return "memcpy";
    if (AnyOf(name, {"Memset", "memset"})) return "memset";
    return phase.category;
  }

  void Push(Phase* phase, std::string_view category, std::uint32_t name, std::int64_t begin_ns,
            std::int64_t duration_ns, std::int64_t step, const TimelineArgs& args, std::int64_t tid,
            std::string_view args_text) {
    block_.time_ns.push_back(begin_ns);
    block_.duration_ns.push_back(duration_ns);
    block_.step.push_back(step);
    block_.correlation.push_back(0);
    block_.external.push_back(0);
    block_.flow.push_back(0);
    block_.bytes.push_back(std::max<std::int64_t>(0, args.bytes.value_or(0)));
    block_.flops.push_back(0);
    block_.name.push_back(name);
    block_.category.push_back(CodeOf(category, &categories_, &block_.categories));
    block_.kind.push_back(phase->kind);
    block_.lane.push_back(LaneOf(*phase, args, tid));
    block_.window.push_back(0);
    block_.args += args_text;
    block_.args_end.push_back(static_cast<std::int32_t>(block_.args.size()));
  }

  void TakeName(const TimelineEvent& event) {
    const TimelineArgs args = ReadArgs(event.args);
    if (args.base_us && *args.base_us > 0 && *args.base_us < INT64_MAX / kUs / 2) {
      base_ns_ = *args.base_us * kUs;
      return;
    }
    if (event.name.text != "process_name" || !args.has_name || phases_.size() >= kMaxPhases) return;
    Phase phase = DescribePhase(Intern(args.name), options_.communication);
    phase.kind = CodeOf(phase.name, &kinds_, &block_.kinds);
    phases_.insert_or_assign(event.pid, phase);
  }

  Phase& PhaseOf(std::int64_t pid) {
    const auto found = phases_.find(pid);
    if (found != phases_.end()) return found->second;
    Phase phase = DescribePhase("", options_.communication);
    phase.kind = CodeOf("", &kinds_, &block_.kinds);
    if (phases_.size() >= kMaxPhases) return overflow_ = phase;
    return phases_.emplace(pid, phase).first->second;
  }

  static TimelineArgs ReadArgs(const JsonValue& object) {
    TimelineArgs out;
    if (object.text.empty()) return out;
    JsonScanner scanner(object.text);
    scanner.ReadObject([&](std::string_view key, const JsonValue& value) {
      if (key == "step_num") {
        out.step = value.Integer();
        if (out.step && *out.step < 0) out.step.reset();
      } else if (key == "pid") {
        out.pid = value.Integer();
      } else if (key == "tid" || key == "thread_id" || key == "worker_id") {
        out.tid = value.Integer();
      } else if (key == "bytes_fetched" || key == "bytes") {
        out.bytes = value.Integer();
      } else if (key == "start_time_since_epoch_in_micros") {
        out.base_us = value.Integer();
      } else if (key == "name") {
        out.name = value;
        out.has_name = true;
      }
    });
    return out;
  }

  /// What of the args has no column, as JSON.
  std::string ArgsText(const JsonValue& object) {
    std::string out;
    if (object.text.empty() || object.text.size() > kMaxArgsOfEvent ||
        ValidUtf8Prefix(object.text) != object.text.size()) {
      return out;
    }
    JsonScanner scanner(object.text);
    const bool whole = scanner.ReadObject([&](std::string_view key, const JsonValue& value) {
      if (key == "step_num" || key == "pid" || key == "tid" || key == "bytes_fetched") return;
      const bool string = value.kind == JsonValue::Kind::kString;
      const bool plain = string ? !value.escaped && Printable(value.text)
                         : value.kind == JsonValue::Kind::kNumber ? IsJsonNumber(value.text)
                                                                  : IsJsonWord(value);
      if (!plain || !Printable(key) || key.find('\\') != std::string_view::npos) return;
      out += out.empty() ? "{\"" : ",\"";
      out += key;
      out += string ? "\":\"" : "\":";
      out += value.text;
      if (string) out += '"';
    });
    if (!whole) return {};
    if (!out.empty()) out += '}';
    return out;
  }
  static bool Printable(std::string_view text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  }

  std::string_view Intern(const JsonValue& value) {
    std::string unescaped;
    std::string valid;
    return texts_.Intern(
        ToValidUtf8(JsonUnescape(value, &unescaped).substr(0, kMaxTimelineNameBytes), &valid));
  }

  using Codes = std::unordered_map<std::string_view, std::uint32_t>;
  /// `text` is owned by the pool or of the program.
  static std::uint32_t CodeOf(std::string_view text, Codes* codes,
                              std::vector<std::string_view>* words) {
    const auto [at, is_new] = codes->try_emplace(text, static_cast<std::uint32_t>(words->size()));
    if (is_new) words->push_back(text);
    return at->second;
  }

  /// By the text as it stands in the file, which is mostly one of those before.
  std::uint32_t NameOf(const JsonValue& value) {
    if (const auto found = raw_names_.find(value.text); found != raw_names_.end()) {
      return found->second;
    }
    // A file whose every event has a name of its own would fill the memory.
    if (block_.names.size() >= kMaxNames) {
      return CodeOf("(one of more names than can be held)", &names_, &block_.names);
    }
    const std::uint32_t code = CodeOf(Intern(value), &names_, &block_.names);
    raw_names_.emplace(value.text, code);
    return code;
  }

  std::uint32_t LaneOf(const Phase& phase, const TimelineArgs& args, std::int64_t tid) {
    const std::int64_t pid = args.pid.value_or(0);
    const bool host = phase.device < 0;
    const LaneKey key{phase.kind, pid, tid};
    const auto found = lanes_.find(key);
    if (found != lanes_.end()) return found->second;
    auto& lanes = block_.lanes;
    if (lanes.size() >= kMaxLanesOfTimeline) return 0;
    const std::string name = phase.name.empty() ? std::string("events") : std::string(phase.name);
    lanes.push_back({options_.rank, pid, host ? tid : 0, phase.device, host ? -1 : tid,
                     tid == 0 ? name : fmt::format("{} {}", name, tid)});
    const auto code = static_cast<std::uint32_t>(lanes.size() - 1);
    lanes_.emplace(key, code);
    return code;
  }

  struct LaneKey {
    std::uint32_t kind;
    std::int64_t pid, tid;
    friend bool operator==(const LaneKey&, const LaneKey&) = default;
  };
  struct HashLane {
    std::size_t operator()(const LaneKey& key) const {
      return std::hash<std::int64_t>()(key.pid * 1'000'003 + key.tid * 131 +
                                       static_cast<std::int64_t>(key.kind));
    }
  };

  JsonScanner scanner_;
  const TimelineOptions options_;
  const std::function<void(store::SliceBlock*)>& put_;
  Timeline out_;
  store::SliceBlock block_;
  StringPool texts_;
  std::int64_t base_ns_ = 0;
  std::unordered_map<std::int64_t, Phase> phases_;
  Phase overflow_;
  Codes names_, categories_, kinds_, raw_names_;
  std::unordered_map<LaneKey, std::uint32_t, HashLane> lanes_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Open>> open_;
  std::size_t open_count_ = 0;
};

}  // namespace

Timeline ReadTimeline(std::string_view text, const TimelineOptions& options,
                      const std::function<void(store::SliceBlock*)>& put) {
  return TimelineReader(text, options, put).Read();
}

std::vector<TimelineStep> ReadTimelineSteps(std::string_view text) {
  std::vector<TimelineStep> out;
  // The base stands before all events that count from it; steps are looked for by their name.
  std::int64_t base_ns = 0;
  JsonScanner first(text);
  while (first.FindObject()) {
    TimelineEvent event;
    if (!ReadRaw(&first, &event) || event.phase != 'M') break;
    constexpr std::string_view kBase = "start_time_since_epoch_in_micros";
    if (event.args.text.find(kBase) == std::string_view::npos) continue;
    JsonScanner args(event.args.text);
    args.ReadObject([&](std::string_view key, const JsonValue& value) {
      const auto base_us = value.Integer();
      if (key == kBase && base_us && *base_us > 0 && *base_us < INT64_MAX / kUs / 2) {
        base_ns = *base_us * kUs;
      }
    });
    break;
  }
  constexpr std::string_view kNamed = "\"Step:ModeKeys.";
  for (std::size_t at = text.find(kNamed); at != std::string_view::npos;
       at = text.find(kNamed, at + 1)) {
    constexpr std::size_t kLongestLine = 4096;
    std::size_t begin = at - std::min(at, kLongestLine);
    const std::size_t line = text.substr(begin, at - begin).rfind('\n');
    if (line != std::string_view::npos) begin += line + 1;
    JsonScanner scanner(text.substr(begin));
    TimelineEvent event;
    if (!scanner.FindObject() || !ReadRaw(&scanner, &event) || event.phase != 'X') continue;
    const auto mode = StepMode(event.name.text);
    if (!mode || !event.ts || *event.ts < 0 || *event.ts > kMostTicks * kUs) continue;
    const std::int64_t duration = event.duration.value_or(0);
    TimelineStep step;
    bool numbered = false;
    JsonScanner args(event.args.text);
    if (args.FindObject()) {
      args.ReadObject([&](std::string_view key, const JsonValue& value) {
        if (key == "step_num") {
          const auto number = value.Integer();
          numbered = number && *number >= 0;
          if (numbered) step.step = *number;
        } else if (key == "pid") {
          step.pid = value.Integer().value_or(0);
        }
      });
    }
    if (!numbered || duration < 0 || duration > kMostTicks * kUs) continue;
    step.mode = *mode;
    step.begin_ns = base_ns + *event.ts;
    step.end_ns = step.begin_ns + duration;
    out.push_back(step);
  }
  return out;
}

}  // namespace telltale::interchange
