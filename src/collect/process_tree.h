// SPDX-License-Identifier: Apache-2.0
// The training's processes: the roots and all their descendants.
//
// Identity: a process is held by descriptors that were opened through its own /proc folder, so a
// pid that the kernel gives to somebody else is never taken for it. New ones are looked for once a
// second, where the machine has started any or one of ours has ended, and now and then in any case:
// the kernel leaves children out where processes end meanwhile. One that is known stays, whatever
// becomes of its parent.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collect/counter.h"
#include "collect/period.h"
#include "collect/reading_budget.h"
#include "collect/source.h"

namespace telltale::collect {

class ProcessTree final : public Source {
 public:
  explicit ProcessTree(SourceContext* context);
  void SetRoots(const std::vector<int>& pids);
  void Sample(RowSink* sink) override;

 private:
  /// Between looks for new processes that nothing asks for.
  static constexpr std::int64_t kUnaskedLookNs = 10'000'000'000;

  struct Process {
    std::string subject;
    UniqueFd folder;
    KeptFile stat;
    KeptFile io;
    KeptFile status;
    KeptFile schedstat;
    std::array<RateCounter, kProcCount> rates;  ///< By metric; gauges use none.
    std::uint64_t sample = 0;                   ///< Number of the newest that it is in.
    std::int64_t private_due_ns = 0;            ///< When proc.private may be read again.
    double private_rss = -1;                    ///< At its newest reading; -1: none was.
    double private_faulted = 0;                 ///< Likewise: bytes of all pages that came in.
  };
  /// Where the values of one process go: its rows, and the sum over the tree.
  struct Values;
  using Totals = std::array<std::optional<double>, kProcCount>;

  void Refresh();
  bool Add(int pid);
  void ListChildren(int pid, const Process& process, std::vector<int>* out);
  void ListChildrenByScan(std::vector<int>* out);
  /// Those that the sample has not yet; who has ended leaves. `slow` as below.
  void SampleRest(bool slow, RowSink* sink, Totals* totals);
  /// False where the process has ended. `slow`: what is marked so in docs/metrics.md too.
  bool SampleOne(int pid, Process* process, bool slow, RowSink* sink, Totals* totals);
  void SampleIo(Values* values);
  void SampleStatus(Values* values);
  void SampleRunDelay(Values* values);
  /// Where it may have changed: the kernel walks through all pages for it. `rss`, `faulted`: bytes
  /// that are resident, and of the pages that have come in so far.
  void SamplePrivate(double rss, double faulted, Values* values);

  SourceContext* context_;
  const double ticks_per_second_;
  const double page_bytes_;
  Period refresh_{kSlowPeriodNs};
  /// Of the machine, before the last look for new ones; none: that look may have missed some.
  std::optional<std::uint64_t> forks_;
  Period unasked_{kUnaskedLookNs};
  ReadingBudget private_budget_;
  Period slow_{kSlowPeriodNs};  ///< Of all processes at once, for the sums over the tree.
  std::uint64_t sample_ = 0;
  bool scan_ = false;  ///< This kernel has no task/TID/children files.
  std::map<int, Process> processes_;
};

}  // namespace telltale::collect
