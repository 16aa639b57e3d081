// SPDX-License-Identifier: Apache-2.0
// What the tests of the store share: a folder of one's own, small batches, reading everything back.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/process.h"
#include "store/folder.h"
#include "store/reader.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::store {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "telltale-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A run folder with a run.json that says: over, exit code 0 (or still running under this process).
inline void MakeRun(const std::filesystem::path& run, bool running = false) {
  std::filesystem::create_directories(run);
  RunInfo info{.id = run.filename().string(), .name = "test", .command = {"python", "train.py"}};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2});
  info.finished = !running;
  if (!running) info.attempts.back().exit_code = 0;
  if (running) {
    info.boot_id = BootId();
    info.pid_namespace = PidNamespace();
    info.supervisor_pid = ::getpid();
    info.supervisor_start_ticks = ProcessStartTicks(::getpid());
  }
  ASSERT_TRUE(WriteRunInfo(run, info).ok());
}

/// `n` scalars named `name` with values from `first` on, ord_ns = value * 10.
inline format::Batch Scalars(int first, int n, const char* name = "loss") {
  format::Batch batch;
  for (int i = first; i < first + n; ++i) {
    batch.rows.scalars.push_back({.ord_ns = i * 10,
                                  .time_ns = i * 10,
                                  .name = name,
                                  .value = static_cast<double>(i),
                                  .step = i,
                                  .mode = "TRAIN"});
  }
  batch.watermark_ns = static_cast<std::int64_t>(first + n) * 10;
  return batch;
}

struct Everything {
  StringPool pool;
  format::Rows rows;
  Salvage salvage;
};

inline std::unique_ptr<Everything> ReadEverything(const std::filesystem::path& run) {
  auto all = std::make_unique<Everything>();
  auto reader = RunReader::Open(run);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  if (!reader.ok()) return all;
  const Status status = (*reader)->ReadAll(~0U, &all->pool, &all->rows, &all->salvage);
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

/// Values of the scalars, which must be 0, 1, 2...: each once, in order, none missing.
inline void ExpectScalars(const format::Rows& rows, std::size_t n) {
  ASSERT_EQ(rows.scalars.size(), n);
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(rows.scalars[i].seq, i + 1);
    ASSERT_EQ(rows.scalars[i].value, static_cast<double>(i));
  }
}

/// Does what is due until `done()`, at most a generous while.
template <class F>
bool TickUntil(Writer* writer, F&& done) {
  for (int i = 0; i < 300'000; ++i) {
    EXPECT_TRUE(writer->Tick().ok());
    if (done()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace telltale::store
