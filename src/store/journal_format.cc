// SPDX-License-Identifier: Apache-2.0
#include "store/journal_format.h"

#include <fmt/core.h>

#include <algorithm>

#include "format/bounds.h"
#include "format/wire.h"

namespace telltale::store {
namespace {

using format::JournalRecord;
using format::Put;
using format::PutString;
using format::WireReader;

void PutSeqs(std::string* out, const NextSeqs& seqs) {
  const std::size_t count_at = out->size();
  Put<std::uint8_t>(out, 0);
  std::uint8_t count = 0;
  for (const format::TableDesc& table : format::kTables) {
    const auto id = static_cast<std::uint8_t>(table.id);
    Put(out, id);
    Put(out, seqs[id]);
    ++count;
  }
  (*out)[count_at] = static_cast<char>(count);
}

void GetSeqs(WireReader* in, NextSeqs* seqs) {
  const auto count = in->Get<std::uint8_t>();
  for (int i = 0; i < count && in->ok(); ++i) {
    const auto id = in->Get<std::uint8_t>();
    (*seqs)[id] = in->Get<std::uint64_t>();
  }
}

bool KindIs(WireReader* in, JournalRecord kind) {
  return in->Get<std::uint8_t>() == static_cast<std::uint8_t>(kind);
}

/// Whether numbers of a foreign file can be; behind them nobody asks again.
bool Possible(const NextSeqs& seqs) {
  return std::all_of(seqs.begin(), seqs.end(), [](std::uint64_t seq) {
    return seq == 0 || format::kAmountBound.Has(seq - 1);
  });
}

Status Malformed(const char* what) {
  return {Code::kUnusable, fmt::format("malformed journal record: {}", what)};
}

}  // namespace

std::string Encode(const JournalHeader& header) {
  std::string out;
  Put(&out, static_cast<std::uint8_t>(JournalRecord::kHeader));
  Put(&out, kJournalMagic);
  Put(&out, header.major);
  Put(&out, header.minor);
  PutString(&out, header.writer);
  Put(&out, header.number);
  Put(&out, header.monotonic_to_run_ns);
  PutString(&out, header.boot_id);
  Put(&out, header.created_ns);
  Put(&out, header.watermark_ns);
  PutSeqs(&out, header.next_seq);
  return out;
}

std::string Encode(const SealedRecord& sealed) {
  std::string out;
  Put(&out, static_cast<std::uint8_t>(JournalRecord::kSealed));
  Put(&out, sealed.table);
  Put(&out, sealed.journal);
  Put(&out, sealed.segments_of_journal);
  Put(&out, sealed.first_seq);
  Put(&out, sealed.last_seq);
  Put(&out, sealed.rows);
  PutString(&out, sealed.file);
  Put(&out, sealed.bytes);
  Put(&out, sealed.digest);
  Put(&out, sealed.watermark_ns);
  return out;
}

std::string Encode(const EndRecord& end) {
  std::string out;
  Put(&out, static_cast<std::uint8_t>(JournalRecord::kEnd));
  Put(&out, end.watermark_ns);
  Put(&out, end.ended_ns);
  PutSeqs(&out, end.next_seq);
  return out;
}

Result<JournalHeader> DecodeHeader(std::string_view bytes) {
  WireReader in(bytes);
  JournalHeader header;
  if (!KindIs(&in, JournalRecord::kHeader) || in.Get<std::array<char, 4>>() != kJournalMagic) {
    return Malformed("not a journal header");
  }
  header.major = in.Get<std::uint16_t>();
  header.minor = in.Get<std::uint16_t>();
  if (in.ok() && header.major > kJournalMajor) {
    return {Code::kVersion,
            fmt::format("journal format {} is newer than {}, which this telltale reads; install a "
                        "newer telltale",
                        header.major, kJournalMajor)};
  }
  header.writer = in.String();
  header.number = in.Get<std::uint64_t>();
  header.monotonic_to_run_ns = in.Get<std::int64_t>();
  header.boot_id = in.String();
  header.created_ns = in.Get<std::int64_t>();
  header.watermark_ns = in.Get<std::int64_t>();
  GetSeqs(&in, &header.next_seq);
  if (!in.ok()) return Malformed("header is cut");
  if (!format::IsWatermark(header.watermark_ns) || !format::kTimeBound.Has(header.created_ns) ||
      !format::kTimeBound.Has(header.monotonic_to_run_ns) || !Possible(header.next_seq)) {
    return Malformed("a number of the header cannot be");
  }
  return header;
}

Result<SealedRecord> DecodeSealed(std::string_view bytes) {
  WireReader in(bytes);
  SealedRecord sealed;
  if (!KindIs(&in, JournalRecord::kSealed)) return Malformed("not a sealed record");
  sealed.table = in.Get<std::uint8_t>();
  sealed.journal = in.Get<std::uint64_t>();
  sealed.segments_of_journal = in.Get<std::uint8_t>();
  sealed.first_seq = in.Get<std::uint64_t>();
  sealed.last_seq = in.Get<std::uint64_t>();
  sealed.rows = in.Get<std::uint64_t>();
  sealed.file = in.String();
  sealed.bytes = in.Get<std::uint64_t>();
  sealed.digest = in.Get<std::array<std::uint8_t, 16>>();
  sealed.watermark_ns = in.Get<std::int64_t>();
  if (!in.ok()) return Malformed("sealed record is cut");
  if (!format::IsWatermark(sealed.watermark_ns) || !format::kAmountBound.Has(sealed.first_seq) ||
      !format::kAmountBound.Has(sealed.last_seq)) {
    return Malformed("a number of the sealed record cannot be");
  }
  return sealed;
}

Result<EndRecord> DecodeEnd(std::string_view bytes) {
  WireReader in(bytes);
  EndRecord end;
  if (!KindIs(&in, JournalRecord::kEnd)) return Malformed("not an end record");
  end.watermark_ns = in.Get<std::int64_t>();
  end.ended_ns = in.Get<std::int64_t>();
  GetSeqs(&in, &end.next_seq);
  if (!in.ok()) return Malformed("end record is cut");
  if (!format::IsWatermark(end.watermark_ns) || !format::kTimeBound.Has(end.ended_ns) ||
      !Possible(end.next_seq)) {
    return Malformed("a number of the end record cannot be");
  }
  return end;
}

}  // namespace telltale::store
