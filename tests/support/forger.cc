// SPDX-License-Identifier: Apache-2.0
// A program that lies to its recorder. It ends with code 7, whatever it has done.
// usage: forger ends              a loss at the smallest and the largest step there is
//        forger arguments SEED    every function of the probe with numbers by the dice
//        forger rings SEED        random bytes in every ring, while it records
//        forger sums              steps and spans of years, thousands of them
#include <telltale/probe.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

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

/// Where the arena is mapped in this process.
struct Mapping {
  char* begin = nullptr;
  std::size_t bytes = 0;
};
Mapping FindArena() {
  Mapping found;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return found;
  char line[1024];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::strstr(line, "memfd:telltale-arena") == nullptr ||
        std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) {
      continue;
    }
    found = {reinterpret_cast<char*>(begin), end - begin};  // NOLINT(performance-no-int-to-ptr)
    break;
  }
  std::fclose(maps);
  return found;
}

void FillRings(Dice* dice) {
  const Mapping arena = FindArena();
  if (arena.begin == nullptr) std::abort();
  for (int i = 0; i < 4'000; ++i) {
    Call(dice);
    // The header's first page says where the rings are; what lies behind the directory is theirs.
    constexpr std::size_t kKept = 16 << 10;
    for (int j = 0; j < 8; ++j) {
      arena.begin[kKept + dice->Below(arena.bytes - kKept)] = static_cast<char>(dice->Below(256));
    }
    // Most of a ring is empty: some of it hits what was just written.
    const std::size_t near = kKept + dice->Below(64 << 10);
    std::memset(arena.begin + near, static_cast<int>(dice->Below(256)), dice->Below(32));
  }
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
