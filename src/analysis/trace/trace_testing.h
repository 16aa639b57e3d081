// SPDX-License-Identifier: Apache-2.0
// Small traces by hand, for the tests of this folder: times in microseconds.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

class TraceMaker {
 public:
  explicit TraceMaker(std::int32_t rank = 0, Needs needs = {}) : builder_(rank, needs) {}

  struct Host {
    std::int64_t tid = 1;
    std::int64_t correlation = 0;
    std::int64_t external = 0;
    std::string_view kind = "cpu_op";
    std::string_view args = {};
    double flops = 0;
    std::int64_t pid = 100;
  };
  TraceMaker& On(Category category, std::string_view name, double begin_us, double duration_us,
                 const Host& more) {
    builder_.Add({.begin_ns = Ns(begin_us),
                  .duration_ns = Ns(duration_us),
                  .name = builder_.NameId(name),
                  .lane = builder_.LaneId(more.pid, more.tid, -1, -1, "thread"),
                  .category = category,
                  .kind = builder_.KindId(more.kind),
                  .correlation = more.correlation,
                  .external = more.external,
                  .flops = more.flops,
                  .args = more.args});
    return *this;
  }
  TraceMaker& Op(std::string_view name, double begin_us, double duration_us) {
    return On(Category::kOp, name, begin_us, duration_us, {});
  }
  TraceMaker& Step(int number, double begin_us, double duration_us) {
    return On(Category::kStep, "ProfilerStep#" + std::to_string(number), begin_us, duration_us,
              {.kind = "user_annotation"});
  }
  TraceMaker& Call(std::string_view name, double begin_us, double duration_us,
                   std::int64_t correlation) {
    return On(Category::kRuntime, name, begin_us, duration_us,
              {.correlation = correlation, .kind = "cuda_runtime"});
  }

  struct Device {
    std::int64_t correlation = 0;
    std::int64_t stream = 7;
    std::int32_t device = 0;
    std::int64_t bytes = 0;
    std::int64_t external = 0;
    std::string_view args = {};
  };
  TraceMaker& Work(Category category, std::string_view name, double begin_us, double duration_us,
                   const Device& more) {
    builder_.Add({.begin_ns = Ns(begin_us),
                  .duration_ns = Ns(duration_us),
                  .name = builder_.NameId(name),
                  .lane = builder_.LaneId(more.device, 0, more.device, more.stream, "stream"),
                  .category = category,
                  .kind = builder_.KindId(Name(category)),
                  .correlation = more.correlation,
                  .external = more.external,
                  .bytes = more.bytes,
                  .args = more.args});
    return *this;
  }
  TraceMaker& Kernel(std::string_view name, double begin_us, double duration_us,
                     std::int64_t correlation = 0, std::int64_t stream = 7) {
    return Work(Category::kKernel, name, begin_us, duration_us,
                {.correlation = correlation, .stream = stream});
  }
  /// A call of cudaLaunchKernel of 1 us and the kernel that it launches.
  TraceMaker& Launched(std::string_view kernel, double call_us, double begin_us, double duration_us,
                       std::int64_t stream = 7) {
    const std::int64_t correlation = ++correlation_;
    Call("cudaLaunchKernel", call_us, 1, correlation);
    return Kernel(kernel, begin_us, duration_us, correlation, stream);
  }

  /// One of several recordings.
  TraceMaker& Recording(double begin_us, double end_us) {
    builder_.AddRecording({Ns(begin_us), Ns(end_us)});
    return *this;
  }

  Trace Make() { return builder_.Finish(); }

 private:
  static std::int64_t Ns(double us) { return static_cast<std::int64_t>(us * 1000); }

  TraceBuilder builder_;
  std::int64_t correlation_ = 1000;
};

}  // namespace telltale::analysis::trace
