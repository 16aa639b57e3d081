// SPDX-License-Identifier: Apache-2.0
#include "read/tensor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "store/column_scan.h"
#include "store/tensor_file.h"

namespace telltale::read {
namespace {

constexpr format::TableId kTables[] = {format::TableId::kTensors, format::TableId::kStatistics,
                                       format::TableId::kHistograms};
// Known from the start, in the order in which a mode is chosen where none is named.
constexpr std::string_view kEveryMode[] = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
constexpr std::size_t kMaxModes = 32;
constexpr store::StepRange kAllSteps{std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()};
/// So often only the part of the index is read that can hold what is looked for; then all of it,
/// since a loop over steps would read the parts again and again.
constexpr int kPartialLooks = 4;

Status Mismatch(std::string_view file, std::uint64_t bytes, std::string_view dtype,
                std::string_view shape) {
  return {
      Code::kUnusable,
      fmt::format("the index says {} bytes of {} with shape {} in {}, which do not go together: "
                  "`telltale verify` names what is damaged",
                  bytes, dtype, shape, file)};
}

}  // namespace

Result<Values> ValuesAt(MappedFiles* files, std::string_view writer, std::string_view file,
                        std::uint64_t offset, std::uint64_t bytes, std::string_view dtype,
                        std::string_view shape) {
  Values values;
  const format::DtypeInfo* const known = format::FindDtype(dtype);
  if (known == nullptr) {
    return {Code::kVersion, fmt::format("the values are of type '{}', which this telltale does not "
                                        "know: install a newer telltale",
                                        dtype)};
  }
  const auto extents = store::ParseShape(shape);
  const auto expected = extents ? store::TensorBytes(*extents, known->bytes) : std::nullopt;
  std::uint64_t end = 0;
  if (!expected || *expected != bytes || __builtin_add_overflow(offset, bytes, &end)) {
    return Mismatch(file, bytes, dtype, shape);
  }
  TELLTALE_ASSIGN_OR_RETURN(const auto mapping, files->Get(writer, file, end));
  values.data = mapping->bytes().data() + offset;
  values.owner = mapping;
  values.bytes = bytes;
  values.dtype = *known;
  values.shape = *extents;
  return values;
}

Tensor::Tensor(std::filesystem::path run, std::string name, bool final)
    : run_(std::move(run)),
      name_(std::move(name)),
      final_(final),
      modes_(std::begin(kEveryMode), std::end(kEveryMode)),
      mapped_(run_) {}

std::uint8_t Tensor::ModeIndex(std::string_view mode) {
  const std::lock_guard lock(modes_mutex_);
  const auto found = std::find(modes_.begin(), modes_.end(), mode);
  if (found != modes_.end()) return static_cast<std::uint8_t>(found - modes_.begin());
  // A writer knows four; a damaged or later one must not make us grow without bound.
  if (modes_.size() < kMaxModes) modes_.emplace_back(mode);
  return static_cast<std::uint8_t>(modes_.size() - 1);
}

std::uint32_t Tensor::ShapeIndex(std::string_view text) {
  const auto [at, is_new] =
      shape_indices_.try_emplace(std::string(text), static_cast<std::uint32_t>(shapes_.size()));
  if (is_new) shapes_.emplace_back(text);
  return at->second;
}

store::Salvage Tensor::salvage() const {
  store::Salvage all = located_salvage_;
  for (const Keys& keys : keys_) all.Add(keys.salvage);
  return all;
}

std::optional<std::uint8_t> Tensor::ModeOf(const std::string& mode, std::uint32_t present) const {
  for (std::size_t i = 0; i < modes_.size(); ++i) {
    if ((present >> i & 1U) == 0) continue;
    if (mode.empty() || mode == modes_[i]) return static_cast<std::uint8_t>(i);
  }
  return std::nullopt;
}

/// The steps of one kind of record. On a thread of its own where several kinds are read at once.
Status Tensor::ReadKeys(std::size_t kind) {
  Keys& keys = keys_[kind];
  keys.parts.clear();  // Of a read that failed half-way.
  keys.salvage = {};
  store::ScanRequest request{
      .table = kTables[kind], .columns = {"step", "rank", "mode"}, .name = name_, .final = final_};
  // Of shapes alone there are no values.
  if (kTables[kind] == format::TableId::kTensors) request.not_empty = "file";
  const auto take = [&](store::ScanPiece& piece) {
    Keys::Part part;
    for (const std::string_view mode : piece.columns[2].texts) {
      part.modes_of_codes.push_back(ModeIndex(mode));
    }
    part.rows = piece.rows;
    part.steps = std::move(piece.columns[0]);
    part.ranks = std::move(piece.columns[1]);
    part.modes = std::move(piece.columns[2]);
    part.modes.texts.clear();  // They live no longer than the piece.
    keys.parts.push_back(std::move(part));
    return Status();
  };
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run_, request, take, &keys.salvage));
  keys.read = true;
  return {};
}

