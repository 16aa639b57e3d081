// SPDX-License-Identifier: Apache-2.0
// The supervisor's and the agent's side of a slab, in which the values of tensors travel:
// docs/formats/channel.md. slab_writer.h is the producer's.
//
// Trust: the producer maps the same memory and is not trusted; slots that a record names are
// checked, and what lies in them is copied or hashed, never believed.
// Thread safety of SlabReader: Take by the thread that drains; Data and Free by any other, on runs
// that Take has been called for.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "channel/slab_writer.h"
#include "format/channel_layout.h"

namespace telltale::channel {

/// A sealed memfd with room for `bytes` of values, rounded up to whole slots (at most 16 GiB). Its
/// table is backed by memory, its slots are not yet: the producer sees to that before it fills
/// them.
Result<UniqueFd> CreateSlab(std::uint64_t bytes);

class SlabReader {
 public:
  /// Maps a slab. kUnusable where it is none.
  static Result<SlabReader> Attach(UniqueFd fd);

  SlabReader(SlabReader&& other) noexcept;
  SlabReader& operator=(SlabReader&& other) noexcept;
  ~SlabReader();

  /// The values that begin in `slot`; empty where those are not slots that the producer has filled.
  /// Valid until Free.
  std::span<const std::byte> Data(std::uint32_t slot, std::uint64_t bytes) const;
  /// The record of these slots has been drained, but is not in the journal yet: where this agent
  /// dies, the next one knows by it which slots may be nobody's.
  void Take(std::uint32_t slot, std::uint64_t bytes);
  /// Gives the slots back to the producer.
  void Free(std::uint32_t slot, std::uint64_t bytes);
  /// Which slots are taken at this moment, by number.
  std::vector<bool> Taken() const;
  /// Frees those of `slots`, as Taken gave them, that are taken still; returns how many.
  std::uint64_t FreeTaken(const std::vector<bool>& slots);

  std::uint32_t slots() const { return slots_; }

 private:
  SlabReader(char* map, std::size_t bytes, std::uint32_t slots, std::size_t slots_offset)
      : map_(map), bytes_(bytes), slots_(slots), slots_offset_(slots_offset) {}
  std::atomic<std::uint32_t>* words() const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(map_ + format::kPageBytes);
  }
  /// Number of slots of a run that lies inside; 0: it does not.
  std::uint64_t Run(std::uint32_t slot, std::uint64_t bytes) const;

  char* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t slots_ = 0;  ///< As checked; never read from the slab again.
  std::size_t slots_offset_ = 0;
};

}  // namespace telltale::channel
