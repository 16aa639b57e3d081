// SPDX-License-Identifier: Apache-2.0
#include "rules/lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

namespace telltale::rules {
namespace {

constexpr std::size_t kMostWordings = 16;

std::string WordsOf(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isalpha(c) == 0; });
  return text;
}

Severity OfShare(double share) {
  if (share >= kHighShare) return Severity::kHigh;
  if (share >= kMediumShare) return Severity::kMedium;
  return share >= kLowShare ? Severity::kLow : Severity::kInfo;
}

}  // namespace

Severity SeverityOfCost(double cost_seconds, double elapsed_seconds, Severity own,
                        std::optional<Severity> before) {
  if (!(cost_seconds > 0) || !(elapsed_seconds > 0)) return own;
  const double share = std::min(1.0, cost_seconds / elapsed_seconds);
  const Severity now = OfShare(share);
  if (!before || now >= *before) return std::min(own, now);
  return std::min({own, *before, OfShare(share / kKeepShare)});
}

std::string CauseOf(const Incident& incident) {
  if (incident.explained_seconds < 0 || incident.cause.empty() || !(incident.cost_seconds > 0)) {
    return incident.cause;
  }
  const double share = incident.explained_seconds / incident.cost_seconds;
  if (share >= kExplainedShare) return incident.cause;
  return fmt::format("{} This explains {:.0f} % of the lost time; the rest was not explained.",
                     incident.cause, std::max(0.0, share) * 100);
}

bool AreAlike(const std::string& a, const std::string& b) { return WordsOf(a) == WordsOf(b); }

bool Course::TakesNews(std::int64_t now_ns, Severity severity) {
  const std::int64_t refills = (now_ns - news_since_ns_) / kNewsNs;
  if (refills > 0) {
    news_left_ = static_cast<int>(std::min<std::int64_t>(kNewsBurst, news_left_ + refills));
    news_since_ns_ += refills * kNewsNs;
  }
  if (news_left_ > 0) {
    --news_left_;
    return true;
  }
  return severity > most_severe_;
}

std::int64_t Course::CloseAt(const Incident& last, std::int64_t now_ns, std::int64_t settle_ns) {
  last_ = last;
  closing_ = true;
  close_ns_ = std::max(now_ns, changed_ns_ + settle_ns);
  return close_ns_;
}

void Course::Closed(std::int64_t now_ns) {
  closing_ = false;
  changed_ns_ = now_ns;
}

void Course::GoOn(std::int64_t now_ns, bool was_open) {
  has_before_ = true;
  first_step_ = last_.first_step;
  start_ns_ = last_.start_ns;
  cost_seconds_ = last_.cost_seconds;
  closing_ = false;
  if (!was_open) changed_ns_ = now_ns;
}

void Course::Say(const Incident& incident) {
  if (!words_.empty() && incident.message == said_) return;
  said_ = incident.message;
  std::string words = WordsOf(said_);
  if (std::find(words_.begin(), words_.end(), words) != words_.end()) return;
  if (words_.size() == kMostWordings) words_.erase(words_.begin());
  words_.push_back(std::move(words));
}

bool Course::HasSaid(const Incident& incident) const {
  return std::find(words_.begin(), words_.end(), WordsOf(incident.message)) != words_.end();
}

void Course::Take(Incident* incident) const {
  if (!has_before_) return;
  if (first_step_ >= 0) incident->first_step = first_step_;
  incident->start_ns = start_ns_;
  incident->cost_seconds += cost_seconds_;
  if (incident->explained_seconds >= 0) incident->explained_seconds += cost_seconds_;
}

}  // namespace telltale::rules
