// SPDX-License-Identifier: Apache-2.0
// Samples the machine and the training's process tree: cores, memory, disks, file systems, network,
// pressure, control group, GPUs, processes. What each metric means, its unit and its source:
// collect/catalogue.h, docs/metrics.md.
//
// Every file stays open and is read by pread, so a sample costs tens of microseconds. A source that
// cannot be read leaves its metrics out of that sample and is counted; nothing here ever fails.
// What may hang, a file system or the driver of a GPU, is asked on threads of its own.
// Thread safety: none; one thread samples.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/string_pool.h"
#include "format/records.gen.h"

namespace telltale::collect {

struct SamplerOptions {
  std::string root = "/";  ///< Below it lie proc/ and sys/; tests give a fixture tree.
  std::string node;        ///< Host name written into each row.
  const Clock* clock = &Clock::System();  ///< Must outlive the sampler.
  /// The driver's library, loaded at run time; empty: no GPUs.
  std::string nvml = "libnvidia-ml.so.1";
  /// So long a sample waits for those that answer on threads of their own; what comes later is in
  /// the next one.
  std::int64_t patience_ns = 5'000'000;
  /// Cores, memory, disks, file systems, network interfaces and processes alone: what others have
  /// too, for comparisons with them (bench/sampler_loop.cc).
  bool common_only = false;
};

/// Something that happened to the machine: what docs/formats/events.md lists under the agent's
/// samples.
struct SystemEvent {
  std::int64_t monotonic_ns = 0;
  std::string kind;
  std::string severity;
  std::string subject;
  std::string message;
  std::string data;  ///< JSON object, or empty.
};

/// Cumulative since Create().
struct SamplerCounters {
  std::uint64_t samples = 0;
  std::uint64_t rows = 0;
  std::uint64_t unreadable = 0;         ///< Reads or opens of a source that failed.
  std::uint64_t malformed = 0;          ///< Lines of a source that could not be understood.
  std::uint64_t counter_resets = 0;     ///< Counters that went backwards other than by wrapping.
  std::uint64_t processes_skipped = 0;  ///< Processes of the tree beyond the limit of watched ones.
  std::uint64_t mounts_skipped = 0;     ///< File systems beyond the limit of watched ones, now.
  std::uint64_t unanswered = 0;  ///< Samples for which a file system or a driver answered too late.
};

class Sampler {
 public:
  /// Opens what can be opened; never null. The first Sample() of a counter only takes its base
  /// value, so rates begin with the second.
  static std::unique_ptr<Sampler> Create(SamplerOptions options);
  virtual ~Sampler() = default;

  /// Adds processes whose trees (themselves and all descendants) are watched. A process found once
  /// stays watched until it ends, also where its parent ends before it. The control group sampled
  /// is that of the first.
  virtual void SetRoots(std::vector<int> pids) = 0;

  /// Appends one row a metric. time_ns and ord_ns are CLOCK_MONOTONIC at reading plus
  /// `monotonic_to_run_ns`; seq is left 0. Strings of the rows are static or interned in `pool`.
  /// kVital: memory, the control group, GPUs and the process tree alone, which show whether the
  /// training lives and whether its memory lasts.
  enum class Part : std::uint8_t { kAll, kVital };
  virtual void Sample(std::int64_t monotonic_to_run_ns, StringPool* pool,
                      std::vector<format::MetricRow>* out, Part part = Part::kAll) = 0;

  /// Processes of the training's control group that the kernel's out-of-memory killer has ended so
  /// far, read now; none where the kernel does not count them.
  virtual std::optional<std::uint64_t> OomKills() = 0;

  /// What has happened since the last call.
  virtual std::vector<SystemEvent> TakeEvents() = 0;

  virtual const SamplerCounters& counters() const = 0;
};

}  // namespace telltale::collect
