// SPDX-License-Identifier: Apache-2.0
#include "rules/run_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "rules/element_values.h"

namespace telltale::rules {
namespace {

constexpr std::size_t kFiles = 8;
constexpr std::size_t kKnownTensors = 16;
/// Larger ones are read again by each rule.
constexpr std::size_t kKnownElements = 512U << 10;

}  // namespace

Result<std::span<const std::byte>> RunValues::Bytes(const std::string& writer,
                                                    const format::TensorRow& row) {
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const File& file) {
    return file.writer == writer && file.name == row.file;
  });
  if (found != files_.end()) {
    if (auto bytes = found->file->Bytes(row.offset, row.bytes); bytes.ok()) return bytes;
    files_.erase(found);
  }
  // It checks the row as well.
  TELLTALE_ASSIGN_OR_RETURN(const store::MappedTensor mapped, store::OpenTensor(run_, writer, row));
  files_.push_front({writer, std::string(row.file), mapped.file});
  if (files_.size() > kFiles) files_.pop_back();
  return mapped.values;
}

Result<std::vector<double>> RunValues::Read(const Record& record, std::size_t limit) {
  const auto* row = record.As<format::TensorRow>();
  if (row == nullptr)
    return Status(Code::kUsage, "the record holds no tensor: read one of the table tensors");
  if (row->file.empty()) {
    return Status(Code::kUsage, fmt::format("of {} only shape and dtype were taken", row->name));
  }
  if (cursor_ == nullptr || record.writer >= cursor_->writers().size()) {
    return Status(Code::kUnusable, "the run does not say which process wrote the record");
  }
  const store::TensorDtype* const dtype = store::FindTensorDtype(row->dtype);
  if (dtype == nullptr || dtype->bytes == 0) {
    return Status(Code::kUnusable, fmt::format("the dtype of {} is not known here", row->name));
  }
  const std::string& writer = cursor_->writers()[record.writer];
  const std::uint64_t elements = row->bytes / dtype->bytes;
  for (const Known& known : known_) {
    const bool same =
        known.offset == row->offset && known.file == row->file && known.writer == writer;
    if (!same || (known.values.size() < limit && known.values.size() < known.elements)) continue;
    const auto count = static_cast<std::ptrdiff_t>(std::min(limit, known.values.size()));
    return std::vector<double>(known.values.begin(), known.values.begin() + count);
  }
  TELLTALE_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Bytes(writer, *row));
  auto values = ElementValues(row->dtype, bytes, limit);
  if (!values) return Status(Code::kUnusable, fmt::format("{}: unknown dtype", row->name));
  if (values->size() <= kKnownElements) {
    known_.push_front({writer, std::string(row->file), row->offset, elements, *values});
    if (known_.size() > kKnownTensors) known_.pop_back();
  }
  return std::move(*values);
}

}  // namespace telltale::rules
