// SPDX-License-Identifier: Apache-2.0
// The way of raw values through the agent: from drained records to the tensor writer once the
// journal has the rings' positions, and from the files back as index rows.
//
// What is on the way is in memory alone, so two marks in the journal count it: tensors that were
// taken out of rings (in the batch with the positions), and tensors that are settled (in the batch
// with their rows, or with the counter that says why there is none). The difference that a dead
// agent leaves is what died with it: the next one counts it as raw.lost.
// Thread safety: none; the agent's thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "agent/outbox.h"
#include "agent/tensor_writer.h"
#include "channel/consumer.h"
#include "channel/slab.h"
#include "format/batch.h"

namespace telltale::agent {

class RawValues {
 public:
  /// `recovered`: the positions that the folder's journals hold.
  RawValues(std::filesystem::path folder, const std::vector<format::RingPosition>& recovered,
            TensorWriterOptions options = {});

  /// The batch that is being made holds the positions behind these records of one producer; its
  /// slab may be null.
  void Offer(std::vector<channel::DrainedTensor> tensors, std::shared_ptr<channel::SlabReader> slab,
             format::Batch* batch);
  /// Adds index rows, and the mark that goes with them. `counted`: the batch has the ledger too.
  void AddTo(bool counted, format::Batch* batch);
  /// The journal has taken the batch, or not: all is then as before it.
  void Settle(bool taken, std::uint32_t attempt);
  void CountInto(std::int32_t pid, Ledger* ledger);

  /// What waits is to be written and the last file finished.
  void Finish() { writer_.Finish(); }
  bool finished() const { return writer_.finished(); }
  void GiveUp() { writer_.GiveUp(); }
  bool HasRows() const { return writer_.HasRows(); }
  /// Values or rows are on their way.
  bool waits() const { return writer_.waits(); }
  bool AwaitSeals(std::chrono::milliseconds limit) { return writer_.AwaitSeals(limit); }

 private:
  TensorWriter writer_;
  std::vector<channel::DrainedTensor> offered_;
  std::shared_ptr<channel::SlabReader> offered_slab_;
  std::uint64_t taken_ = 0;           ///< As the journal says, over all agents of the folder.
  std::uint64_t settled_before_ = 0;  ///< By agents before this one.
  std::uint64_t lost_ = 0;            ///< With them.
  std::uint64_t rows_ = 0;            ///< Tensors whose rows are in the journal.
  bool rows_out_ = false;             ///< The batch that is being made has rows of ours.
  std::uint64_t rows_offered_ = 0;
  std::uint64_t drops_ = 0;  ///< Of those counters that are in the journal.
  std::uint64_t drops_offered_ = 0;
  std::uint64_t drops_counted_ = 0;  ///< At the last CountInto.
  std::uint64_t marked_ = 0;         ///< The newest mark of settled tensors.
  std::uint64_t mark_offered_ = 0;
};

}  // namespace telltale::agent
