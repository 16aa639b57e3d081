// SPDX-License-Identifier: Apache-2.0
#include "read/tensor_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "format/dtypes.h"
#include "store/column_scan.h"
#include "store/tensor_file.h"

namespace telltale::read {
namespace {

struct Source {
  format::TableId table;
  std::uint32_t kind;
  std::uint64_t TensorSummary::*count;
};
constexpr Source kSources[] = {
    {format::TableId::kTensors, kValues, &TensorSummary::values},
    {format::TableId::kStatistics, kStatistics, &TensorSummary::statistics},
    {format::TableId::kHistograms, kHistograms, &TensorSummary::histograms},
};
// Of the scan, in this order; only the table tensors has the last two.
enum : std::size_t { kName, kCollection, kDtype, kStep, kMode, kRank, kFile, kShape };

/// How far the steps of one mode, of one rank and table, have come.
struct Course {
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  std::uint64_t steps = 0;
};

struct Entry {
  TensorSummary summary;
  std::map<std::tuple<std::string, std::int32_t, std::uint32_t>, Course> courses;
  bool any = false;
};

/// Of one piece: what is the same for all its rows of one name.
struct Cached {
  Entry* entry = nullptr;  ///< Null: the name is not wanted.
  std::uint32_t mode = ~0U;
  std::int64_t rank = -1;
  Course* course = nullptr;
};

/// As a shell's pattern, over the whole name.
bool Matches(const std::string& pattern, std::string name) {
  // A NUL in a name would be its end: it is one character, as any other that ? and * stand for.
  std::replace(name.begin(), name.end(), '\0', '\x1a');
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

class Lister {
 public:
  explicit Lister(std::string pattern) : pattern_(std::move(pattern)) {}

  void Take(const Source& source, const store::ScanPiece& piece) {
    const auto& columns = piece.columns;
    std::vector<std::optional<Cached>> by_name(columns[kName].texts.size());
    // Codes whose text is entered in the entry of the row before; the set needs them once.
    const Entry* seen_by = nullptr;
    std::array<std::uint32_t, 3> seen{};
    for (std::size_t i = 0; i < piece.rows; ++i) {
      const std::uint32_t code = columns[kName].Code(i);
      if (!by_name[code]) by_name[code] = Cached{.entry = Find(columns[kName].texts[code])};
      Cached& cached = *by_name[code];
      if (cached.entry == nullptr) continue;
      Entry& entry = *cached.entry;
      TensorSummary& summary = entry.summary;
      const bool has_shape = source.kind == kValues;
      const std::array<std::uint32_t, 3> now{columns[kCollection].Code(i), columns[kDtype].Code(i),
                                             has_shape ? columns[kShape].Code(i) : 0};
      if (seen_by != &entry || seen != now) {
        seen_by = &entry;
        seen = now;
        summary.collections.emplace(columns[kCollection].Text(i));
        const std::string_view dtype = columns[kDtype].Text(i);
        const format::DtypeInfo* const known = format::FindDtype(dtype);
        // Of shapes alone the type may not be known.
        if (!dtype.empty()) summary.dtypes.emplace(known == nullptr ? dtype : known->name);
        if (has_shape) summary.shapes.emplace(columns[kShape].Text(i));
      }
      const std::int64_t step = columns[kStep].Int(i);
      const auto rank = static_cast<std::int32_t>(columns[kRank].Int(i));
      const std::uint32_t mode = columns[kMode].Code(i);
      if (cached.course == nullptr || cached.mode != mode || cached.rank != rank) {
        summary.ranks.insert(rank);
        cached.mode = mode;
        cached.rank = rank;
        cached.course =
            &entry.courses[{std::string(columns[kMode].texts[mode]), rank, source.kind}];
      }
      if (step > cached.course->last) {
        cached.course->last = step;
        ++cached.course->steps;
      }
      if (!has_shape || !columns[kFile].Text(i).empty()) ++(summary.*source.count);
      summary.first_step = entry.any ? std::min(summary.first_step, step) : step;
      summary.last_step = entry.any ? std::max(summary.last_step, step) : step;
      entry.any = true;
    }
  }

  std::vector<TensorSummary> Finish() {
    std::vector<TensorSummary> all;
    for (auto& [name, entry] : entries_) {
      if (entry == nullptr) continue;
      for (const auto& [key, course] : entry->courses) {
        std::uint64_t& steps = entry->summary.steps[std::get<0>(key)];
        steps = std::max(steps, course.steps);
      }
      all.push_back(std::move(entry->summary));
    }
    std::sort(all.begin(), all.end(),
              [](const TensorSummary& a, const TensorSummary& b) { return a.name < b.name; });
    return all;
  }

 private:
  Entry* Find(std::string_view text) {
    std::string name(text);
    if (const auto found = entries_.find(name); found != entries_.end()) return found->second.get();
    const bool wanted = name != store::kHeaderRow &&
                        (pattern_.empty() || name == pattern_ || Matches(pattern_, name));
    std::unique_ptr<Entry>& entry = entries_[name];
    if (wanted) {
      entry = std::make_unique<Entry>();
      entry->summary.name = std::move(name);
    }
    return entry.get();
  }

  const std::string pattern_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace

Result<std::vector<TensorSummary>> ListTensors(const std::filesystem::path& run,
                                               const std::string& pattern, bool final,
                                               store::Salvage* salvage) {
  Lister lister(pattern);
  for (const Source& source : kSources) {
    store::ScanRequest request{.table = source.table,
                               .columns = {"name", "collection", "dtype", "step", "mode", "rank"},
                               .final = final};
    if (source.kind == kValues) {
      request.columns.emplace_back("file");
      request.columns.emplace_back("shape");
    }
    const auto take = [&](store::ScanPiece& piece) {
      lister.Take(source, piece);
      return Status();
    };
    TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run, request, take, salvage));
  }
  return lister.Finish();
}

}  // namespace telltale::read
