// SPDX-License-Identifier: Apache-2.0
// Interned strings: rows hold string_views, a pool holds the bytes.
//
// Thread safety: none; one pool has one user. Ownership: views stay valid as long as the pool.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>

namespace telltale {

class StringPool {
 public:
  std::string_view Intern(std::string_view text) {
    if (text.empty()) return {};
    if (auto found = index_.find(text); found != index_.end()) return *found;
    const std::string& stored = storage_.emplace_back(text);
    bytes_ += stored.size();
    index_.insert(stored);
    return stored;
  }
  /// Bytes of text held.
  std::size_t bytes() const { return bytes_; }

 private:
  std::deque<std::string> storage_;
  std::unordered_set<std::string_view> index_;
  std::size_t bytes_ = 0;
};

}  // namespace telltale
