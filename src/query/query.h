// SPDX-License-Identifier: Apache-2.0
// One query over one table of a run, printed as it is read.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/reader.h"

namespace telltale::query {

enum class Format { kCsv, kJson };

struct Query {
  std::string table;
  std::vector<std::string> columns;  ///< Empty: all.
  std::string where;                 ///< Empty: all rows.
  std::optional<std::uint64_t> limit;
  Format format = Format::kCsv;
};

/// Takes a piece of output; false ends the query (nobody reads any more).
using Sink = std::function<bool(std::string_view)>;

/// Rows come in the order of (writer, seq), those of journals and segments alike, each once.
/// Code::kUsage: an unknown table or column, a condition that does not parse. Damage that was
/// skipped is in `salvage`.
Status RunQuery(const std::filesystem::path& run, const Query& query, const Sink& sink,
                store::Salvage* salvage);

}  // namespace telltale::query
