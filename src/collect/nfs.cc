// SPDX-License-Identifier: Apache-2.0
// /proc/self/mountstats: what each NFS mount asks of its server and how long the answers take. The
// kernel answers from its own counters, so a dead server does not hold up the reading.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "collect/counter.h"
#include "collect/mounts.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

constexpr std::int64_t kNfsPeriodNs = 1'000'000'000;
// Where there is no NFS mount.
constexpr std::int64_t kNoNfsPeriodNs = 10'000'000'000;

enum NfsCounter : std::uint8_t {
  kNfsRead,  ///< Calls; then bytes and milliseconds of each kind.
  kNfsWrite,
  kNfsOther,
  kNfsReadMs,
  kNfsWriteMs,
  kNfsOtherMs,
  kNfsBytesIn,
  kNfsBytesOut,
  kNfsResent,
  kNfsTimedOut,
  kNfsCounters
};
using NfsCounts = std::array<std::uint64_t, kNfsCounters>;

struct NfsMount {
  std::string subject;
  bool has_base = false;
  std::uint64_t last_look = 0;
  std::int64_t last_ns = 0;
  NfsCounts last{};
};

class NfsSource final : public Source {
 public:
  explicit NfsSource(SourceContext* context)
      : context_(context), file_(context->root + "proc/self/mountstats") {
    // A kernel without NFS has none, which is no failure.
    exists_ = ::access((context->root + "proc/self/mountstats").c_str(), R_OK) == 0;
  }

  void Sample(RowSink* sink) override {
    const std::int64_t now_ns = context_->clock->MonotonicNs();
    if (!exists_ || now_ns < due_ns_) return;
    due_ns_ = now_ns + kNoNfsPeriodNs;
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    ++look_;
    NfsMount* mount = nullptr;
    NfsCounts counts{};
    bool calls = false;
    std::string_view line;
    const auto end = [&] {
      if (mount != nullptr) Emit(mount, counts, reading.monotonic_ns, sink);
      mount = nullptr;
      counts = {};
      calls = false;
    };
    while (NextLine(&reading.text, &line)) {
      if (line == "device" || line.starts_with("device ")) {
        end();
        mount = Find(line);
      } else if (mount != nullptr) {
        Read(line, &calls, &counts);
      }
    }
    end();
    std::erase_if(mounts_, [this](const auto& entry) { return entry.second.last_look != look_; });
    if (!mounts_.empty()) due_ns_ = now_ns + kNfsPeriodNs;
  }

 private:
  /// "device SERVER:/PATH mounted on /POINT with fstype nfs4 statvers=1.1"; null for other types.
  NfsMount* Find(std::string_view line) {
    std::array<std::string_view, 8> words{};
    for (std::string_view& word : words) word = NextField(&line);
    if (words[6] != "fstype" || (words[7] != "nfs" && words[7] != "nfs4")) return nullptr;
    auto found = mounts_.find(words[4]);
    if (found == mounts_.end()) {
      found = mounts_.emplace(std::string(words[4]), NfsMount{}).first;
      found->second.subject = "nfs:" + UnescapedMount(words[4]);
    }
    // Mounted over another one: the last line is the one that can be seen.
    if (found->second.last_look == look_) found->second.has_base = false;
    found->second.last_look = look_;
    return &found->second;
  }

  void Read(std::string_view line, bool* calls, NfsCounts* counts) {
    const std::string_view key = NextField(&line);
    if (key == "bytes:") {
      // By read() and write(), the same with O_DIRECT, from and to the server, pages.
      std::array<std::uint64_t, 6> columns{};
      if (ReadNumbers(line, columns.data(), columns.size()) != columns.size()) {
        ++context_->counters.malformed;
        return;
      }
      (*counts)[kNfsBytesIn] = columns[4];
      (*counts)[kNfsBytesOut] = columns[5];
    } else if (key == "per-op") {
      *calls = true;
    } else if (*calls && key.ends_with(':')) {
      // Calls, times sent, timeouts, bytes out and in; ms in the queue, on the way, altogether.
      std::array<std::uint64_t, 8> columns{};
      if (ReadNumbers(line, columns.data(), columns.size()) != columns.size()) {
        ++context_->counters.malformed;
        return;
      }
      const int kind = key == "READ:" ? kNfsRead : key == "WRITE:" ? kNfsWrite : kNfsOther;
      (*counts)[kind] += columns[0];
      (*counts)[kind + kNfsReadMs] += columns[7];
      if (columns[1] > columns[0]) (*counts)[kNfsResent] += columns[1] - columns[0];
      (*counts)[kNfsTimedOut] += columns[2];
    }
  }

  void Emit(NfsMount* mount, const NfsCounts& now, std::int64_t now_ns, RowSink* sink) {
    const NfsCounts before = std::exchange(mount->last, now);
    const double seconds =
        static_cast<double>(now_ns - std::exchange(mount->last_ns, now_ns)) * 1e-9;
    if (!std::exchange(mount->has_base, true) || seconds <= 0) return;
    std::array<double, kNfsCounters> grown{};
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto delta = CounterDelta(before[i], now[i]);
      // A call that is under way was sent and has not ended: the difference may shrink.
      if (!delta && i != kNfsResent) {
        ++context_->counters.counter_resets;
        return;
      }
      grown[i] = static_cast<double>(delta.value_or(0));
    }
    const std::string_view subject = sink->Intern(mount->subject);
    sink->Emit(MetricId::kNfsReadBytes, subject, grown[kNfsBytesIn] / seconds);
    sink->Emit(MetricId::kNfsWriteBytes, subject, grown[kNfsBytesOut] / seconds);
    constexpr std::array<std::pair<MetricId, MetricId>, 3> kKinds = {
        {{MetricId::kNfsReadOps, MetricId::kNfsReadLatency},
         {MetricId::kNfsWriteOps, MetricId::kNfsWriteLatency},
         {MetricId::kNfsOtherOps, MetricId::kNfsOtherLatency}}};
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      sink->Emit(kKinds[kind].first, subject, grown[kind] / seconds);
      if (grown[kind] > 0) {
        sink->Emit(kKinds[kind].second, subject, grown[kind + kNfsReadMs] / grown[kind]);
      }
    }
    sink->Emit(MetricId::kNfsRetransmits, subject, grown[kNfsResent] / seconds);
    sink->Emit(MetricId::kNfsTimeouts, subject, grown[kNfsTimedOut] / seconds);
  }

  SourceContext* context_;
  KeptFile file_;
  bool exists_ = false;
  std::int64_t due_ns_ = INT64_MIN;
  std::uint64_t look_ = 0;
  std::map<std::string, NfsMount, std::less<>> mounts_;  ///< By the point as the kernel writes it.
};

}  // namespace

std::unique_ptr<Source> MakeNfsSource(SourceContext* context) {
  return std::make_unique<NfsSource>(context);
}

}  // namespace telltale::collect