Status Tensor::ReadKinds(std::uint32_t kinds) {
  std::vector<std::size_t> unread;
  for (std::size_t kind = 0; kind < keys_.size(); ++kind) {
    if ((kinds >> kind & 1U) != 0 && !keys_[kind].read) unread.push_back(kind);
  }
  // Each table is apart from the others: together they take as long as the largest.
  std::vector<std::future<Status>> others;
  for (std::size_t i = 1; i < unread.size(); ++i) {
    others.push_back(
        std::async(std::launch::async, [this, kind = unread[i]] { return ReadKeys(kind); }));
  }
  Status status = unread.empty() ? Status() : ReadKeys(unread[0]);
  for (std::future<Status>& other : others) {
    Status of_other = other.get();
    if (status.ok()) status = std::move(of_other);
  }
  return status;
}

Result<std::vector<std::int64_t>> Tensor::Steps(const Which& which, std::uint32_t kinds) {
  if (kinds == 0) kinds = kAnything;
  TELLTALE_RETURN_IF_ERROR(ReadKinds(kinds));
  std::uint32_t present = 0;
  for (std::size_t kind = 0; kind < keys_.size(); ++kind) {
    if ((kinds >> kind & 1U) == 0) continue;
    for (const Keys::Part& part : keys_[kind].parts) {
      for (std::size_t i = 0; i < (part.modes.constant ? 1 : part.rows); ++i) {
        present |= 1U << part.Mode(i);
      }
    }
  }
  const auto mode = ModeOf(which.mode, present);
  if (!mode) return NotRecorded(which, "record");
  std::vector<std::int64_t> steps;
  for (std::size_t kind = 0; kind < keys_.size(); ++kind) {
    if ((kinds >> kind & 1U) == 0) continue;
    std::vector<std::int64_t> own = StepsOf(keys_[kind], *mode, which.rank);
    if (steps.empty()) {
      steps = std::move(own);
    } else if (!own.empty() && own != steps) {
      std::vector<std::int64_t> both;
      both.reserve(own.size() + steps.size());
      std::set_union(steps.begin(), steps.end(), own.begin(), own.end(), std::back_inserter(both));
      steps = std::move(both);
    }
  }
  return steps;
}

