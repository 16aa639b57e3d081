// SPDX-License-Identifier: Apache-2.0
// A program that lies to its recorder. It ends with code 7, whatever it has done.
// usage: forger ends              a loss at the smallest and the largest step there is
//        forger arguments SEED    every function of the probe with numbers by the dice
//        forger rings SEED        random bytes in every ring, while it records
//        forger sums              steps and spans of years, thousands of them
#include <telltale/probe.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "format/channel_layout.h"

namespace {

namespace format = telltale::format;

constexpr std::int64_t kNumbers[] = {std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::min() + 1,
                                     -(std::int64_t{1} << 62),
                                     -2,
                                     -1,
                                     0,
                                     1,
                                     1'000,
                                     std::int64_t{1} << 31,
                                     std::int64_t{1} << 53,
                                     (std::int64_t{1} << 53) + 1,
                                     std::int64_t{1} << 62,
                                     std::numeric_limits<std::int64_t>::max() - 1,
                                     std::numeric_limits<std::int64_t>::max()};
constexpr double kReals[] = {0.0,
                             -0.0,
                             1.0,
                             -1e308,
                             1e308,
                             5e-324,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
constexpr const char* kNames[] = {"loss",
                                  "loss.1",
                                  "lr.0",
                                  "lr.largest",
                                  "accuracy",
                                  "eval loss",
                                  "dataloader.queue",
                                  "optimizer.skipped",
                                  "checkpoint",
                                  "GetItem",
                                  "DataLoader",
                                  "\xff\xfe",
                                  "gpu.utilization",
                                  "backward",
                                  "process.exception",
                                  "stop.ready"};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t most) { return engine_() % most; }
  std::int64_t Number() {
    return Below(4) == 0 ? static_cast<std::int64_t>(engine_())
                         : kNumbers[Below(std::size(kNumbers))];
  }
  double Real() { return kReals[Below(std::size(kReals))]; }
  std::uint32_t Name() {
    const std::string_view text = kNames[Below(std::size(kNames))];
    return tt_name(text.data(), text.size());
  }
  std::uint32_t Tensor() {
    constexpr const char* kCollections[] = {"weights", "gradients", "outputs", "biases"};
    const std::string_view collection = kCollections[Below(std::size(kCollections))];
    const std::string name = "layer" + std::to_string(Below(4));
    return tt_tensor(collection.data(), collection.size(), name.data(), name.size());
  }

 private:
  std::mt19937_64 engine_;
};

void Call(Dice* dice) {
  switch (dice->Below(16)) {
    case 0:
      tt_span(dice->Name(), static_cast<std::uint64_t>(dice->Number()),
              static_cast<std::uint64_t>(dice->Number()),
              static_cast<tt_span_category>(dice->Below(7)));
      break;
    case 1:
    case 2:
      tt_scalar_at(dice->Name(), dice->Real(), dice->Number(),
                   static_cast<tt_mode>(dice->Below(5)));
      break;
    case 3:
      tt_scalar(dice->Name(), dice->Real());
      break;
    case 4: {
      constexpr std::string_view kData = "{\"pid\": 9223372036854775807, \"step\": -1e308}";
      tt_event(dice->Name(), static_cast<tt_severity>(dice->Below(4)), dice->Name(), "said", 4,
               kData.data(), dice->Below(kData.size() + 1));
      break;
    }
    case 5:
      tt_fetch_begin();
      tt_fetch_end(dice->Number());
      break;
    case 6:
      tt_forward_begin(static_cast<tt_mode>(dice->Below(4)));
      tt_forward_end(dice->Number());
      break;
    case 7:
      tt_backward_begin();
      tt_backward_end(1, dice->Real());
      break;
    case 8:
      tt_optimizer_begin(dice->Below(3));
      tt_optimizer_end(dice->Below(3), static_cast<int>(dice->Below(2)), dice->Real());
      break;
    case 9:
      tt_loss_arrived(static_cast<std::uint64_t>(dice->Number()), dice->Real());
      break;
    case 10:
      tt_phase_begin(static_cast<tt_phase>(dice->Below(6)));
      break;
    case 11:
      tt_phase_end(static_cast<tt_phase>(dice->Below(6)));
      break;
    case 12: {
      tt_stats stats{};
      stats.count = static_cast<std::uint64_t>(dice->Number());
      stats.nan_count = static_cast<std::uint64_t>(dice->Number());
      stats.min = dice->Real();
      stats.max = dice->Real();
      stats.mean = dice->Real();
      stats.l2 = dice->Real();
      tt_record_computed(dice->Tensor(), &stats, static_cast<tt_dtype>(dice->Below(17)),
                         dice->Number(), static_cast<int>(dice->Below(4)));
      break;
    }
    case 13:
      tt_set_rank(static_cast<std::int32_t>(dice->Number()));
      break;
    case 14:
      tt_gradients_cleared(dice->Below(3), 0);
      break;
    default:
      tt_step();
  }
}

