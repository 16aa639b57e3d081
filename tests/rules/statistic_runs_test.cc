// SPDX-License-Identifier: Apache-2.0
// Rules that are given records in runs say the same as rules that are given them one by one: all
// revisions of all findings, byte for byte, and the states at the end. For every rule script, for
// random trainings, and for those from disk, read ahead by another thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "base/string_pool.h"
#include "rules/finding_json.h"
#include "rules/groups.h"
#include "rules/registry.h"
#include "rules/replay.h"
#include "rules/rule_set.h"
#include "rules/script.h"
#include "store/writer.h"
#include "support/temp_folder.h"

namespace telltale::rules {
namespace {

RuleSet EveryRule() {
  RuleSet set;
  set.defaults = false;
  for (const RuleEntry& entry : Registry()) {
    RuleSpec spec;
    spec.name = spec.rule = std::string(entry.desc->name);
    // Without a limit it judges nothing.
    if (spec.rule == "TensorVariance") spec.parameters["max_threshold"] = "1";
    set.rules.push_back(spec);
  }
  return set;
}

template <class Items>
std::string TextOf(const Items& items) {
  std::string text;
  for (const auto& item : items) text += JsonText(ToJson(item)) + "\n";
  return text;
}

std::vector<std::filesystem::path> Scripts() {
  std::vector<std::filesystem::path> scripts;
  for (const auto& entry : std::filesystem::directory_iterator(TELLTALE_RULE_SCRIPTS)) {
    if (entry.path().extension() == ".test") scripts.push_back(entry.path());
  }
  std::sort(scripts.begin(), scripts.end());
  return scripts;
}

void ExpectTheSame(const std::filesystem::path& script, const std::optional<RuleSet>& rules) {
  ScriptOptions options{.rules = rules, .one_by_one = true};
  const auto alone = RunScript(script, nullptr, options);
  options.one_by_one = false;
  const auto in_runs = RunScript(script, nullptr, options);
  ASSERT_TRUE(alone.ok() && in_runs.ok());
  EXPECT_EQ(TextOf(alone->revisions), TextOf(in_runs->revisions)) << script;
  EXPECT_EQ(TextOf(alone->states), TextOf(in_runs->states)) << script;
}

TEST(StatisticRunsTest, ScriptsSayTheSame) {
  const auto scripts = Scripts();
  ASSERT_GE(scripts.size(), 3 * Registry().size());
  for (const auto& script : scripts) ExpectTheSame(script, std::nullopt);
}

TEST(StatisticRunsTest, EveryRuleSaysTheSameOfTheRecordsOfEachScript) {
  for (const auto& script : Scripts()) ExpectTheSame(script, EveryRule());
}

/// A training of two ranks on two nodes that now and then has one of the diseases that statistics
/// show, restarts, and whose captures come late, twice, in part or not at all.
class RandomTraining {
 public:
  explicit RandomTraining(unsigned seed) : random_(seed) {
    layers_ = 2 + Below(4);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      for (const char* of : {".weight", ".bias"}) {
        Add(name + of, of[1] == 'w' ? "weights" : "biases");
        Add("gradient/" + name + of, "gradients");
      }
      Add(name + ".relu.output", "activations");
      Add(name + ".relu_input", "activations");
      Add(name + ".tanh.output", "activations");
    }
    Add("input", "inputs");
    Add("exp_avg", "optimizer_state");
  }

  /// Rows of writer 0 and 1, each table in its order.
  std::vector<format::Rows> Make(int steps) {
    rows_.resize(2);
    for (int step = 0; step < steps; ++step) {
      if (Below(60) == 0) ChangeDisease();
      if (Below(200) == 0) Restart();
      const std::int64_t every = 1 + static_cast<std::int64_t>(Below(3));
      for (int rank = 0; rank < 2; ++rank) Step(rank, step_, step_ % every == 0);
      ++step_;
    }
    return std::move(rows_);
  }

 private:
  enum Disease : int { kNone, kNaN, kZero, kVanished, kGrown, kFrozen, kApart, kDead, kDiseases };

  struct Tensor {
    std::string_view name, collection;
    double size = 1;
  };

  std::size_t Below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  void Add(const std::string& name, const char* collection) {
    tensors_.push_back({pool_.Intern(name), collection, 0.01 + Uniform()});
  }

  void ChangeDisease() {
    disease_ = Below(2) == 0 ? kNone : static_cast<int>(Below(kDiseases));
    ill_.assign(tensors_.size(), false);
    for (std::size_t i = 0; i < ill_.size(); ++i) ill_[i] = Below(3) == 0;
  }

  void Restart() {
    for (int rank = 0; rank < 2; ++rank) {
      format::EventRow event;
      Begin(&event, rank);
      event.kind = "process.exit";
      event.step = step_;
      rows_[static_cast<std::size_t>(rank)].events.push_back(event);
    }
    ++attempt_;
    step_ = std::max<std::int64_t>(0, step_ - 20);
  }

