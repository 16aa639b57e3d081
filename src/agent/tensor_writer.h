// SPDX-License-Identifier: Apache-2.0
// Writes the values of tensors to the agent's tensor files (store/tensor_file.h) on a thread of its
// own, so that a slow disk holds up nothing but itself: what waits is bounded by the slabs, and by
// max_waiting_bytes for what came in the rings; what the disk does not take is dropped and counted.
//
// Thread safety: none; the agent's thread. Its own thread shares State with it and may outlive it
// where the disk hangs.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "channel/consumer.h"
#include "channel/slab.h"
#include "format/batch.h"
#include "store/tensor_file.h"
#include "store/worker.h"

namespace telltale::agent {

struct TensorWriterOptions {
  std::uint64_t header_bytes = store::kTensorHeaderBytes;
  std::uint64_t close_bytes = 256U << 20;       ///< A file of more is finished,
  std::chrono::milliseconds idle{60'000};       ///< and one that for so long got nothing.
  std::uint64_t min_free_bytes = 128U << 20;    ///< More than the journal leaves: it goes first.
  std::uint64_t max_waiting_bytes = 16U << 20;  ///< Of values that came in the rings.
  std::size_t max_rows = 8192;                  ///< Given back at once.
  std::size_t max_waiting_rows = 256U << 10;    ///< That the journal has not yet taken.
  std::function<void()> before_write;           ///< Tests: what makes the disk slow.
};

/// Tensors, but for the bytes. Each that was added is stored or dropped once it is done.
struct TensorCounters {
  std::uint64_t stored = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t dropped_disk = 0;      ///< The disk was full, or reported an error.
  std::uint64_t dropped_queue = 0;     ///< Too much waited for the disk or the journal already.
  std::uint64_t dropped_slab = 0;      ///< The slots, shape or dtype of the record made no sense.
  std::uint64_t dropped_end = 0;       ///< Waited for the disk when the recording ended.
  std::uint64_t unfinished_files = 0;  ///< Of dead writers, or without a header; left as they are.
  std::uint64_t sync_failures = 0;     ///< Files that keep the name of an unfinished one.
  std::uint64_t dropped() const {
    return dropped_disk + dropped_queue + dropped_slab + dropped_end;
  }
};

class TensorWriter {
 public:
  /// `folder`: the agent's. Files that a dead agent has left there are finished first. Does nothing
  /// more, and has no thread, before the first tensor.
  explicit TensorWriter(std::filesystem::path folder, TensorWriterOptions options = {});
  ~TensorWriter();
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// Takes the values of a tensor to write them; its slots are free again once that is done.
  void Add(const channel::DrainedTensor& tensor, std::shared_ptr<channel::SlabReader> slab,
           std::uint32_t attempt);

  /// Adds index rows of what is in the files now, at most max_rows, and returns how many tensors
  /// they are of; the texts are ours until Sent or the next call.
  std::uint64_t AddTo(format::Batch* batch);
  /// The rows of the last AddTo are in the journal.
  void Sent();
  /// Index rows are waiting for AddTo.
  bool HasRows() const;
  /// Values are on their way to the disk, or rows to the journal.
  bool waits() const;

  /// No more tensors will come: what waits is written, then the file is finished.
  void Finish();
  /// All of that is done; rows may wait still.
  bool finished() const;
  /// Drops what waits: the disk had its time.
  void GiveUp();
  /// Waits for the syncs of finished files whose rows were sent; false when they take longer.
  bool AwaitSeals(std::chrono::milliseconds limit);

  TensorCounters counters() const;

 private:
  struct Job;
  struct Row;
  struct State;
  class Loop;
  void Start();
  void Seal(const Row& row);

  std::shared_ptr<State> state_;
  std::thread thread_;
  std::unique_ptr<store::Worker> sync_;
};

}  // namespace telltale::agent
