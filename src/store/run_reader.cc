// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/json.h"
#include "format/event_number.h"
#include "store/cursor.h"
#include "store/folder.h"
#include "store/follower.h"
#include "store/reader.h"
#include "store/recording_end.h"
#include "store/scan_writers.h"

namespace telltale::store {
namespace {

template <class Row>
Row Interned(Row row, StringPool* pool) {
  format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
    using Value = std::remove_cvref_t<decltype(row.*member)>;
    if constexpr (std::is_same_v<Value, std::string_view>) row.*member = pool->Intern(row.*member);
  });
  return row;
}

class RunReaderImpl final : public RunReader {
 public:
  RunReaderImpl(std::filesystem::path run, RunInfo info)
      : run_(std::move(run)), info_(std::move(info)) {}

  const RunInfo& info() const override { return info_; }

  RunState state() override {
    if (Result<RunInfo> info = ReadRunInfo(run_); info.ok()) info_ = std::move(info).value();
    RunState state = DeriveRunState(info_, run_);
    if (state.state == "lost") AskTheAgent(&state);
    RecordingLoss loss = end_.Find(run_, info_, state.state == "running");
    state.unrecorded = std::move(loss.newest);
    state.unrecorded_before = std::move(loss.before);
    return state;
  }

  Result<std::unique_ptr<Cursor>> NewCursor(CursorOptions options) override {
    return MakeCursor(run_, std::move(options), state().state != "running");
  }

  Status Scan(std::uint32_t table_mask, const Visitor& visit, Salvage* salvage) override {
    const bool final = DeriveRunState(info_, run_).state != "running";
    return ScanWriters(run_, ListWriters(run_), final, table_mask, visit, salvage);
  }

  Status ReadAll(std::uint32_t table_mask, StringPool* pool, format::Rows* out,
                 Salvage* salvage) override {
    const auto keep = [&](const std::string&, const format::Rows& chunk) {
      format::ForEachTable(chunk, [&](const auto& rows) {
        format::ForEachTable(*out, [&](auto& to) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(rows)>,
                                       std::remove_cvref_t<decltype(to)>>) {
            for (const auto& row : rows) to.push_back(Interned(row, pool));
          }
        });
      });
      return true;
    };
    return Scan(table_mask, keep, salvage);
  }

 private:
  /// The supervisor is gone without an end; the agent may have seen how the training ended.
  void AskTheAgent(RunState* state) {
    StringPool pool;
    format::Rows rows;
    Salvage salvage;
    if (!ReadAll(MaskOf(format::TableId::kEvents), &pool, &rows, &salvage).ok()) return;
    const std::uint32_t attempt = info_.attempts.empty() ? 1 : info_.attempts.back().number;
    for (const format::EventRow& event : rows.events) {
      if (event.kind != "run.attempt_end" || event.attempt != attempt) continue;
      const auto data = ParseJson(event.data);
      if (const auto signal = format::EventNumber(data, "signal", format::kIntBound)) {
        state->signal = static_cast<int>(*signal);
        state->state = "killed";
      } else if (const auto code = format::EventNumber(data, "exit_code", format::kIntBound)) {
        state->exit_code = static_cast<int>(*code);
        state->state = *state->exit_code == 0 ? "finished" : "failed";
      }
    }
  }

  const std::filesystem::path run_;
  RunInfo info_;
  RecordingEnd end_;
};

}  // namespace

Status ScanWriters(const std::filesystem::path& run, const std::vector<std::string>& writers,
                   bool final, std::uint32_t table_mask, const RunReader::Visitor& visit,
                   Salvage* salvage) {
  for (const std::string& name : writers) {
    WriterFollower follower(run / name, name, table_mask, final, salvage);
    std::unique_ptr<RowChunk> chunk;
    while (true) {
      TELLTALE_ASSIGN_OR_RETURN(const bool progress, follower.Advance(&chunk));
      if (!progress) break;
      if (chunk != nullptr && !visit(name, chunk->rows)) return {};
    }
  }
  return {};
}

Result<std::unique_ptr<RunReader>> RunReader::Open(const std::filesystem::path& run) {
  TELLTALE_ASSIGN_OR_RETURN(RunInfo info, ReadRunInfo(run));
  return std::unique_ptr<RunReader>(std::make_unique<RunReaderImpl>(run, std::move(info)));
}

}  // namespace telltale::store
