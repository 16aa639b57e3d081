// SPDX-License-Identifier: Apache-2.0
// Constants and small records of the journal; docs/formats/journal.md has the picture, the recovery
// rule and a worked example. Values are permanent within a major version.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "format/batch.h"

namespace telltale::store {

inline constexpr std::uint16_t kJournalMajor = 1;
inline constexpr std::uint16_t kJournalMinor = 0;
inline constexpr std::array<char, 4> kJournalMagic{'T', 'T', 'J', 'L'};

inline constexpr std::size_t kBlockBytes = 32768;
/// masked crc32c u32 | payload length u16 | type u8.
inline constexpr std::size_t kFragmentHeaderBytes = 7;
/// A batch is split above this, so that one damaged block costs little.
inline constexpr std::size_t kBatchTargetBytes = 24 << 10;
/// A record above this is not ours.
inline constexpr std::size_t kMaxRecordBytes = 64U << 20;

enum class FragmentType : std::uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

/// Next sequence number of each table, indexed by TableId; 0 stands for "not said".
using NextSeqs = std::array<std::uint64_t, 256>;
inline NextSeqs FirstSeqs() {
  NextSeqs seqs;
  seqs.fill(1);
  return seqs;
}

/// First record of every journal.
struct JournalHeader {
  std::uint16_t major = kJournalMajor;
  std::uint16_t minor = kJournalMinor;
  std::string writer;
  std::uint64_t number = 0;              ///< Of this file, from 1.
  std::int64_t monotonic_to_run_ns = 0;  ///< Added to CLOCK_MONOTONIC of `boot_id`.
  std::string boot_id;
  std::int64_t created_ns = 0;    ///< Run clock.
  std::int64_t watermark_ns = 0;  ///< Holds before the first batch.
  NextSeqs next_seq{};            ///< First sequence number that this file may hold, a table.
};

/// One segment that is durable and complete.
struct SealedRecord {
  std::uint8_t table = 0;
  std::uint64_t journal = 0;             ///< Journal it was made from...
  std::uint8_t segments_of_journal = 0;  ///< ...which gave that many segments in all.
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;
  std::uint64_t rows = 0;
  std::string file;
  std::uint64_t bytes = 0;
  std::array<std::uint8_t, 16> digest{};  ///< XXH3-128 of the file, canonical (big-endian) order.
  std::int64_t watermark_ns = 0;          ///< Of the writer when the journal ended.
};

/// Nothing follows, unless a journal with a higher number exists.
struct EndRecord {
  std::int64_t watermark_ns = 0;
  std::int64_t ended_ns = 0;  ///< Run clock.
  NextSeqs next_seq{};
};

std::string Encode(const JournalHeader& header);
std::string Encode(const SealedRecord& sealed);
std::string Encode(const EndRecord& end);

/// Bytes beyond what this version knows are ignored; less than it needs gives Code::kUnusable, a
/// later major version of the header Code::kVersion.
Result<JournalHeader> DecodeHeader(std::string_view bytes);
Result<SealedRecord> DecodeSealed(std::string_view bytes);
Result<EndRecord> DecodeEnd(std::string_view bytes);

}  // namespace telltale::store
