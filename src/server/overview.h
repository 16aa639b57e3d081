// SPDX-License-Identifier: Apache-2.0
// The overview of a run as the page reads it: the words and the order of the report, in JSON.
#pragma once
#include <cstdint>
#include <string>

#include "server/run_view.h"

namespace telltale::server {

/// What changes with time and not with the records.
struct Moment {
  std::string id;  ///< As the API calls the run.
  std::int64_t now_ns = 0;
  std::int64_t watermark_ns = 0;
  bool loading = false;    ///< Records that were written long ago are still being read.
  bool judged = false;     ///< Whatever they hold: the watcher has judged all of the run.
  std::string error = {};  ///< Why reading does not go on, where it does not.
};

std::string OverviewJson(const RunView& view, const Moment& moment);

}  // namespace telltale::server
