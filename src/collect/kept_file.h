// SPDX-License-Identifier: Apache-2.0
// A file of /proc that stays open and is read again from its start.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace telltale::collect {

class KeptFile {
 public:
  /// How the kernel makes the file: record by record, so that it is read until nothing more comes,
  /// or as one, which one call reads whole.
  enum class Text : bool { kRecords, kOneRecord };

  /// Where the file cannot be opened it is tried again every `retry_ns`; 0 means never.
  explicit KeptFile(std::string path, Text text = Text::kRecords,
                    std::int64_t retry_ns = 30'000'000'000);
  /// Takes a descriptor, of a process or a control group mostly, whose files are one record; once
  /// it fails, so does every later read.
  explicit KeptFile(UniqueFd fd, Text text = Text::kOneRecord)
      : one_record_(text == Text::kOneRecord), fd_(std::move(fd)) {}

  /// The content, valid until the next Read() with the same buffer; none where it could not be
  /// read. `failed` is set where a call failed, but not while a retry is not yet due.
  std::optional<std::string_view> Read(std::int64_t now_ns, std::string* buffer, bool* failed);
  bool is_open() const { return fd_.valid(); }

 private:
  std::string path_;
  std::int64_t retry_ns_ = 0;
  std::int64_t retry_at_ns_ = INT64_MIN;
  bool one_record_ = false;
  UniqueFd fd_;
};

}  // namespace telltale::collect
