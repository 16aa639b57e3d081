// SPDX-License-Identifier: Apache-2.0
#include "channel/record_reader.h"

#include <algorithm>
#include <cstring>

namespace telltale::channel {
namespace {

using format::RecordHeader;
using format::RecordKind;

constexpr std::string_view kModes[] = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
constexpr std::string_view kCategories[] = {"user", "phase", "data", "runtime"};
constexpr std::string_view kSeverities[] = {"info", "low", "medium", "high"};
constexpr std::string_view kDtypes[] = {"float32", "float64", "float16", "bfloat16", "int64",
                                        "int32",   "int16",   "int8",    "uint8",    "bool"};

template <class T>
T Load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// Length of the UTF-8 sequence at the begin of `text`, 0 where there is none.
std::size_t Utf8Length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // Bounds of the second byte.
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length || at(1) < low || at(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string PrintableUtf8(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t length = Utf8Length(text);
    if (length != 0) {
      out.append(text.substr(0, length));
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      out.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
      length = 1;
    }
    text.remove_prefix(length);
  }
  return out;
}

bool RecordReader::Name(std::uint32_t id, std::string_view* out) {
  if (id >= views_.size()) return false;
  if (views_[id].data() == nullptr) {
    views_[id] = id == 0 ? std::string_view("(folded)") : pool_->Intern(names_[id - 1]);
    if (views_[id].data() == nullptr) views_[id] = "";
  }
  *out = views_[id];
  return true;
}

bool RecordReader::Time(std::uint64_t ticks, std::int64_t* out) const {
  const auto monotonic = clock_.ToMonotonicNs(ticks);
  if (!monotonic) return false;
  *out = *monotonic + offset_ns_;
  return true;
}

ReadResult RecordReader::Read(std::string_view bytes, format::Rows* rows) {
  if (bytes.size() < sizeof(RecordHeader)) return {};
  const auto header = Load<RecordHeader>(bytes);
  if (header.size < sizeof header || header.size % format::kRecordAlign != 0 ||
      header.size > format::kMaxRecordBytes || header.size > bytes.size()) {
    return {};
  }
  const std::string_view record = bytes.substr(0, header.size);
  bool good = true;
  bool fits = true;
  switch (static_cast<RecordKind>(header.kind)) {
    case RecordKind::kPad:
      return {header.size, false};
    case RecordKind::kSpan:
      fits = header.size >= sizeof(format::SpanRecord);
      good = fits && ReadSpan(record, rows);
      break;
    case RecordKind::kStep:
      fits = header.size >= sizeof(format::StepRecord);
      good = fits && ReadStep(record, rows);
      break;
    case RecordKind::kScalar:
      fits = header.size >= sizeof(format::ScalarRecord);
      good = fits && ReadScalar(record, rows);
      break;
    case RecordKind::kStat:
      fits = header.size >= sizeof(format::StatRecord);
      good = fits && ReadStat(record, rows);
      break;
    case RecordKind::kEvent:
      fits = header.size >= sizeof(format::EventRecord);
      good = fits && ReadEvent(record, rows);
      break;
    default:
      // Not of this version: whatever it was, it is not stored.
      good = false;
  }
  if (!fits) return {};
  if (!good) ++malformed_;
  return {header.size, true};
}

bool RecordReader::ReadSpan(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::SpanRecord>(bytes);
  format::SpanRow row;
  std::int64_t end = 0;
  if (!Name(r.header.name, &row.name) || !Time(r.begin, &row.time_ns) ||
      !Time(r.begin + r.duration, &end)) {
    return false;
  }
  row.duration_ns = std::max<std::int64_t>(0, end - row.time_ns);
  row.ord_ns = row.time_ns + row.duration_ns;
  row.category = kCategories[(r.header.flags >> format::kCategoryShift) & 3];
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.step = r.step;
  row.rank = info_.rank;
  row.pid = info_.pid;
  row.tid = tid_;
  rows->spans.push_back(row);
  return true;
}

bool RecordReader::ReadStep(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::StepRecord>(bytes);
  format::StepRow row;
  std::int64_t end = 0;
  if (!Time(r.begin, &row.time_ns) || !Time(r.begin + r.duration, &end)) return false;
  row.duration_ns = std::max<std::int64_t>(0, end - row.time_ns);
  row.ord_ns = row.time_ns + row.duration_ns;
  row.step = r.step;
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.skipped = (r.header.flags & format::kSkippedFlag) != 0;
  row.rank = info_.rank;
  row.pid = info_.pid;
  // Each phase is a part of what is left, so that all six sum to the duration whatever was rounded.
  std::int64_t left = row.duration_ns;
  std::int64_t phases[5];
  for (int i = 0; i < 5; ++i) {
    const double ns = static_cast<double>(r.phases[i]) * clock_.ns_per_tick();
    phases[i] = ns < static_cast<double>(left) ? static_cast<std::int64_t>(ns) : left;
    left -= phases[i];
  }
  row.data_wait_ns = phases[0];
  row.forward_ns = phases[1];
  row.backward_ns = phases[2];
  row.optimizer_ns = phases[3];
  row.comm_wait_ns = phases[4];
  row.other_ns = left;
  row.micro_steps = r.micro_steps;
  row.optimizer_calls = r.optimizer_calls;
  row.batch_size = r.batch_size;
  const double probe_ns = static_cast<double>(r.probe) * clock_.ns_per_tick();
  row.probe_ns = probe_ns < static_cast<double>(row.duration_ns)
                     ? static_cast<std::int64_t>(probe_ns)
                     : row.duration_ns;
  rows->steps.push_back(row);
  return true;
}

bool RecordReader::ReadScalar(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::ScalarRecord>(bytes);
  format::ScalarRow row;
  if (!Name(r.header.name, &row.name) || !Time(r.time, &row.time_ns)) return false;
  row.ord_ns = row.time_ns;
  row.value = r.value;
  row.step = r.step;
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.rank = info_.rank;
  row.pid = info_.pid;
  rows->scalars.push_back(row);
  return true;
}

bool RecordReader::ReadStat(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::StatRecord>(bytes);
  format::StatisticRow row;
  if (!Name(r.header.name, &row.name) || !Name(r.collection, &row.collection) ||
      !Time(r.time, &row.time_ns) || r.dtype >= std::size(kDtypes)) {
    return false;
  }
  row.ord_ns = row.time_ns;
  row.dtype = kDtypes[r.dtype];
  row.step = r.step;
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.rank = info_.rank;
  row.pid = info_.pid;
  row.count = r.count;
  row.nan_count = r.nan_count;
  row.inf_count = r.inf_count;
  row.zero_count = r.zero_count;
  row.min = r.min;
  row.max = r.max;
  row.mean = r.mean;
  row.std = r.std;
  row.l1 = r.l1;
  row.l2 = r.l2;
  rows->statistics.push_back(row);
  return true;
}

bool RecordReader::ReadEvent(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::EventRecord>(bytes);
  format::EventRow row;
  const std::string_view text = bytes.substr(sizeof r);
  if (std::size_t{r.message_bytes} + r.data_bytes > text.size() ||
      !Name(r.header.name, &row.kind) || !Time(r.time, &row.time_ns)) {
    return false;
  }
  if (r.subject != 0 && !Name(r.subject, &row.subject)) return false;
  row.ord_ns = row.time_ns;
  row.severity = kSeverities[r.header.flags & 3];
  row.message = pool_->Intern(PrintableUtf8(text.substr(0, r.message_bytes)));
  row.data = pool_->Intern(PrintableUtf8(text.substr(r.message_bytes, r.data_bytes)));
  row.step = r.step;
  row.rank = info_.rank;
  row.pid = info_.pid;
  rows->events.push_back(row);
  return true;
}

}  // namespace telltale::channel
