// SPDX-License-Identifier: Apache-2.0
// The course of an incident, the same for every rule: it opens, lasts, closes and may go on; how
// severe it is where it costs time; whether its cause explains what it costs.
//
// A rule reports what it sees. The engine applies what stands here, so that no rule has its own
// idea of when an alarm flickers, of how much lost time is much, of how much a cause must explain.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "rules/rule.h"

namespace telltale::rules {

/// An incident opens and closes at most once in this time of the run. What its rule closes sooner
/// stays open until then; what is reported again within it goes on where it was.
inline constexpr std::int64_t kSettleNs = 30'000'000'000;

/// What an incident says anew makes a revision at once, so often; then one more in each of these
/// times of the run: a loop of a million steps a minute is no reason for a million revisions. That
/// it becomes more severe than it was ever said to be is said at once.
inline constexpr int kNewsBurst = 4;
inline constexpr std::int64_t kNewsNs = 1'000'000'000;

/// Shares of the run's time, from its begin until now, that a finding costs.
inline constexpr double kHighShare = 0.20;
inline constexpr double kMediumShare = 0.05;
inline constexpr double kLowShare = 0.01;
/// A severity falls where the share is below this part of what it takes to reach it: a share that
/// swings around a border does not change it.
inline constexpr double kKeepShare = 0.8;

/// A cause explains a cost where it accounts for this share of it.
inline constexpr double kExplainedShare = 0.8;

/// Severity of a finding about time: `own`, the rule's word, but no more than the share of the time
/// makes it; where no cost is known the rule's word alone. `before`: what it was; none: it opens.
Severity SeverityOfCost(double cost_seconds, double elapsed_seconds, Severity own,
                        std::optional<Severity> before);

/// The cause of the incident, with how much of the cost it explains where that is too little.
std::string CauseOf(const Incident& incident);

/// Whether two incidents of a rule with one subject are about the same: what they say differs in
/// numbers alone.
bool AreAlike(const Incident& a, const Incident& b);
/// The same of two texts.
bool AreAlike(const std::string& a, const std::string& b);

/// Where an incident stands between its opening and its end.
class Course {
 public:
  /// Time of the last revision.
  std::int64_t emitted_ns = 0;
  /// A revision is due when there may be one.
  bool pending = false;

  /// Whether a revision with news may be made now, which `severity` is told with; it then is.
  bool TakesNews(std::int64_t now_ns, Severity severity);
  /// When the next one may.
  std::int64_t next_news_ns() const { return news_since_ns_ + kNewsNs; }
  /// A revision was made.
  void Emitted(std::int64_t now_ns, Severity severity) {
    emitted_ns = now_ns;
    pending = false;
    most_severe_ = std::max(most_severe_, severity);
  }

  void Open(std::int64_t now_ns) { changed_ns_ = now_ns; }
  /// Its rule closes it. Returns when it is to be closed: now, or once it has settled.
  std::int64_t CloseAt(const Incident& last, std::int64_t now_ns, std::int64_t settle_ns);
  /// Its rule has closed it, and it is not closed yet.
  bool closing() const { return closing_; }
  std::int64_t close_ns() const { return close_ns_; }
  void Closed(std::int64_t now_ns);
  /// What its rule reports now may go on where it was closed last.
  bool MayGoOn(std::int64_t now_ns, std::int64_t settle_ns) const {
    return closing_ || now_ns - changed_ns_ < settle_ns;
  }
  /// As its rule closed it last.
  const Incident& last() const { return last_; }
  /// It goes on: what `Take` is given from now on is a new incident of the rule.
  void GoOn(std::int64_t now_ns, bool was_open);
  /// Begin and cost of all that the rule called by this subject, in place of the newest alone.
  void Take(Incident* incident) const;

 private:
  std::int64_t changed_ns_ = 0;  ///< Opened or closed last.
  int news_left_ = kNewsBurst;
  std::int64_t news_since_ns_ = 0;  ///< They were as many then.
  Severity most_severe_ = Severity::kInfo;
  bool closing_ = false;
  std::int64_t close_ns_ = 0;
  // As its rule closed it last, with what went before.
  bool has_before_ = false;
  Incident last_;
  std::int64_t first_step_ = -1;
  std::int64_t start_ns_ = 0;
  double cost_seconds_ = 0;
};

}  // namespace telltale::rules
