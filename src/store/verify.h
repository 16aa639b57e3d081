// SPDX-License-Identifier: Apache-2.0
// Checks every byte of a run directory that a checksum can vouch for.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace telltale::store {

struct Problem {
  std::string file;  ///< Relative to the run.
  std::optional<std::uint64_t> offset;
  std::string what;
};

struct VerifyReport {
  std::uint64_t writers = 0;
  std::uint64_t journals = 0;
  std::uint64_t segments = 0;
  std::uint64_t tensor_files = 0;
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;  ///< Of its files, as they say.
  /// Of these, which no check has seen: of a file of another size than its records say, or bytes
  /// without end that were never written. Each is named in `problems`.
  std::uint64_t unread_bytes = 0;
  std::string state;  ///< Of the run; what is still being written is judged more mildly.
  std::vector<Problem> problems;
  std::vector<std::string> notes;  ///< Worth saying, nothing wrong: files that are not ours.
};

/// Reads journals (checksums, padding, decoding), segments (digest against the sealed record,
/// Parquet, rows against the name), tensor files (digests, and no byte outside the index but in
/// what a dead writer left unfinished), sequence numbers without gaps, the end record of a finished
/// run, run.json. Of a file it reads what the records of the run name, each byte once, and of what
/// was never written no more than a HoleBudget gives. Fails with kUnusable where there is no run
/// and kVersion where it is of a later format.
Result<VerifyReport> Verify(const std::filesystem::path& run);

}  // namespace telltale::store
