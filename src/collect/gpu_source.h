// SPDX-License-Identifier: Apache-2.0
// The GPUs in each sample. Two threads read them, for what is quick and for what is slow, and the
// sampler takes what they have: a driver that hangs costs it one short wait, and is said.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collect/asked_thread.h"
#include "collect/source.h"

namespace telltale::collect {

class GpuSource final : public Source {
 public:
  GpuSource(SourceContext* context, const std::string& library);
  /// Waits a moment for threads that read.
  ~GpuSource() override;

  void Ask() override;
  void Sample(RowSink* sink) override;

 private:
  struct Shared;
  /// One of the two threads and what it is asked.
  struct Asked {
    std::unique_ptr<AskedThread> thread;
    std::int64_t period_ns = 0;
    std::int64_t due_ns = INT64_MIN;
    std::int64_t asked_ns = 0;
    bool open = false;    ///< Asked, and not yet taken.
    bool late = false;    ///< It was waited for in vain.
    bool silent = false;  ///< That was said.
  };

  void Ask(Asked* asked, std::int64_t now_ns);
  /// Rows of what has come.
  void Take(Asked* asked, bool quick, std::chrono::nanoseconds patience, RowSink* sink);
  void SaySilent(Asked* asked, std::int64_t now_ns);

  SourceContext* context_;
  std::shared_ptr<Shared> shared_;
  Asked quick_, slow_;
  std::vector<std::string> subjects_;
};

}  // namespace telltale::collect
