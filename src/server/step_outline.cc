// SPDX-License-Identifier: Apache-2.0
#include "server/step_outline.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <string_view>

#include "store/folder.h"
#include "store/segment_scan.h"

namespace telltale::server {
namespace {

constexpr std::size_t kMarkEvery = 64;

struct OutlinePoint {
  std::int64_t t;
  std::int64_t step;
  float duration_ns;
};

struct StepSegment {
  std::filesystem::path path;
  std::string writer;
  std::vector<OutlinePoint> points;
};

std::vector<StepSegment> StepSegmentsOf(const std::filesystem::path& run) {
  std::vector<StepSegment> out;
  for (const std::string& writer : store::ListWriters(run)) {
    const auto listing = store::ListFolder(run / writer);
    if (!listing.ok()) continue;
    for (const store::SegmentName& segment : listing->segments) {
      if (segment.table != format::TableId::kSteps) continue;
      out.push_back({run / writer / segment.file, writer, {}});
    }
  }
  return out;
}

/// 0, the middle, the quarters, ...: those that time is left for are spread over all of them.
std::vector<std::size_t> FromCoarseToFine(std::size_t count) {
  std::vector<std::size_t> order = {0};
  for (std::size_t stride = std::bit_ceil(count) / 2; stride > 0; stride /= 2) {
    for (std::size_t i = stride; i < count; i += 2 * stride) order.push_back(i);
  }
  return order;
}

class OutlineReader {
 public:
  OutlineReader(std::vector<StepSegment> segments, std::int64_t begin_ns)
      : segments_(std::move(segments)), begin_ns_(begin_ns) {
    request_.table = format::TableId::kSteps;
    request_.columns = {"time_ns", "duration_ns", "step", "mode", "rank"};
  }

  std::optional<StepOutline> Read(std::chrono::steady_clock::time_point deadline) {
    StepOutline out;
    for (const std::size_t index : FromCoarseToFine(segments_.size())) {
      if (std::chrono::steady_clock::now() >= deadline || points_ >= kMaxOutlinePoints) {
        out.whole = false;
        break;
      }
      ReadSegment(&segments_[index]);
    }
    std::vector<OutlinePoint> all;
    all.reserve(points_);
    for (const StepSegment& segment : segments_) {
      all.insert(all.end(), segment.points.begin(), segment.points.end());
    }
    if (all.empty()) return std::nullopt;
    const auto earlier = [](const OutlinePoint& a, const OutlinePoint& b) { return a.t < b.t; };
    if (!std::is_sorted(all.begin(), all.end(), earlier)) {
      std::stable_sort(all.begin(), all.end(), earlier);
    }
    out.rank = rank_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      out.duration.Add(all[i].t, all[i].duration_ns);
      if (i % kMarkEvery == 0) out.marks.emplace_back(all[i].t, all[i].step);
    }
    return out;
  }

 private:
  void ReadSegment(StepSegment* segment) {
    const auto visit = [&](const store::ScanPiece& piece) -> Status {
      Take(piece, &segment->points);
      return {};
    };
    // Of one that is damaged further on what came before is as good as any.
    [[maybe_unused]] const auto rows =
        store::ScanSegment(segment->path, segment->writer, request_, visit);
    points_ += segment->points.size();
  }

  void Take(const store::ScanPiece& piece, std::vector<OutlinePoint>* points) {
    const store::ScanColumn& time_ns = piece.columns[0];
    const store::ScanColumn& duration_ns = piece.columns[1];
    const store::ScanColumn& step = piece.columns[2];
    const store::ScanColumn& mode = piece.columns[3];
    const store::ScanColumn& rank = piece.columns[4];
    std::vector<char> train;
    for (const std::string_view text : mode.texts) train.push_back(text == "TRAIN" ? 1 : 0);
    for (std::size_t i = 0; i < piece.rows; ++i) {
      const std::int64_t of_rank = rank.Int(i);
      const std::int64_t ns = duration_ns.Int(i);
      if (train[mode.Code(i)] == 0 || of_rank > rank_ || ns < 0) continue;
      if (of_rank < rank_) {
        rank_ = static_cast<std::int32_t>(of_rank);
        for (StepSegment& segment : segments_) segment.points.clear();
        points_ = 0;
      }
      points->push_back({time_ns.Int(i) - begin_ns_, step.Int(i), static_cast<float>(ns)});
    }
  }

  std::vector<StepSegment> segments_;
  const std::int64_t begin_ns_;
  store::ScanRequest request_;
  std::int32_t rank_ = std::numeric_limits<std::int32_t>::max();
  std::size_t points_ = 0;
};

}  // namespace

std::optional<StepOutline> ReadStepOutline(const std::filesystem::path& run, std::int64_t begin_ns,
                                           std::chrono::steady_clock::time_point deadline) {
  std::vector<StepSegment> segments = StepSegmentsOf(run);
  if (segments.size() < 2) return std::nullopt;
  return OutlineReader(std::move(segments), begin_ns).Read(deadline);
}

}  // namespace telltale::server
