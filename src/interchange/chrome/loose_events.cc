// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/loose_events.h"

#include <algorithm>
#include <utility>

#include "interchange/chrome/event_names.h"

namespace telltale::interchange {
namespace {

/// More are open at once in no trace that was made by a program.
constexpr std::size_t kMaxOpen = 1'000'000;

bool IsAsync(char phase) { return phase == 'b' || phase == 'e' || phase == 'S' || phase == 'F'; }

/// Members of two JSON objects in one.
std::string JoinObjects(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return a.substr(0, a.size() - 1) + "," + b.substr(1);
}

}  // namespace

void LooseEvents::Take(const ChromeLoose& event, const ChromeTrack& track) {
  if (event.phase == 'n' || event.phase == 'T') {
    Close({event, track}, event.time_ns, {});
    return;
  }
  const bool begins = event.phase == 'B' || event.phase == 'b' || event.phase == 'S';
  std::vector<Open>* const stack =
      IsAsync(event.phase)
          ? &async_[{event.kind, event.id, event.id == "/" ? event.name : track.pid}]
          : &nested_[{track.pid, track.tid}];
  if (begins) {
    if (open_ >= kMaxOpen) {
      ++begins_without_end_;
      return;
    }
    ++open_;
    stack->push_back({event, track});
    return;
  }
  if (stack->empty()) {
    ++ends_without_begin_;
    return;
  }
  --open_;
  Open open = std::move(stack->back());
  stack->pop_back();
  Close(open, event.time_ns, event.args);
}

void LooseEvents::Finish(std::int64_t end_ns) {
  const auto all = [&](auto& stacks) {
    for (auto& [key, stack] : stacks) {
      for (const Open& open : stack) {
        ++begins_without_end_;
        Close(open, end_ns, {});
      }
    }
  };
  all(nested_);
  all(async_);
}

void LooseEvents::Close(const Open& open, std::int64_t end_ns, const std::string& end_args) {
  const std::string args = JoinObjects(open.begin.args, end_args);
  format::SliceRow row;
  row.time_ns = open.begin.time_ns;
  row.duration_ns = std::max<std::int64_t>(0, end_ns - open.begin.time_ns);
  row.name = open.begin.name;
  row.kind = open.begin.kind;
  row.category = CategoryOfKind(open.begin.kind).word;
  row.pid = open.track.pid_number;
  row.tid = open.track.tid_number;
  row.device = -1;
  row.stream = -1;
  row.args = args;
  emit_(row, open.track);
}

}  // namespace telltale::interchange
