// SPDX-License-Identifier: Apache-2.0
#include "agent/raw_values.h"

#include <algorithm>
#include <utility>

namespace telltale::agent {

RawValues::RawValues(std::filesystem::path folder,
                     const std::vector<format::RingPosition>& recovered,
                     TensorWriterOptions options)
    : writer_(std::move(folder), std::move(options)) {
  for (const format::RingPosition& position : recovered) {
    if (position.producer != decltype(position.producer){}) continue;
    if (position.ring == kValuesTakenMarkRing) taken_ = position.position;
    if (position.ring == kValuesSettledMarkRing) settled_before_ = position.position;
  }
  lost_ = taken_ - std::min(taken_, settled_before_);
  marked_ = settled_before_;
}

void RawValues::Offer(std::vector<channel::DrainedTensor> tensors,
                      std::shared_ptr<channel::SlabReader> slab, format::Batch* batch) {
  if (tensors.empty()) return;
  batch->positions.push_back({{}, kValuesTakenMarkRing, taken_ + tensors.size()});
  // Before the journal has the record, so that a kill at no moment leaves a slot that nobody frees:
  // the next agent frees what is taken and named by no record that it drains.
  for (const channel::DrainedTensor& tensor : tensors) {
    if (tensor.slot && slab != nullptr) slab->Take(*tensor.slot, tensor.bytes);
  }
  offered_ = std::move(tensors);
  offered_slab_ = std::move(slab);
}

void RawValues::AddTo(bool counted, format::Batch* batch) {
  rows_out_ = true;
  rows_offered_ = writer_.AddTo(batch);
  drops_offered_ = counted ? drops_counted_ : drops_;
  mark_offered_ = settled_before_ + rows_ + rows_offered_ + drops_offered_;
  if (mark_offered_ != marked_) {
    batch->positions.push_back({{}, kValuesSettledMarkRing, mark_offered_});
  }
}

void RawValues::Settle(bool taken, std::uint32_t attempt) {
  const std::vector<channel::DrainedTensor> tensors = std::exchange(offered_, {});
  const std::shared_ptr<channel::SlabReader> slab = std::exchange(offered_slab_, nullptr);
  const bool rows = std::exchange(rows_out_, false);
  if (!taken) return;
  taken_ += tensors.size();
  for (const channel::DrainedTensor& tensor : tensors) writer_.Add(tensor, slab, attempt);
  if (!rows) return;
  writer_.Sent();
  rows_ += rows_offered_;
  drops_ = drops_offered_;
  marked_ = mark_offered_;
}

void RawValues::CountInto(std::int32_t pid, Ledger* ledger) {
  const TensorCounters counters = writer_.counters();
  drops_counted_ = lost_ + counters.dropped();
  const auto set = [&](const char* name, std::uint64_t value, const char* unit, bool loss) {
    ledger->Set({name, "agent"}, value, {unit, loss, 0, pid});
  };
  set("raw.stored", counters.stored, "tensors", false);
  set("raw.stored_bytes", counters.stored_bytes, "bytes", false);
  set("raw.dropped_disk", counters.dropped_disk, "tensors", true);
  set("raw.dropped_queue", counters.dropped_queue, "tensors", true);
  set("raw.dropped_slab", counters.dropped_slab, "tensors", true);
  set("raw.dropped_end", counters.dropped_end, "tensors", true);
  set("raw.lost", lost_, "tensors", true);
  set("raw.unfinished_files", counters.unfinished_files, "files", false);
  set("raw.sync_failures", counters.sync_failures, "files", false);
}

}  // namespace telltale::agent