/// Ascending, each once.
std::vector<std::int64_t> Tensor::StepsOf(const Keys& keys, std::uint8_t mode,
                                          std::optional<std::int32_t> rank) {
  std::vector<std::int64_t> steps;
  std::size_t rows = 0;
  for (const Keys::Part& part : keys.parts) rows += part.rows;
  steps.reserve(rows);
  for (const Keys::Part& part : keys.parts) {
    if (part.modes.constant && !rank && !part.steps.constant) {
      if (part.Mode(0) == mode) {
        steps.insert(steps.end(), part.steps.ints.begin(), part.steps.ints.end());
      }
      continue;
    }
    for (std::size_t i = 0; i < part.rows; ++i) {
      if (part.Mode(i) != mode || (rank && part.ranks.Int(i) != *rank)) continue;
      steps.push_back(part.steps.Int(i));
    }
  }
  // Mostly they come in order, and the kinds at the same steps: a sort of all would cost the most.
  if (!std::is_sorted(steps.begin(), steps.end())) std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

Status Tensor::Locate(store::StepRange steps) {
  if (located_ && located_->Has(steps.first) && located_->Has(steps.last)) return {};
  return ReadLocations(looks_ < kPartialLooks ? steps : kAllSteps);
}

Status Tensor::ReadLocations(store::StepRange steps) {
  ++looks_;
  located_.reset();
  locations_.clear();
  located_modes_ = 0;
  files_.clear();
  const store::ScanRequest request{
      .table = format::TableId::kTensors,
      .columns = {"step", "rank", "mode", "attempt", "offset", "bytes", "file", "dtype", "shape"},
      .name = name_,
      .not_empty = "file",
      .steps = steps,
      .final = final_};
  enum : std::size_t { kStep, kRank, kMode, kAttempt, kOffset, kBytes, kFile, kDtype, kShape };
  const auto take = [&](store::ScanPiece& piece) {
    const auto& columns = piece.columns;
    std::vector<std::uint8_t> modes;
    for (const std::string_view mode : columns[kMode].texts) modes.push_back(ModeIndex(mode));
    std::vector<std::uint32_t> files;
    for (const std::string_view file : columns[kFile].texts) {
      if (files_.empty() || files_.back().file != file || files_.back().writer != piece.writer) {
        files_.push_back({std::string(piece.writer), std::string(file)});
      }
      files.push_back(static_cast<std::uint32_t>(files_.size() - 1));
    }
    std::vector<std::uint32_t> shapes;
    for (const std::string_view shape : columns[kShape].texts) shapes.push_back(ShapeIndex(shape));
    std::vector<const format::DtypeInfo*> dtypes;
    for (const std::string_view dtype : columns[kDtype].texts) {
      dtypes.push_back(format::FindDtype(dtype));
    }
    for (std::size_t i = 0; i < piece.rows; ++i) {
      Location location;
      location.step = columns[kStep].Int(i);
      location.offset = static_cast<std::uint64_t>(columns[kOffset].Int(i));
      location.bytes = static_cast<std::uint64_t>(columns[kBytes].Int(i));
      location.rank = static_cast<std::int32_t>(columns[kRank].Int(i));
      location.attempt = static_cast<std::uint32_t>(columns[kAttempt].Int(i));
      location.file = files[columns[kFile].Code(i)];
      location.shape = shapes[columns[kShape].Code(i)];
      location.mode = modes[columns[kMode].Code(i)];
      location.dtype = dtypes[columns[kDtype].Code(i)];
      locations_.push_back(location);
    }
    return Status();
  };
  store::Salvage salvage;
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run_, request, take, &salvage));
  if (salvage.any() && salvage.notes.size() >= located_salvage_.notes.size()) {
    located_salvage_ = std::move(salvage);
  }
  const auto key = [](const Location& at) {
    return std::tuple(at.mode, at.step, at.rank, at.attempt);
  };
  const auto before = [&](const Location& a, const Location& b) { return key(a) < key(b); };
  if (!std::is_sorted(locations_.begin(), locations_.end(), before)) {
    std::stable_sort(locations_.begin(), locations_.end(), before);
  }
  // Of what was recorded twice, after a restart for example, the newest is what counts.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    const Location& at = locations_[i];
    if (i + 1 < locations_.size()) {
      const Location& next = locations_[i + 1];
      if (std::tie(at.mode, at.step, at.rank) == std::tie(next.mode, next.step, next.rank)) {
        continue;
      }
    }
    locations_[kept++] = at;
  }
  locations_.resize(kept);
  for (const Location& at : locations_) located_modes_ |= 1U << at.mode;
  located_ = steps;
  return {};
}

Status Tensor::ReadValueModes() {
  if (value_modes_) return {};
  const store::ScanRequest request{.table = format::TableId::kTensors,
                                   .columns = {"mode"},
                                   .name = name_,
                                   .not_empty = "file",
                                   .final = final_};
  std::uint32_t present = 0;
  const auto take = [&](store::ScanPiece& piece) {
    const store::ScanColumn& modes = piece.columns[0];
    std::vector<std::uint32_t> bits;
    for (const std::string_view mode : modes.texts) bits.push_back(1U << ModeIndex(mode));
    for (std::size_t i = 0; i < (modes.constant ? 1 : piece.rows); ++i) {
      present |= bits[modes.Code(i)];
    }
    return Status();
  };
  store::Salvage salvage;
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(run_, request, take, &salvage));
  if (!located_salvage_.any()) located_salvage_ = std::move(salvage);
  value_modes_ = present;
  return {};
}

Result<std::uint8_t> Tensor::ValueMode(const Which& which) {
  auto mode = ModeOf(which.mode, located_modes_);
  // The first of all is the one wherever it is; of another the whole index must tell that none goes
  // before it.
  if (!mode || (which.mode.empty() && *mode != 0)) {
    TELLTALE_RETURN_IF_ERROR(ReadValueModes());
    mode = ModeOf(which.mode, *value_modes_ | located_modes_);
  }
  if (!mode) return NotRecorded(which, "value");
  return *mode;
}

Status Tensor::NotRecorded(const Which& which, std::string_view what) const {
  return {
      Code::kUsage,
      fmt::format("{} holds no {} of tensor '{}'{}{}: telltale query {} statistics, or tensors, "
                  "shows what there is",
                  run_.string(), what, name_, which.mode.empty() ? "" : " in mode ", which.mode,
                  run_.string())};
}

