// SPDX-License-Identifier: Apache-2.0
// The bytes of a file in order, inflated where it is gzip (several members too). Memory: 1 MiB.
// Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "interchange/input_file.h"

namespace telltale::interchange {

class TraceInput {
 public:
  /// kUnusable: no such file; kIo. `bomb_bytes`: see Read. Of a file that is held open one at a
  /// time: it is read from its begin, and the descriptor stands elsewhere then.
  static Result<std::unique_ptr<TraceInput>> Open(const InputFile& file,
                                                  std::uint64_t bomb_bytes = 1ULL << 30);
  virtual ~TraceInput() = default;

  /// Fills up to `size` bytes, fewer only at the end; 0: nothing is left. What follows damage in
  /// the gzip stream is not readable: it ends there. kLimit: a gzip stream has grown above
  /// `bomb_bytes` and 200 times what it was, as no recording does.
  virtual Result<std::size_t> Read(char* to, std::size_t size) = 0;
  /// What is wrong with the gzip stream, as far as it was read; empty: nothing.
  virtual const std::string& damage() const = 0;
  /// What follows the gzip stream and is no gzip, which is left out; empty: nothing.
  virtual const std::string& trailing() const = 0;
  virtual bool gzip() const = 0;
  /// As it lies there; 0 where it is no plain file.
  virtual std::uint64_t file_bytes() const { return 0; }
};

/// All bytes of a file that fits into memory. kLimit above `most_bytes`; kPartial is not said: what
/// a damaged gzip stream gives is given, `damage` says so; `trailing` as above, null where nobody
/// asks.
Result<std::string> ReadTrace(const InputFile& file, std::uint64_t most_bytes, std::string* damage,
                              std::string* trailing = nullptr);
/// The same of many files one after the other: `buffer` holds the text and only grows.
Result<std::string_view> ReadTraceInto(const InputFile& file, std::uint64_t most_bytes,
                                       std::string* damage, std::string* buffer,
                                       std::string* trailing = nullptr);

/// `report` is called whenever an input of this process, or of a child made later, has taken more
/// from its file: with all bytes so far, from any thread. Null: no longer.
void ReportInput(void (*report)(std::uint64_t bytes));

}  // namespace telltale::interchange
