// SPDX-License-Identifier: Apache-2.0
// Writes a finished run whose journal holds, in every table, some rows that can be and some with
// numbers by the dice, with checksums that hold: make_forged_run FOLDER SEED
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "format/batch.h"
#include "store/folder.h"
#include "store/journal_format.h"
#include "store/journal_writer.h"
#include "store/run_info.h"

namespace telltale {
namespace {

constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;
constexpr int kRowsATable = 60;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t most) { return engine_() % most; }
  template <class Integer>
  Integer Number() {
    constexpr Integer kEnds[] = {std::numeric_limits<Integer>::min(),
                                 std::numeric_limits<Integer>::max(),
                                 static_cast<Integer>(-1),
                                 static_cast<Integer>(1),
                                 static_cast<Integer>(std::int64_t{1} << 53),
                                 static_cast<Integer>(std::int64_t{1} << 57),
                                 static_cast<Integer>(std::int64_t{1} << 62)};
    return Below(3) == 0 ? static_cast<Integer>(engine_()) : kEnds[Below(std::size(kEnds))];
  }
  double Real() {
    constexpr double kEnds[] = {std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::max(),
                                -0.0,
                                5e-324};
    return kEnds[Below(std::size(kEnds))];
  }
  std::string_view Text() {
    constexpr std::string_view kTexts[] = {"TRAIN",
                                           "EVAL",
                                           "loss",
                                           "lr.0",
                                           "gpu:0",
                                           "cpu.user",
                                           "weights",
                                           "float32",
                                           "[3]",
                                           "{\"pid\": 9223372036854775807}",
                                           "process.exit",
                                           "run.attempt_end",
                                           "high",
                                           "open",
                                           "proc:tree",
                                           "percent",
                                           "InputBound",
                                           "",
                                           "\xf0\x9f\x92\xa9",
                                           "../../etc/passwd"};
    return kTexts[Below(std::size(kTexts))];
  }

 private:
  std::mt19937_64 engine_;
};

template <class Row>
Row MakeRow(int index, Dice* dice) {
  Row row{};
  format::ForEachColumn<Row>([&](const format::ColumnDesc& column, auto member) {
    auto& value = row.*member;
    using Value = std::remove_reference_t<decltype(value)>;
    // One column of some six is forged, so that each is forged in some row that is else sound.
    const bool forged = index % 3 == 2 && dice->Below(6) == 0;
    if constexpr (std::is_same_v<Value, std::string_view>) {
      value = dice->Text();
    } else if constexpr (std::is_same_v<Value, double>) {
      value = forged ? dice->Real() : static_cast<double>(index);
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = dice->Below(2) == 1;
    } else if (forged) {
      value = dice->Number<Value>();
    } else if (column.least < 0 && column.most > kBegin) {
      value = static_cast<Value>(kBegin + index * std::int64_t{100'000'000});
    } else {
      value = static_cast<Value>(index);
    }
  });
  row.seq = static_cast<std::uint64_t>(index) + 1;
  return row;
}

Status Make(const std::filesystem::path& run, std::uint64_t seed) {
  Dice dice(seed);
  format::Batch batch;
  format::ForEachTable(batch.rows, [&](auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    for (int i = 0; i < kRowsATable; ++i) table.push_back(MakeRow<Row>(i, &dice));
  });
  std::filesystem::create_directories(run / "agent-forged");
  store::RunInfo info{.id = "forged", .name = "forged"};
  info.created_ns = kBegin;
  info.attempts.push_back(
      {.number = 1, .start_ns = kBegin, .end_ns = kBegin + 10'000'000'000, .exit_code = 0});
  info.finished = true;
  TELLTALE_RETURN_IF_ERROR(store::WriteRunInfo(run, info));
  store::JournalHeader header;
  header.writer = "agent-forged";
  header.number = 1;
  header.created_ns = kBegin;
  header.next_seq = store::FirstSeqs();
  store::EndRecord end;
  end.next_seq.fill(kRowsATable + 1);
  std::vector<std::string> records = {store::Encode(header), std::string(), store::Encode(end)};
  format::EncodeBatch(batch, &records[1]);
  bool no_space = false;
  return store::JournalWriter::Create(run / "agent-forged" / store::JournalFileName(1), records,
                                      &no_space)
      .status();
}

}  // namespace
}  // namespace telltale

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const telltale::Status made = telltale::Make(argv[1], std::strtoull(argv[2], nullptr, 10));
  if (!made.ok()) std::fprintf(stderr, "%s\n", made.message().c_str());
  return made.ok() ? 0 : 1;
}
