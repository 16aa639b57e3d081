// SPDX-License-Identifier: Apache-2.0
#include "rules/series.h"

namespace telltale::rules {
namespace {

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29U);
}

}  // namespace

bool SeriesTable::Key::Is(const Series& series) const {
  return table == series.table && rank == series.rank && pid == series.pid &&
         attempt == series.attempt && name == series.name && collection == series.collection &&
         mode == series.mode;
}

bool SeriesTable::Key::SameTexts(const Key& other) const {
  const auto same = [](std::string_view a, std::string_view b) {
    return a.data() == b.data() && a.size() == b.size();
  };
  return same(name, other.name) && same(collection, other.collection) && same(mode, other.mode) &&
         table == other.table && rank == other.rank && pid == other.pid && attempt == other.attempt;
}

std::uint64_t SeriesTable::Key::Hash() const {
  const std::hash<std::string_view> text;
  std::uint64_t hash = static_cast<std::uint64_t>(table);
  hash = Mix(hash, text(name));
  hash = Mix(hash, text(collection));
  hash = Mix(hash, text(mode));
  hash = Mix(hash, static_cast<std::uint32_t>(rank));
  hash = Mix(hash, static_cast<std::uint32_t>(pid));
  return Mix(hash, attempt);
}

bool SeriesTable::KeyOf(const store::OrderedRecord& record, Key* key) {
  const auto process = [&](const auto& row) {
    key->mode = row.mode;
    key->rank = row.rank;
    key->pid = row.pid;
    key->attempt = row.attempt;
  };
  key->table = record.table;
  if (const auto* statistic = record.As<format::StatisticRow>()) {
    key->name = statistic->name;
    key->collection = statistic->collection;
    process(*statistic);
  } else if (const auto* scalar = record.As<format::ScalarRow>()) {
    key->name = scalar->name;
    process(*scalar);
  } else if (const auto* span = record.As<format::SpanRow>()) {
    key->name = span->name;
    key->collection = span->category;
    process(*span);
  } else if (const auto* metric = record.As<format::MetricRow>()) {
    key->name = metric->name;
    key->collection = metric->subject;
    key->mode = metric->node;
    key->pid = metric->pid;
  } else if (const auto* tensor = record.As<format::TensorRow>()) {
    key->name = tensor->name;
    key->collection = tensor->collection;
    process(*tensor);
  } else if (const auto* histogram = record.As<format::HistogramRow>()) {
    key->name = histogram->name;
    key->collection = histogram->collection;
    process(*histogram);
  } else {
    return false;
  }
  return true;
}

bool SeriesTable::Has(format::TableId table) {
  using format::TableId;
  return table == TableId::kStatistics || table == TableId::kScalars || table == TableId::kSpans ||
         table == TableId::kMetrics || table == TableId::kTensors || table == TableId::kHistograms;
}

const Series* SeriesTable::Came(std::uint32_t id) {
  if (last_ != kNoSeries) next_[last_] = id;
  last_ = id;
  return &series_[id];
}

/// `hash`: of the key, where it is not known.
const Series* SeriesTable::Known(const Key& key, std::uint64_t* hash) {
  if (last_ != kNoSeries && next_[last_] != kNoSeries && key.Is(series_[next_[last_]])) {
    last_ = next_[last_];
    return &series_[last_];
  }
  *hash = key.Hash();
  const auto [begin, end] = by_hash_.equal_range(*hash);
  for (auto at = begin; at != end; ++at) {
    if (key.Is(series_[at->second])) return Came(at->second);
  }
  return nullptr;
}

const Series* SeriesTable::Known(const store::OrderedRecord& record) {
  Key key;
  if (!KeyOf(record, &key)) return nullptr;
  if (last_ != kNoSeries && next_[last_] != kNoSeries) {
    const Seen& seen = seen_[next_[last_]];
    if (seen.rows_of == rows_of_ && key.SameTexts(seen.key)) {
      last_ = next_[last_];
      return &series_[last_];
    }
  }
  std::uint64_t hash = 0;
  const Series* const known = Known(key, &hash);
  if (known != nullptr) seen_[known->id] = {key, rows_of_};
  return known;
}

const Series* SeriesTable::Find(const store::OrderedRecord& record) {
  Key key;
  if (!KeyOf(record, &key)) return nullptr;
  std::uint64_t hash = 0;
  if (const Series* known = Known(key, &hash)) return known;
  if (series_.size() >= kMaxSeries) {
    ++refused_;
    return nullptr;
  }
  const auto id = static_cast<std::uint32_t>(series_.size());
  Series& series = series_.emplace_back();
  series.id = id;
  series.table = key.table;
  series.name = key.name;
  series.collection = key.collection;
  series.mode = key.mode;
  series.rank = key.rank;
  series.pid = key.pid;
  series.attempt = key.attempt;
  by_hash_.emplace(hash, id);
  next_.push_back(kNoSeries);
  seen_.emplace_back();
  return Came(id);
}

}  // namespace telltale::rules
