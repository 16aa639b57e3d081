// SPDX-License-Identifier: Apache-2.0
// The bytes of a producer's arena and of the control page: docs/formats/channel.md says what they
// mean, channel/channel_format_test.cc holds both to the page's hex example. Every value here is
// permanent within ABI major 1; fields are only added in reserved space.
//
// Sharing: an arena has one writer a ring (a thread of the producer) and one reader (the consumer).
// Who writes what is said at each field. Fields that both sides touch are std::atomic.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace telltale::format {

inline constexpr std::uint64_t kArenaMagic = 0x3130414e45525454;    // "TTRENA01", little-endian
inline constexpr std::uint64_t kControlMagic = 0x31304c5254435454;  // "TTCTRL01"
inline constexpr std::uint16_t kChannelMajor = 1;
inline constexpr std::uint16_t kChannelMinor = 2;

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kRecordAlign = 8;
/// Names and each text of an event have at most this length; longer ones are cut.
inline constexpr std::size_t kMaxTextBytes = 4096;
inline constexpr std::size_t kMaxReasonBytes = 512;
/// The largest record: an event with two full texts.
inline constexpr std::size_t kMaxRecordBytes = 32 + 2 * kMaxTextBytes;
/// Part of a ring that only steps and events may use: size / kReserveDivisor bytes.
inline constexpr std::uint64_t kReserveDivisor = 20;
/// Bounds that a consumer checks before it believes a header.
inline constexpr std::uint64_t kMaxArenaBytes = 256ULL << 20;
inline constexpr std::uint32_t kMaxRings = 256;
inline constexpr std::uint32_t kMaxNames = 1U << 21;

enum class ClockKind : std::uint8_t { kMonotonicNs = 0, kTsc = 1 };

enum class RecordKind : std::uint8_t {
  kPad = 0,  ///< Fills the ring's end; no payload is read.
  kSpan = 1,
  kStep = 2,
  kScalar = 3,
  kStat = 4,
  kEvent = 5,
  kStatMore = 6,  ///< Since 1.1, as all that follow.
  kHistogram = 7,
  kTensor = 8,
};

enum class RingState : std::uint32_t {
  kFree = 0,
  kOwned = 1,
  kEnded = 2,  ///< Its thread is gone; free again once tail == head.
};

/// Step -1: none was open.
struct RecordHeader {
  std::uint8_t kind;   ///< RecordKind.
  std::uint8_t flags;  ///< By kind, see k*Flag below.
  std::uint16_t size;  ///< Of the whole record, a multiple of 8.
  std::uint32_t name;  ///< Name id; 0 where the kind has none.
};

/// flags bits 0-1: tt_mode (span, step, scalar, stat) or tt_severity (event).
inline constexpr std::uint8_t kModeMask = 0x03;
/// Span: bits 2-3 tt_span_category, bit 5 its third bit (since 1.1).
inline constexpr unsigned kCategoryShift = 2;
inline constexpr std::uint8_t kCategoryHighFlag = 0x20;
/// Span: of detail: the agent holds it in memory, and stores it where it is asked for (since 1.1).
inline constexpr std::uint8_t kDetailFlag = 0x10;

constexpr std::uint8_t SpanFlags(unsigned mode, unsigned category) {
  return static_cast<std::uint8_t>((mode & kModeMask) | (category & 3U) << kCategoryShift |
                                   ((category & 4U) != 0 ? kCategoryHighFlag : 0U));
}
constexpr unsigned SpanCategory(std::uint8_t flags) {
  return (flags >> kCategoryShift & 3U) | ((flags & kCategoryHighFlag) != 0 ? 4U : 0U);
}

/// Step: a gradient scaler skipped the optimizer.
inline constexpr std::uint8_t kSkippedFlag = 0x04;

struct SpanRecord {
  RecordHeader header;
  std::uint64_t begin;     ///< Ticks.
  std::uint64_t duration;  ///< Ticks.
  std::int64_t step;
};

struct StepRecord {
  RecordHeader header;
  std::uint64_t begin;
  std::uint64_t duration;
  std::int64_t step;
  std::uint64_t phases[5];  ///< Exclusive ticks of tt_phase 0 to 4; the rest is `other`.
  std::uint32_t micro_steps;
  std::uint32_t optimizer_calls;
  std::int64_t batch_size;
  std::uint64_t probe;  ///< Ticks.
};

