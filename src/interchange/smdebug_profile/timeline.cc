// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_profile/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/string_pool.h"
#include "base/units.h"
#include "base/utf8.h"
#include "interchange/chrome/word_codes.h"
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
  std::uint32_t category_code = 0;
};

/// What the name of an event says.
struct NameFacts {
  std::optional<std::string_view> mode;  ///< Of a step.
  bool waits = false;
  std::string_view transfer;  ///< Memcpy or memset, where it is on a device.
};

NameFacts DescribeName(std::string_view name) {
  NameFacts facts;
  facts.mode = StepMode(name);
  facts.waits = name.starts_with("DataLoaderIter::");
  if (AnyOf(name, {"Memcpy", "memcpy"})) {
    facts.transfer = "memcpy";
  } else if (AnyOf(name, {"Memset", "memset"})) {
    facts.transfer = "memset";
  }
  return facts;
}

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
    if (JsonIs(key, "name")) {
      event->name = value;
    } else if (JsonIs(key, "ph")) {
      event->phase = value.text.size() == 1 ? value.text[0] : '\0';
    } else if (JsonIs(key, "ts")) {
      event->ts = value.Scaled(3);
    } else if (JsonIs(key, "dur")) {
      event->duration = value.Scaled(3);
    } else if (JsonIs(key, "pid")) {
      event->pid = value.Integer().value_or(0);
    } else if (JsonIs(key, "tid")) {
      event->tid = value.Integer();
    } else if (JsonIs(key, "args") && value.kind == JsonValue::Kind::kObject) {
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
  if (std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return true;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool Printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

/// Adds a member to an object in JSON, where it is one that may stand there as it is.
void AppendMember(std::string_view key, const JsonValue& value, std::size_t begin,
                  std::string* out) {
  const bool string = value.kind == JsonValue::Kind::kString;
  const bool plain = string ? !value.escaped && Printable(value.text)
                     : value.kind == JsonValue::Kind::kNumber ? IsJsonNumber(value.text)
                                                              : IsJsonWord(value);
  if (!plain || !Printable(key) || key.find('\\') != std::string_view::npos) return;
  *out += out->size() == begin ? "{\"" : ",\"";
  *out += key;
  *out += string ? "\":\"" : "\":";
  *out += value.text;
  if (string) *out += '"';
}

/// Reads what has a column; what has none is added to `rest` as JSON, unless that is null.
TimelineArgs ReadArgs(const JsonValue& object, std::string* rest) {
  TimelineArgs out;
  if (object.text.empty()) return out;
  if (object.text.size() > kMaxArgsOfEvent ||
      (rest != nullptr && ValidUtf8Prefix(object.text) != object.text.size())) {
    rest = nullptr;
  }
  const std::size_t begin = rest == nullptr ? 0 : rest->size();
  JsonScanner scanner(object.text);
  const bool whole = scanner.ReadObject([&](std::string_view key, const JsonValue& value) {
    bool stays = true;
    if (JsonIs(key, "step_num")) {
      out.step = value.Integer();
      if (out.step && *out.step < 0) out.step.reset();
      stays = false;
    } else if (JsonIs(key, "pid")) {
      out.pid = value.Integer();
      stays = false;
    } else if (JsonIs(key, "tid")) {
      out.tid = value.Integer();
      stays = false;
    } else if (JsonIs(key, "thread_id") || JsonIs(key, "worker_id")) {
      out.tid = value.Integer();
    } else if (JsonIs(key, "bytes_fetched")) {
      out.bytes = value.Integer();
      stays = false;
    } else if (JsonIs(key, "bytes")) {
      out.bytes = value.Integer();
    } else if (JsonIs(key, "start_time_since_epoch_in_micros")) {
      out.base_us = value.Integer();
    } else if (JsonIs(key, "name")) {
      out.name = value;
      out.has_name = true;
    }
    if (stays && rest != nullptr) AppendMember(key, value, begin, rest);
  });
  if (rest == nullptr) return out;
  if (!whole) {
    rest->resize(begin);
  } else if (rest->size() > begin) {
    *rest += '}';
  }
  return out;
}

}  // namespace

class TimelineReader::Impl {
 public:
  explicit Impl(Put put) : put_(std::move(put)) { Reserve(); }

  Timeline Read(std::string_view text, const TimelineOptions& options) {
    options_ = options;
    out_ = {};
    base_ns_ = 0;
    phases_.clear();
    open_.clear();
    open_count_ = 0;
    window_ = static_cast<std::uint32_t>(block_.windows.size());
    block_.windows.push_back(texts_.Intern(options.window));
    JsonScanner scanner(text);
    while (scanner.FindObject()) {
      TimelineEvent event;
      if (!ReadRaw(&scanner, &event) || event.phase == 0) {
        ++out_.damaged;
        continue;
      }
      const std::size_t rows = block_.rows();
      const std::size_t args = block_.args.size();
      Take(event);
      if (block_.rows() == rows) block_.args.resize(args);
      if (block_.rows() >= store::kSliceBlockRows || block_.args.size() >= kMaxArgsOfBlock) Flush();
    }
    for (const auto& [track, open] : open_) out_.unclosed += open.size();
    return std::move(out_);
  }

  /// Hands the rows over; names and lanes keep their numbers.
  void Flush() {
    if (block_.rows() == 0) return;
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

  std::uint64_t rows() const { return block_.rows(); }
  std::size_t words() const {
    return block_.names.size() + raw_words_.size() + block_.kinds.size() + block_.windows.size() +
           block_.lanes.size();
  }

 private:
  struct Open {
    std::int64_t begin_ns;
    std::uint32_t name;
    std::string args;
    std::int64_t step;
  };

  void Reserve() {
    // A batch of files may have a reader a rank.
    constexpr std::size_t kRows = store::kSliceBlockRows / 32;
    for (auto* column : {&block_.time_ns, &block_.duration_ns, &block_.step, &block_.correlation,
                         &block_.external, &block_.flow, &block_.bytes}) {
      column->reserve(kRows);
    }
    block_.flops.reserve(kRows);
    for (auto* column :
         {&block_.name, &block_.category, &block_.kind, &block_.lane, &block_.window}) {
      column->reserve(kRows);
    }
    block_.args_end.reserve(kRows);
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
    const std::size_t args_begin = block_.args.size();
    const TimelineArgs args = ReadArgs(event.args, event.phase == 'E' ? nullptr : &block_.args);
    const std::int64_t tid = args.tid.value_or(event.tid.value_or(0));
    const Phase& phase = PhaseOf(event.pid);
    switch (event.phase) {
      case 'X': {
        const std::int64_t duration = event.duration.value_or(0);
        if (duration < 0 || duration > INT64_MAX - begin_ns) {
          ++out_.damaged;
          return;
        }
        Add(event, args, phase, begin_ns, duration, tid);
        break;
      }
      case 'i':
      case 'I':
        Add(event, args, phase, begin_ns, 0, tid);
        break;
      case 'B':
        if (open_count_ >= kMaxOpenOfTimeline) {
          ++out_.damaged;
          return;
        }
        ++open_count_;
        open_[{event.pid, tid}].push_back(
            {begin_ns, NameOf(event.name), block_.args.substr(args_begin), args.step.value_or(-1)});
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
        block_.args += began.args;
        Push(phase, began.name, began.begin_ns, begin_ns - began.begin_ns, began.step, args, tid);
        break;
      }
      default:
        ++out_.left_out;
    }
  }

  void Add(const TimelineEvent& event, const TimelineArgs& args, const Phase& phase,
           std::int64_t begin_ns, std::int64_t duration_ns, std::int64_t tid) {
    const std::uint32_t name = NameOf(event.name);
    const NameFacts& facts = facts_[name];
    const std::int64_t end_ns = begin_ns + duration_ns;
    if (facts.mode && args.step && (phase.is_step || phase.name.empty())) {
      out_.steps.push_back({*args.step, begin_ns, end_ns, args.pid.value_or(0), *facts.mode});
    }
    if (phase.waits || facts.waits) out_.waits.push_back({begin_ns, end_ns});
    Push(phase, name, begin_ns, duration_ns, args.step.value_or(-1), args, tid);
  }

  /// Its args stand at the end of the block's already.
  void Push(const Phase& phase, std::uint32_t name, std::int64_t begin_ns, std::int64_t duration_ns,
            std::int64_t step, const TimelineArgs& args, std::int64_t tid) {
    const NameFacts& facts = facts_[name];
    const bool moves = phase.category == "kernel" && !facts.transfer.empty();
    block_.time_ns.push_back(begin_ns);
    block_.duration_ns.push_back(duration_ns);
    block_.step.push_back(step);
    block_.correlation.push_back(0);
    block_.external.push_back(0);
    block_.flow.push_back(0);
    block_.bytes.push_back(std::max<std::int64_t>(0, args.bytes.value_or(0)));
    block_.flops.push_back(0);
    block_.name.push_back(name);
    block_.category.push_back(moves ? CodeOf(facts.transfer, &categories_, &block_.categories)
                                    : phase.category_code);
    block_.kind.push_back(phase.kind);
    block_.lane.push_back(LaneOf(phase, args, tid));
    block_.window.push_back(window_);
    block_.args_end.push_back(static_cast<std::int32_t>(block_.args.size()));
    ++out_.slices;
  }

  void TakeName(const TimelineEvent& event) {
    const TimelineArgs args = ReadArgs(event.args, nullptr);
    if (args.base_us && *args.base_us > 0 && *args.base_us < INT64_MAX / kUs / 2) {
      base_ns_ = *args.base_us * kUs;
      return;
    }
    if (event.name.text != "process_name" || !args.has_name || phases_.size() >= kMaxPhases) return;
    phases_.insert_or_assign(event.pid, NewPhase(Intern(args.name)));
  }

  Phase NewPhase(std::string_view name) {
    Phase phase = DescribePhase(name, options_.communication);
    phase.kind = CodeOf(phase.name, &kinds_, &block_.kinds);
    phase.category_code = CodeOf(phase.category, &categories_, &block_.categories);
    return phase;
  }

  const Phase& PhaseOf(std::int64_t pid) {
    const auto found = phases_.find(pid);
    if (found != phases_.end()) return found->second;
    const Phase phase = NewPhase("");
    if (phases_.size() >= kMaxPhases) return overflow_ = phase;
    return phases_.emplace(pid, phase).first->second;
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
    // A file whose every event has a name of its own would fill the memory.
    if (raw_words_.size() >= kMaxNames) return CodeOfName("(one of more names than can be held)");
    const std::uint32_t raw = raw_codes_.CodeOf(value.text, &raw_words_);
    if (raw == name_of_raw_.size()) name_of_raw_.push_back(CodeOfName(Intern(value)));
    return name_of_raw_[raw];
  }
  std::uint32_t CodeOfName(std::string_view name) {
    const std::uint32_t code = CodeOf(name, &names_, &block_.names);
    if (code == facts_.size()) facts_.push_back(DescribeName(name));
    return code;
  }

  std::uint32_t LaneOf(const Phase& phase, const TimelineArgs& args, std::int64_t tid) {
    const std::int64_t pid = args.pid.value_or(0);
    const bool host = phase.device < 0;
    const LaneKey key{phase.kind, phase.device, pid, tid};
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
    std::int32_t device;
    std::int64_t pid, tid;
    friend bool operator==(const LaneKey&, const LaneKey&) = default;
  };
  struct HashLane {
    std::size_t operator()(const LaneKey& key) const {
      return std::hash<std::int64_t>()(key.pid * 1'000'003 + key.tid * 131 +
                                       static_cast<std::int64_t>(key.kind));
    }
  };

  const Put put_;
  store::SliceBlock block_;
  StringPool texts_;
  Codes names_, categories_, kinds_;
  std::vector<NameFacts> facts_;  ///< Of each of the block's names.
  std::deque<std::string> raw_texts_;
  WordCodes raw_codes_{&raw_texts_};
  std::vector<std::string_view> raw_words_;
  std::vector<std::uint32_t> name_of_raw_;
  std::unordered_map<LaneKey, std::uint32_t, HashLane> lanes_;
  // Of the file that is read.
  TimelineOptions options_;
  Timeline out_;
  std::uint32_t window_ = 0;
  std::int64_t base_ns_ = 0;
  std::unordered_map<std::int64_t, Phase> phases_;
  Phase overflow_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Open>> open_;
  std::size_t open_count_ = 0;
};

TimelineReader::TimelineReader(Put put) : impl_(std::make_unique<Impl>(std::move(put))) {}
TimelineReader::~TimelineReader() = default;
TimelineReader::TimelineReader(TimelineReader&&) noexcept = default;
Timeline TimelineReader::Read(std::string_view text, const TimelineOptions& options) {
  return impl_->Read(text, options);
}
void TimelineReader::Flush() { impl_->Flush(); }
std::uint64_t TimelineReader::rows() const { return impl_->rows(); }
std::size_t TimelineReader::words() const { return impl_->words(); }

Timeline ReadTimeline(std::string_view text, const TimelineOptions& options,
                      const std::function<void(store::SliceBlock*)>& put) {
  TimelineReader reader(put);
  Timeline out = reader.Read(text, options);
  reader.Flush();
  return out;
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
  // Looked for from its first letter on, which is rarer than the quote before it.
  for (std::size_t at = text.find(kStepPrefix); at != std::string_view::npos;
       at = text.find(kStepPrefix, at + 1)) {
    if (at == 0 || text[at - 1] != '"') continue;
    constexpr std::size_t kLongestLine = 4096;
    constexpr std::size_t kLongestRest = 64U << 10;
    std::size_t begin = at - std::min(at, kLongestLine);
    const std::size_t line = text.substr(begin, at - begin).rfind('\n');
    if (line != std::string_view::npos) begin += line + 1;
    JsonScanner scanner(text.substr(begin, at - begin + kLongestRest));
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
