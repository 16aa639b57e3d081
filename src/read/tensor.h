// SPDX-License-Identifier: Apache-2.0
// One tensor of a run over its steps: when it was recorded, and its values as views of the files.
//
// Thread safety: none. What is read is what the run held when that part of it was first asked for;
// open it again to see what came since. Memory: 8 to 24 bytes a record and kind that was asked for,
// 56 of values that were looked for.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "format/dtypes.h"
#include "read/mapped_files.h"
#include "read/tensor_list.h"
#include "store/column_scan.h"
#include "store/reader.h"

namespace telltale::read {

/// Values of one step, or of several of the same shape.
struct Values {
  std::shared_ptr<const void> owner;  ///< What keeps `data` there.
  const std::byte* data = nullptr;    ///< C order; perhaps not aligned.
  std::uint64_t bytes = 0;            ///< Of one step.
  std::int64_t stride = 0;            ///< Bytes from one step to the next.
  bool copied = false;                ///< False: `data` lies in the file.
  format::DtypeInfo dtype;
  std::vector<std::int64_t> shape;  ///< Of one step.
  std::vector<std::int64_t> steps;  ///< What they are of.
  std::int32_t rank = 0;            ///< Of the first step.
};

/// Which records are meant. `mode` empty: that in which there are any, TRAIN first, then EVAL,
/// PREDICT, GLOBAL. `rank` not set: the lowest that has the step.
struct Which {
  std::string mode;
  std::optional<std::int32_t> rank;
};

class Tensor {
 public:
  Tensor(std::filesystem::path run, std::string name, bool final);

  /// Ascending, each once; `kinds`: of kValues, kStatistics, kHistograms; 0 is any. kUsage where
  /// there is no record of the tensor, or none of the mode.
  Result<std::vector<std::int64_t>> Steps(const Which& which, std::uint32_t kinds);
  /// Code::kUsage: no values at that step; kPartial: they are lost.
  Result<Values> At(std::int64_t step, const Which& which);
  /// Values at `steps`, in that order, as one array: a view where they lie in one file at a
  /// constant distance, else copied once. kUsage: no values at one of them, or another shape than
  /// the first's.
  Result<Values> At(std::span<const std::int64_t> steps, const Which& which);

  const std::string& name() const { return name_; }
  /// What could not be read of what was asked for so far.
  store::Salvage salvage() const;

 private:
  /// Steps of one kind of record, in the order of writing, as they were read.
  struct Keys {
    struct Part {
      std::size_t rows = 0;
      store::ScanColumn steps;
      store::ScanColumn ranks;
      store::ScanColumn modes;
      std::vector<std::uint8_t> modes_of_codes;  ///< Indices into modes_.
      std::uint8_t Mode(std::size_t row) const { return modes_of_codes[modes.Code(row)]; }
    };
    bool read = false;
    std::vector<Part> parts;
    store::Salvage salvage;
  };
  struct Location {
    std::int64_t step = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::int32_t rank = 0;
    std::uint32_t attempt = 0;
    std::uint32_t file = 0;                    ///< Index into files_.
    std::uint32_t shape = 0;                   ///< Index into shapes_.
    std::uint8_t mode = 0;                     ///< Index into modes_.
    const format::DtypeInfo* dtype = nullptr;  ///< Null: not known here.
    std::string_view type() const { return dtype == nullptr ? std::string_view() : dtype->name; }
  };
  struct File {
    std::string writer;
    std::string file;
  };
  Status ReadKinds(std::uint32_t kinds);
  Status ReadKeys(std::size_t kind);
  static std::vector<std::int64_t> StepsOf(const Keys& keys, std::uint8_t mode,
                                           std::optional<std::int32_t> rank);
  /// Sees to it that locations_ has those of these steps.
  Status Locate(store::StepRange steps);
  Status ReadLocations(store::StepRange steps);
  /// Modes in which there are values at all.
  Status ReadValueModes();
  std::uint8_t ModeIndex(std::string_view mode);
  std::uint32_t ShapeIndex(std::string_view text);
  /// The mode's index; nothing where no record is of it. `present`: bit i is modes_[i].
  std::optional<std::uint8_t> ModeOf(const std::string& mode, std::uint32_t present) const;
  /// The mode that is meant, of those in which there are values.
  Result<std::uint8_t> ValueMode(const Which& which);
  /// REQUIRES: the step was located. Null where there is none.
  const Location* Find(std::int64_t step, std::uint8_t mode,
                       std::optional<std::int32_t> rank) const;
  Status NotRecorded(const Which& which, std::string_view what) const;

  const std::filesystem::path run_;
  const std::string name_;
  const bool final_;
  std::mutex modes_mutex_;
  std::vector<std::string> modes_;  ///< Guarded by modes_mutex_ while several kinds are read.
  std::array<Keys, 3> keys_;
  std::optional<store::StepRange> located_;  ///< Steps of which the index was read.
  int looks_ = 0;                            ///< How often it was.
  std::vector<Location> locations_;          ///< By (mode, step, rank), one each: the newest.
  std::uint32_t located_modes_ = 0;
  store::Salvage located_salvage_;  ///< Of the look that found the most damage.
  std::optional<std::uint32_t> value_modes_;
  std::vector<File> files_;
  std::vector<std::string> shapes_;
  std::unordered_map<std::string, std::uint32_t> shape_indices_;
  MappedFiles mapped_;
};

/// Values that a row of the table tensors names.
Result<Values> ValuesAt(MappedFiles* files, std::string_view writer, std::string_view file,
                        std::uint64_t offset, std::uint64_t bytes, std::string_view dtype,
                        std::string_view shape);

}  // namespace telltale::read
