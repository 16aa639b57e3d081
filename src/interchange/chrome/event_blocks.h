// SPDX-License-Identifier: Apache-2.0
// Cuts the text of a Chrome trace into blocks of whole events as it streams by, by counting
// brackets outside of strings; what stands around the array of events is kept apart. Of a file that
// is cut off or has rubbish in it every whole event that can be found is in a block.
//
// Memory: one block, two spare ones, and what stands around the events (64 MiB at most). Thread
// safety: none but for Recycle.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/raw_vector.h"
#include "base/status.h"
#include "interchange/trace_input.h"

namespace telltale::interchange {

/// A JSON array of events: `[` event `,` event ... `]`, with room behind it for a parser.
struct EventBlock {
  RawVector<char> bytes;
  std::size_t size = 0;  ///< Of the text in `bytes`.
  std::uint64_t number = 0;
  std::uint64_t offset = 0;  ///< Of its first event in the inflated text.
};

/// Room that a parser may read behind the text of a block.
inline constexpr std::size_t kBlockPadding = 64;
inline constexpr std::size_t kBlockBytes = 8 << 20;
/// Buffers of blocks that were recycled and are kept for the next.
inline constexpr std::size_t kMostSpare = 2;
/// An event above this is none: the search for the next begins behind it.
inline constexpr std::size_t kMaxEventBytes = 4 << 20;
/// Bytes that are looked at again behind damage; a file made to be damaged everywhere would take
/// hours. Beyond it what was looked at goes as one damaged piece.
inline constexpr std::uint64_t kMostRescanned = 8ULL << 30;

/// Where brackets open and close outside of strings, over text that comes in pieces of 64 bytes.
class BracketScanner {
 public:
  static constexpr std::size_t kGroupBytes = 64;
  /// What a group of bytes holds, a bit a byte.
  struct Group {
    std::uint64_t opens = 0;
    std::uint64_t closes = 0;
  };
  /// The same inside and outside of strings.
  struct Masks {
    std::uint64_t quotes = 0;
    std::uint64_t backslashes = 0;
    std::uint64_t opens = 0;
    std::uint64_t closes = 0;
  };
  /// The next `count` groups, which stand one behind the other.
  void Next(const char* bytes, std::size_t count, Group* groups);
  /// The same on any processor.
  void NextPlain(const char* bytes, std::size_t count, Group* groups);

 private:
  void NextAvx2(const char* bytes, std::size_t count, Group* groups);
  /// `parity`: of the quotes up to each byte, from the group's begin on.
  Group GroupOf(const Masks& masks, std::uint64_t parity);

  std::uint64_t escaped_ = 0;    ///< 1: the first byte of the next group is.
  std::uint64_t in_string_ = 0;  ///< All ones: the next group begins in a string.
};

class EventBlocks {
 public:
  EventBlocks(TraceInput* input, std::uint64_t most_bytes, std::size_t block_bytes = kBlockBytes)
      : input_(input), most_bytes_(most_bytes), block_bytes_(block_bytes) {
    spare_.reserve(kMostSpare);
  }

  /// The next block; nullptr at the end. kLimit where the text is larger than allowed; kIo.
  Result<std::unique_ptr<EventBlock>> Next();

  /// A later block may take the memory of this one. From any thread, also beside Next.
  void Recycle(std::unique_ptr<EventBlock> block);

  /// What stands around the events, as one JSON object with an empty array of them; complete at the
  /// end. Empty where the trace is a mere array.
  std::string Surroundings() const;

  std::uint64_t inflated_bytes() const { return read_bytes_; }
  /// Pieces that are no event: cut off, or rubbish between events.
  std::uint64_t damaged() const { return damaged_; }
  std::uint64_t first_damage_offset() const { return first_damage_; }
  /// The end of the array of events was seen.
  bool complete() const { return complete_; }

 private:
  enum class Part { kBefore, kEvents, kBehind, kEnd };

  Status Fill(std::size_t wanted);
  Status FindEvents();
  Result<std::unique_ptr<EventBlock>> NextOfEvents();
  /// Scans what is buffered; true where a block should be given out.
  bool Scan();
  void SkipDamage();
  std::unique_ptr<EventBlock> Cut(std::size_t end);
  RawVector<char> BufferOf(std::size_t bytes);
  Status ReadBehind();
  void Damaged(std::size_t at);

  TraceInput* const input_;
  const std::uint64_t most_bytes_;
  const std::size_t block_bytes_;
  Part part_ = Part::kBefore;
  bool object_ = false;  ///< The trace is an object, not a mere array.
  std::string before_, behind_;

  RawVector<char> buffer_;
  std::size_t filled_ = 0;
  bool at_end_ = false;       ///< Of the input.
  std::size_t scanned_ = 0;   ///< Up to here brackets are counted.
  std::size_t last_end_ = 0;  ///< Behind the last whole event.
  std::size_t begin_ = 0;     ///< Of the event that is open.
  std::size_t array_end_ = 0;
  std::size_t events_begin_ = 0;  ///< In the first buffer: behind the array's bracket.
  std::int64_t depth_ = 0;
  std::uint64_t stray_lists_ = 0;  ///< That opened where an event should.
  BracketScanner scanner_;
  std::array<BracketScanner::Group, 64> ahead_;  ///< Of the text from scanned_ on.
  std::size_t ahead_at_ = 0, ahead_count_ = 0;

  std::uint64_t read_bytes_ = 0;
  std::uint64_t consumed_ = 0;  ///< Offset of buffer_[0].
  std::uint64_t blocks_ = 0;
  std::uint64_t damaged_ = 0;
  std::uint64_t rescanned_ = 0;
  std::uint64_t first_damage_ = 0;
  bool complete_ = false;

  std::mutex spare_mutex_;  ///< Guards the spare buffers.
  std::vector<RawVector<char>> spare_;
};

}  // namespace telltale::interchange
