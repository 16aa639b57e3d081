// SPDX-License-Identifier: Apache-2.0
// A profile as text, as tfprof prints it (`self/total` of trees, `own (accumulated %, own %)` of
// lists), and as JSON with the field names of tfprof's protocol buffers.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "analysis/profile/build.h"
#include "analysis/profile/pipeline.h"

namespace telltale::analysis::profile {

std::string ProfileText(const Profile& profile, const View& view, const Shown& root,
                        const Options& options);

/// {"view", "steps", "slices", "outside", "unplaced", "root": node}; a node has name, account,
/// types, its own values and total_*, and children.
nlohmann::ordered_json ProfileJson(const Profile& profile, const View& view, const Shown& root,
                                   const Options& options);

/// "12", "1.20k", "3.40m", "5.60b".
std::string NumberText(double value);
/// "12us", "1.20ms", "3.40sec".
std::string MicrosText(double micros);
/// "12B", "1.20KB", "3.40MB", "5.60GB"; decimal, as tfprof's.
std::string BytesText(double bytes);

}  // namespace telltale::analysis::profile