struct ScalarRecord {
  RecordHeader header;
  std::uint64_t time;
  std::int64_t step;
  double value;
};

struct StatRecord {
  RecordHeader header;
  std::uint64_t time;
  std::int64_t step;
  std::uint32_t collection;  ///< Name id.
  std::uint32_t dtype;       ///< tt_dtype.
  std::uint64_t count, nan_count, inf_count, zero_count;
  double min, max, mean, std, l1, l2;
};

struct StatMoreRecord {
  StatRecord stat;
  double abs_min, abs_std, prod;
};

inline constexpr std::uint32_t kHistogramBins = 64;
/// Ranks of a histogram record's quantiles.
inline constexpr double kQuantileRanks[] = {0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99};
inline constexpr std::uint32_t kQuantiles = 9;

/// Bins of equal width from min to max of the finite elements, the last one closed: as
/// numpy.histogram.
struct HistogramRecord {
  RecordHeader header;  ///< name: the tensor.
  std::uint64_t time;
  std::int64_t step;
  std::uint64_t count;  ///< Elements of the tensor.
  std::uint64_t taken;  ///< Of those, in the histogram: finite ones, of a sample of a large tensor.
  std::uint32_t dtype;
  std::uint32_t reserved0;
  double min, max;
  double quantiles[kQuantiles];
  std::uint64_t bins[kHistogramBins];
};

/// Shape, dtype and, unless flags has kShapeOnlyFlag, the values of a tensor. Followed by ndim
/// sizes (i64) and, with kInlineFlag, `bytes` bytes of values, then zeros to a multiple of 8; else
/// the values fill the slots slot, slot + 1, ... of the slab.
struct TensorRecord {
  RecordHeader header;  ///< name: the tensor.
  std::uint64_t time;
  std::int64_t step;
  std::uint64_t bytes;
  std::uint32_t slot;
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::uint16_t reserved0;
};
inline constexpr std::uint8_t kShapeOnlyFlag = 0x04;
inline constexpr std::uint8_t kInlineFlag = 0x08;
/// Values up to this many bytes travel in the ring.
inline constexpr std::size_t kMaxInlineBytes = 4096;

/// A name that stands for a tensor is this byte, its collection, this byte, its name.
inline constexpr char kTensorMark = 0x1d;

/// Followed by message_bytes and data_bytes of text, then zeros to a multiple of 8.
struct EventRecord {
  RecordHeader header;  ///< name: the event's kind.
  std::uint64_t time;
  std::int64_t step;
  std::uint32_t subject;  ///< Name id, 0: none.
  std::uint16_t message_bytes;
  std::uint16_t data_bytes;
};

/// One entry of the ring directory. `head`, `tail` and positions count bytes since the arena was
/// made and never wrap; position % size is the place in the ring.
struct RingEntry {
  alignas(64) std::atomic<std::uint32_t> state;  ///< RingState, written by the producer.
  std::atomic<std::int32_t> tid;                 ///< Owner; changes only while tail == head.
  std::uint64_t offset;                          ///< From the arena's begin; fixed.
  std::uint64_t size;                            ///< Bytes, a multiple of 64; fixed.
  alignas(64) std::atomic<std::uint64_t> head;   ///< Written by the ring's thread (release).
  std::atomic<std::uint64_t> produced;           ///< Records tried, written by the ring's thread.
  std::atomic<std::uint64_t> dropped;            ///< Of those, not written.
  alignas(64) std::atomic<std::uint64_t> tail;   ///< Written by the consumer (release).
};

/// What was skipped for one reason: a part of ArenaHeader::skipped.
struct SkipReason {
  std::atomic<std::uint32_t> name;  ///< Name id, stored once; 0: not in use yet.
  std::uint32_t reserved0;
  std::atomic<std::uint64_t> count;
};
inline constexpr std::size_t kSkipReasons = 64;

