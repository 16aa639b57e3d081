// SPDX-License-Identifier: Apache-2.0
#include "format/batch.h"

#include <array>
#include <cstring>
#include <type_traits>

#include "base/utf8.h"
#include "format/batch_encoder.h"
#include "format/bounds.h"
#include "format/wire.h"

namespace telltale::format {
namespace {

constexpr std::size_t SizeOf(ColumnType type) {
  switch (type) {
    case ColumnType::kI32:
    case ColumnType::kU32:
    case ColumnType::kStr:
      return 4;
    case ColumnType::kI64:
    case ColumnType::kU64:
    case ColumnType::kF64:
      return 8;
    case ColumnType::kBool:
      return 1;
  }
  return 0;
}

constexpr std::uint8_t kSeqColumn = 1;

template <class Row>
void EncodeGroup(const std::vector<Row>& rows, TextIndex* texts, std::string* out) {
  Put(out, static_cast<std::uint8_t>(Row::kTable));
  Put(out, rows.front().seq);
  Put(out, static_cast<std::uint32_t>(rows.size()));
  const std::size_t count_at = out->size();
  std::uint8_t columns = 0;
  Put(out, columns);
  ForEachColumn<Row>([&](const ColumnDesc& desc, auto member) {
    if (desc.id == kSeqColumn) return;
    ++columns;
    Put(out, desc.id);
    Put(out, static_cast<std::uint8_t>(desc.type));
    const std::size_t begin = out->size();
    out->resize(begin + rows.size() * SizeOf(desc.type));
    char* at = out->data() + begin;
    const auto put = [&at](auto value) {
      std::memcpy(at, &value, sizeof value);
      at += sizeof value;
    };
    for (const Row& row : rows) {
      using Value = std::remove_cvref_t<decltype(row.*member)>;
      if constexpr (std::is_same_v<Value, std::string_view>) {
        put(texts->Of(row.*member));
      } else if constexpr (std::is_same_v<Value, bool>) {
        put(static_cast<std::uint8_t>(row.*member ? 1 : 0));
      } else {
        put(row.*member);
      }
    }
  });
  (*out)[count_at] = static_cast<char>(columns);
}

template <class Row>
bool DecodeGroup(WireReader* in, std::uint64_t first_seq, std::uint32_t n,
                 const std::vector<std::string_view>& texts, std::vector<Row>* out) {
  const std::size_t begin = out->size();
  const auto columns = in->Get<std::uint8_t>();
  // Every column takes at least a byte a row.
  if (!in->ok() || columns == 0 || n > in->remaining()) return false;
  out->resize(begin + n);
  for (std::uint32_t i = 0; i < n; ++i) (*out)[begin + i].seq = first_seq + i;
  for (int c = 0; c < columns; ++c) {
    const auto id = in->Get<std::uint8_t>();
    const auto type = static_cast<ColumnType>(in->Get<std::uint8_t>());
    const std::size_t size = SizeOf(type);
    if (!in->ok() || size == 0) return false;
    const std::string_view raw = in->Bytes(size * n);
    if (!in->ok()) return false;
    bool good = true;
    ForEachColumn<Row>([&](const ColumnDesc& desc, auto member) {
      if (desc.id != id || desc.type != type || desc.id == kSeqColumn) return;
      WireReader column(raw);
      for (std::uint32_t i = 0; i < n; ++i) {
        auto& field = (*out)[begin + i].*member;
        using Value = std::remove_cvref_t<decltype(field)>;
        if constexpr (std::is_same_v<Value, std::string_view>) {
          const auto index = column.Get<std::uint32_t>();
          if (index >= texts.size()) {
            good = false;
            return;
          }
          field = texts[index];
        } else if constexpr (std::is_same_v<Value, bool>) {
          field = column.Get<std::uint8_t>() != 0;
        } else {
          field = column.Get<Value>();
        }
      }
    });
    if (!good) return false;
  }
  return true;
}

bool SkipGroup(WireReader* in, std::uint32_t n) {
  const auto columns = in->Get<std::uint8_t>();
  for (int c = 0; c < columns; ++c) {
    in->Get<std::uint8_t>();
    const std::size_t size = SizeOf(static_cast<ColumnType>(in->Get<std::uint8_t>()));
    if (!in->ok() || size == 0) return false;
    in->Bytes(size * n);
  }
  return in->ok();
}

}  // namespace

void BatchEncoder::Encode(const Batch& batch, std::string* out) {
  texts_.Clear();
  groups_.clear();
  std::uint8_t group_count = 0;
  ForEachTable(batch.rows, [&](const auto& rows) {
    if (rows.empty()) return;
    ++group_count;
    EncodeGroup(rows, &texts_, &groups_);
  });
  Put(out, static_cast<std::uint8_t>(JournalRecord::kBatch));
  Put(out, batch.watermark_ns);
  Put(out, static_cast<std::uint16_t>(batch.positions.size()));
  for (const RingPosition& p : batch.positions) {
    Put(out, p.producer);
    Put(out, p.ring);
    Put(out, p.position);
  }
  Put(out, static_cast<std::uint32_t>(texts_.texts().size()));
  for (const std::string_view text : texts_.texts()) PutString(out, text);
  Put(out, group_count);
  out->append(groups_);
}

void EncodeBatch(const Batch& batch, std::string* out) { BatchEncoder().Encode(batch, out); }

Status DecodeBatch(std::string_view bytes, StringPool* pool, Batch* out) {
  const auto bad = [](const char* what) {
    return Status(Code::kUnusable, std::string("malformed batch: ") + what);
  };
  WireReader in(bytes);
  const auto kind = static_cast<JournalRecord>(in.Get<std::uint8_t>());
  if (kind != JournalRecord::kBatch && kind != JournalRecord::kBatchPart) {
    return bad("not a batch");
  }
  out->watermark_ns = in.Get<std::int64_t>();
  if (!IsWatermark(out->watermark_ns)) return bad("its watermark cannot be");
  const auto positions = in.Get<std::uint16_t>();
  for (int i = 0; i < positions && in.ok(); ++i) {
    RingPosition& p = out->positions.emplace_back();
    p.producer = in.Get<std::array<std::uint8_t, 16>>();
    p.ring = in.Get<std::uint16_t>();
    p.position = in.Get<std::uint64_t>();
  }
  const auto strings = in.Get<std::uint32_t>();
  std::vector<std::string_view> texts;
  std::string mended;
  for (std::uint32_t i = 0; i < strings && in.ok(); ++i) {
    const std::string_view text = in.String();
    if (in.ok()) texts.push_back(pool->Intern(ToValidUtf8(text, &mended)));
  }
  const auto groups = in.Get<std::uint8_t>();
  if (!in.ok()) return bad("cut before the groups");
  std::uint64_t rows_in_all = 0;
  for (int g = 0; g < groups; ++g) {
    const auto table = static_cast<TableId>(in.Get<std::uint8_t>());
    const auto first_seq = in.Get<std::uint64_t>();
    const auto n = in.Get<std::uint32_t>();
    rows_in_all += n;
    if (rows_in_all > kMaxBatchRows) return bad("more rows than a record of ours has");
    bool known = false;
    bool good = in.ok();
    ForEachTable(out->rows, [&](auto& rows) {
      using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
      if (!good || known || Row::kTable != table) return;
      known = true;
      good = DecodeGroup(&in, first_seq, n, texts, &rows);
    });
    if (good && !known) good = SkipGroup(&in, n);
    if (!good) return bad("a group of rows does not fit its length");
  }
  if (in.remaining() != 0) return bad("bytes behind the last group");
  return {};
}

}  // namespace telltale::format
