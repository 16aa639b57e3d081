// SPDX-License-Identifier: Apache-2.0
#include "channel/record_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "format/bounds.h"
#include "format/dtypes.h"

namespace telltale::channel {
namespace {

using format::RecordHeader;
using format::RecordKind;

constexpr std::string_view kModes[] = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
constexpr std::string_view kCategories[] = {"user", "phase", "data", "runtime", "module"};
constexpr std::string_view kSeverities[] = {"info", "low", "medium", "high"};
/// Most dimensions of a tensor: TT_MAX_DIMS.
constexpr std::size_t kMaxDims = 16;

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

std::string ListText(std::span<const std::int64_t> values) {
  std::string out = "[";
  for (const std::int64_t value : values) {
    if (out.size() > 1) out += ',';
    out += std::to_string(value);
  }
  return out += ']';
}

/// As JSON, which has no NaN.
std::string ListText(std::span<const double> values) {
  std::string out = "[";
  for (const double value : values) {
    if (out.size() > 1) out += ',';
    char text[32] = "null";
    if (std::isfinite(value)) std::snprintf(text, sizeof text, "%.17g", value);
    out += text;
  }
  return out += ']';
}

/// Bytes of the values; nothing where a size is negative or the product is too large.
std::optional<std::uint64_t> ValueBytes(std::span<const std::int64_t> shape,
                                        std::uint64_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
  }
  if (empty) return 0;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

/// Takes a row whose numbers can be.
template <class Row>
bool Take(const Row& row, std::vector<Row>* rows) {
  if (!format::InBounds(row)) return false;
  rows->push_back(row);
  return true;
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

std::string_view RecordReader::Intern(std::string_view text) {
  const std::string_view interned = pool_->Intern(text);
  return interned.data() == nullptr ? std::string_view("") : interned;
}

const RecordReader::NameViews* RecordReader::Find(std::uint32_t id) {
  if (id > names_.size()) return nullptr;
  NameViews& views = id < views_.size() ? views_[id] : more_views_[id];
  if (views.name.data() != nullptr) return &views;
  if (id == 0) {
    views.name = "(folded)";
    return &views;
  }
  std::string_view text = names_[id - 1];
  if (!text.empty() && text[0] == format::kTensorMark) {
    text.remove_prefix(1);
    // Without the second mark it is a collection alone.
    const std::size_t end = std::min(text.find(format::kTensorMark), text.size());
    views.collection = Intern(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  views.name = Intern(text);
  return &views;
}

bool RecordReader::Name(std::uint32_t id, std::string_view* out) {
  const NameViews* views = Find(id);
  if (views == nullptr) return false;
  *out = views->name;
  return true;
}

bool RecordReader::TensorName(std::uint32_t id, std::string_view* name,
                              std::string_view* collection) {
  const NameViews* views = Find(id);
  if (views == nullptr) return false;
  *name = views->name;
  *collection = views->collection;
  return true;
}

bool RecordReader::Time(std::uint64_t ticks, std::int64_t* out) const {
  const auto monotonic = clock_.ToMonotonicNs(ticks);
  if (!monotonic) return false;
  *out = *monotonic + offset_ns_;
  return true;
}

ReadResult RecordReader::Read(std::string_view bytes, Drained* out) {
  format::Rows* rows = &out->rows;
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
      good = fits && ReadSpan(record, out);
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
      good = fits && ReadStat(record, false, rows);
      break;
    case RecordKind::kStatMore:
      fits = header.size >= sizeof(format::StatMoreRecord);
      good = fits && ReadStat(record, true, rows);
      break;
    case RecordKind::kHistogram:
      fits = header.size >= sizeof(format::HistogramRecord);
      good = fits && ReadHistogram(record, rows);
      break;
    case RecordKind::kTensor:
      fits = header.size >= sizeof(format::TensorRecord);
      good = fits && ReadTensor(record, out);
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

bool RecordReader::ReadSpan(std::string_view bytes, Drained* out) {
  const auto r = Load<format::SpanRecord>(bytes);
  const unsigned category = format::SpanCategory(r.header.flags);
  format::SpanRow row;
  std::int64_t end = 0;
  if (category >= std::size(kCategories) || !Name(r.header.name, &row.name) ||
      !Time(r.begin, &row.time_ns) || !Time(r.begin + r.duration, &end)) {
    return false;
  }
  row.duration_ns = std::max<std::int64_t>(0, end - row.time_ns);
  row.ord_ns = row.time_ns + row.duration_ns;
  row.category = kCategories[category];
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.step = r.step;
  row.rank = info_.rank;
  row.pid = info_.pid;
  row.tid = tid_;
  return Take(row, (r.header.flags & format::kDetailFlag) != 0 ? &out->details : &out->rows.spans);
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
  return Take(row, &rows->steps);
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
  return Take(row, &rows->scalars);
}

bool RecordReader::ReadStat(std::string_view bytes, bool more, format::Rows* rows) {
  const auto r = Load<format::StatRecord>(bytes);
  format::StatisticRow row;
  if (!TensorName(r.header.name, &row.name, &row.collection) || !Time(r.time, &row.time_ns) ||
      r.dtype >= format::kDtypeCount) {
    return false;
  }
  // A name that is no tensor's: the record says the collection.
  if (row.collection.data() == nullptr && !Name(r.collection, &row.collection)) return false;
  if (more) {
    const auto m = Load<format::StatMoreRecord>(bytes);
    row.more = true;
    row.abs_min = m.abs_min;
    row.abs_std = m.abs_std;
    row.prod = m.prod;
  }
  row.ord_ns = row.time_ns;
  row.dtype = format::kDtypes[r.dtype].name;
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
  return Take(row, &rows->statistics);
}

bool RecordReader::ReadHistogram(std::string_view bytes, format::Rows* rows) {
  const auto r = Load<format::HistogramRecord>(bytes);
  format::HistogramRow row;
  if (!TensorName(r.header.name, &row.name, &row.collection) || !Time(r.time, &row.time_ns) ||
      r.dtype >= format::kDtypeCount || r.taken > r.count) {
    return false;
  }
  std::int64_t bins[format::kHistogramBins];
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < format::kHistogramBins; ++i) {
    if (r.bins[i] > r.taken) return false;
    sum += r.bins[i];
    bins[i] = static_cast<std::int64_t>(r.bins[i]);
  }
  if (sum != r.taken) return false;
  if (row.collection.data() == nullptr) row.collection = "";
  row.ord_ns = row.time_ns;
  row.dtype = format::kDtypes[r.dtype].name;
  row.step = r.step;
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.rank = info_.rank;
  row.pid = info_.pid;
  row.count = r.count;
  row.taken = r.taken;
  row.min = r.min;
  row.max = r.max;
  row.bins = Intern(ListText(std::span<const std::int64_t>(bins)));
  row.quantiles = Intern(ListText(std::span<const double>(r.quantiles)));
  return Take(row, &rows->histograms);
}

bool RecordReader::ReadTensor(std::string_view bytes, Drained* out) {
  const auto r = Load<format::TensorRecord>(bytes);
  DrainedTensor tensor;
  if (!TensorName(r.header.name, &tensor.name, &tensor.collection) ||
      !Time(r.time, &tensor.time_ns) || r.dtype >= format::kDtypeCount || r.ndim > kMaxDims) {
    return false;
  }
  if (tensor.collection.data() == nullptr) tensor.collection = "";
  std::string_view rest = bytes.substr(sizeof r);
  const std::size_t shape_bytes = r.ndim * sizeof(std::int64_t);
  if (rest.size() < shape_bytes) return false;
  tensor.shape.resize(r.ndim);
  if (shape_bytes > 0) std::memcpy(tensor.shape.data(), rest.data(), shape_bytes);
  rest.remove_prefix(shape_bytes);
  const auto value_bytes = ValueBytes(tensor.shape, format::DtypeBytes(r.dtype));
  if (!value_bytes) return false;
  format::TensorRow row;
  row.name = tensor.name;
  row.collection = tensor.collection;
  row.ord_ns = row.time_ns = tensor.time_ns;
  row.dtype = format::kDtypes[r.dtype].safetensors;
  row.step = r.step;
  row.mode = kModes[r.header.flags & format::kModeMask];
  row.rank = info_.rank;
  row.pid = info_.pid;
  if ((r.header.flags & format::kShapeOnlyFlag) != 0) {
    row.shape = Intern(ListText(std::span<const std::int64_t>(tensor.shape)));
    return Take(row, &out->rows.tensors);
  }
  row.bytes = r.bytes;
  if (r.bytes != *value_bytes || !format::InBounds(row)) return false;
  if ((r.header.flags & format::kInlineFlag) != 0) {
    if (r.bytes > rest.size()) return false;
    tensor.values.assign(rest.substr(0, r.bytes));
  } else {
    tensor.slot = r.slot;
  }
  tensor.step = row.step;
  tensor.mode = row.mode;
  tensor.rank = row.rank;
  tensor.pid = row.pid;
  tensor.dtype = r.dtype;
  tensor.bytes = r.bytes;
  out->tensors.push_back(std::move(tensor));
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
  return Take(row, &rows->events);
}

}  // namespace telltale::channel
