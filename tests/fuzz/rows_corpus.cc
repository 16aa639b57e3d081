// SPDX-License-Identifier: Apache-2.0
// Writes seeds of the target rows: the records of rule scripts as batches of a journal.
// usage: fuzz_rows_corpus FOLDER SCRIPT...
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <type_traits>

#include "format/batch.h"
#include "rules/script.h"

namespace {

/// Larger seeds slow the fuzzer down: of a long script its begin is as good.
constexpr std::size_t kMostBytes = 24 << 10;
constexpr std::size_t kMostRows = 400;

}  // namespace

int main(int argc, char** argv) {
  using telltale::format::Batch;
  if (argc < 3) return 2;
  for (int i = 2; i < argc; ++i) {
    const std::filesystem::path script = argv[i];
    std::size_t taken = 0;
    int part = 0;
    const auto take = [&](std::span<const telltale::store::OrderedRecord> records) {
      Batch batch;
      std::size_t rows = 0;
      for (const auto& record : records) {
        if (++rows > kMostRows) break;
        telltale::format::ForEachTable(batch.rows, [&](auto& table) {
          using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
          if (const auto* row = record.As<Row>()) {
            table.push_back(*row);
            table.back().seq = table.size();
          }
        });
      }
      std::string bytes;
      telltale::format::EncodeBatch(batch, &bytes);
      if (records.empty() || bytes.size() > kMostBytes || ++taken > 4) return;
      std::ofstream(
          std::filesystem::path(argv[1]) / (script.stem().string() + "-" + std::to_string(part++)),
          std::ios::binary)
          << bytes;
    };
    telltale::rules::ScriptOptions options;
    options.records = take;
    static_cast<void>(telltale::rules::RunScript(script, nullptr, options));
  }
  return 0;
}
