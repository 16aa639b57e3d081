// SPDX-License-Identifier: Apache-2.0
#include "stacks/piece_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/run_files.h"

namespace telltale::stacks {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRate = 1000;  ///< More in the name of a file is none of ours.
constexpr std::string_view kPiecePrefix = "piece-";
constexpr std::string_view kPieceEnding = ".json";

/// piece-<monotonic ns>-<rate>.json
bool ParsePieceName(std::string_view name, std::int64_t* start_ns, int* rate) {
  if (!name.starts_with(kPiecePrefix) || !name.ends_with(kPieceEnding)) return false;
  const char* const end = name.data() + name.size() - kPieceEnding.size();
  const auto start = std::from_chars(name.data() + kPiecePrefix.size(), end, *start_ns);
  if (start.ec != std::errc() || start.ptr == end || *start.ptr != '-') return false;
  const auto last = std::from_chars(start.ptr + 1, end, *rate);
  return last.ec == std::errc() && last.ptr == end && *rate > 0 && *rate <= kMostRate;
}

}  // namespace

fs::path PieceFolder::Begin(std::int64_t start_ns, int rate) {
  std::string name = fmt::format("{}{}-{}{}", kPiecePrefix, start_ns, rate, kPieceEnding);
  return folder_ / *known_.insert(std::move(name)).first;
}

std::vector<RecordedPiece> PieceFolder::Left(std::int64_t now_ns, std::int64_t patience_ns,
                                             std::uint64_t* lost) {
  std::vector<RecordedPiece> out;
  std::set<std::string> there;
  std::vector<run_files::Entry> entries;
  run_files::List(run_files::OfFolder(folder_), &entries);
  for (const run_files::Entry& entry : entries) {
    RecordedPiece piece;
    std::string name = entry.name;
    if (!ParsePieceName(name, &piece.start_ns, &piece.rate)) continue;
    const bool known = known_.contains(name);
    there.insert(std::move(name));
    if (known) continue;
    if (piece.start_ns > now_ns) {
      run_files::Remove(run_files::OfSubfolder(folder_ / entry.name));
      ++*lost;
      continue;
    }
    piece.file = folder_ / entry.name;
    piece.due_ns = now_ns + patience_ns;
    out.push_back(std::move(piece));
  }
  // What cannot be removed is not told of again.
  known_.merge(there);
  std::sort(out.begin(), out.end(),
            [](const RecordedPiece& a, const RecordedPiece& b) { return a.start_ns < b.start_ns; });
  return out;
}

}  // namespace telltale::stacks
