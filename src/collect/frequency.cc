// SPDX-License-Identifier: Apache-2.0
// Clock frequency of the cores: cpufreq where the kernel has it, else the lines of /proc/cpuinfo.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

// Some kernels interrupt every core to answer, so rarely.
constexpr std::int64_t kPeriodNs = 5'000'000'000;
// A descriptor a core; machines with more have it from /proc/cpuinfo.
constexpr std::size_t kMaxKeptCores = 256;

class FrequencySource final : public Source {
 public:
  explicit FrequencySource(SourceContext* context)
      : context_(context), cpuinfo_(context->root + "proc/cpuinfo") {
    const auto folder = [&](std::size_t core) {
      return fmt::format("{}sys/devices/system/cpu/cpu{}", context_->root, core);
    };
    for (std::size_t core = 0; ::access(folder(core).c_str(), F_OK) == 0; ++core) {
      const std::string path = folder(core) + "/cpufreq/scaling_cur_freq";
      if (::access(path.c_str(), R_OK) == 0) files_.push_back({core, KeptFile(path)});
    }
    if (files_.size() > kMaxKeptCores) files_.clear();
  }

  void Sample(RowSink* sink) override {
    const std::int64_t now_ns = context_->clock->MonotonicNs();
    if (now_ns < due_ns_) return;
    due_ns_ = now_ns + kPeriodNs;
    if (files_.empty()) {
      SampleCpuinfo(sink);
      return;
    }
    constexpr double kKhzToMhz = 1e-3;
    for (CoreFile& core : files_) {
      const Reading reading = ReadFile(&core.file, context_);
      if (reading.ok) Emit(core.number, reading.text, kKhzToMhz, sink);
    }
  }

 private:
  struct CoreFile {
    std::size_t number;
    KeptFile file;
  };

  void SampleCpuinfo(RowSink* sink) {
    Reading reading = ReadFile(&cpuinfo_, context_);
    std::string_view line;
    std::optional<std::size_t> core;
    while (reading.ok && NextLine(&reading.text, &line)) {
      const std::size_t colon = line.find(':');
      if (colon == std::string_view::npos) continue;
      std::string_view value = line.substr(colon + 1);
      if (line.starts_with("processor")) core = ParseNumber<std::size_t>(NextField(&value));
      // Other architectures have no such line, and nothing else to offer here.
      if (line.starts_with("cpu MHz") && core) Emit(*core, value, 1, sink);
    }
  }

  void Emit(std::size_t core, std::string_view text, double factor, RowSink* sink) {
    std::string_view line;
    NextLine(&text, &line);
    const auto value = ParseNumber<double>(NextField(&line));
    constexpr std::size_t kMaxCores = 1 << 16;
    if (!value || core >= kMaxCores) {
      ++context_->counters.malformed;
      return;
    }
    while (subjects_.size() <= core) subjects_.push_back(fmt::format("cpu:{}", subjects_.size()));
    sink->Emit(MetricId::kCpuFrequency, sink->Intern(subjects_[core]), *value * factor);
  }

  SourceContext* context_;
  KeptFile cpuinfo_;
  std::vector<CoreFile> files_;
  std::vector<std::string> subjects_;
  std::int64_t due_ns_ = INT64_MIN;
};

}  // namespace

std::unique_ptr<Source> MakeFrequencySource(SourceContext* context) {
  return std::make_unique<FrequencySource>(context);
}

}  // namespace telltale::collect
