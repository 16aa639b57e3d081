// SPDX-License-Identifier: Apache-2.0
// Takes events apart as writers of traces write them: objects of texts, words and nested values,
// one behind the other, in one pass over their text. What is of another form is left to who can
// tell damage from JSON (block_parser.cc).
//
// Thread safety: none. Memory: that of KnownKeys; views into the text.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "interchange/chrome/known_keys.h"
#include "interchange/json_scan.h"

namespace telltale::interchange {

/// One event as its text has it: texts without quotes, escapes as they are.
struct RawEvent {
  std::string_view phase, kind, name, pid, tid, ts, dur, id, id_scope;
  struct Member {
    std::string_view key, text;
    bool plain = false;  ///< Known to be JSON of no escapes; no blanks around the value.
  };
  /// Of its arguments, where they are an object: keys without, values with their quotes.
  std::vector<Member> members;
  std::uint32_t seen = 0;
  bool duplicate = false;

  void Clear() {
    phase = kind = name = pid = tid = ts = dur = id = id_scope = {};
    members.clear();
    seen = 0;
    duplicate = false;
  }

  enum Key : std::uint32_t { kPh, kCat, kName, kPid, kTid, kTs, kDur, kId, kScope, kArgs, kOther };
  static Key KeyOf(std::string_view key) {
    switch (key.size()) {
      case 2:
        if (JsonIs(key, "ph")) return kPh;
        if (JsonIs(key, "ts")) return kTs;
        if (JsonIs(key, "id")) return kId;
        break;
      case 3:
        if (JsonIs(key, "cat")) return kCat;
        if (JsonIs(key, "pid")) return kPid;
        if (JsonIs(key, "tid")) return kTid;
        if (JsonIs(key, "dur")) return kDur;
        if (JsonIs(key, "id2")) return kId;
        break;
      case 4:
        if (JsonIs(key, "name")) return kName;
        if (JsonIs(key, "args")) return kArgs;
        break;
      case 5:
        if (JsonIs(key, "scope")) return kScope;
        break;
      default:
        break;
    }
    return kOther;
  }
  /// A key was seen.
  void See(Key key) {
    if ((seen & (1U << key)) != 0) duplicate = true;
    seen |= 1U << key;
  }
  /// Of all but kArgs and kOther.
  void Set(Key key, std::string_view text) {
    static constexpr std::array<std::string_view RawEvent::*, 9> kMembers = {
        &RawEvent::phase, &RawEvent::kind, &RawEvent::name, &RawEvent::pid,     &RawEvent::tid,
        &RawEvent::ts,    &RawEvent::dur,  &RawEvent::id,   &RawEvent::id_scope};
    if (key < kMembers.size()) this->*kMembers[key] = text;
  }
};

class EventReader {
 public:
  /// `text`: a JSON array of events in valid UTF-8, with kReadable blanks behind it.
  explicit EventReader(std::string_view text)
      : begin_(text.data()), taken_(begin_), end_(begin_ + text.size()) {}
  static constexpr std::size_t kReadable = 32;

  /// The next event. False at the end, or where what follows is not of the form.
  bool Next(RawEvent* event);

  /// Bytes up to the end of the last event; all at the end of the array.
  std::size_t taken() const { return static_cast<std::size_t>(taken_ - begin_); }

 private:
  const char* const begin_;
  const char* taken_;
  const char* const end_;
  KnownKeys keys_;
  KnownKeys::Behind first_{};  ///< Of an event.
};

}  // namespace telltale::interchange
