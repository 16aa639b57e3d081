// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/event_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TELLTALE_MAY_HAVE_AVX2
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

// What counts bits a byte of text is twice as fast with the instructions for it; sanitizers do not
// bear functions that are chosen while a program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TELLTALE_BY_PROCESSOR [[gnu::target_clones("default", "arch=x86-64-v3")]]
#else
#define TELLTALE_BY_PROCESSOR
#endif

namespace telltale::interchange {
namespace {

constexpr std::size_t kGroup = BracketScanner::kGroupBytes;
constexpr std::size_t kReadBytes = 1 << 20;
constexpr std::size_t kMaxAround = 64 << 20;
/// The first block is the usual one, halved so often; the next a time less.
constexpr std::uint64_t kFirstHalvings = 3;

using Masks = BracketScanner::Masks;

#ifdef __SSE2__
inline Masks MasksOf(const char* bytes) {
  Masks masks;
  const __m128i lower = _mm_set1_epi8(0x20);
  for (int i = 0; i < 4; ++i) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * i));
    // { and [ differ in one bit, as } and ] do.
    const __m128i folded = _mm_or_si128(b, lower);
    const auto mask = [&](__m128i v, char c) {
      const auto bits =
          static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8(c))));
      return static_cast<std::uint64_t>(bits) << (16 * i);
    };
    masks.quotes |= mask(b, '"');
    masks.backslashes |= mask(b, '\\');
    masks.opens |= mask(folded, '{');
    masks.closes |= mask(folded, '}');
  }
  return masks;
}
#else
Masks MasksOf(const char* bytes) {
  Masks masks;
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::uint64_t bit = 1ULL << i;
    const char c = bytes[i];
    if (c == '"') masks.quotes |= bit;
    if (c == '\\') masks.backslashes |= bit;
    if ((c | 0x20) == '{') masks.opens |= bit;
    if ((c | 0x20) == '}') masks.closes |= bit;
  }
  return masks;
}
#endif

/// Bit i: the parity of the bits up to i.
inline std::uint64_t PrefixXor(std::uint64_t bits) {
  for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

/// Bytes behind an odd number of backslashes; `carry` from group to group.
inline std::uint64_t EscapedBy(std::uint64_t backslashes, std::uint64_t* carry) {
  std::uint64_t escaped = *carry;
  *carry = 0;
  if (backslashes == 0) return escaped;
  for (std::uint64_t left = backslashes & ~escaped; left != 0;) {
    const int at = std::countr_zero(left);
    left &= left - 1;
    if ((escaped >> at & 1) != 0) continue;
    if (at == 63) {
      *carry = 1;
    } else {
      escaped |= 1ULL << (at + 1);
    }
  }
  return escaped;
}

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

BracketScanner::Group BracketScanner::GroupOf(const Masks& masks, std::uint64_t parity) {
  const std::uint64_t strings = parity ^ in_string_;
  in_string_ = (strings >> 63) != 0 ? ~0ULL : 0;
  return {masks.opens & ~strings, masks.closes & ~strings};
}

void BracketScanner::NextPlain(const char* bytes, std::size_t count, Group* groups) {
  for (std::size_t i = 0; i < count; ++i) {
    const Masks masks = MasksOf(bytes + kGroup * i);
    const std::uint64_t escaped = EscapedBy(masks.backslashes, &escaped_);
    groups[i] = GroupOf(masks, PrefixXor(masks.quotes & ~escaped));
  }
}

#ifdef TELLTALE_MAY_HAVE_AVX2
[[gnu::target("avx2,pclmul")]] void BracketScanner::NextAvx2(const char* bytes, std::size_t count,
                                                             Group* groups) {
  const __m256i quote = _mm256_set1_epi8('"');
  const __m256i backslash = _mm256_set1_epi8('\\');
  const __m256i open = _mm256_set1_epi8('{');
  const __m256i close = _mm256_set1_epi8('}');
  const __m256i lower = _mm256_set1_epi8(0x20);
  const __m128i ones = _mm_set1_epi8(-1);
  for (std::size_t i = 0; i < count; ++i) {
    Masks masks;
    for (int half = 0; half < 2; ++half) {
      const __m256i b = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(bytes + kGroup * i + kGroup / 2 * half));
      const __m256i folded = _mm256_or_si256(b, lower);
      const auto at = [&](__m256i equal) __attribute__((target("avx2,pclmul"))) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(equal)))
               << (32 * half);
      };
      masks.quotes |= at(_mm256_cmpeq_epi8(b, quote));
      masks.backslashes |= at(_mm256_cmpeq_epi8(b, backslash));
      masks.opens |= at(_mm256_cmpeq_epi8(folded, open));
      masks.closes |= at(_mm256_cmpeq_epi8(folded, close));
    }
    const std::uint64_t escaped = EscapedBy(masks.backslashes, &escaped_);
    // A product without carries with all ones is what PrefixXor computes.
    const __m128i quotes = _mm_cvtsi64_si128(static_cast<std::int64_t>(masks.quotes & ~escaped));
    groups[i] = GroupOf(masks, static_cast<std::uint64_t>(
                                   _mm_cvtsi128_si64(_mm_clmulepi64_si128(quotes, ones, 0))));
  }
}
#endif