  template <class Row>
  void Begin(Row* row, int rank) {
    row->time_ns = now_ns_;
    row->ord_ns = now_ns_;
    row->attempt = attempt_;
    row->pid = 100 + static_cast<std::int32_t>(attempt_) % 2;
    if constexpr (requires { row->rank; }) row->rank = rank;
  }

  void Step(int rank, std::int64_t step, bool captured) {
    format::Rows& rows = rows_[static_cast<std::size_t>(rank)];
    now_ns_ += 4'000'000;
    if (captured) {
      const bool apart = Below(4) == 0;  // Each has its own time, or all one.
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (Below(30) == 0) continue;
        if (Below(200) == 0) Sample(rank);
        if (apart) now_ns_ += 1000;
        const std::int64_t of = Below(50) == 0 ? std::max<std::int64_t>(0, step - 2) : step;
        rows.statistics.push_back(Statistic(i, rank, of));
      }
    }
    now_ns_ += 1'000'000;
    if (Below(20) != 0) {
      format::ScalarRow loss;
      Begin(&loss, rank);
      loss.name = "loss";
      loss.mode = "TRAIN";
      loss.step = step;
      loss.value = disease_ == kNaN && Below(2) == 0 ? std::nan("") : 1 / (1.0 + 0.01 * step);
      rows.scalars.push_back(loss);
    }
    now_ns_ += 5'000'000;
    format::StepRow row;
    Begin(&row, rank);
    row.time_ns = now_ns_ - 10'000'000;
    row.duration_ns = 10'000'000;
    row.data_wait_ns = 1'000'000;
    row.forward_ns = 3'000'000;
    row.backward_ns = 5'000'000;
    row.optimizer_ns = 1'000'000;
    row.step = step;
    row.mode = "TRAIN";
    row.skipped = Below(40) == 0;
    rows.steps.push_back(row);
    if (Below(6) == 0) Sample(rank);
  }

  /// Of the machine, at any moment of the training.
  void Sample(int rank) {
    for (const char* subject : {"cpu:0", "cpu:1", "cpu:2"}) {
      format::MetricRow row;
      row.time_ns = row.ord_ns = now_ns_;
      row.node = rank == 0 ? "a" : "b";
      row.subject = subject;
      row.name = "cpu.user";
      row.value = 100 * Uniform();
      row.unit = "percent";
      rows_[static_cast<std::size_t>(rank)].metrics.push_back(row);
      if (Below(4) == 0) return;
    }
  }

  format::StatisticRow Statistic(std::size_t index, int rank, std::int64_t step) {
    const Tensor& tensor = tensors_[index];
    format::StatisticRow row;
    Begin(&row, rank);
    row.name = tensor.name;
    row.collection = tensor.collection;
    row.dtype = index % 7 == 0 ? "float64" : "float32";
    row.mode = Below(100) == 0 ? "GLOBAL" : "TRAIN";
    row.step = step;
    row.count = Below(500) == 0 ? 0 : 64 + 32 * index;
    const bool ill = !ill_.empty() && ill_[index];
    // The same on both ranks, but for what is apart, and not the same in two steps, but for what is
    // frozen.
    std::mt19937 same(static_cast<unsigned>(index * 7919 +
                                            (ill && disease_ == kFrozen ? 0 : step * 31) +
                                            (ill && disease_ == kApart ? rank * 13 : 0)));
    double size = tensor.size * (1 + 0.1 * std::uniform_real_distribution<double>(-1, 1)(same));
    if (ill && disease_ == kGrown) size *= 1e5;
    if (ill && disease_ == kVanished) size *= 1e-9;
    if (ill && disease_ == kZero) size = 0;
    const double count = static_cast<double>(row.count);
    row.std = size;
    row.mean = 0.1 * size;
    row.min = tensor.collection == "activations" ? 0 : -3 * size;
    row.max = 3 * size;
    row.l1 = 0.8 * size * count;
    row.l2 = size * std::sqrt(count);
    if (tensor.collection == "activations") row.zero_count = row.count / 3;
    if (size == 0) row.zero_count = row.count;
    if (ill && disease_ == kDead) row.zero_count = row.count - row.count / 200;
    if (ill && disease_ == kNaN) {
      row.nan_count = 1 + Below(3);
      row.inf_count = Below(2);
      if (Below(4) == 0) {
        row.nan_count = row.count;
        row.min = row.max = row.mean = row.std = row.l1 = row.l2 =
            std::numeric_limits<double>::quiet_NaN();
      }
    }
    return row;
  }

  std::mt19937 random_;
  StringPool pool_;
  std::size_t layers_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<bool> ill_;
  int disease_ = kNone;
  std::uint32_t attempt_ = 1;
  std::int64_t step_ = 0;
  std::int64_t now_ns_ = 1'800'000'000'000'000'000;
  std::vector<format::Rows> rows_;
};