/// Page 0 of the arena.
struct ArenaHeader {
  std::uint64_t magic;
  std::uint16_t abi_major;
  std::uint16_t abi_minor;
  std::uint32_t header_bytes;      ///< sizeof(ArenaHeader).
  std::uint32_t ring_entry_bytes;  ///< sizeof(RingEntry).
  std::uint32_t ring_count;
  std::uint64_t arena_bytes;
  std::uint64_t directory_offset;
  std::uint64_t names_offset;
  std::uint64_t names_bytes;  ///< Capacity.
  std::uint32_t name_limit;   ///< Largest name id.
  std::uint8_t process_kind;  ///< tt_process_kind.
  std::uint8_t clock_kind;    ///< ClockKind.
  std::uint16_t reserved0;
  std::uint8_t uuid[16];
  std::uint8_t parent_uuid[16];  ///< Zero where the parent was no producer.
  std::int32_t pid;
  std::int32_t parent_pid;
  std::uint64_t start_time_ticks;  ///< Field 22 of /proc/PID/stat.
  std::uint64_t anchor_ticks;      ///< The clock's ticks and CLOCK_MONOTONIC, read together.
  std::int64_t anchor_monotonic_ns;
  // Written by the producer while it lives.
  alignas(64) std::atomic<std::uint64_t> names_published;  ///< Bytes of whole entries (release).
  std::atomic<std::int32_t> rank;
  std::atomic<std::uint32_t> disabled_bytes;  ///< Length of disabled_reason; not 0: off (release).
  std::atomic<std::uint64_t> unringed;        ///< Records dropped since no ring was left.
  std::atomic<std::uint64_t> names_folded;
  std::atomic<std::uint64_t> foreign_thread;
  std::atomic<std::uint64_t> skipped;
  std::atomic<std::uint64_t> spans_thinned;
  alignas(64) char disabled_reason[kMaxReasonBytes];
  // Since 1.1: what the plan asked for and was not recorded.
  alignas(64) std::atomic<std::uint64_t> raw_dropped;  ///< Values: no room on their way.
  std::atomic<std::uint64_t> histogram_dropped;        ///< No room, no helper.
  std::atomic<std::uint64_t> unanswered;        ///< The plan had not answered the tensor's name.
  std::atomic<std::uint64_t> skipped_other;     ///< Of `skipped`: without a reason, or beyond them.
  std::atomic<std::uint64_t> histograms_taken;  ///< Samples that found room, ...
  std::atomic<std::uint64_t> histograms_done;   ///< ... and those of them that became records.
  alignas(64) SkipReason skip_reasons[kSkipReasons];  ///< In use from the first on.
};
/// sizeof(ArenaHeader) of 1.0. The page is zero behind it, so what 1.1 added reads as 0.
inline constexpr std::uint32_t kArenaHeaderBytesMin = 704;

/// Page 0 of the control page; then `words` atomics of 32 bits, one for each name id.
struct ControlHeader {
  std::uint64_t magic;
  std::uint16_t abi_major;
  std::uint16_t abi_minor;
  std::uint32_t words_offset;
  std::uint32_t words;
  std::uint32_t windows_offset;      ///< Of a ControlWindows, a multiple of 64; 0: none.
  std::atomic<std::uint64_t> epoch;  ///< Counts the plans published (release).
  std::atomic<std::uint32_t> stats_interval_steps;  ///< 0: no statistics.
  std::atomic<std::uint32_t> flags;                 ///< kControlWantAll, kControlDetail...
  // Since 1.1.
  std::uint32_t rules_offset;  ///< Of kControlRules ControlRule, a multiple of 64.
  std::atomic<std::uint32_t>
      unanswered_mask;  ///< Rules that take every tensor: those of one that has no answer.
  std::atomic<std::uint64_t>
      rules_sequence;  ///< Odd while the rules are being written (a sequence lock).
  std::atomic<std::uint64_t> slab_bytes;  ///< Part of the slab that may be used; 0: no raw values.
  // Since 1.2.
  std::atomic<std::uint32_t> words_ready;  ///< Words that have memory; not beyond is read.
  std::uint32_t reserved0;
  std::uint64_t reserved1[7];
};
/// sizeof(ControlHeader) before 1.2, where all words had memory from the start.
inline constexpr std::uint32_t kControlHeaderBytesMin = 64;

