// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/block_parser.h"

#include <fmt/core.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/json.h"
#include "base/utf8.h"
#include "interchange/chrome/args_text.h"
#include "interchange/chrome/event_names.h"
#include "interchange/chrome/event_reader.h"
#include "interchange/chrome/word_codes.h"
#include "interchange/json_scan.h"

namespace telltale::interchange {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::size_t kMaxArgsBytes = 1 << 20;
constexpr std::size_t kMaxNameBytes = 64 << 10;
constexpr std::size_t kMaxShortNameBytes = 256;  ///< Of counters, processes, threads.
constexpr std::size_t kMaxFlowSearch = 64;
constexpr std::int64_t kMaxNs = INT64_MAX / 4;
/// Texts are compared by so many bytes at once.
constexpr std::size_t kShortWord = 8;
static_assert(kShortWord <= kBlockPadding);
/// So many digits are a number that 64 bits hold.
constexpr std::size_t kShortInteger = 18;
/// Texts are copied in pieces of so many bytes.
constexpr std::size_t kCopySlack = 16;
/// Made at once behind what is there of arguments.
constexpr std::size_t kArgsRoom = 256;
static_assert(kCopySlack <= kBlockPadding);

constexpr std::string_view kCategoryWords[] = {"op",
                                               "python",
                                               "module",
                                               "runtime",
                                               "kernel",
                                               "memcpy",
                                               "memset",
                                               "sync",
                                               "comm",
                                               "annotation",
                                               "device_annotation",
                                               "step",
                                               "data",
                                               "compile",
                                               "gc",
                                               "memory",
                                               "io",
                                               "other"};

constexpr std::uint32_t CategoryCode(std::string_view word) {
  const auto* const found = std::ranges::find(kCategoryWords, word);
  return static_cast<std::uint32_t>(found - std::begin(kCategoryWords));
}
/// The same of a word that must be one of them.
consteval std::uint32_t KnownCategory(std::string_view word) {
  const std::uint32_t code = CategoryCode(word);
  if (code == std::size(kCategoryWords)) throw "no such category";
  return code;
}
constexpr std::uint32_t kOpCode = KnownCategory("op");
constexpr std::uint32_t kKernelCode = KnownCategory("kernel");
constexpr std::uint32_t kStepCode = KnownCategory("step");
constexpr std::uint32_t kDataCode = KnownCategory("data");
constexpr std::uint32_t kCommCode = KnownCategory("comm");
constexpr std::uint32_t kModuleCode = KnownCategory("module");
constexpr std::uint32_t kMemoryCode = KnownCategory("memory");
constexpr std::uint32_t kAnnotationCode = KnownCategory("annotation");

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view Trimmed(std::string_view token) {
  if (!token.empty() && !IsBlank(token.front()) && !IsBlank(token.back())) return token;
  while (!token.empty() && IsBlank(token.back())) token.remove_suffix(1);
  while (!token.empty() && IsBlank(token.front())) token.remove_prefix(1);
  return token;
}

/// The text of a token, quotes off. Escapes stay.
std::string_view Unquoted(std::string_view token) {
  token = Trimmed(token);
  if (token.size() >= 2 && token.front() == '"' && token.back() == '"') {
    return token.substr(1, token.size() - 2);
  }
  return token;
}

/// Of a JSON string without its quotes.
std::string Unescaped(std::string_view text) {
  if (text.find('\\') == std::string_view::npos) return std::string(text);
  const auto value = ParseJson("\"" + std::string(text) + "\"");
  return value.is_string() ? value.get<std::string>() : std::string(text);
}

/// The same, at most so many bytes of it.
std::string UnescapedMost(std::string_view text, std::size_t bytes) {
  std::string whole = Unescaped(text);
  if (whole.size() > bytes) {
    whole.resize(ValidUtf8Prefix(std::string_view(whole).substr(0, bytes)));
  }
  return whole;
}

/// Of two short texts, or of one twice as long. Compared by a few instructions, not by a function
/// as arrays are.
struct TwoWords {
  std::uint64_t first = 0, second = 0;
  std::size_t sizes = 0;  ///< A text may end in zeros, where it is damaged.
  bool operator==(const TwoWords&) const = default;
};

/// The first eight bytes of a text, with zeros behind a shorter one.
/// There is room behind the text of a block and of what is salvaged.
std::uint64_t ShortWord(std::string_view text) {
  if (text.empty()) return 0;
  std::uint64_t word = 0;
  std::memcpy(&word, text.data(), sizeof word);
  if (text.size() >= kShortWord) return word;
  const std::size_t bits = 8 * text.size();
  return std::endian::native == std::endian::little ? word & ((std::uint64_t{1} << bits) - 1)
                                                    : word >> (64 - bits) << (64 - bits);
}

/// Eight digits as a number; -1 where they are not all.
std::int64_t EightDigits(const char* at) {
  if constexpr (std::endian::native != std::endian::little) return -1;
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, at, sizeof bytes);
  const std::uint64_t digits = bytes ^ 0x3030303030303030;
  if (((digits | (digits + 0x0606060606060606)) & 0xF0F0F0F0F0F0F0F0) != 0) return -1;
  // Twos, fours and eights of them: the first byte is the highest.
  const std::uint64_t twos = (digits * 10 + (digits >> 8)) & 0x00FF00FF00FF00FF;
  const std::uint64_t fours = (twos * 100 + (twos >> 16)) & 0x0000FFFF0000FFFF;
  return static_cast<std::int64_t>((fours * 10'000 + (fours >> 32)) & 0xFFFFFFFF);
}

/// Microseconds with a fraction, as digits, to nanoseconds. False where it is no such number.
bool ParseMicros(std::string_view text, std::int64_t* ns) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  std::int64_t value = 0;
  const char* const digits = at;
  if (end - at >= 8) {
    if (const std::int64_t eight = EightDigits(at); eight >= 0) {
      value = eight;
      at += 8;
    }
  }
  while (at != end && *at >= '0' && *at <= '9' && value < kMaxNs / 10'000) {
    value = value * 10 + (*at++ - '0');
  }
  if (at == digits) return false;
  value *= 1000;
  if (at != end && *at == '.') {
    ++at;
    std::int64_t unit = 100;
    for (; at != end && *at >= '0' && *at <= '9'; ++at, unit /= 10) value += (*at - '0') * unit;
  }
  if (at != end) {
    // An exponent, or too many digits.
    double number = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end) return false;
    number *= 1000;
    if (!(std::fabs(number) < static_cast<double>(kMaxNs))) return false;
    *ns = std::llround(number);
    return true;
  }
  *ns = negative ? -value : value;
  return true;
}

