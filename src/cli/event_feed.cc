// SPDX-License-Identifier: Apache-2.0
#include "cli/event_feed.h"

#include <time.h>

#include <algorithm>
#include <limits>

#include "base/units.h"
#include "store/folder.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 50'000'000};
/// A writer that is so far behind the others has died.
constexpr std::int64_t kBehindNs = 3 * kSecond;
/// Of a writer that has said its last word.
constexpr std::int64_t kEnded = std::numeric_limits<std::int64_t>::max();

}  // namespace

Result<EventFeed> EventFeed::Open(const std::string& run) {
  EventFeed out;
  TELLTALE_ASSIGN_OR_RETURN(out.reader_, store::RunReader::Open(run));
  store::CursorOptions options;
  options.table_mask = store::MaskOf(format::TableId::kEvents);
  TELLTALE_ASSIGN_OR_RETURN(out.cursor_, out.reader_->NewCursor(options));
  return out;
}

void EventFeed::GiveUpOnTheDead() {
  const std::vector<std::int64_t> marks = cursor_->watermarks();
  const std::int64_t newest = newest_ns();
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] < newest - kBehindNs) cursor_->GiveUpOn(static_cast<std::uint32_t>(i));
  }
}

void EventFeed::Pause() { ::nanosleep(&kPause, nullptr); }

std::vector<std::string> EventFeed::RecordingAgents() const {
  const std::vector<std::int64_t> marks = cursor_->watermarks();
  const std::int64_t newest = newest_ns();
  std::vector<std::string> out;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == kEnded || marks[i] < newest - store::kMovingNs) continue;
    const std::string& writer = cursor_->writers()[i];
    if (writer.starts_with(store::kAgentPrefix)) out.push_back(writer);
  }
  return out;
}

std::int64_t EventFeed::newest_ns() const {
  // What is subtracted from it does not overflow.
  std::int64_t newest = std::numeric_limits<std::int64_t>::min() + store::kMovingNs;
  for (const std::int64_t mark : cursor_->watermarks()) {
    if (mark != kEnded) newest = std::max(newest, mark);
  }
  return newest;
}

}  // namespace telltale::cli