/// Where this process has mapped the begin of its arena; the rings are mapped at their offsets from
/// there.
char* FindArena() {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return nullptr;
  char* found = nullptr;
  char line[1024];
  while (found == nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
    std::uintptr_t begin = 0;
    std::uint64_t offset = 0;
    if (std::strstr(line, "memfd:telltale-arena") != nullptr &&
        std::sscanf(line, "%" SCNxPTR "-%*x %*s %" SCNx64, &begin, &offset) == 2 && offset == 0) {
      found = reinterpret_cast<char*>(begin);  // NOLINT(performance-no-int-to-ptr)
    }
  }
  std::fclose(maps);
  return found;
}

/// A ring of the directory.
class Ring {
 public:
  Ring(char* arena, const format::RingEntry& entry)
      : begin_(arena + entry.offset), bytes_(entry.size), head_(entry.head.load()) {}

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t written() const { return std::min(head_, bytes_); }
  void Put(std::uint64_t position, int byte) {
    begin_[position % bytes_] = static_cast<char>(byte);
  }
  /// Of what was written last, up to `near` bytes back.
  void PutBehindHead(std::uint64_t back, int byte) { Put(head_ - back, byte); }

 private:
  char* begin_;
  std::uint64_t bytes_;
  std::uint64_t head_;
};

/// Random bytes in every ring, for as long as it takes the agent to look several times. Prints how
/// many of them lie in what was just recorded.
void FillRings(Dice* dice) {
  char* const arena = FindArena();
  if (arena == nullptr) std::abort();
  const auto* const header = reinterpret_cast<const format::ArenaHeader*>(arena);
  if (header->magic != format::kArenaMagic) std::abort();
  const auto* const rings =
      reinterpret_cast<const format::RingEntry*>(arena + header->directory_offset);
  // A record whose size cannot be ends what the agent takes of the ring: not each is hit.
  constexpr std::uint64_t kNear = 512;
  constexpr std::uint64_t kOneOf = 4;
  std::uint64_t hits = 0;
  for (int i = 0; i < 4'000; ++i) {
    Call(dice);
    for (std::uint32_t number = 0; number < header->ring_count; ++number) {
      Ring ring(arena, rings[number]);
      ring.Put(dice->Below(ring.bytes()), static_cast<int>(dice->Below(256)));
      const std::uint64_t near = std::min(ring.written(), kNear);
      if (near == 0 || dice->Below(kOneOf) != 0) continue;
      const std::uint64_t back = 1 + dice->Below(near);
      const int byte = static_cast<int>(dice->Below(256));
      for (std::uint64_t n = std::min(back, 1 + dice->Below(16)); n > 0; --n) {
        ring.PutBehindHead(back - n + 1, byte);
        ++hits;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::printf("%" PRIu64 " bytes of new records overwritten\n", hits);
}

void MakeSums() {
  const std::uint32_t name = tt_name("checkpoint", 10);
  const std::uint64_t now = tt_now();
  // Ticks are ns or less: some 4 years at most.
  constexpr std::uint64_t kLong = std::uint64_t{1} << 56;
  for (int i = 0; i < 3'000; ++i) {
    tt_span(name, now - kLong, now, TT_SPAN_DATA);
    tt_forward_begin(TT_MODE_TRAIN);
    tt_forward_end(std::int64_t{1} << 52);
    tt_backward_begin();
    tt_backward_end(1, 1e308);
    tt_optimizer_begin(1);
    tt_optimizer_end(1, 0, 1e308);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  Dice dice(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  tt_init(TT_PROCESS_TRAINER, 0);
  if (what == "ends") {
    const std::uint32_t loss = tt_name("loss", 4);
    tt_step();
    tt_scalar_at(loss, 1, std::numeric_limits<std::int64_t>::min(), TT_MODE_TRAIN);
    tt_scalar_at(loss, 1, std::numeric_limits<std::int64_t>::max(), TT_MODE_TRAIN);
  } else if (what == "arguments") {
    for (int i = 0; i < 20'000; ++i) Call(&dice);
  } else if (what == "rings") {
    FillRings(&dice);
  } else if (what == "sums") {
    MakeSums();
  } else {
    return 2;
  }
  tt_finish();
  return 7;
}