bool ParseInteger(std::string_view text, std::int64_t* value) {
  const char* const end = text.data() + text.size();
  if (text.size() <= kShortInteger && !text.empty()) {
    std::int64_t number = 0;
    const char* at = text.data();
    while (at != end && *at >= '0' && *at <= '9') number = number * 10 + (*at++ - '0');
    if (at == end) {
      *value = number;
      return true;
    }
  }
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  if (error == std::errc() && at == end) return true;
  double number = 0;
  const auto [stop, wrong] = std::from_chars(text.data(), end, number);
  if (wrong != std::errc() || stop != end || !(std::fabs(number) < 9e18)) return false;
  *value = static_cast<std::int64_t>(number);
  return true;
}

/// A flow's or asynchronous event's id: numbers as they are, other texts by their hash.
std::int64_t IdOf(std::string_view text) {
  std::int64_t id = 0;
  if (ParseInteger(text, &id)) return id;
  if (text.starts_with("0x")) {
    std::uint64_t hex = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + 2, end, hex, 16);
    if (error == std::errc() && at == end) return static_cast<std::int64_t>(hex);
  }
  return static_cast<std::int64_t>(XXH3_64bits(text.data(), text.size()) >> 1);
}

/// A scalar or whole value as its text stands.
bool RawText(simdjson::simdjson_result<ondemand::value>& value, std::string_view token,
             std::string_view* text) {
  if (token.front() == '{') {
    ondemand::object object;
    if (value.get_object().get(object) != simdjson::SUCCESS) return false;
    return object.raw_json().get(*text) == simdjson::SUCCESS;
  }
  if (token.front() == '[') {
    ondemand::array array;
    if (value.get_array().get(array) != simdjson::SUCCESS) return false;
    return array.raw_json().get(*text) == simdjson::SUCCESS;
  }
  *text = token;
  return true;
}

/// A member's key as its text stands: up to the quote before the colon before its value.
std::string_view RawKey(simdjson::simdjson_result<ondemand::field>& field, std::string_view value) {
  const char* const begin = field.key().value_unsafe().raw();
  const char* end = value.data() - 1;
  while (end > begin && *end != '"') --end;
  return {begin, static_cast<std::size_t>(end - begin)};
}

/// Takes the event apart. False where it is no JSON object.
bool ReadEvent(ondemand::object object, RawEvent* event) {
  event->Clear();
  for (simdjson::simdjson_result<ondemand::field> field : object) {
    if (field.error() != simdjson::SUCCESS) return false;
    simdjson::simdjson_result<ondemand::value> value = field.value();
    std::string_view token;
    if (value.raw_json_token().get(token) != simdjson::SUCCESS || token.empty()) return false;
    const RawEvent::Key key = RawEvent::KeyOf(RawKey(field, token));
    if (key == RawEvent::kOther) continue;
    event->See(key);
    if (key == RawEvent::kArgs) {
      event->members.clear();
      if (token.front() != '{') continue;
      ondemand::object args;
      if (value.get_object().get(args) != simdjson::SUCCESS) return false;
      for (simdjson::simdjson_result<ondemand::field> member : args) {
        if (member.error() != simdjson::SUCCESS) return false;
        simdjson::simdjson_result<ondemand::value> inner = member.value();
        std::string_view begin;
        std::string_view text;
        if (inner.raw_json_token().get(begin) != simdjson::SUCCESS || begin.empty()) return false;
        const std::string_view name = RawKey(member, begin);
        if (!RawText(inner, begin, &text)) return false;
        event->members.push_back({name, Trimmed(text)});
      }
      continue;
    }
    std::string_view text;
    if (!RawText(value, token, &text)) return false;
    event->Set(key, Unquoted(text));
  }
  return true;
}

