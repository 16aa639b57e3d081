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
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "read/follow.h"
#include "read/mapped_files.h"
#include "read/run_steps.h"
#include "read/table_stream.h"
#include "read/tensor.h"
#include "read/tensor_list.h"
#include "read/tensor_table.h"
#include "rules/finding_json.h"
#include "rules/replay.h"
#include "store/reader.h"
#include "store/tensor_file.h"
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
  const std::string text = telltale::JsonText(json);
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return {Code::kLimit, "out of memory"};
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

ordered_json SalvageJson(const store::Salvage& salvage) {
  if (!salvage.any()) return ordered_json::object();
  return {{"damaged_blocks", salvage.damaged_blocks},
          {"torn_tails", salvage.torn_tails},
          {"unreadable_files", salvage.unreadable_files},
          {"missing_rows", salvage.missing_rows},
          {"impossible_rows", salvage.impossible_rows},
          {"foreign_files", salvage.foreign_files},
          {"notes", salvage.notes}};
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

ordered_json SummaryJson(const read::TensorSummary& tensor) {
  ordered_json out = {{"name", tensor.name},
                      {"collections", tensor.collections},
                      {"dtypes", tensor.dtypes},
                      {"shapes", ordered_json::array()},
                      {"ranks", tensor.ranks},
                      {"steps", ordered_json::object()},
                      {"first_step", tensor.first_step},
                      {"last_step", tensor.last_step},
                      {"values", tensor.values},
                      {"statistics", tensor.statistics},
                      {"histograms", tensor.histograms}};
  for (const std::string& text : tensor.shapes) {
    if (const auto shape = store::ParseShape(text)) out["shapes"].push_back(*shape);
  }
  for (const auto& [mode, steps] : tensor.steps) out["steps"][mode] = steps;
  return out;
}

read::Which WhichOf(const char* mode, int32_t rank) {
  read::Which which;
  if (mode != nullptr) which.mode = mode;
  if (rank != TT_ANY_RANK) which.rank = rank;
  return which;
}

void GiveSteps(std::vector<std::int64_t> steps, tt_steps* out) {
  auto owner = std::make_unique<std::vector<std::int64_t>>(std::move(steps));
  out->values = owner->data();
  out->count = owner->size();
  out->owner = owner.release();
}

void GiveArray(read::Values values, tt_array* out) {
  auto owner = std::make_unique<read::Values>(std::move(values));
  *out = {.data = owner->data,
          .bytes = owner->bytes,
          .step_stride = owner->stride,
          .dtype = owner->dtype.name.data(),  // A literal.
          .item_bytes = owner->dtype.bytes,
          .dimensions = owner->shape.size(),
          .shape = owner->shape.data(),
          .steps = owner->steps.data(),
          .step_count = owner->steps.size(),
          .rank = owner->rank,
          .copied = owner->copied ? 1 : 0,
          .owner = nullptr};
  out->owner = owner.release();
}

std::vector<std::string> NamesOf(const char* const* columns, size_t count) {
  return {columns, columns + count};
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
  std::unique_ptr<read::MappedFiles> files;
};

struct tt_tensor {
  std::filesystem::path path;
  bool final = false;
  std::unique_ptr<read::Tensor> tensor;
  store::Salvage of_tables;
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
    run->files = std::make_unique<read::MappedFiles>(run->path);
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

void tt_steps_release(tt_steps* steps) {
  delete static_cast<std::vector<std::int64_t>*>(steps->owner);
  *steps = {};
}

void tt_array_release(tt_array* array) {
  delete static_cast<read::Values*>(array->owner);
  *array = {};
}

int tt_run_tensors(tt_run* run, const char* pattern, char** out) {
  return Guard([&]() -> Status {
    const bool final = run->reader->state().state != "running";
    store::Salvage salvage;
    TELLTALE_ASSIGN_OR_RETURN(
        const std::vector<read::TensorSummary> tensors,
        read::ListTensors(run->path, pattern == nullptr ? "" : pattern, final, &salvage));
    ordered_json list = ordered_json::array();
    for (const read::TensorSummary& tensor : tensors) list.push_back(SummaryJson(tensor));
    const std::lock_guard lock(run->damage->mutex);
    run->damage->of_newest_read = std::move(salvage);
    return GiveText(list, out);
  });
}

int tt_run_steps(tt_run* run, const char* mode, int32_t rank, tt_steps* out) {
  return Guard([&]() -> Status {
    const bool final = run->reader->state().state != "running";
    store::Salvage salvage;
    TELLTALE_ASSIGN_OR_RETURN(std::vector<std::int64_t> steps,
                              read::RunSteps(run->path, WhichOf(mode, rank), final, &salvage));
    {
      const std::lock_guard lock(run->damage->mutex);
      run->damage->of_newest_read = std::move(salvage);
    }
    GiveSteps(std::move(steps), out);
    return {};
  });
}

int tt_run_tensor(tt_run* run, const char* name, tt_tensor** out) {
  return tt_run_tensor_named(run, name, name == nullptr ? 0 : std::strlen(name), out);
}

int tt_run_tensor_named(tt_run* run, const char* name, size_t bytes, tt_tensor** out) {
  return Guard([&]() -> Status {
    auto tensor = std::make_unique<tt_tensor>();
    tensor->path = run->path;
    tensor->final = run->reader->state().state != "running";
    tensor->tensor =
        std::make_unique<read::Tensor>(run->path, std::string(name, bytes), tensor->final);
    *out = tensor.release();
    return {};
  });
}

void tt_tensor_close(tt_tensor* tensor) { delete tensor; }

int tt_tensor_steps(tt_tensor* tensor, const char* mode, int32_t rank, uint32_t recorded,
                    tt_steps* out) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(std::vector<std::int64_t> steps,
                              tensor->tensor->Steps(WhichOf(mode, rank), recorded));
    GiveSteps(std::move(steps), out);
    return {};
  });
}

