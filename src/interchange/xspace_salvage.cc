// SPDX-License-Identifier: Apache-2.0
// Fields as XProf's xplane.proto numbers them. No length can be trusted, so events and names are
// known by the fields with which they begin.
#include "interchange/xspace_salvage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace telltale::interchange {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::uint16_t kUnknownByte = 0x100;  ///< Some byte above 127.
constexpr std::size_t kMaxSalvagedNames = 1U << 20;

/// Tags of fields.
constexpr std::uint16_t kEventsOrNames = 0x22;  ///< Events of a line, names of a plane.
constexpr std::uint16_t kFirstNumber = 0x08;    ///< An event's name, a map's key.
constexpr std::uint16_t kOffsetTag = 0x10;
constexpr std::uint16_t kDurationTag = 0x18;
constexpr std::uint16_t kTextTag = 0x12;
constexpr std::uint16_t kLinesTag = 0x1A;

struct Salvaged {
  std::uint64_t number = 0;
  bool whole = true;
};

class Salvage {
 public:
  Salvage(std::string_view bytes, TraceSource* source) : source_(source) {
    bytes_.reserve(bytes.size());
    for (std::size_t i = 0; i < bytes.size();) {
      const bool replaced = bytes.substr(i).starts_with(kReplacement);
      bytes_.push_back(replaced ? kUnknownByte : static_cast<std::uint8_t>(bytes[i]));
      i += replaced ? kReplacement.size() : 1;
    }
  }

  Status Run() {
    ReadNames();
    std::string line;
    std::uint64_t whole = 0;
    std::uint64_t broken = 0;
    for (at_ = 0; at_ < bytes_.size();) {
      const std::size_t begin = at_;
      if (const auto name = LineName()) line = *name;
      at_ = begin;
      const auto event = Event();
      if (!event) {
        at_ = begin + 1;
        continue;
      }
      const auto name = names_.find(event->name.number);
      if (!event->name.whole || !event->offset.whole || !event->duration.whole ||
          name == names_.end() || event->offset.number > INT64_MAX ||
          event->duration.number > INT64_MAX - event->offset.number) {
        ++broken;
        continue;
      }
      ++whole;
      Emit(name->second, line, event->offset.number, event->duration.number);
    }
    source_->Damaged(broken, "an event whose time or name was destroyed");
    source_->Note(fmt::format(
        "it went through a program for text, which replaced {} bytes: {} of {} events and {} names "
        "are whole; copy the file anew as binary",
        replaced(), whole, whole + broken, names_.size()));
    if (whole == 0) {
      return {Code::kUnusable,
              "it went through a program for text, and no event is whole: copy the file anew as "
              "binary"};
    }
    return {};
  }

 private:
  struct EventSeen {
    Salvaged name, offset, duration;
  };

  std::size_t replaced() const {
    return static_cast<std::size_t>(std::count(bytes_.begin(), bytes_.end(), kUnknownByte));
  }

  bool Take(std::uint16_t tag) {
    if (at_ >= bytes_.size() || bytes_[at_] != tag) return false;
    ++at_;
    return true;
  }
  std::optional<Salvaged> Number() {
    Salvaged out;
    for (int i = 0; i < 10 && at_ < bytes_.size(); ++i) {
      const std::uint16_t byte = bytes_[at_++];
      if (byte == kUnknownByte) {
        out.whole = false;
        continue;
      }
      out.number |= static_cast<std::uint64_t>(byte & 0x7F) << (7 * i);
      if ((byte & 0x80) == 0) return out;
    }
    return std::nullopt;
  }
  /// A text of printable characters, which are all below 128.
  std::optional<std::string> Text() {
    const auto size = Number();
    if (!size || !size->whole || size->number == 0 || size->number > bytes_.size() - at_) {
      return std::nullopt;
    }
    std::string out;
    for (std::uint64_t i = 0; i < size->number; ++i) {
      const std::uint16_t byte = bytes_[at_ + i];
      if (byte < 0x20 || byte > 0x7E) return std::nullopt;
      out += static_cast<char>(byte);
    }
    at_ += size->number;
    return out;
  }

  /// Map entries: 22 length 08 key 12 length { 08 id 12 name }.
  void ReadNames() {
    for (std::size_t begin = 0; begin < bytes_.size(); ++begin) {
      at_ = begin;
      if (!Take(kEventsOrNames) || !Number() || !Take(kFirstNumber)) continue;
      const auto key = Number();
      if (!key || !key->whole || !Take(kTextTag) || !Number() || !Take(kFirstNumber)) continue;
      const auto id = Number();
      if (!id || !id->whole || id->number != key->number || !Take(kTextTag)) continue;
      const auto name = Text();
      if (name && names_.size() < kMaxSalvagedNames) names_.emplace(key->number, *name);
    }
  }

  std::optional<std::string> LineName() {
    if (!Take(kLinesTag) || !Number() || !Take(kFirstNumber) || !Number() || !Take(kTextTag)) {
      return std::nullopt;
    }
    return Text();
  }

  std::optional<EventSeen> Event() {
    if (!Take(kEventsOrNames)) return std::nullopt;
    const auto size = Number();
    if (!size || !Take(kFirstNumber)) return std::nullopt;
    const auto name = Number();
    if (!name || !Take(kOffsetTag)) return std::nullopt;
    const auto offset = Number();
    if (!offset || !Take(kDurationTag)) return std::nullopt;
    const auto duration = Number();
    if (!duration) return std::nullopt;
    return EventSeen{*name, *offset, *duration};
  }

  void Emit(const std::string& name, const std::string& line, std::uint64_t offset_ps,
            std::uint64_t duration_ps) {
    constexpr std::uint64_t kPs = 1000;
    format::SliceRow row;
    row.time_ns = static_cast<std::int64_t>(offset_ps / kPs);
    row.duration_ns = static_cast<std::int64_t>(duration_ps / kPs);
    row.name = name;
    row.category = "other";  // Of which plane it is cannot be known.
    row.kind = line;
    row.lane = line;
    row.step = -1;
    row.device = -1;
    row.stream = -1;
    source_->Slice(row);
  }

  TraceSource* const source_;
  std::vector<std::uint16_t> bytes_;
  std::size_t at_ = 0;
  std::unordered_map<std::uint64_t, std::string> names_;
};

}  // namespace

bool WentThroughText(std::string_view bytes) {
  std::size_t replaced = 0;
  for (std::size_t at = bytes.find(kReplacement); at != std::string_view::npos;
       at = bytes.find(kReplacement, at + kReplacement.size())) {
    ++replaced;
  }
  return replaced * 50 > bytes.size();
}

Status SalvageXSpace(std::string_view bytes, TraceSource* source) {
  return Salvage(bytes, source).Run();
}

}  // namespace telltale::interchange