/// Has the kernel make the pages before they are touched: one by one they cost half as much again.
void Prefault(void* begin, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t from = (at + page - 1) / page * page;
  const std::uintptr_t until = (at + bytes) / page * page;
  if (from >= until) return;
  // Where it is not to be had, they are made one by one.
  (void)::madvise(static_cast<char*>(begin) + (from - at), until - from, MADV_POPULATE_WRITE);
#endif
}

/// What is typed of an event's arguments.
struct TypedArgs {
  std::int64_t correlation = 0, external = 0, bytes = 0;
  std::int64_t device = -1, stream = -1;
  double flops = 0;
};

}  // namespace

std::size_t ChromeBlock::bytes() const {
  std::size_t total = slices.args.capacity();
  for (const auto* const column :
       {&slices.time_ns, &slices.duration_ns, &slices.step, &slices.correlation, &slices.external,
        &slices.flow, &slices.bytes}) {
    total += column->capacity() * sizeof(std::int64_t);
  }
  total += slices.flops.capacity() * sizeof(double);
  total += slices.rows() * 6 * sizeof(std::uint32_t);
  for (const std::string& word : words) total += word.size() + sizeof(std::string);
  for (const auto& phase : intervals) total += phase.capacity() * 24;
  total += (loose.size() + counters.size()) * 200 + collectives.capacity() * 24;
  return total;
}

void FillColumns(store::SliceBlock* slices) {
  const std::size_t rows = slices->rows();
  slices->step.resize(rows, -1);
  slices->window.resize(rows);
  for (auto* const column : {&slices->flow, &slices->bytes}) column->resize(rows);
  slices->flops.resize(rows);
}

class BlockParser::Impl {
 public:
  std::unique_ptr<ChromeBlock> Parse(EventBlock* from, std::string_view window) {
    auto block = std::make_unique<ChromeBlock>();
    block_ = block.get();
    block->number = from->number;
    WordCodes names(&block->words);
    WordCodes kinds(&block->words);
    names_ = &names;
    kinds_ = &kinds;
    kind_facts_.clear();
    name_facts_.clear();
    track_of_.clear();
    lane_of_.clear();
    recent_tracks_ = {};
    recent_lanes_ = {};
    recent_kinds_ = {};
    for (auto& phase : open_) phase.clear();
    pending_.clear();
    faults_ = {};
    block->slices.categories.assign(std::begin(kCategoryWords), std::end(kCategoryWords));
    block->slices.windows.push_back(block->words.emplace_back(window));
    Reserve(from->size);
    Walk(from);
    Finish();
    return block;
  }

 private:
  /// Host and device events take turns: the last few are asked for most.
  template <class T>
  struct Recent {
    std::array<T, 4> all{};
    std::size_t next = 0;
    void Add(T one) { all[next++ % all.size()] = std::move(one); }
  };
  struct RecentTrack {
    TwoWords words;  ///< Process and thread.
    std::uint32_t track = 0;
    bool known = false;
  };
  struct LaneKey {
    std::int64_t track = 0, device = 0, stream = 0;
    auto operator<=>(const LaneKey&) const = default;
  };
  struct RecentLane {
    LaneKey key;
    std::uint32_t lane = 0;
    bool known = false;
  };
  struct RecentKind {
    TwoWords words;
    std::uint32_t code = 0;
    bool known = false;
  };
  struct KindFacts {
    ChromeCategory category;
    std::uint32_t category_code = 0;
    std::uint32_t code = 0;
    bool launch_flow = false;  ///< A flow that says what the correlation says.
  };

  void Reserve(std::size_t bytes) {
    store::SliceBlock& s = block_->slices;
    const std::size_t rows = bytes / 300;
    for (auto* const column : {&s.time_ns, &s.duration_ns, &s.correlation, &s.external}) {
      ReserveIn(column, rows);
    }
    for (auto* const column : {&s.name, &s.category, &s.kind, &s.lane}) {
      ReserveIn(column, rows);
    }
    ReserveIn(&s.args_end, rows);
    s.args.reserve(bytes / 3);
    Prefault(s.args.data(), std::min(s.args.capacity(), last_args_bytes_));
  }

  /// Blocks of a trace are much like the one before.
  template <class T>
  void ReserveIn(std::vector<T>* column, std::size_t rows) {
    column->reserve(rows);
    Prefault(column->data(), std::min(rows, last_rows_) * sizeof(T));
  }

  void Walk(EventBlock* from) {
    TakePlain(from);
    if (from->size == 0) return;
    std::size_t done = 0;
    if (WalkArray(from->bytes.data(), from->size, from->bytes.size(), &done)) return;
    if (done == 0) {
      // Bytes that are no UTF-8, or control characters in strings: made harmless, then once more.
      const std::size_t replaced = Clean(from);
      if (replaced > 0) {
        Count(ChromeCount::kReplacedBytes, replaced);
        if (WalkArray(from->bytes.data(), from->size, from->bytes.size(), &done)) return;
      }
    }
    Salvage({from->bytes.data() + done, from->size - done});
  }