void BracketScanner::Next(const char* bytes, std::size_t count, Group* groups) {
#ifdef TELLTALE_MAY_HAVE_AVX2
  static const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul");
  if (can) {
    NextAvx2(bytes, count, groups);
    return;
  }
#endif
  NextPlain(bytes, count, groups);
}

Status EventBlocks::Fill(std::size_t wanted) {
  if (buffer_.empty()) buffer_.reserve(block_bytes_ + kReadBytes + kGroup + kBlockPadding);
  if (buffer_.size() < filled_ + wanted + kGroup + kBlockPadding) {
    buffer_.resize(filled_ + wanted + kGroup + kBlockPadding);
  }
  TELLTALE_ASSIGN_OR_RETURN(const std::size_t n, input_->Read(buffer_.data() + filled_, wanted));
  filled_ += n;
  read_bytes_ += n;
  at_end_ = n < wanted;
  if (read_bytes_ > most_bytes_) {
    return {Code::kLimit,
            fmt::format("its text is larger than {} GiB, which an import reads at most",
                        most_bytes_ >> 30)};
  }
  return {};
}

void EventBlocks::Damaged(std::size_t at) {
  if (damaged_++ == 0) first_damage_ = consumed_ + at;
}

Status EventBlocks::FindEvents() {
  // Byte by byte: what comes before the events is short.
  std::size_t at = 0;
  int depth = 0;
  bool in_string = false;
  std::size_t string_begin = 0;
  std::string_view last_string;
  bool key_pending = false;  // "traceEvents" and its colon were seen.
  TELLTALE_RETURN_IF_ERROR(Fill(kReadBytes));
  if (filled_ >= 3 && std::memcmp(buffer_.data(), "\xef\xbb\xbf", 3) == 0) at = 3;
  const std::size_t text_begin = at;
  while (true) {
    if (at == filled_) {
      if (at_end_ || filled_ > kMaxAround) break;
      const std::size_t key = string_begin;
      const std::size_t length = last_string.size();
      TELLTALE_RETURN_IF_ERROR(Fill(kReadBytes));
      last_string = std::string_view(buffer_.data() + key, length);
      continue;
    }
    const char c = buffer_[at];
    if (in_string) {
      if (c == '\\') {
        at = std::min(at + 2, filled_);
        continue;
      }
      if (c == '"') {
        in_string = false;
        last_string = std::string_view(buffer_.data() + string_begin, at - string_begin);
      }
      ++at;
      continue;
    }
    if (c == '"') {
      in_string = true;
      key_pending = false;
      string_begin = at + 1;
    } else if (c == ':') {
      key_pending = depth == 1 && object_ && last_string == "traceEvents";
    } else if (c == '[' && (depth == 0 || key_pending)) {
      before_.assign(buffer_.data() + text_begin, at + 1 - text_begin);
      part_ = Part::kEvents;
      scanned_ = begin_ = last_end_ = events_begin_ = at + 1;
      return {};
    } else if (c == '{' || c == '[') {
      if (depth == 0) object_ = true;
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    ++at;
  }
  part_ = Part::kEnd;
  return {};
}

TELLTALE_BY_PROCESSOR bool EventBlocks::Scan() {
  // The first blocks are short, so that whoever parses them need not wait for a long one.
  const std::uint64_t doublings = std::min<std::uint64_t>(blocks_, kFirstHalvings);
  const std::size_t wanted = std::max<std::size_t>(block_bytes_ >> (kFirstHalvings - doublings), 1);
  while (scanned_ < filled_ && array_end_ == 0) {
    const char* const bytes = buffer_.data() + scanned_;
    const std::size_t size = std::min(kGroup, filled_ - scanned_);
    if (ahead_at_ == ahead_count_) {
      ahead_at_ = 0;
      ahead_count_ = std::min(ahead_.size(), (filled_ - scanned_) / kGroup);
      if (ahead_count_ > 0) {
        scanner_.Next(bytes, ahead_count_, ahead_.data());
      } else {
        if (!at_end_) return false;
        char last[kGroup];
        std::memset(last, ' ', sizeof last);
        std::memcpy(last, bytes, size);
        scanner_.Next(last, ahead_count_ = 1, ahead_.data());
      }
    }
    const BracketScanner::Group group = ahead_[ahead_at_++];
    const int closes = std::popcount(group.closes);
    if (depth_ > closes) {
      depth_ += std::popcount(group.opens) - closes;
    } else {
      for (std::uint64_t left = group.opens | group.closes; left != 0; left &= left - 1) {
        const auto at = static_cast<std::size_t>(std::countr_zero(left));
        if ((group.opens >> at & 1) != 0) {
          // Among the events a list is rubbish; that it closes must not end them.
          if (depth_ == 0 && bytes[at] == '[') {
            ++stray_lists_;
          } else if (depth_++ == 0) {
            begin_ = scanned_ + at;
          }
        } else if (depth_ > 0) {
          if (--depth_ == 0) last_end_ = scanned_ + at + 1;
        } else if (bytes[at] == ']' && stray_lists_ > 0) {
          --stray_lists_;
        } else if (bytes[at] == ']') {
          array_end_ = scanned_ + at + 1;
          complete_ = true;
          break;
        }
      }
    }
    scanned_ += size;
    if (last_end_ - events_begin_ >= wanted) return true;
    // What never ends is damaged: a quote too many, brackets that do not match.
    if (depth_ > 0 && scanned_ - begin_ > kMaxEventBytes) SkipDamage();
    if (depth_ == 0 && scanned_ - last_end_ > kMaxEventBytes) SkipDamage();
  }
  return false;
}

void EventBlocks::SkipDamage() {
  // An event begins with a brace and a string, behind another's end and a comma.
  const std::size_t from = std::max(begin_, last_end_) + 1;
  Damaged(from - 1);
  std::size_t found = 0;
  const bool searches = rescanned_ <= kMostRescanned;
  for (std::size_t i = from; searches && i + 1 < scanned_; ++i) {
    if (buffer_[i] != '{') continue;
    std::size_t before = i;
    while (before > from && IsSpace(buffer_[before - 1])) --before;
    if (before <= from || buffer_[before - 1] != ',') continue;
    --before;
    while (before > from && IsSpace(buffer_[before - 1])) --before;
    if (before <= from || buffer_[before - 1] != '}') continue;
    std::size_t behind = i + 1;
    while (behind < scanned_ && IsSpace(buffer_[behind])) ++behind;
    if (behind >= scanned_ || buffer_[behind] != '"') continue;
    found = i;
    break;
  }
  // The damaged piece becomes spaces, so that the block around it stays an array.
  const std::size_t until = found == 0 ? scanned_ : found;
  rescanned_ += scanned_ - until;
  std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(from - 1),
            buffer_.begin() + static_cast<std::ptrdiff_t>(until), ' ');
  scanner_ = BracketScanner();
  ahead_at_ = ahead_count_ = 0;
  depth_ = 0;
  scanned_ = begin_ = until;
  if (found == 0) last_end_ = until;
}

