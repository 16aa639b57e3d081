// SPDX-License-Identifier: Apache-2.0
// A source of metrics: one kind of file of the kernel. The sampler holds one of each.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/string_pool.h"
#include "collect/catalogue.h"
#include "collect/kept_file.h"
#include "collect/sampler.h"
#include "format/records.gen.h"

namespace telltale::collect {

/// What the sources of one sampler share; outlives them.
struct SourceContext {
  std::string root;  ///< Ends in '/'.
  const Clock* clock = nullptr;
  SamplerCounters counters;
  std::string buffer;  ///< Content of the file read last.
  std::int64_t patience_ns = 0;
  /// Processes and threads that the machine has started so far, as /proc/stat said last.
  std::optional<std::uint64_t> forks;
  std::vector<SystemEvent> events;  ///< Not yet taken.
};

/// Where the rows of one sample go.
class RowSink {
 public:
  RowSink(std::int64_t time_ns, std::string_view node, StringPool* pool,
          std::vector<format::MetricRow>* out)
      : time_ns_(time_ns), node_(node), pool_(pool), out_(out) {}

  /// A subject for Emit(), as long-lived as the rows.
  std::string_view Intern(std::string_view text) { return pool_->Intern(text); }
  void Emit(MetricId id, std::string_view interned_subject, double value, std::int32_t pid = 0);

 private:
  std::int64_t time_ns_;
  std::string_view node_;
  StringPool* pool_;
  std::vector<format::MetricRow>* out_;
};

class Source {
 public:
  virtual ~Source() = default;
  /// Asks what answers on a thread of its own, before the others are sampled.
  virtual void Ask() {}
  virtual void Sample(RowSink* sink) = 0;
};

/// One read of a kept file and the time it was made; counts a failure.
struct Reading {
  std::int64_t monotonic_ns = 0;
  std::string_view text;
  bool ok = false;
};
Reading ReadFile(KeptFile* file, SourceContext* context);

/// An event of now; `kind` is one of docs/formats/events.md.
SystemEvent NewEvent(const char* kind, const char* severity, std::string subject,
                     std::int64_t now_ns, std::string message, const nlohmann::ordered_json& data);

std::unique_ptr<Source> MakeCpuSource(SourceContext* context);
std::unique_ptr<Source> MakeFrequencySource(SourceContext* context);
std::unique_ptr<Source> MakeMemorySource(SourceContext* context);
std::unique_ptr<Source> MakeDiskSource(SourceContext* context);
std::unique_ptr<Source> MakeNetworkSource(SourceContext* context);
std::unique_ptr<Source> MakePressureSource(SourceContext* context);
std::unique_ptr<Source> MakeRunQueueSource(SourceContext* context);
std::unique_ptr<Source> MakeTcpSource(SourceContext* context);
std::unique_ptr<Source> MakeNfsSource(SourceContext* context);

}  // namespace telltale::collect