  /// Takes the events before the first that is not as writers write them, and leaves an array of
  /// the others, or nothing.
  void TakePlain(EventBlock* from) {
    if (!simdjson::validate_utf8(from->bytes.data(), from->size)) return;
    EventReader reader({from->bytes.data(), from->size});
    while (reader.Next(&event_)) Commit();
    const std::size_t taken = reader.taken();
    if (taken == 0 || taken == from->size) {
      from->size -= taken;
      return;
    }
    std::size_t begin = taken;
    while (begin < from->size && IsBlank(from->bytes[begin])) ++begin;
    if (begin == from->size || from->bytes[begin] != ',') begin = taken - 1;
    from->bytes[begin] = '[';
    from->bytes.erase(from->bytes.begin(),
                      from->bytes.begin() + static_cast<std::ptrdiff_t>(begin));
    from->size -= begin;
  }

  /// False where it broke; `done`: behind the last event that was taken, or where the one that
  /// broke it begins; 0 where there was none.
  bool WalkArray(const char* text, std::size_t size, std::size_t capacity, std::size_t* done) {
    ondemand::document document;
    if (parser_.iterate(text, size, capacity).get(document) != simdjson::SUCCESS) return false;
    ondemand::array array;
    if (document.get_array().get(array) != simdjson::SUCCESS) return false;
    for (simdjson::simdjson_result<ondemand::value> item : array) {
      std::string_view token;
      if (item.raw_json_token().get(token) != simdjson::SUCCESS || token.empty()) return false;
      *done = static_cast<std::size_t>(token.data() - text);
      if (token.front() != '{') {
        Count(ChromeCount::kDamagedEvents, 1);
        continue;
      }
      ondemand::object object;
      if (item.get_object().get(object) != simdjson::SUCCESS) return false;
      if (!ReadEvent(object, &event_)) return false;
      Commit();
      const char* behind = nullptr;
      if (document.current_location().get(behind) == simdjson::SUCCESS) {
        *done = static_cast<std::size_t>(behind - text);
      }
    }
    return true;
  }

  /// Event by event: between places that look like two events' border.
  void Salvage(std::string_view text) {
    std::vector<std::size_t> begins;
    for (std::size_t at = text.find('{'); at != std::string_view::npos;
         at = text.find('{', at + 1)) {
      std::size_t before = at;
      while (before > 0 && IsBlank(text[before - 1])) --before;
      const bool border = before == 0 || text[before - 1] == '[' || text[before - 1] == ',';
      std::size_t behind = at + 1;
      while (behind < text.size() && IsBlank(text[behind])) ++behind;
      if (border && behind < text.size() && text[behind] == '"') begins.push_back(at);
    }
    begins.push_back(text.size());
    for (std::size_t i = 0; i + 1 < begins.size();) {
      std::size_t next = 0;
      for (std::size_t j = i + 1; j < begins.size() && j <= i + 16; ++j) {
        if (!ParseOne(text.substr(begins[i], begins[j] - begins[i]))) continue;
        next = j;
        break;
      }
      if (next == 0) {
        Count(ChromeCount::kDamagedEvents, 1);
        // What follows may be inside of it: only whole events count.
        next = i + 1;
      }
      i = next;
    }
  }

  bool ParseOne(std::string_view text) {
    while (!text.empty() && text.back() != '}') text.remove_suffix(1);
    if (text.empty() || text.size() > kMaxEventBytes) return false;
    one_.assign(text);
    one_.append(kBlockPadding, ' ');
    ondemand::document document;
    if (one_parser_.iterate(one_.data(), text.size(), one_.size()).get(document) !=
        simdjson::SUCCESS) {
      return false;
    }
    ondemand::object object;
    if (document.get_object().get(object) != simdjson::SUCCESS) return false;
    if (!ReadEvent(object, &event_)) return false;
    const char* behind = nullptr;
    if (document.current_location().get(behind) == simdjson::SUCCESS) return false;
    if (event_.phase.empty()) return false;
    Commit();
    return true;
  }

