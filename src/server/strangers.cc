// SPDX-License-Identifier: Apache-2.0
#include "server/strangers.h"

#include <algorithm>

namespace telltale::server {

Strangers::Entered Strangers::Enter(const std::string& address) {
  Entered entered;
  entered.id = next_++;
  strangers_[entered.id] = One{.address = address};
  const std::size_t of_address = ++of_address_[address];
  if (of_address > kMostOfAddress) {
    entered.leaves = WhoLeaves(address, entered.id);
  } else if (strangers_.size() > kMost) {
    const auto most =
        std::max_element(of_address_.begin(), of_address_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    entered.leaves = WhoLeaves(most->first, entered.id);
  }
  if (entered.leaves) Leave(*entered.leaves);
  return entered;
}

Strangers::Id Strangers::WhoLeaves(const std::string& address, Id newcomer) const {
  Id oldest = 0;
  for (const auto& [id, one] : strangers_) {
    if (one.address != address || id == newcomer) continue;
    if (!one.asked) return id;
    if (oldest == 0) oldest = id;
  }
  return oldest != 0 ? oldest : strangers_.begin()->first;
}

void Strangers::SetAsked(Id id, bool asked) {
  const auto found = strangers_.find(id);
  if (found != strangers_.end()) found->second.asked = asked;
}

void Strangers::Leave(Id id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  const auto count = of_address_.find(found->second.address);
  if (--count->second == 0) of_address_.erase(count);
  strangers_.erase(found);
}

bool Guesses::Wrong(std::int64_t now_ns) {
  const auto forgiven =
      static_cast<std::size_t>(std::max<std::int64_t>(now_ns - since_ns_, 0) / kDelayNs);
  count_ -= std::min(count_, forgiven);
  since_ns_ += static_cast<std::int64_t>(forgiven) * kDelayNs;
  if (count_ == 0) since_ns_ = now_ns;
  if (count_ < kFree) {
    ++count_;
    return false;
  }
  return true;
}

}  // namespace telltale::server
