// SPDX-License-Identifier: Apache-2.0
// One record, already copied out of shared memory → one row. Checks everything it uses.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/string_pool.h"
#include "channel/clock_map.h"
#include "channel/consumer.h"
#include "format/channel_layout.h"
#include "format/records.gen.h"

namespace telltale::channel {

struct ReadResult {
  std::size_t bytes = 0;   ///< Of the record; 0: malformed, or cut by the end of the input.
  bool is_record = false;  ///< False for padding and for kinds of a later minor version.
};

class RecordReader {
 public:
  RecordReader(const std::vector<std::string>& names, const ProducerInfo& info,
               const ClockMap& clock, std::int64_t monotonic_to_run_ns, StringPool* pool)
      : names_(names),
        info_(info),
        clock_(clock),
        offset_ns_(monotonic_to_run_ns),
        pool_(pool),
        views_(names.size() + 1) {}

  void SetThread(std::int32_t tid) { tid_ = tid; }
  /// Reads the record at the begin of `bytes`.
  ReadResult Read(std::string_view bytes, format::Rows* rows);
  /// Records that were whole but held nonsense; they are skipped alone.
  std::uint64_t malformed() const { return malformed_; }

 private:
  bool Name(std::uint32_t id, std::string_view* out);
  bool Time(std::uint64_t ticks, std::int64_t* out) const;
  bool ReadSpan(std::string_view bytes, format::Rows* rows);
  bool ReadStep(std::string_view bytes, format::Rows* rows);
  bool ReadScalar(std::string_view bytes, format::Rows* rows);
  bool ReadStat(std::string_view bytes, format::Rows* rows);
  bool ReadEvent(std::string_view bytes, format::Rows* rows);

  const std::vector<std::string>& names_;
  const ProducerInfo& info_;
  const ClockMap& clock_;
  std::int64_t offset_ns_;
  StringPool* pool_;
  std::vector<std::string_view> views_;  ///< By id, interned on first use.
  std::int32_t tid_ = 0;
  std::uint64_t malformed_ = 0;
};

/// Valid UTF-8 as it is; every byte that is not part of any as \xHH, so that nothing is lost and
/// every reader can decode it.
std::string PrintableUtf8(std::string_view text);

}  // namespace telltale::channel