  static std::size_t Clean(EventBlock* block) {
    std::string text(block->bytes.data(), block->size);
    std::string scratch;
    std::size_t replaced = 0;
    const std::string_view valid = ToValidUtf8(text, &scratch);
    if (valid.data() != text.data()) {
      replaced += (valid.size() - text.size()) / 2;
      text = scratch;
    }
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      if (in_string && c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = !in_string;
      } else if (c < 0x20 && (in_string || !IsBlank(text[i]))) {
        text[i] = ' ';
        ++replaced;
      }
    }
    if (replaced == 0) return 0;
    block->size = text.size();
    block->bytes.assign(text.begin(), text.end());
    block->bytes.resize(text.size() + kBlockPadding, ' ');
    return replaced;
  }

  void Count(ChromeCount what, std::uint64_t n) {
    block_->counts[static_cast<std::size_t>(what)] += n;
  }

  std::uint32_t TrackOf(std::string_view pid, std::string_view tid) {
    const TwoWords words{ShortWord(pid), ShortWord(tid), pid.size() << 32 | tid.size()};
    const bool is_short = pid.size() <= kShortWord && tid.size() <= kShortWord;
    for (const RecentTrack& recent : recent_tracks_.all) {
      if (recent.words == words && recent.known && is_short) return recent.track;
    }
    std::string key(pid);
    key += '\n';
    key += tid;
    const auto [at, is_new] =
        track_of_.try_emplace(std::move(key), static_cast<std::uint32_t>(block_->tracks.size()));
    if (is_new) {
      ChromeTrack track{.pid = Unescaped(pid), .tid = Unescaped(tid)};
      if (!ParseInteger(pid, &track.pid_number)) track.pid_number = 0;
      if (!ParseInteger(tid, &track.tid_number)) track.tid_number = 0;
      block_->tracks.push_back(std::move(track));
    }
    if (is_short) recent_tracks_.Add({words, at->second, true});
    return at->second;
  }

  const KindFacts& KindOf(std::string_view kind) {
    const bool is_short = kind.size() <= 2 * kShortWord;
    const std::string_view rest = kind.substr(std::min(kShortWord, kind.size()));
    const TwoWords words{ShortWord(kind), ShortWord(rest), kind.size()};
    for (const RecentKind& recent : recent_kinds_.all) {
      if (recent.words == words && recent.known && is_short) return kind_facts_[recent.code];
    }
    store::SliceBlock& s = block_->slices;
    const std::uint32_t code = kinds_->CodeOf(kind, &s.kinds);
    if (code == kind_facts_.size()) {
      const ChromeCategory category = CategoryOfKind(kind);
      kind_facts_.push_back(
          {category, CategoryCode(category.word), code,
           kind == "ac2g" || kind == "async" || kind == "async_cpu_to_gpu" || kind == "async_gpu"});
    }
    if (is_short) recent_kinds_.Add({words, code, true});
    return kind_facts_[code];
  }

  std::uint32_t NameCode(std::string_view name) {
    store::SliceBlock& s = block_->slices;
    std::string plain;
    if (name.size() > kMaxNameBytes || name.find('\\') != std::string_view::npos) {
      plain = UnescapedMost(name, kMaxNameBytes);
      name = plain;
    }
    const std::uint32_t code = names_->CodeOf(name, &s.names);
    if (code == name_facts_.size()) name_facts_.push_back(FactsOfName(name));
    return code;
  }

  std::uint32_t LaneOf(std::uint32_t track, bool device, std::int64_t number, std::int64_t stream) {
    const LaneKey key = {
        device ? static_cast<std::int64_t>(track) : -1 - static_cast<std::int64_t>(track),
        device ? number : 0, device ? stream : 0};
    for (const RecentLane& recent : recent_lanes_.all) {
      if (recent.key == key && recent.known) return recent.lane;
    }
    const auto [at, is_new] =
        lane_of_.try_emplace(key, static_cast<std::uint32_t>(block_->lane_track.size()));
    if (is_new) {
      const ChromeTrack& of = block_->tracks[track];
      store::SliceLane lane{.pid = of.pid_number, .tid = of.tid_number};
      if (device) {
        lane.tid = 0;
        lane.device = static_cast<std::int32_t>(
            std::clamp<std::int64_t>(number >= 0 ? number : of.pid_number, 0, INT32_MAX));
        lane.stream = stream >= 0 ? stream : of.tid_number;
      }
      block_->slices.lanes.push_back(std::move(lane));
      block_->lane_track.push_back(track);
    }
    recent_lanes_.Add({key, at->second, true});
    return at->second;
  }

  /// Copies the text and up to kCopySlack bytes of what is behind it, which a block has.
  static char* CopyText(std::string_view text, char* to) {
    if (text.size() > 8 * kCopySlack) {
      std::memcpy(to, text.data(), text.size());
    } else {
      for (std::size_t i = 0; i < text.size(); i += kCopySlack) {
        std::memcpy(to + i, text.data() + i, kCopySlack);
      }
    }
    return to + text.size();
  }

  /// Appends the arguments that have no column, and reads those that have.
  TypedArgs TakeArgs(bool device) {
    TypedArgs typed;
    std::string& out = block_->slices.args;
    const std::size_t begin = out.size();
    std::size_t size = begin;
    for (const auto& [key, text, plain] : event_.members) {
      if (TakeTyped(key, text, device, &typed)) continue;
      const std::size_t most = key.size() + text.size() + 4 + kCopySlack;
      if (out.size() - size < most) out.resize(size + std::max(most, kArgsRoom));
      char* at = out.data() + size;
      *at++ = size == begin ? '{' : ',';
      *at++ = '"';
      if (plain) {
        at = CopyText(key, at);
        *at++ = '"';
        *at++ = ':';
        at = CopyText(text, at);
        size = static_cast<std::size_t>(at - out.data());
        continue;
      }
      out.resize(static_cast<std::size_t>(at - out.data()));
      AppendArgsKey(key, &out, &faults_);
      out += "\":";
      AppendArgsValue(text, &out, &faults_);
      size = out.size();
    }
    out.resize(size);
    if (size > begin) out += '}';
    if (out.size() - begin > kMaxArgsBytes) {
      out.resize(begin);
      Count(ChromeCount::kCutArguments, 1);
    }
    return typed;
  }

  static bool TakeTyped(std::string_view key, std::string_view text, bool device,
                        TypedArgs* typed) {
    switch (key.empty() ? 0 : key.front()) {
      case 'c':
        return JsonIs(key, "correlation") && ParseInteger(Unquoted(text), &typed->correlation);
      case 'E':
      case 'e':
        return (JsonIs(key, "External id") || JsonIs(key, "external id")) &&
               ParseInteger(Unquoted(text), &typed->external);
      case 'b':
      case 'B':
        return (JsonIs(key, "bytes") || JsonIs(key, "Bytes")) &&
               ParseInteger(Unquoted(text), &typed->bytes);
      case 'd':
        return device && JsonIs(key, "device") && ParseInteger(Unquoted(text), &typed->device);
      case 's':
        return device && JsonIs(key, "stream") && ParseInteger(Unquoted(text), &typed->stream);
      case 'f':
      case 'F': {
        if (!JsonIs(key, "flops") && !JsonIs(key, "Flops") && !JsonIs(key, "FLOPS")) return false;
        const std::string_view word = Unquoted(text);
        const char* const end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data(), end, typed->flops);
        return error == std::errc() && at == end && std::isfinite(typed->flops);
      }
      default:
        return false;
    }
  }

  std::string ArgsText() {
    std::string& args = block_->slices.args;
    const std::size_t begin = args.size();
    TakeArgs(false);
    std::string text = args.substr(begin);
    args.resize(begin);
    return text;
  }

  void TakeTime(std::int64_t begin_ns, std::int64_t end_ns) {
    block_->first_ns = std::min(block_->first_ns, begin_ns);
    block_->last_ns = std::max(block_->last_ns, end_ns);
  }

  void Commit() {
    ++block_->events;
    if (event_.duplicate) Count(ChromeCount::kDuplicateKeys, 1);
    const char phase = event_.phase.size() == 1 ? event_.phase.front() : '\0';
    if (phase == 'M') {
      TakeNaming();
      return;
    }
    std::int64_t time_ns = 0;
    if (!ParseMicros(event_.ts, &time_ns)) {
      Count(ChromeCount::kDamagedEvents, 1);
      return;
    }
    switch (phase) {
      case 'X':
        TakeSlice(time_ns, true);
        break;
      case 'i':
      case 'I':
      case 'R':
        TakeSlice(time_ns, false);
        break;
      case 's':
      case 't':
      case 'f':
        TakeFlow(time_ns);
        break;
      case 'C':
        TakeCounter(time_ns);
        break;
      case 'B':
      case 'E':
      case 'b':
      case 'e':
      case 'n':
      case 'S':
      case 'T':
      case 'F':
        TakeLoose(phase, time_ns);
        break;
      default:
        Count(ChromeCount::kUnsupported, 1);
    }
  }

  void TakeSlice(std::int64_t time_ns, bool lasts) {
    std::int64_t duration_ns = 0;
    if (lasts && !event_.dur.empty()) {
      if (!ParseMicros(event_.dur, &duration_ns)) {
        Count(ChromeCount::kDamagedEvents, 1);
        return;
      }
      if (duration_ns < 0) {
        Count(ChromeCount::kNegativeDuration, 1);
        duration_ns = 0;
      }
    }
    store::SliceBlock& s = block_->slices;
    const KindFacts& kind = KindOf(event_.kind);
    const ChromeCategory category = kind.category;
    const std::uint32_t kind_code = kind.code;
    const std::uint32_t track = TrackOf(event_.pid, event_.tid);
    const std::uint32_t name = NameCode(event_.name);
    const ChromeNameFacts& facts = name_facts_[name];
    const TypedArgs args = TakeArgs(category.device);
    const ChromeInterval interval{time_ns, time_ns + duration_ns};
    std::uint32_t category_code = kind.category_code;
    if (category.refined) {
      if (facts.step) {
        category_code = kStepCode;
        block_->marks.push_back({*facts.step, time_ns, duration_ns, track});
      } else if (facts.data) {
        category_code = kDataCode;
        Keep(ChromePhase::kData, track, interval);
        if (facts.own_loader) block_->own_loader_track = track;
      } else if (facts.comm) {
        category_code = kCommCode;
        Keep(ChromePhase::kComm, track, interval);
      } else if (facts.module) {
        category_code = kModuleCode;
      } else if (facts.memory) {
        category_code = kMemoryCode;
      } else if (facts.optimizer || facts.aside) {
        category_code = kAnnotationCode;
        Keep(facts.optimizer ? ChromePhase::kOptimizer : ChromePhase::kAside, track, interval);
      } else if (facts.backward) {
        Keep(ChromePhase::kBackward, track, interval);
      } else if (category_code == kOpCode) {
        Keep(ChromePhase::kOperator, track, interval);
      }
    } else if (facts.collective_kernel && category_code == kKernelCode) {
      block_->collectives.emplace_back(interval, name);
    }
    s.time_ns.push_back(time_ns);
    s.duration_ns.push_back(duration_ns);
    s.correlation.push_back(args.correlation);
    s.external.push_back(args.external);
    const std::size_t row = s.name.size();
    if (args.bytes != 0) SetAt(row, args.bytes, &s.bytes);
    if (args.flops != 0) SetAt(row, args.flops, &s.flops);
    s.name.push_back(name);
    s.category.push_back(category_code);
    s.kind.push_back(kind_code);
    s.lane.push_back(LaneOf(track, category.device, args.device, args.stream));
    s.args_end.push_back(static_cast<std::int32_t>(s.args.size()));
    TakeTime(interval.begin_ns, interval.end_ns);
  }

  /// Of columns that most rows have nothing for.
  template <class T>
  static void SetAt(std::size_t row, T value, std::vector<T>* column) {
    if (column->size() <= row) column->resize(row + 1);
    (*column)[row] = value;
  }

  /// Intervals in the order of their begins become one where they overlap.
  void Keep(ChromePhase phase, std::uint32_t track, ChromeInterval interval) {
    auto& open = open_[static_cast<std::size_t>(phase)];
    if (open.size() <= track) open.resize(track + 1, {INT64_MAX, INT64_MAX});
    ChromeInterval& now = open[track];
    if (interval.begin_ns >= now.begin_ns && interval.begin_ns <= now.end_ns) {
      now.end_ns = std::max(now.end_ns, interval.end_ns);
      return;
    }
    if (now.begin_ns != INT64_MAX) Flush(phase, track, now);
    now = interval;
  }
  void Flush(ChromePhase phase, std::uint32_t track, ChromeInterval interval) {
    block_->intervals[static_cast<std::size_t>(phase)].emplace_back(track, interval);
  }

  void TakeFlow(std::int64_t time_ns) {
    if (KindOf(event_.kind).launch_flow) return;
    store::SliceBlock& s = block_->slices;
    const std::int64_t id = IdOf(event_.id);
    const std::uint32_t track = TrackOf(event_.pid, event_.tid);
    if (s.rows() > 0 && s.time_ns.back() == time_ns && block_->lane_track[s.lane.back()] == track) {
      SetAt(s.rows() - 1, id, &s.flow);
      return;
    }
    pending_.push_back({id, track, time_ns});
  }

  void TakeNaming() {
    const bool process = event_.name == "process_name";
    if (!process && event_.name != "thread_name") return;
    for (const auto& [key, text, plain] : event_.members) {
      if (key != "name") continue;
      std::string name = UnescapedMost(Trimmed(Unquoted(text)), kMaxShortNameBytes);
      block_->namings.push_back({TrackOf(event_.pid, event_.tid), process, std::move(name)});
    }
  }

  void TakeCounter(std::int64_t time_ns) {
    const std::uint32_t track = TrackOf(event_.pid, event_.tid);
    const std::string name = UnescapedMost(event_.name, kMaxShortNameBytes);
    for (const auto& [key, text, plain] : event_.members) {
      const std::string_view word = Unquoted(text);
      double value = 0;
      const char* const end = word.data() + word.size();
      const auto [at, error] = std::from_chars(word.data(), end, value);
      if (error != std::errc() || at != end || !std::isfinite(value)) {
        Count(ChromeCount::kNotFinite, 1);
        continue;
      }
      std::string full = name;
      if (event_.members.size() > 1 || name.empty()) {
        full += "." + UnescapedMost(key, kMaxShortNameBytes);
      }
      block_->counters.push_back({time_ns, track, std::move(full), value});
    }
    TakeTime(time_ns, time_ns);
  }

  void TakeLoose(char phase, std::int64_t time_ns) {
    ChromeLoose loose{.phase = phase, .time_ns = time_ns, .track = TrackOf(event_.pid, event_.tid)};
    loose.name = UnescapedMost(event_.name, kMaxNameBytes);
    loose.kind = Unescaped(event_.kind);
    loose.id = std::string(event_.id_scope) + "/" + std::string(event_.id);
    loose.args = ArgsText();
    block_->loose.push_back(std::move(loose));
    TakeTime(time_ns, time_ns);
  }

  void Finish() {
    for (std::size_t phase = 0; phase < kChromePhases; ++phase) {
      for (std::uint32_t track = 0; track < open_[phase].size(); ++track) {
        const ChromeInterval& left = open_[phase][track];
        if (left.begin_ns != INT64_MAX) Flush(static_cast<ChromePhase>(phase), track, left);
      }
    }
    last_rows_ = block_->slices.rows();
    last_args_bytes_ = block_->slices.args.size();
    block_->flows = BindFlows(pending_, block_->tracks, block_);
    Count(ChromeCount::kNotFinite, faults_.not_finite);
    Count(ChromeCount::kReplacedBytes, faults_.replaced);
    Count(ChromeCount::kCutArguments, faults_.cut);
  }

  ondemand::parser parser_;
  ondemand::parser one_parser_;
  std::string one_;
  RawEvent event_;
  ChromeBlock* block_ = nullptr;
  WordCodes* names_ = nullptr;
  WordCodes* kinds_ = nullptr;
  std::vector<KindFacts> kind_facts_;
  std::vector<ChromeNameFacts> name_facts_;
  std::unordered_map<std::string, std::uint32_t> track_of_;
  std::map<LaneKey, std::uint32_t> lane_of_;
  std::array<std::vector<ChromeInterval>, kChromePhases> open_;
  std::vector<ChromeFlowEnd> pending_;
  ArgsFaults faults_;
  Recent<RecentTrack> recent_tracks_;
  Recent<RecentLane> recent_lanes_;
  Recent<RecentKind> recent_kinds_;
  std::size_t last_rows_ = 0;        ///< Of the block before.
  std::size_t last_args_bytes_ = 0;  ///< Of the block before.
};