/// When one mode's steps are due: a step of the list, or one in [start, end) that `interval`
/// divides.
struct ControlWhen {
  std::uint32_t interval;  ///< 0: by the list alone.
  std::uint32_t listed;
  std::int64_t start, end;  ///< end: exclusive; INT64_MAX: none.
  std::int64_t list[32];    ///< Ascending; the next of a longer list follow as these pass.
};
/// One thing that the plan takes, of the tensors whose word has the rule's bit.
struct ControlRule {
  std::uint32_t take;          ///< TT_TAKE_ bits; 0: the rule is not in use.
  std::uint32_t max_elements;  ///< Of a histogram's sample; 0: 65,536.
  ControlWhen when[4];         ///< By tt_mode.
};
/// The windows of detail that the plan has, as a JSON object; docs/formats/plan.md.
inline constexpr std::size_t kMaxWindowsBytes = 16384 - 16;
struct ControlWindows {
  std::atomic<std::uint64_t> sequence;  ///< Odd while the text is being written; 0: none yet.
  std::atomic<std::uint32_t> bytes;     ///< Of the text; 0: no windows.
  std::uint32_t reserved0;
  std::atomic<std::uint64_t> text[kMaxWindowsBytes / 8];  ///< In words, so that none is torn.
};
/// A name's word is kNameYes | mask << kNameMaskShift, a bit of the mask for each rule.
inline constexpr std::uint32_t kControlRules = 24;
inline constexpr unsigned kNameMaskShift = 8;

/// The slab: a memfd that the supervisor makes and the agent and the producer map. A table of one
/// 32-bit word a slot, then the slots. The producer makes a slot kSlotFilling, then kSlotFull; the
/// agent kSlotTaken when it has drained the slot's record, then kSlotFree.
inline constexpr std::uint64_t kSlabMagic = 0x313042414c535454;  // "TTSLAB01"
inline constexpr std::size_t kSlotBytes = 4096;
inline constexpr std::uint32_t kSlotFree = 0;
inline constexpr std::uint32_t kSlotFilling = 1;
inline constexpr std::uint32_t kSlotFull = 2;
inline constexpr std::uint32_t kSlotTaken = 3;
/// Page 0 of the slab.
struct SlabHeader {
  std::uint64_t magic;
  std::uint32_t slots;
  std::uint32_t
      slots_offset;  ///< Of slot 0, a multiple of kPageBytes; the words begin at kPageBytes.
};

/// Flag of the control page: the plan takes every name, so one without an answer is wanted.
inline constexpr std::uint32_t kControlWantAll = 1;
/// Spans of detail, since 1.1: each of them, or so many a second (bits from 8 up; 0: none).
inline constexpr std::uint32_t kControlDetailAll = 2;
inline constexpr unsigned kControlDetailShift = 8;
inline constexpr std::uint32_t kControlDetailMax = (1U << 24) - 1;
/// Answers to a name in the control page.
inline constexpr std::uint32_t kNameUnanswered = 0;
inline constexpr std::uint32_t kNameNo = 1;
inline constexpr std::uint32_t kNameYes = 2;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(RecordHeader) == 8 && sizeof(SpanRecord) == 32 && sizeof(StepRecord) == 96);
static_assert(sizeof(ScalarRecord) == 32 && sizeof(StatRecord) == 112 && sizeof(EventRecord) == 32);
static_assert(sizeof(RingEntry) == 192 && offsetof(RingEntry, head) == 64 &&
              offsetof(RingEntry, tail) == 128);
static_assert(offsetof(ArenaHeader, uuid) == 64 && offsetof(ArenaHeader, pid) == 96 &&
              offsetof(ArenaHeader, anchor_ticks) == 112 &&
              offsetof(ArenaHeader, names_published) == 128 &&
              offsetof(ArenaHeader, disabled_reason) == 192);
static_assert(offsetof(ArenaHeader, raw_dropped) == kArenaHeaderBytesMin &&
              offsetof(ArenaHeader, histograms_taken) == 736);
static_assert(sizeof(SkipReason) == 16 && offsetof(ArenaHeader, skip_reasons) == 768);
static_assert(sizeof(ArenaHeader) == 1792 && sizeof(ArenaHeader) <= kPageBytes);
static_assert(sizeof(ControlRule) % sizeof(std::uint64_t) == 0 && sizeof(SlabHeader) == 16);
static_assert(sizeof(ControlWindows) == 16384);
static_assert(sizeof(ControlHeader) == 128 &&
              offsetof(ControlHeader, words_ready) == kControlHeaderBytesMin &&
              sizeof(ControlWhen) == 280 && sizeof(ControlRule) == 1128);
static_assert(sizeof(StatMoreRecord) == 136 && sizeof(HistogramRecord) == 648 &&
              sizeof(TensorRecord) == 40);

}  // namespace telltale::format