void EventBlocks::Recycle(std::unique_ptr<EventBlock> block) {
  const std::lock_guard lock(spare_mutex_);
  if (spare_.size() < kMostSpare) spare_.push_back(std::move(block->bytes));
}

/// New memory of the kernel's would be cleared by it page by page.
RawVector<char> EventBlocks::BufferOf(std::size_t bytes) {
  RawVector<char> buffer;
  {
    const std::lock_guard lock(spare_mutex_);
    if (!spare_.empty()) {
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (buffer.capacity() < bytes) buffer = RawVector<char>();
  buffer.resize(bytes);
  return buffer;
}

std::unique_ptr<EventBlock> EventBlocks::Cut(std::size_t end) {
  auto block = std::make_unique<EventBlock>();
  block->number = blocks_++;
  block->offset = consumed_;
  const std::size_t left = filled_ - end;
  RawVector<char> next =
      BufferOf(std::max(left + kReadBytes, block_bytes_ + kReadBytes) + kGroup + kBlockPadding);
  std::memcpy(next.data(), buffer_.data() + end, left);
  block->bytes = std::move(buffer_);
  if (block->bytes.size() < end + 1 + kBlockPadding) block->bytes.resize(end + 1 + kBlockPadding);
  buffer_ = std::move(next);
  // The text from `end` on is the next block's: the closing bracket goes over it.
  std::fill_n(block->bytes.begin() + static_cast<std::ptrdiff_t>(end), kBlockPadding, ' ');
  block->bytes[end] = ']';
  block->size = end + 1;
  // Before the first event: commas and what is behind the array's own bracket.
  std::fill_n(block->bytes.begin(), events_begin_, ' ');
  std::size_t first = std::exchange(events_begin_, 0);
  while (first < end && block->bytes[first] != '{') block->bytes[first++] = ' ';
  if (first == 0) {
    block->bytes.insert(block->bytes.begin(), '[');
    ++block->size;
  } else {
    block->bytes[first - 1] = '[';
  }
  filled_ = left;
  consumed_ += end;
  scanned_ -= end;
  begin_ = begin_ > end ? begin_ - end : 0;
  if (array_end_ != 0) array_end_ -= end;
  last_end_ = 0;
  return block;
}

Result<std::unique_ptr<EventBlock>> EventBlocks::NextOfEvents() {
  while (true) {
    const bool full = Scan();
    if (full) return Cut(last_end_);
    if (array_end_ != 0) break;
    if (!at_end_) {
      TELLTALE_RETURN_IF_ERROR(Fill(kReadBytes));
    } else if (depth_ > 0) {
      // Cut off, or a quote too many hides whole events.
      SkipDamage();
    } else {
      break;
    }
  }
  const std::size_t end = array_end_ != 0 ? array_end_ : filled_;
  behind_.assign(buffer_.data() + end, filled_ - end);
  std::unique_ptr<EventBlock> block;
  if (last_end_ > events_begin_) block = Cut(last_end_);
  buffer_ = {};
  filled_ = 0;
  part_ = Part::kBehind;
  return block;
}

Status EventBlocks::ReadBehind() {
  while (!at_end_ && behind_.size() < kMaxAround) {
    TELLTALE_RETURN_IF_ERROR(Fill(kReadBytes));
    behind_.append(buffer_.data(), filled_);
    filled_ = 0;
  }
  part_ = Part::kEnd;
  return {};
}

Result<std::unique_ptr<EventBlock>> EventBlocks::Next() {
  if (part_ == Part::kBefore) TELLTALE_RETURN_IF_ERROR(FindEvents());
  if (part_ == Part::kEvents) {
    TELLTALE_ASSIGN_OR_RETURN(auto block, NextOfEvents());
    if (block != nullptr) return block;
  }
  if (part_ == Part::kBehind) TELLTALE_RETURN_IF_ERROR(ReadBehind());
  return std::unique_ptr<EventBlock>();
}

std::string EventBlocks::Surroundings() const {
  if (!object_) return {};
  std::string text = before_ + "]" + behind_;
  // Of a file that is cut off.
  if (!complete_) text = before_ + "]}";
  return text;
}

}  // namespace telltale::interchange