BlockParser::BlockParser() : impl_(std::make_unique<Impl>()) {}
BlockParser::~BlockParser() = default;
std::unique_ptr<ChromeBlock> BlockParser::Parse(EventBlock* block, std::string_view window) {
  return impl_->Parse(block, window);
}

std::vector<ChromeFlowEnd> BindFlows(const std::vector<ChromeFlowEnd>& flows,
                                     const std::vector<ChromeTrack>& tracks, ChromeBlock* block) {
  std::vector<ChromeFlowEnd> left;
  if (flows.empty()) return left;
  store::SliceBlock& s = block->slices;
  // By the row's texts: tracks of two blocks have other numbers.
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < block->tracks.size(); ++i) {
    numbers.emplace(
        std::pair(std::string_view(block->tracks[i].pid), std::string_view(block->tracks[i].tid)),
        i);
  }
  std::unordered_map<std::uint32_t, std::vector<std::pair<std::int64_t, std::uint32_t>>> rows;
  for (const ChromeFlowEnd& end : flows) {
    const auto found = numbers.find({tracks[end.track].pid, tracks[end.track].tid});
    if (found == numbers.end()) {
      left.push_back(end);
      continue;
    }
    if (rows.empty()) {
      for (std::uint32_t row = 0; row < s.rows(); ++row) {
        rows[block->lane_track[s.lane[row]]].emplace_back(s.time_ns[row], row);
      }
      for (auto& [track, of_track] : rows) std::sort(of_track.begin(), of_track.end());
    }
    const auto& candidates = rows[found->second];
    auto at =
        std::upper_bound(candidates.begin(), candidates.end(), std::pair(end.time_ns, UINT32_MAX));
    // The innermost slice that is open then.
    bool bound = false;
    for (std::size_t tries = 0; at != candidates.begin() && tries < kMaxFlowSearch; ++tries) {
      --at;
      if (s.time_ns[at->second] + s.duration_ns[at->second] < end.time_ns) continue;
      if (s.flow.size() < s.rows()) s.flow.resize(s.rows());
      s.flow[at->second] = end.id;
      bound = true;
      break;
    }
    if (!bound) left.push_back(end);
  }
  return left;
}

