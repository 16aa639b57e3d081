// SPDX-License-Identifier: Apache-2.0
// An arena whose process writes what it likes: header, directory of rings, names, heads, records,
// counters. The input is patches of an arena with a record of each kind.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/string_pool.h"
#include "base/unique_fd.h"
#include "channel/consumer.h"
#include "channel/producer.h"
#include "format/bounds.h"
#include "format/channel_layout.h"
#include "fuzz.h"
#include "patches.h"

namespace telltale::fuzz {
namespace {

/// Of a small process that has recorded one of each kind.
int RecordedArena() {
  auto* const producer = static_cast<channel::Producer*>(
      ::mmap(nullptr, sizeof(channel::Producer), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Require(producer->Open(channel::kSmallPlan, 0, 0, format::ClockKind::kMonotonicNs, nullptr,
                         nullptr) == channel::OpenResult::kOk);
  const std::string tensor =
      format::kTensorMark + std::string("weights") + format::kTensorMark + "fc.weight";
  const std::uint32_t name = producer->Intern("loss", 4);
  const std::uint32_t weight = producer->Intern(tensor.data(), tensor.size());
  const std::uint64_t now = producer->Now();
  producer->Span(name, now, now, 0, 1);
  producer->Scalar(name, 1.5, 1, 0, now);
  format::StepRecord step{};
  step.begin = now;
  step.step = 1;
  producer->Step(step);
  format::StatRecord stat{};
  stat.header.name = weight;
  stat.time = now;
  stat.step = 1;
  stat.count = 4;
  Require(producer->Stat(stat));
  format::StatMoreRecord more{};
  more.stat = stat;
  Require(producer->StatMore(more));
  format::HistogramRecord histogram{};
  histogram.header.name = weight;
  histogram.time = now;
  histogram.step = 1;
  histogram.count = histogram.taken = 4;
  histogram.min = -1;
  histogram.max = 2.5;
  histogram.bins[0] = 3;
  histogram.bins[63] = 1;
  producer->Histogram(histogram);
  format::TensorRecord tensor_record{};
  tensor_record.header.name = weight;
  tensor_record.header.flags = format::kInlineFlag;
  tensor_record.time = now;
  tensor_record.step = 1;
  tensor_record.ndim = 1;
  const float values[] = {0.5F, -1.5F};
  tensor_record.bytes = sizeof values;
  const std::int64_t shape = 2;
  Require(producer->Tensor(tensor_record, &shape, values));
  producer->Event(name, 0, name, "message", 7, "{}", 2, 1, now);
  producer->CountSkipped("capture.dtype", 1);
  return producer->TakeArenaFd();
}

}  // namespace

TELLTALE_FUZZ_TARGET(arena) {
  static const int fd = RecordedArena();
  static Patched arena(fd);
  arena.Apply(bytes);
  auto attached = channel::Consumer::Attach(UniqueFd(::dup(fd)));
  if (!attached.ok()) return;
  channel::Consumer& consumer = **attached;
  static_cast<void>(consumer.disabled_reason());
  Require(format::kIndexBound.Has(consumer.info().rank));
  bool more = true;
  std::size_t rows = 0;
  for (int i = 0; more && i < 8; ++i) {
    StringPool pool;
    channel::Drained drained;
    more = consumer.Drain(64 << 10, 1'700'000'000'000'000'000, &pool, &drained);
    std::size_t taken = drained.tensors.size();
    format::ForEachTable(drained.rows, [&](const auto& table) {
      taken += table.size();
      for (const auto& row : table) Require(format::InBounds(row));
    });
    rows = std::max(rows, taken);
    if (i % 2 == 0) {
      consumer.Rollback();
    } else {
      consumer.Commit();
    }
    static_cast<void>(consumer.counters());
    for (std::uint32_t name = 1; name <= consumer.name_count(); ++name) {
      static_cast<void>(consumer.name(name));
    }
  }
  if (!bytes.empty()) return;
  // As its process left it: the agent takes each of them.
  constexpr std::size_t kKinds = 8;
  Require(rows == kKinds);
}

}  // namespace telltale::fuzz
