// SPDX-License-Identifier: Apache-2.0
// Pushes the metrics of a run while the watcher watches it: `telltale export otlp RUN --follow` in
// a child, so that a receiver that hangs holds up no finding. One that dies is started again later.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "run/process.h"

namespace telltale::cli {

class ExporterKeeper {
 public:
  /// `program` is this binary; `endpoint` as --otlp has it: empty, nothing is pushed.
  ExporterKeeper(std::string program, std::filesystem::path run, std::string endpoint);
  ~ExporterKeeper() { Stop(); }
  ExporterKeeper(const ExporterKeeper&) = delete;
  ExporterKeeper& operator=(const ExporterKeeper&) = delete;

  /// Starts it where it is due; never waits for it.
  void Tick();
  /// Lets it push what is last, and waits a moment for it: where we are all of a container, nothing
  /// of it outlives us.
  void Stop();

 private:
  void Reap();

  const std::string program_;
  const std::filesystem::path run_;
  const std::string endpoint_;
  std::int64_t start_at_ns_ = 0;
  bool hopeless_ = false;  ///< It said that a new start would not help.
  run::Child child_;
};

}  // namespace telltale::cli
