// SPDX-License-Identifier: Apache-2.0
// The series of a run: what a tensor, a scalar, a span or a metric of one process is called, with a
// small number that stands for it. A rule decides once for each whether it wants its records, and
// keeps what it knows of it in a vector.
//
// Thread safety: none. Memory: about 200 bytes a series, at most kMaxSeries.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::rules {

inline constexpr std::uint32_t kNoSeries = ~0U;

struct Series {
  std::uint32_t id = kNoSeries;
  format::TableId table{};
  std::string name;
  /// Collection of a tensor, category of a span, subject of a metric; else empty.
  std::string collection;
  std::string mode;  ///< Node of a metric.
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  std::uint32_t attempt = 0;
};

class SeriesTable {
 public:
  /// A program that makes a name of each step must not take the memory of the watcher.
  static constexpr std::size_t kMaxSeries = 200'000;

  /// The series of a record, entered where it is new; nullptr where its table has none, and where
  /// there are too many (counted in refused()).
  const Series* Find(const store::OrderedRecord& record);
  /// The same; nullptr where it is new.
  const Series* Known(const store::OrderedRecord& record);
  /// The same, told of a statistic by where its texts are in memory alone: kNoSeries where that
  /// says nothing, though its series may be known.
  std::uint32_t Following(const format::StatisticRow& row) {
    if (last_ == kNoSeries || next_[last_] == kNoSeries) return kNoSeries;
    const std::uint32_t next = next_[last_];
    const Seen& seen = seen_[next];
    const auto same = [](std::string_view a, std::string_view b) {
      return a.data() == b.data() && a.size() == b.size();
    };
    const bool is = seen.rows_of == rows_of_ && seen.key.table == format::TableId::kStatistics &&
                    same(row.name, seen.key.name) && same(row.collection, seen.key.collection) &&
                    same(row.mode, seen.key.mode) && row.rank == seen.key.rank &&
                    row.pid == seen.key.pid && row.attempt == seen.key.attempt;
    return is ? last_ = next : kNoSeries;
  }
  /// Whether records of the table have a series.
  static bool Has(format::TableId table);
  /// Texts of the rows that Known was given before are not in memory any more.
  void ForgetRows() { ++rows_of_; }
  const Series& operator[](std::uint32_t id) const { return series_[id]; }
  std::size_t size() const { return series_.size(); }
  /// Records of series that were not entered.
  std::uint64_t refused() const { return refused_; }

 private:
  /// What identifies a series, as views of a row.
  struct Key {
    format::TableId table{};
    std::string_view name, collection, mode;
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;

    bool Is(const Series& series) const;
    /// The same, told without reading texts: where both are in memory, texts at one place are one.
    bool SameTexts(const Key& other) const;
    std::uint64_t Hash() const;
  };
  /// The row that was seen last of a series.
  struct Seen {
    Key key;
    std::uint64_t rows_of = 0;
  };
  static bool KeyOf(const store::OrderedRecord& record, Key* key);
  const Series* Known(const Key& key, std::uint64_t* hash);
  const Series* Came(std::uint32_t id);

  std::deque<Series> series_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
  /// Which came after which the last time: the tensors of a step come in the same order each time,
  /// so that one comparison mostly finds them.
  std::vector<std::uint32_t> next_;
  std::uint32_t last_ = kNoSeries;
  std::vector<Seen> seen_;  ///< By series; of another rows_of than ours: forgotten.
  std::uint64_t rows_of_ = 1;
  std::uint64_t refused_ = 0;
};

}  // namespace telltale::rules