/// In the order of the cursor.
std::vector<store::OrderedRecord> InOrder(std::vector<format::Rows>* writers) {
  std::vector<std::pair<store::OrderedRecord, std::uint64_t>> all;
  for (std::uint32_t writer = 0; writer < writers->size(); ++writer) {
    format::ForEachTable((*writers)[writer], [&](auto& table) {
      using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
      std::uint64_t seq = 0;
      for (Row& row : table) {
        row.seq = ++seq;
        all.push_back({{row.ord_ns, writer, Row::kTable, &row}, row.seq});
      }
    });
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.first.ord_ns, a.first.writer, a.first.table, a.second) <
           std::tuple(b.first.ord_ns, b.first.writer, b.first.table, b.second);
  });
  std::vector<store::OrderedRecord> records;
  for (const auto& [record, seq] : all) records.push_back(record);
  return records;
}

TEST(StatisticRunsTest, RandomTrainingsSayTheSame) {
  std::size_t revisions = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    RandomTraining training(seed);
    std::vector<format::Rows> rows = training.Make(400);
    const std::vector<store::OrderedRecord> records = InOrder(&rows);
    ASSERT_TRUE(std::any_of(records.begin(), records.end(), [](const auto& record) {
      return record.table == format::TableId::kMetrics;
    }));
    Engine alone = Engine::Create(EveryRule()).value();
    for (const store::OrderedRecord& record : records) alone.Feed(record);
    alone.End();
    Engine in_runs = Engine::Create(EveryRule()).value();
    std::mt19937 random(seed);
    for (std::span<const store::OrderedRecord> left = records; !left.empty();) {
      // As a cursor gives them: cut anywhere.
      const std::size_t n = std::min<std::size_t>(left.size(), 1 + random() % 3000);
      in_runs.Feed(left.first(n));
      left = left.subspan(n);
    }
    in_runs.End();
    const auto said = alone.TakeRevisions();
    revisions += said.size();
    EXPECT_EQ(TextOf(said), TextOf(in_runs.TakeRevisions()));
    EXPECT_EQ(TextOf(alone.findings()), TextOf(in_runs.findings()));
    EXPECT_EQ(TextOf(alone.rule_states()), TextOf(in_runs.rule_states()));
  }
  EXPECT_GT(revisions, 100U);  // Else it says little.
}

TEST(StatisticRunsTest, ARunFromDiskReadAheadSaysTheSame) {
  const testing::TempFolder folder("runs");
  const std::filesystem::path run = folder.path() / "run";
  std::filesystem::create_directories(run);
  store::RunInfo info{.id = "run", .name = "run", .command = {"python"}};
  info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 0});
  info.finished = true;
  ASSERT_TRUE(store::WriteRunInfo(run, info).ok());
  RandomTraining training(77);
  std::vector<format::Rows> rows = training.Make(1500);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string name = "agent-" + std::to_string(i);
    store::WriterOptions options;
    options.seal_bytes = 256U << 10;  // Many segments.
    auto writer = store::Writer::Open(run / name, name, options);
    ASSERT_TRUE(writer.ok());
    // Batches of 100 ms.
    std::size_t next[4] = {};
    const std::int64_t begin = rows[i].steps.front().time_ns;
    for (std::int64_t until = begin;; until += 100'000'000) {
      format::Batch batch;
      bool left = false;
      const auto take = [&](auto& from, auto* to, std::size_t* at) {
        for (; *at < from.size() && from[*at].ord_ns < until; ++*at) to->push_back(from[*at]);
        left = left || *at < from.size();
      };
      take(rows[i].statistics, &batch.rows.statistics, &next[0]);
      take(rows[i].scalars, &batch.rows.scalars, &next[1]);
      take(rows[i].steps, &batch.rows.steps, &next[2]);
      take(rows[i].metrics, &batch.rows.metrics, &next[3]);
      batch.watermark_ns = until;
      ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
      ASSERT_TRUE((*writer)->Tick().ok());
      if (!left) break;
    }
    ASSERT_TRUE((*writer)->Close(true).ok());
  }

  ReplayOptions options;
  options.rules = EveryRule();
  const auto replay = ReplayRun(run, options);
  ASSERT_TRUE(replay.ok()) << replay.status().message();
  EXPECT_FALSE(replay->salvage.any());

  Engine alone = Engine::Create(EveryRule()).value();
  const auto reader = store::RunReader::Open(run).value();
  const auto cursor = reader->NewCursor().value();
  std::vector<store::OrderedRecord> records;
  std::size_t statistics = 0;
  do {
    records.clear();
    ASSERT_TRUE(cursor->Next(1000, &records).ok());
    for (const store::OrderedRecord& record : records) {
      statistics += record.table == format::TableId::kStatistics ? 1 : 0;
      alone.Feed(record);
    }
  } while (!records.empty());
  alone.End();
  EXPECT_EQ(statistics, rows[0].statistics.size() + rows[1].statistics.size());
  EXPECT_EQ(TextOf(Ranked(alone.findings())), TextOf(replay->findings));
}

}  // namespace
}  // namespace telltale::rules
