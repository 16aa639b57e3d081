// SPDX-License-Identifier: Apache-2.0
// The training's processes: the roots and all their descendants.
//
// Identity: a process is held by descriptors that were opened through its own /proc folder, so a
// pid that the kernel gives to somebody else is never taken for it. New ones are looked for once a
// second; one that is known stays, whatever becomes of its parent.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collect/source.h"

namespace telltale::collect {

class ProcessTree final : public Source {
 public:
  explicit ProcessTree(SourceContext* context);
  void SetRoots(const std::vector<int>& pids);
  void Sample(RowSink* sink) override;

 private:
  struct Process {
    std::string subject;
    KeptFile stat;
    KeptFile io;
    bool has_ticks = false;
    std::uint64_t ticks = 0;
    std::int64_t ticks_ns = 0;
    bool has_io = false;
    std::uint64_t read_bytes = 0;
    std::uint64_t write_bytes = 0;
    std::int64_t io_ns = 0;
  };
  struct Totals;

  void Refresh();
  bool Add(int pid);
  void ListChildren(int pid, std::vector<int>* out);
  void ListChildrenByScan(std::vector<int>* out);
  bool SampleOne(int pid, Process* process, RowSink* sink, Totals* totals);
  void SampleIo(int pid, Process* process, std::string_view subject, RowSink* sink, Totals* totals);

  SourceContext* context_;
  const double ticks_per_second_;
  const double page_bytes_;
  std::int64_t refresh_at_ns_ = INT64_MIN;
  bool scan_ = false;  ///< This kernel has no task/TID/children files.
  std::map<int, Process> processes_;
};

}  // namespace telltale::collect
