// SPDX-License-Identifier: Apache-2.0
// The bytes of a file in order, inflated where it is gzip (several members too). Memory: 1 MiB.
// Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace telltale::interchange {

class TraceInput {
 public:
  /// kUnusable: no such file; kIo.
  static Result<std::unique_ptr<TraceInput>> Open(const std::filesystem::path& path);
  virtual ~TraceInput() = default;

  /// Fills up to `size` bytes, fewer only at the end; 0: nothing is left. What follows damage in
  /// the gzip stream is not readable: it ends there.
  virtual Result<std::size_t> Read(char* to, std::size_t size) = 0;
  /// What is wrong with the gzip stream, as far as it was read; empty: nothing.
  virtual const std::string& damage() const = 0;
  virtual bool gzip() const = 0;
  /// As it lies there; 0 where it is no plain file.
  virtual std::uint64_t file_bytes() const { return 0; }
};

/// All bytes of a file that fits into memory. kLimit above `most_bytes`; kPartial is not said: what
/// a damaged gzip stream gives is given, `damage` says so.
Result<std::string> ReadTrace(const std::filesystem::path& path, std::uint64_t most_bytes,
                              std::string* damage);
/// The same of many files one after the other: `buffer` holds the text and only grows.
Result<std::string_view> ReadTraceInto(const std::filesystem::path& path, std::uint64_t most_bytes,
                                       std::string* damage, std::string* buffer);

}  // namespace telltale::interchange
