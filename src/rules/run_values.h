// SPDX-License-Identifier: Apache-2.0
// The values of a run's tensors, for rules that need more than statistics. What several rules read
// of one record is read once.
//
// Thread safety: none. Memory: what was read last, at most 64 MiB.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rules/rule.h"
#include "store/reader.h"
#include "store/tensor_file.h"

namespace telltale::rules {

class RunValues final : public TensorValues {
 public:
  explicit RunValues(std::filesystem::path run) : run_(std::move(run)) {}

  /// Whose records will be read: Read before this is kUnusable. REQUIRES: it outlives the reads.
  void Follow(const store::Cursor* cursor) { cursor_ = cursor; }

  Result<std::vector<double>> Read(const Record& record, std::size_t limit) override;

 private:
  struct File {
    std::string writer, name;
    std::shared_ptr<const store::TensorFile> file;
  };
  struct Known {
    std::string writer, file;
    std::uint64_t offset = 0;
    std::uint64_t elements = 0;  ///< Of the tensor; fewer may be in `values`.
    std::vector<double> values;
  };

  /// The mapped file, opened anew where it has grown since.
  Result<std::span<const std::byte>> Bytes(const std::string& writer, const format::TensorRow& row);

  const std::filesystem::path run_;
  const store::Cursor* cursor_ = nullptr;
  std::deque<File> files_;   ///< The newest in front.
  std::deque<Known> known_;  ///< Likewise.
};

}  // namespace telltale::rules
