// SPDX-License-Identifier: Apache-2.0
// Makes a run directory of other tools' recordings. The run appears when all of it is written:
// until then it has another name, and goes away with the process, whatever ends it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "interchange/importer.h"

namespace telltale {
class GivenName;
}

namespace telltale::interchange {

struct ImportRequest {
  std::vector<std::filesystem::path> paths;
  std::filesystem::path run;  ///< To be made.
  std::string format;         ///< Empty: found by the content.
  std::string telltale_version;
  ImportLimits limits;
  /// All of the run is on the disk before it gets its name.
  bool durable = true;
};

struct ImportSummary {
  std::string format;
  std::vector<std::int32_t> ranks;
  std::uint64_t slices = 0;
  std::uint64_t steps = 0;
  std::uint64_t metrics = 0;
  std::uint64_t events = 0;
  std::uint64_t other_rows = 0;  ///< Spans, scalars.
  struct Counter {
    std::string name, subject;
    std::uint64_t value = 0;
    bool loss = false;
  };
  std::vector<Counter> counters;   ///< Those above zero.
  std::vector<std::string> notes;  ///< A line each.
  bool partial() const;
};

/// Reads the files in a child process with limits. kUsage: the run is there already, files of
/// several formats, a FIFO; kUnusable: of no format known, or nothing in it; kLimit; kIo.
/// Not while other threads run: the child is a fork.
Result<ImportSummary> ImportFiles(const ImportRequest& request);

/// The same in this process, for tests and benchmarks.
Result<ImportSummary> ImportFilesHere(const ImportRequest& request);

/// A run made of a trace for as long as this lives; it goes with the process, too. What the user is
/// told names the first of the paths (base/given_name.h).
class TemporaryRun {
 public:
  static Result<TemporaryRun> Import(const std::vector<std::filesystem::path>& paths,
                                     const std::string& telltale_version);
  TemporaryRun(TemporaryRun&&) noexcept;
  TemporaryRun& operator=(TemporaryRun&&) noexcept;
  ~TemporaryRun();

  const std::filesystem::path& run() const { return run_; }
  const ImportSummary& summary() const { return summary_; }

 private:
  TemporaryRun();
  std::unique_ptr<class ScratchFolder> scratch_;
  std::filesystem::path run_;
  std::unique_ptr<GivenName> given_;
  ImportSummary summary_;
};

}  // namespace telltale::interchange
