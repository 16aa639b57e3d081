// SPDX-License-Identifier: Apache-2.0
// /proc/diskstats and /proc/net/dev: tables with one line of counters a device. Devices come and go
// while we run: each is found by name, and one that is gone is forgotten.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "collect/counter.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

/// The counters of one device at the read before. N counters a device.
template <std::size_t N>
struct Device {
  using Counters = std::array<std::uint64_t, N>;
  std::string subject;
  bool ignored = false;
  bool has_base = false;
  std::uint64_t last_read = 0;  ///< Number of the read that saw it last.
  std::int64_t last_ns = 0;
  Counters last{};

  /// Growth per second since the read before in `rates`; false where it is not known.
  bool Advance(const Counters& now, std::int64_t now_ns, std::uint64_t* resets,
               std::array<double, N>* rates) {
    const Counters before = std::exchange(last, now);
    const double seconds = static_cast<double>(now_ns - std::exchange(last_ns, now_ns)) * 1e-9;
    if (!std::exchange(has_base, true) || seconds <= 0) return false;
    for (std::size_t i = 0; i < N; ++i) {
      const auto delta = CounterDelta(before[i], now[i]);
      if (!delta) {
        ++*resets;
        return false;
      }
      (*rates)[i] = static_cast<double>(*delta) / seconds;
    }
    return true;
  }
};

template <std::size_t N>
class DeviceTable {
 public:
  void BeginRead() { ++read_; }
  /// The device of that name, made where it was not known.
  Device<N>* Find(std::string_view name, bool* is_new) {
    auto found = devices_.find(name);
    *is_new = found == devices_.end();
    if (*is_new) found = devices_.emplace(std::string(name), Device<N>{}).first;
    found->second.last_read = read_;
    return &found->second;
  }
  void EndRead() {
    std::erase_if(devices_, [this](const auto& entry) { return entry.second.last_read != read_; });
  }

 private:
  std::uint64_t read_ = 0;
  std::map<std::string, Device<N>, std::less<>> devices_;
};

class DiskSource final : public Source {
 public:
  explicit DiskSource(SourceContext* context)
      : context_(context),
        file_(context->root + "proc/diskstats"),
        block_folder_(context->root + "sys/block/") {}

  void Sample(RowSink* sink) override {
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    table_.BeginRead();
    std::string_view line;
    while (NextLine(&reading.text, &line)) SampleLine(line, reading.monotonic_ns, sink);
    table_.EndRead();
  }

 private:
  enum Counter {
    kReads,
    kSectorsRead,
    kReadMs,
    kWrites,
    kSectorsWritten,
    kWriteMs,
    kBusyMs,
    kQueuedMs,
    kCounters
  };

  void SampleLine(std::string_view line, std::int64_t now_ns, RowSink* sink) {
    NextField(&line);  // Major and minor number.
    NextField(&line);
    const std::string_view name = NextField(&line);
    bool is_new = false;
    Device<kCounters>* disk = name.empty() ? nullptr : table_.Find(name, &is_new);
    if (is_new) {
      disk->subject = "disk:" + std::string(name);
      disk->ignored = !IsWholeDisk(name);
    }
    if (disk != nullptr && disk->ignored) return;
    std::array<std::uint64_t, 11> columns{};
    if (disk == nullptr || ReadNumbers(line, columns.data(), columns.size()) != columns.size()) {
      ++context_->counters.malformed;
      return;
    }
    std::array<double, kCounters> rates{};
    if (!disk->Advance({columns[0], columns[2], columns[3], columns[4], columns[6], columns[7],
                        columns[9], columns[10]},
                       now_ns, &context_->counters.counter_resets, &rates)) {
      return;
    }
    constexpr double kSectorBytes = 512;  // Of diskstats, whatever the device's own sector is.
    constexpr double kMsToPercent = 0.1;
    const std::string_view subject = sink->Intern(disk->subject);
    sink->Emit(MetricId::kDiskReadBytes, subject, rates[kSectorsRead] * kSectorBytes);
    sink->Emit(MetricId::kDiskWriteBytes, subject, rates[kSectorsWritten] * kSectorBytes);
    sink->Emit(MetricId::kDiskReadOps, subject, rates[kReads]);
    sink->Emit(MetricId::kDiskWriteOps, subject, rates[kWrites]);
    sink->Emit(MetricId::kDiskBusy, subject, std::min(100.0, rates[kBusyMs] * kMsToPercent));
    if (rates[kReads] > 0) {
      sink->Emit(MetricId::kDiskReadLatency, subject, rates[kReadMs] / rates[kReads]);
    }
    if (rates[kWrites] > 0) {
      sink->Emit(MetricId::kDiskWriteLatency, subject, rates[kWriteMs] / rates[kWrites]);
    }
    constexpr double kMsToSeconds = 1e-3;
    sink->Emit(MetricId::kDiskQueue, subject, rates[kQueuedMs] * kMsToSeconds);
  }

