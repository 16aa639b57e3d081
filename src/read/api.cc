// SPDX-License-Identifier: Apache-2.0
// The C ABI of telltale/read.h over store, query and rules. No exception leaves this file.
#include <arrow/api.h>
#include <arrow/c/bridge.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "read/follow.h"
#include "read/table_stream.h"
#include "rules/finding_json.h"
#include "rules/replay.h"
#include "store/reader.h"
#include "telltale/read.h"

namespace {

using nlohmann::ordered_json;
using telltale::Code;
using telltale::Status;
namespace format = telltale::format;
namespace read = telltale::read;
namespace rules = telltale::rules;
namespace store = telltale::store;

thread_local std::string last_error;  // NOLINT: what the C ABI promises

int Failed(Code code, std::string message) {
  last_error = std::move(message);
  return static_cast<int>(code);
}

/// Runs one call of the ABI.
template <class F>
int Guard(F&& f) noexcept {
  try {
    const Status status = f();
    return status.ok() ? 0 : Failed(status.code(), status.message());
  } catch (const std::bad_alloc&) {
    return Failed(Code::kLimit, "out of memory");
  } catch (const std::exception& error) {
    return Failed(Code::kUnusable, std::string("the run cannot be read: ") + error.what());
  }
}

Status GiveText(const ordered_json& json, char** out) {
  // Text from a damaged run may hold any bytes.
  const std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return {Code::kLimit, "out of memory"};
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

ordered_json SalvageJson(const store::Salvage& salvage) {
  if (!salvage.any()) return ordered_json::object();
  return {{"damaged_blocks", salvage.damaged_blocks},     {"torn_tails", salvage.torn_tails},
          {"unreadable_files", salvage.unreadable_files}, {"missing_rows", salvage.missing_rows},
          {"foreign_files", salvage.foreign_files},       {"notes", salvage.notes}};
}

ordered_json InfoJson(const store::RunInfo& info, const store::RunState& state) {
  ordered_json out = {{"id", info.id}, {"name", info.name}, {"state", state.state}};
  if (state.exit_code) out["exit_code"] = *state.exit_code;
  if (state.signal) out["signal"] = *state.signal;
  out["command"] = info.command;
  out["cwd"] = info.cwd;
  out["host"] = info.host;
  out["telltale_version"] = info.telltale_version;
  out["created_ns"] = info.created_ns;
  out["attempts"] = ordered_json::array();
  for (const store::Attempt& attempt : info.attempts) {
    ordered_json one = {{"number", attempt.number}, {"start_ns", attempt.start_ns}};
    if (attempt.end_ns != 0) one["end_ns"] = attempt.end_ns;
    if (attempt.exit_code) one["exit_code"] = *attempt.exit_code;
    if (attempt.signal) one["signal"] = *attempt.signal;
    out["attempts"].push_back(std::move(one));
  }
  return out;
}

/// Streams may outlive the run's handle and be read on other threads.
struct Damage {
  std::mutex mutex;
  store::Salvage of_newest_read;
};

const char* TableName(format::TableId id) {
  for (const format::TableDesc& table : format::kTables) {
    if (table.id == id) return table.name.data();  // A literal.
  }
  return "";
}

}  // namespace

struct tt_run {
  std::filesystem::path path;
  std::unique_ptr<store::RunReader> reader;
  std::shared_ptr<Damage> damage = std::make_shared<Damage>();
};

struct tt_follow {
  std::unique_ptr<read::Follow> follow;
};

extern "C" {

const char* tt_read_error(void) { return last_error.c_str(); }
const char* tt_read_version(void) { return TELLTALE_VERSION; }
void tt_text_free(char* text) { std::free(text); }

const char* tt_table_name(size_t index) {
  return index < format::kTables.size() ? format::kTables[index].name.data() : nullptr;
}

int tt_run_open(const char* path, tt_run** out) {
  return Guard([&]() -> Status {
    auto run = std::make_unique<tt_run>();
    run->path = path;
    TELLTALE_ASSIGN_OR_RETURN(run->reader, store::RunReader::Open(run->path));
    *out = run.release();
    return {};
  });
}

void tt_run_close(tt_run* run) { delete run; }

int tt_run_info(tt_run* run, char** out) {
  return Guard([&]() -> Status {
    const store::RunState state = run->reader->state();
    return GiveText(InfoJson(run->reader->info(), state), out);
  });
}

int tt_run_findings(tt_run* run, char** out) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(const rules::Replay replay, rules::ReplayRun(run->path));
    ordered_json findings = ordered_json::array();
    for (const rules::Finding& finding : replay.findings) {
      findings.push_back(rules::ToJson(finding));
    }
    return GiveText(findings, out);
  });
}

int tt_run_table(tt_run* run, const tt_table_query* query, struct ArrowArrayStream* stream) {
  return Guard([&]() -> Status {
    read::TableQuery wanted{.table = query->table == nullptr ? "" : query->table};
    for (size_t i = 0; i < query->column_count; ++i) {
      wanted.columns.emplace_back(query->columns[i]);
    }
    if (query->where != nullptr) wanted.where = query->where;
    const bool final = run->reader->state().state != "running";
    auto note = [damage = run->damage](const store::Salvage& salvage) {
      const std::lock_guard lock(damage->mutex);
      damage->of_newest_read = salvage;
    };
    TELLTALE_ASSIGN_OR_RETURN(auto reader,
                              read::OpenTable(run->path, wanted, final, std::move(note)));
    const arrow::Status exported = arrow::ExportRecordBatchReader(std::move(reader), stream);
    return exported.ok() ? Status() : read::FromArrow("cannot export " + wanted.table, exported);
  });
}

int tt_run_damage(tt_run* run, char** out) {
  return Guard([&]() -> Status {
    const std::lock_guard lock(run->damage->mutex);
    return GiveText(SalvageJson(run->damage->of_newest_read), out);
  });
}

int tt_run_follow(tt_run* run, const char* const* tables, size_t table_count, tt_follow** out) {
  return Guard([&]() -> Status {
    auto follow = std::make_unique<tt_follow>();
    const std::vector<std::string> names(tables, tables + table_count);
    TELLTALE_ASSIGN_OR_RETURN(follow->follow, read::Follow::Open(run->path, names));
    *out = follow.release();
    return {};
  });
}

void tt_follow_close(tt_follow* follow) { delete follow; }

int tt_follow_next(tt_follow* follow, tt_follow_state* state, const char** table,
                   struct ArrowSchema* schema, struct ArrowArray* array) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(const read::Follow::Piece piece, follow->follow->Next());
    if (piece.state == read::Follow::State::kRecords) {
      const arrow::Status exported = arrow::ExportRecordBatch(*piece.batch, array, schema);
      if (!exported.ok()) return read::FromArrow("cannot export a batch", exported);
      *table = TableName(piece.table);
      *state = TT_FOLLOW_RECORDS;
    } else {
      *state = piece.state == read::Follow::State::kEnd ? TT_FOLLOW_END : TT_FOLLOW_WAIT;
    }
    return {};
  });
}

int64_t tt_follow_frontier_ns(const tt_follow* follow) { return follow->follow->frontier_ns(); }

int tt_follow_damage(tt_follow* follow, char** out) {
  return Guard([&] { return GiveText(SalvageJson(follow->follow->salvage()), out); });
}

}  // extern "C"