const Tensor::Location* Tensor::Find(std::int64_t step, std::uint8_t mode,
                                     std::optional<std::int32_t> rank) const {
  const auto wanted =
      std::tuple(mode, step, rank.value_or(std::numeric_limits<std::int32_t>::min()));
  const auto found = std::lower_bound(locations_.begin(), locations_.end(), wanted,
                                      [](const Location& at, const auto& key) {
                                        return std::tuple(at.mode, at.step, at.rank) < key;
                                      });
  if (found == locations_.end() || found->mode != mode || found->step != step ||
      (rank && found->rank != *rank)) {
    return nullptr;
  }
  return &*found;
}

Result<Values> Tensor::At(std::int64_t step, const Which& which) {
  return At(std::span<const std::int64_t>(&step, 1), which);
}

Result<Values> Tensor::At(std::span<const std::int64_t> steps, const Which& which) {
  if (steps.empty()) {
    return {Code::kUsage, fmt::format("no step of tensor '{}' was named", name_)};
  }
  const auto [low, high] = std::minmax_element(steps.begin(), steps.end());
  TELLTALE_RETURN_IF_ERROR(Locate({*low, *high}));
  TELLTALE_ASSIGN_OR_RETURN(const std::uint8_t mode, ValueMode(which));
  std::vector<const Location*> found;
  found.reserve(steps.size());
  std::uint64_t end = 0;
  for (const std::int64_t step : steps) {
    const Location* const at = Find(step, mode, which.rank);
    if (at == nullptr) {
      return {Code::kUsage,
              fmt::format("no value of tensor '{}' at step {} of mode {}{} was recorded", name_,
                          step, modes_[mode],
                          which.rank ? fmt::format(" by rank {}", *which.rank) : std::string())};
    }
    const Location& first = found.empty() ? *at : *found[0];
    if (shapes_[at->shape] != shapes_[first.shape] || at->type() != first.type()) {
      return {
          Code::kUsage,
          fmt::format("tensor '{}' has shape {} ({}) at step {} and {} ({}) at step {}: read them "
                      "apart",
                      name_, shapes_[first.shape], first.type(), first.step, shapes_[at->shape],
                      at->type(), at->step)};
    }
    std::uint64_t own_end = 0;
    if (at->bytes != first.bytes || __builtin_add_overflow(at->offset, at->bytes, &own_end)) {
      return Mismatch(files_[at->file].file, at->bytes, at->type(), shapes_[at->shape]);
    }
    end = at->file == first.file ? std::max(end, own_end) : end;
    found.push_back(at);
  }
  const Location& first = *found[0];
  const auto distance = [](const Location& from, const Location& to) {
    return static_cast<std::int64_t>(to.offset - from.offset);
  };
  const std::int64_t stride = found.size() > 1 ? distance(first, *found[1]) : 0;
  bool one_view = true;
  for (std::size_t i = 1; i < found.size() && one_view; ++i) {
    one_view = found[i]->file == first.file && distance(*found[i - 1], *found[i]) == stride;
  }
  const auto view = [&](const Location& at) {
    return ValuesAt(&mapped_, files_[at.file].writer, files_[at.file].file, at.offset, at.bytes,
                    at.type(), shapes_[at.shape]);
  };
  // To the end of the newest first, so that one mapping reaches over all.
  TELLTALE_RETURN_IF_ERROR(
      mapped_.Get(files_[first.file].writer, files_[first.file].file, end).status());
  TELLTALE_ASSIGN_OR_RETURN(Values values, view(first));
  values.steps.assign(steps.begin(), steps.end());
  values.rank = first.rank;
  if (one_view) {
    values.stride = found.size() > 1 ? stride : static_cast<std::int64_t>(values.bytes);
    return values;
  }
  std::uint64_t total = 0;
  if (__builtin_mul_overflow(values.bytes, std::uint64_t{found.size()}, &total)) {
    return {Code::kLimit, fmt::format("{} steps of tensor '{}' are more than memory can hold",
                                      found.size(), name_)};
  }
  // Not zeroed before it is written.
  const std::shared_ptr<std::byte[]> copy(new std::byte[total]);
  for (std::size_t i = 0; i < found.size(); ++i) {
    TELLTALE_ASSIGN_OR_RETURN(const Values one, view(*found[i]));
    if (one.bytes > 0) std::memcpy(copy.get() + i * values.bytes, one.data, one.bytes);
  }
  values.owner = copy;
  values.data = copy.get();
  values.stride = static_cast<std::int64_t>(values.bytes);
  values.copied = true;
  return values;
}

}  // namespace telltale::read
