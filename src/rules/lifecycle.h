// SPDX-License-Identifier: Apache-2.0
// The course of an incident, the same for every rule: it opens, lasts, closes and may go on; how
// severe it is where it costs time; whether its cause explains what it costs.
//
// A rule reports what it sees. The engine applies what stands here, so that no rule has its own
// idea of when an alarm flickers, of how much lost time is much, of how much a cause must explain.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "rules/rule.h"

namespace telltale::rules {

/// An incident opens and closes at most once in this time of the run. What its rule closes sooner
/// stays open until then; what is reported again within it goes on where it was.
inline constexpr std::int64_t kSettleNs = 30'000'000'000;

/// So many matters of one rule and subject may be open, or come back, at a time. What is about yet
/// another one then goes on with the newest of them: a rule that changes its words with each step
/// is no reason for a finding a step.
inline constexpr std::size_t kMostMatters = 8;

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

/// Whether two texts differ in numbers alone.
bool AreAlike(const std::string& a, const std::string& b);

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// Where an incident stands between its opening and its end.
class Course {
 public:
  /// Time of the last revision.
  std::int64_t emitted_ns = 0;
  /// A revision is due when there may be one.
  bool pending = false;
  /// When it is to be looked at though nobody reports.
  std::int64_t wake_ns = kNever;

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
  /// Until when it may, where it is closed.
  std::int64_t forgotten_ns(std::int64_t settle_ns) const { return changed_ns_ + settle_ns; }
  /// It goes on: what `Take` is given from now on is a new incident of the rule.
  void GoOn(std::int64_t now_ns, bool was_open);

  /// Its rule has said this of it.
  void Say(const Incident& incident);
  /// Whether it has ever said this, numbers apart: a rule words one matter in several ways (the
  /// first time, more of them, soon).
  bool HasSaid(const Incident& incident) const;

  /// Its rule speaks of another matter by the same subject. Whether it is to be closed at once:
  /// where it has not come back yet. One of several that take turns closes once it has settled.
  bool ClosesForAnother() const { return !came_back_; }
  /// It goes on after its rule spoke of another matter.
  void ComeBack() { came_back_ = true; }
  /// Begin and cost of all that the rule called by this subject, in place of the newest alone.
  void Take(Incident* incident) const;

 private:
  std::int64_t changed_ns_ = 0;  ///< Opened or closed last.
  int news_left_ = kNewsBurst;
  std::int64_t news_since_ns_ = 0;  ///< They were as many then.
  Severity most_severe_ = Severity::kInfo;
  bool closing_ = false;
  std::int64_t close_ns_ = 0;
  bool came_back_ = false;
  std::string said_;                ///< Its newest message,
  std::vector<std::string> words_;  ///< and the words of all of them, the newest kMostWordings.
  // As its rule closed it last, with what went before.
  bool has_before_ = false;
  Incident last_;
  std::int64_t first_step_ = -1;
  std::int64_t start_ns_ = 0;
  double cost_seconds_ = 0;
};

}  // namespace telltale::rules
