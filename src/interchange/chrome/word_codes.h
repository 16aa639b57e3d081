// SPDX-License-Identifier: Apache-2.0
// Codes of the words of one column: a hash table with open addressing, since most of an import's
// time would go into the standard one's.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace telltale::interchange {

class WordCodes {
 public:
  explicit WordCodes(std::deque<std::string>* owner) : owner_(owner), slots_(1024) {}

  /// Words are kept in `owner`; `words` gets those that are new.
  std::uint32_t CodeOf(std::string_view text, std::vector<std::string_view>* words) {
    const std::uint64_t hash = XXH3_64bits(text.data(), text.size()) | 1;
    for (std::size_t at = hash >> 1;; ++at) {
      Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot.hash == hash && (*words)[slot.code] == text) return slot.code;
      if (slot.hash != 0) continue;
      slot = {hash, static_cast<std::uint32_t>(words->size())};
      words->push_back(owner_->emplace_back(text));
      const std::uint32_t code = slot.code;
      if (words->size() * 2 > slots_.size()) Grow();
      return code;
    }
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;  ///< 0: free.
    std::uint32_t code = 0;
  };

  void Grow() {
    std::vector<Slot> larger(slots_.size() * 4);
    for (const Slot& slot : slots_) {
      if (slot.hash == 0) continue;
      std::size_t at = slot.hash >> 1;
      while (larger[at & (larger.size() - 1)].hash != 0) ++at;
      larger[at & (larger.size() - 1)] = slot;
    }
    slots_ = std::move(larger);
  }

  std::deque<std::string>* owner_;
  std::vector<Slot> slots_;
};

}  // namespace telltale::interchange
