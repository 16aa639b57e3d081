// SPDX-License-Identifier: Apache-2.0
// `telltale export` of a run whose rows nobody vouches for. The input's first byte says which
// export, and of csv which table; the rest is a batch of rows.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "format/records.gen.h"
#include "fuzz.h"
#include "interchange/chrome_export.h"
#include "interchange/export_file.h"
#include "interchange/perfetto_export.h"
#include "interchange/speedscope_export.h"
#include "interchange/table_export.h"
#include "interchange/tensorboard_export.h"
#include "stored_run.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kExports = 5;

/// RFC 4180: as many fields in each record, quotes in pairs.
void RequireCsv(std::string_view text) {
  std::optional<std::size_t> columns;
  std::size_t fields = 1;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == ',') ++fields;
    if (c != '\n') continue;
    if (!columns) columns = fields;
    Require(fields == *columns);
    fields = 1;
  }
  Require(!quoted);
}

/// A folder a mode and rank, one file in each, whatever a row calls its mode.
void TensorBoard(const fs::path& run, bool statistics) {
  const fs::path logs = ScratchRoot() / "logs";
  std::error_code ignored;
  fs::remove_all(logs, ignored);
  const auto report = interchange::ExportTensorBoard(run, logs, {.statistics = statistics});
  if (!report.ok()) return;
  for (const fs::path& file : report->files) {
    Require(file.parent_path().parent_path() == logs && fs::is_regular_file(file));
  }
}

}  // namespace

TELLTALE_FUZZ_TARGET(exports) {
  if (bytes.size() < 2 || bytes.size() > (1U << 20)) return;
  const auto what = static_cast<std::uint8_t>(bytes.front());
  const fs::path run = StoredRun(bytes.substr(1));
  std::string text;
  const auto file = interchange::ExportFile::To([&](std::string_view piece) {
    text += piece;
    return true;
  });
  switch (what % kExports) {
    case 0: {
      const std::string table(format::kTables[what / kExports % format::kTables.size()].name);
      const auto report = interchange::ExportCsv(run, table, file.get());
      if (report.ok()) RequireCsv(text);
      break;
    }
    case 1: {
      const auto report = interchange::ExportChrome(run, file.get());
      if (report.ok()) Require(nlohmann::json::accept(text));
      break;
    }
    case 2:
      TensorBoard(run, what / kExports % 2 == 1);
      break;
    case 3:
      static_cast<void>(interchange::ExportPerfetto(run, file.get(), {}));
      break;
    default: {
      const auto report = interchange::ExportSpeedscope(run, "run", file.get(), {});
      if (report.ok()) Require(nlohmann::json::accept(text));
    }
  }
}

}  // namespace telltale::fuzz