ChromeHeader ReadChromeHeader(std::string_view json) {
  ChromeHeader header;
  if (json.empty()) return header;
  const nlohmann::json all = ParseJson(json);
  if (!all.is_object()) {
    header.damaged = true;
    return header;
  }
  std::set<std::string_view> keys;
  JsonScanner scanner(json);
  if (scanner.FindObject()) {
    scanner.ReadObject([&](std::string_view key, const JsonValue&) {
      if (!keys.insert(key).second) ++header.duplicate_keys;
    });
  }
  const auto integer = [](const nlohmann::json& in, const char* key, std::int64_t otherwise) {
    const auto found = in.find(key);
    if (found == in.end() || !found->is_number()) return otherwise;
    // What is beyond 64 bits is a floating-point number to the parser.
    const double number = found->get<double>();
    if (!(std::fabs(number) < 9e18)) return otherwise;
    return found->is_number_float() ? static_cast<std::int64_t>(number)
                                    : found->get<std::int64_t>();
  };
  header.kineto = all.contains("schemaVersion") || all.contains("deviceProperties");
  header.base_ns = integer(all, "baseTimeNanoseconds", 0);
  if (header.base_ns < -kMaxNs || header.base_ns > kMaxNs) {
    header.base_ns = 0;
    header.damaged = true;
  }
  if (const auto found = all.find("distributedInfo"); found != all.end() && found->is_object()) {
    header.rank = integer(*found, "rank", -1);
    header.world_size = integer(*found, "world_size", 0);
    if (const auto backend = found->find("backend");
        backend != found->end() && backend->is_string()) {
      header.backend = backend->get<std::string>();
    }
  }
  if (const auto found = all.find("deviceProperties"); found != all.end()) {
    header.devices = JsonText(*found);
  }
  return header;
}

}  // namespace telltale::interchange