  /// Partitions would count their disk's work twice; the other names are not disks.
  bool IsWholeDisk(std::string_view name) const {
    for (const std::string_view prefix : {"loop", "ram", "zram", "sr", "fd"}) {
      if (name.starts_with(prefix)) return false;
    }
    if (::access(block_folder_.c_str(), X_OK) != 0) return true;  // No sysfs to ask.
    std::string entry(name);
    std::replace(entry.begin(), entry.end(), '/', '!');  // As sysfs writes cciss/c0d0.
    return ::access((block_folder_ + entry).c_str(), F_OK) == 0;
  }

  SourceContext* context_;
  KeptFile file_;
  std::string block_folder_;
  DeviceTable<kCounters> table_;
};

class NetworkSource final : public Source {
 public:
  explicit NetworkSource(SourceContext* context)
      : context_(context), file_(context->root + "proc/net/dev") {}

  void Sample(RowSink* sink) override {
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    table_.BeginRead();
    std::string_view line;
    while (NextLine(&reading.text, &line)) {
      if (line.find('|') == std::string_view::npos) SampleLine(line, reading.monotonic_ns, sink);
    }
    table_.EndRead();
  }

 private:
  enum Counter { kReceived, kSent, kPacketsIn, kPacketsOut, kErrors, kDrops, kCounters };

  void SampleLine(std::string_view line, std::int64_t now_ns, RowSink* sink) {
    // Bytes, packets, errors, drops and four more, received, then the same sent. The name ends at
    // the last colon: an alias has one of its own.
    const std::size_t colon = line.rfind(':');
    std::array<std::uint64_t, 12> columns{};
    std::string_view head = line.substr(0, colon);
    const std::string_view name = NextField(&head);
    if (colon == std::string_view::npos || name.empty() ||
        ReadNumbers(line.substr(colon + 1), columns.data(), columns.size()) != columns.size()) {
      ++context_->counters.malformed;
      return;
    }
    bool is_new = false;
    Device<kCounters>* device = table_.Find(name, &is_new);
    if (is_new) device->subject = "net:" + std::string(name);
    std::array<double, kCounters> rates{};
    const bool known = device->Advance({columns[0], columns[8], columns[1], columns[9],
                                        columns[2] + columns[10], columns[3] + columns[11]},
                                       now_ns, &context_->counters.counter_resets, &rates);
    if (!known || columns[0] + columns[8] == 0) return;
    const std::string_view subject = sink->Intern(device->subject);
    sink->Emit(MetricId::kNetRecvBytes, subject, rates[kReceived]);
    sink->Emit(MetricId::kNetSendBytes, subject, rates[kSent]);
    sink->Emit(MetricId::kNetRecvPackets, subject, rates[kPacketsIn]);
    sink->Emit(MetricId::kNetSendPackets, subject, rates[kPacketsOut]);
    sink->Emit(MetricId::kNetErrors, subject, rates[kErrors]);
    sink->Emit(MetricId::kNetDrops, subject, rates[kDrops]);
  }

  SourceContext* context_;
  KeptFile file_;
  DeviceTable<kCounters> table_;
};

}  // namespace

std::unique_ptr<Source> MakeDiskSource(SourceContext* context) {
  return std::make_unique<DiskSource>(context);
}

std::unique_ptr<Source> MakeNetworkSource(SourceContext* context) {
  return std::make_unique<NetworkSource>(context);
}

}  // namespace telltale::collect
