// SPDX-License-Identifier: Apache-2.0
#include "interchange/trace_source.h"

#include <fmt/format.h>

namespace telltale::interchange {
namespace {

constexpr std::size_t kMaxCauses = 64;

}  // namespace

void TraceSource::Add(Causes* causes, std::uint64_t n, std::string_view what) {
  auto at = causes->find(what);
  if (at == causes->end()) {
    at = causes->emplace(causes->size() < kMaxCauses ? std::string(what) : "other causes", 0).first;
  }
  at->second += n;
}

void TraceSource::Tell(Causes* causes, std::string_view counter, std::string_view word, bool loss) {
  for (const auto& [what, n] : *causes) {
    sink_->Count(counter, file_, n, loss);
    sink_->Note(n == 1 ? fmt::format("{}: {}: {}", file_, word, what)
                       : fmt::format("{}: {} ({} times): {}", file_, word, n, what));
  }
  causes->clear();
}

void TraceSource::Flush() {
  Tell(&damaged_, "damaged", "damaged", true);
  Tell(&lost_, "lost_before", "lost before the import", true);
  Tell(&left_out_, "left_out", "left out", false);
}

}  // namespace telltale::interchange