int tt_tensor_at(tt_tensor* tensor, int64_t step, const char* mode, int32_t rank, tt_array* out) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(read::Values values, tensor->tensor->At(step, WhichOf(mode, rank)));
    GiveArray(std::move(values), out);
    return {};
  });
}

int tt_tensor_values(tt_tensor* tensor, const int64_t* steps, size_t count, const char* mode,
                     int32_t rank, tt_array* out) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(
        read::Values values,
        tensor->tensor->At(std::span<const std::int64_t>(steps, count), WhichOf(mode, rank)));
    GiveArray(std::move(values), out);
    return {};
  });
}

int tt_tensor_table(tt_tensor* tensor, const char* table, const char* const* columns,
                    size_t column_count, struct ArrowArrayStream* stream) {
  return Guard([&]() -> Status {
    store::Salvage salvage;
    TELLTALE_ASSIGN_OR_RETURN(
        auto reader, read::TensorTable(tensor->path, table, tensor->tensor->name(),
                                       NamesOf(columns, column_count), tensor->final, &salvage));
    tensor->of_tables = std::move(salvage);
    const arrow::Status exported = arrow::ExportRecordBatchReader(std::move(reader), stream);
    return exported.ok() ? Status()
                         : read::FromArrow(std::string("cannot export ") + table, exported);
  });
}

int tt_tensor_damage(tt_tensor* tensor, char** out) {
  return Guard([&] {
    const store::Salvage& of_index = tensor->tensor->salvage();
    return GiveText(SalvageJson(of_index.any() ? of_index : tensor->of_tables), out);
  });
}

int tt_run_values(tt_run* run, const tt_tensor_row* row, tt_array* out) {
  return Guard([&]() -> Status {
    TELLTALE_ASSIGN_OR_RETURN(read::Values values,
                              read::ValuesAt(run->files.get(), row->writer, row->file, row->offset,
                                             row->bytes, row->dtype, row->shape));
    GiveArray(std::move(values), out);
    return {};
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
