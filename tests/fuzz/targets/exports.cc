// SPDX-License-Identifier: Apache-2.0
// `telltale export` of a run whose rows nobody vouches for. The input's first byte says which
// format, the second which table or what of the stacks; the rest is a batch of rows.
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/export_traces.h"
#include "format/records.gen.h"
#include "fuzz.h"
#include "interchange/tensorboard_export.h"
#include "stored_run.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 10> kFormats = {
    "csv",   "chrome",    "tensorboard", "perfetto", "speedscope",
    "pprof", "collapsed", "flamegraph",  "timeline", "parquet"};

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

/// "frame;frame 12" a line, whatever a frame is called.
void RequireCollapsed(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    Require(end != std::string_view::npos);
    const std::string_view line = text.substr(0, end);
    const std::size_t blank = line.rfind(' ');
    Require(blank != std::string_view::npos && blank + 1 < line.size());
    Require(line.substr(blank + 1).find_first_not_of("0123456789") == std::string_view::npos);
    text.remove_prefix(end + 1);
  }
}

/// No name ends the element that its data stand in.
void RequirePage(std::string_view page) {
  constexpr std::string_view kElement = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(kElement);
  Require(begin != std::string_view::npos);
  const std::string_view data = page.substr(begin + kElement.size());
  Require(nlohmann::json::accept(data.substr(0, data.find("</script>"))));
}

void RequireFormat(std::string_view format, std::string_view text) {
  if (format == "csv") {
    RequireCsv(text);
  } else if (format == "collapsed") {
    RequireCollapsed(text);
  } else if (format == "flamegraph") {
    RequirePage(text);
  } else if (format == "pprof") {
    Require(text.starts_with("\x1f\x8b"));
  } else if (format == "parquet") {
    Require(text.starts_with("PAR1") && text.ends_with("PAR1"));
  } else if (format != "perfetto") {
    Require(nlohmann::json::accept(text));
  }
}

/// A folder a mode and rank, one file in each, whatever a row calls its mode.
void TensorBoard(const fs::path& run, const fs::path& logs, bool statistics) {
  const auto report = interchange::ExportTensorBoard(run, logs, {.statistics = statistics});
  if (!report.ok()) return;
  for (const fs::path& file : report->files) {
    Require(file.parent_path().parent_path() == logs && fs::is_regular_file(file));
  }
}

cli::TraceExport Asked(std::string_view format, std::uint8_t how) {
  constexpr std::array<const char*, 4> kSampleTypes = {"time", "device", "count", "bytes"};
  constexpr std::array<const char*, 4> kSources = {"both", "sampled", "trace", "both"};
  cli::TraceExport what;
  what.format = format;
  what.table = format::kTables[how % format::kTables.size()].name;
  what.sample_type = kSampleTypes[how % 4];
  what.source = kSources[how / 4 % 4];
  if ((how & 16) != 0) what.step = 1;
  if ((how & 32) != 0) what.rank = 0;
  if ((how & 64) != 0) what.phase = "forward";
  what.no_counters = (how & 128) != 0;
  return what;
}

}  // namespace

TELLTALE_FUZZ_TARGET(exports) {
  if (bytes.size() < 3 || bytes.size() > (1U << 20)) return;
  const std::string_view format = kFormats[static_cast<std::uint8_t>(bytes[0]) % kFormats.size()];
  const auto how = static_cast<std::uint8_t>(bytes[1]);
  const fs::path run = StoredRun(bytes.substr(2));
  const fs::path output = ScratchRoot() / "export";
  std::error_code ignored;
  fs::remove_all(output, ignored);
  if (format == "tensorboard") return TensorBoard(run, output, (how & 1) != 0);
  cli::TraceExport what = Asked(format, how);
  what.run = run;
  what.output = output;
  if (!cli::WriteExport(what).ok()) return;
  if (format != "timeline") return RequireFormat(format, ReadAll(output));
  for (const fs::directory_entry& file : fs::directory_iterator(output)) {
    RequireFormat(format, ReadAll(file));
  }
}

}  // namespace telltale::fuzz
