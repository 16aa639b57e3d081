// SPDX-License-Identifier: Apache-2.0
// One record, already copied out of shared memory → one row. Checks everything it uses.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/string_pool.h"
#include "channel/clock_map.h"
#include "channel/consumer.h"
#include "channel/name_list.h"
#include "format/channel_layout.h"
#include "format/records.gen.h"

namespace telltale::channel {

struct ReadResult {
  std::size_t bytes = 0;   ///< Of the record; 0: malformed, or cut by the end of the input.
  bool is_record = false;  ///< False for padding and for kinds of a later minor version.
};

class RecordReader {
 public:
  RecordReader(const NameList& names, const ProducerInfo& info, const ClockMap& clock,
               std::int64_t monotonic_to_run_ns, StringPool* pool)
      : names_(names),
        info_(info),
        clock_(clock),
        offset_ns_(monotonic_to_run_ns),
        pool_(pool),
        views_(std::min(names.size() + 1, kViews)) {}

  void SetThread(std::int32_t tid) { tid_ = tid; }
  /// Reads the record at the begin of `bytes` into out->rows or out->tensors.
  ReadResult Read(std::string_view bytes, Drained* out);
  /// Records that were whole but held nonsense; they are skipped alone.
  std::uint64_t malformed() const { return malformed_; }

 private:
  /// What an id stands for, interned.
  struct NameViews {
    std::string_view name;        ///< Null: not looked up yet.
    std::string_view collection;  ///< Of a tensor, else null.
  };

  static constexpr std::size_t kViews = 1U << 14;

  const NameViews* Find(std::uint32_t id);
  bool Name(std::uint32_t id, std::string_view* out);
  std::string_view Intern(std::string_view text);
  /// Name and collection of a tensor's record; the collection is null where the name has none.
  bool TensorName(std::uint32_t id, std::string_view* name, std::string_view* collection);
  bool Time(std::uint64_t ticks, std::int64_t* out) const;
  bool ReadSpan(std::string_view bytes, Drained* out);
  bool ReadStep(std::string_view bytes, format::Rows* rows);
  bool ReadScalar(std::string_view bytes, format::Rows* rows);
  bool ReadStat(std::string_view bytes, bool more, format::Rows* rows);
  bool ReadHistogram(std::string_view bytes, format::Rows* rows);
  bool ReadTensor(std::string_view bytes, Drained* out);
  bool ReadEvent(std::string_view bytes, format::Rows* rows);

  const NameList& names_;
  const ProducerInfo& info_;
  const ClockMap& clock_;
  std::int64_t offset_ns_;
  StringPool* pool_;
  /// By id, interned on first use: of the first names at once, of further ones as they come, since
  /// this is made anew for each drain.
  std::vector<NameViews> views_;
  std::unordered_map<std::uint32_t, NameViews> more_views_;
  std::int32_t tid_ = 0;
  std::uint64_t malformed_ = 0;
};

/// Valid UTF-8 as it is; every byte that is not part of any as \xHH, so that nothing is lost and
/// every reader can decode it.
std::string PrintableUtf8(std::string_view text);

}  // namespace telltale::channel
