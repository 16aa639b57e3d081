// SPDX-License-Identifier: Apache-2.0
// Tensors through telltale/read.hpp, of runs that the store's own writers wrote.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/string_pool.h"
#include "store/run_info.h"
#include "store/tensor_file.h"
#include "store/writer.h"
#include "support/temp_folder.h"
#include "telltale/read.hpp"

namespace telltale {
namespace {

namespace fs = std::filesystem;

/// A run with one writer of tensors.
class Recording {
 public:
  explicit Recording(fs::path run) : run_(std::move(run)) {
    fs::create_directories(run_);
    store::RunInfo info{.id = "run", .name = "test", .command = {"python"}};
    info.attempts.push_back({.number = 1, .start_ns = 1, .end_ns = 2, .exit_code = 0});
    info.finished = true;
    EXPECT_TRUE(store::WriteRunInfo(run_, info).ok());
    auto opened = store::Writer::Open(folder(), "agent-a");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    writer_ = std::move(opened).value();
    NewFile();
  }

  fs::path folder() const { return run_ / "agent-a"; }

  void NewFile() {
    bool no_space = false;
    auto created = store::TensorFileWriter::Create(folder(), ++number_, &no_space);
    ASSERT_TRUE(created.ok()) << created.status().message();
    file_ = std::move(created).value();
  }

  /// Values of one step; its elements are `first`, `first` + 1, ...
  void Add(std::string_view name, std::int64_t step, float first, std::size_t elements = 4,
           std::string_view mode = "TRAIN", std::int32_t rank = 0, std::uint32_t attempt = 1) {
    std::vector<float> values(elements);
    std::iota(values.begin(), values.end(), first);
    format::TensorRow row;
    row.ord_ns = row.time_ns = ++now_;
    row.name = pool_.Intern(name);
    row.collection = "weights";
    row.dtype = "F32";
    row.shape = pool_.Intern(fmt::format("[{}]", elements));
    row.step = step;
    row.mode = pool_.Intern(mode);
    row.rank = rank;
    row.attempt = attempt;
    row.file = pool_.Intern(file_->file());
    const auto placed = file_->Append(row, std::as_bytes(std::span(values)));
    ASSERT_TRUE(placed.ok()) << placed.status().message();
    row.offset = placed->offset;
    row.bytes = placed->bytes;
    row.digest = pool_.Intern(placed->digest);
    batch_.rows.tensors.push_back(row);
  }

  void AddStatistics(std::string_view name, std::int64_t step, double mean) {
    format::StatisticRow row;
    row.ord_ns = row.time_ns = ++now_;
    row.name = pool_.Intern(name);
    row.collection = "weights";
    row.dtype = "float32";
    row.step = step;
    row.mode = "TRAIN";
    row.attempt = 1;
    row.mean = mean;
    row.count = 5;
    batch_.rows.statistics.push_back(row);
  }

  void Flush() {
    batch_.watermark_ns = now_;
    ASSERT_TRUE(writer_->Append(std::exchange(batch_, {})).ok());
  }

  void End() {
    const auto header = file_->WriteHeader();
    ASSERT_TRUE(header.ok());
    format::TensorRow row;
    row.ord_ns = row.time_ns = ++now_;
    row.name = store::kHeaderRow;
    row.mode = "GLOBAL";
    row.file = pool_.Intern(file_->file());
    row.bytes = header->bytes;
    row.digest = pool_.Intern(header->digest);
    batch_.rows.tensors.push_back(row);
    Flush();
    ASSERT_TRUE(store::SealTensorFile(file_->fd()->get(), folder(), file_->file()).ok());
    ASSERT_TRUE(writer_->Close(true).ok());
  }

 private:
  const fs::path run_;
  StringPool pool_;
  std::unique_ptr<store::Writer> writer_;
  std::unique_ptr<store::TensorFileWriter> file_;
  std::uint64_t number_ = 0;
  std::int64_t now_ = 0;
  format::Batch batch_;
};

std::vector<std::int64_t> ListOf(const std::optional<Steps>& steps) {
  if (!steps) return {-1};
  return {steps->begin(), steps->end()};
}

class ReadTensors : public ::testing::Test {
 protected:
  std::optional<Tensor> OpenTensor(const std::string& name) {
    auto run = Run::Open(path_, &error_);
    EXPECT_TRUE(run) << error_.message;
    return run->Tensor(name, &error_);  // And outlives the run.
  }
  /// The first element of each step.
  static std::vector<float> Firsts(const Array& array) {
    std::vector<float> firsts;
    for (std::size_t i = 0; i < array.steps(); ++i) firsts.push_back(array.Get<float>(0, i));
    return firsts;
  }

  const testing::TempFolder folder_{"tensors"};
  const fs::path path_ = folder_.path() / "run";
  Recording recording_{path_};
  Error error_;
};

TEST_F(ReadTensors, ListsThemByPattern) {
  for (std::int64_t step = 0; step < 10; ++step) {
    recording_.Add("layer1.weight", step, 0);
    recording_.AddStatistics("layer1.weight", step, 0);
    recording_.AddStatistics("layer1.bias", step, 0);
    if (step < 3) recording_.Add("layer2.weight", step, 0, 4, "EVAL", 1);
  }
  recording_.End();
  auto run = Run::Open(path_, &error_);
  ASSERT_TRUE(run) << error_.message;
  const auto all = ParseJson(*run->Tensors(&error_));
  ASSERT_EQ(all.size(), 3U) << "and no row of a file's header: " << all;
  EXPECT_EQ(all[0]["name"], "layer1.bias");
  EXPECT_EQ(all[0]["values"], 0);
  EXPECT_EQ(all[0]["shapes"], nlohmann::json::array());
  EXPECT_EQ(all[1]["name"], "layer1.weight");
  EXPECT_EQ(all[1]["values"], 10);
  EXPECT_EQ(all[1]["statistics"], 10);
  EXPECT_EQ(all[1]["histograms"], 0);
  EXPECT_EQ(all[1]["dtypes"], nlohmann::json({"float32"})) << "one type under two names";
  EXPECT_EQ(all[1]["shapes"], ParseJson("[[4]]"));
  EXPECT_EQ(all[1]["steps"], nlohmann::json({{"TRAIN", 10}}));
  EXPECT_EQ(all[1]["last_step"], 9);
  EXPECT_EQ(all[2]["steps"], nlohmann::json({{"EVAL", 3}}));
  EXPECT_EQ(all[2]["ranks"], ParseJson("[1]"));
  EXPECT_EQ(ParseJson(*run->Tensors(&error_, "layer1.*")).size(), 2U);
  EXPECT_EQ(ParseJson(*run->Tensors(&error_, "layer?.weight")).size(), 2U);
  EXPECT_EQ(ParseJson(*run->Tensors(&error_, "layer")).size(), 0U);
}

TEST_F(ReadTensors, ANameMayHoldWhateverTheProgramPutIntoIt) {
  const std::vector<std::string> names{std::string("nul\0here.weight", 15),
                                       "nul",
                                       "../up",
                                       "[a]*",
                                       "\xf0\x9f\x94\xa5",
                                       std::string(4096, 'x')};
  for (std::size_t i = 0; i < names.size(); ++i) recording_.Add(names[i], 0, static_cast<float>(i));
  recording_.End();
  for (std::size_t i = 0; i < names.size(); ++i) {
    auto tensor = OpenTensor(names[i]);
    ASSERT_TRUE(tensor);
    const auto values = tensor->At(0, &error_);
    ASSERT_TRUE(values) << error_.message;
    EXPECT_EQ(values->Get<float>(0), static_cast<float>(i)) << names[i];
  }
  auto run = Run::Open(path_, &error_);
  EXPECT_EQ(ParseJson(*run->Tensors(&error_)).size(), names.size());
  const auto by_end = ParseJson(*run->Tensors(&error_, "*.weight"));
  ASSERT_EQ(by_end.size(), 1U);
  EXPECT_EQ(by_end[0]["name"], names[0]);
  EXPECT_EQ(ParseJson(*run->Tensors(&error_, "[a]*")).size(), 1U) << "its own name";
}

TEST_F(ReadTensors, GivesAViewWhereTheDistanceIsConstant) {
  for (std::int64_t step = 0; step < 100; step += 2) {
    recording_.Add("a", step, static_cast<float>(step));
    recording_.Add("b", step, -static_cast<float>(step), 3);
  }
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  const auto steps = tensor->Steps(&error_);
  ASSERT_EQ(ListOf(steps).size(), 50U);
  const auto all = tensor->Values(steps->begin(), steps->size(), &error_);
  ASSERT_TRUE(all) << error_.message;
  EXPECT_FALSE(all->copied());
  EXPECT_EQ(all->raw().step_stride, (4 + 3) * 4);
  EXPECT_STREQ(all->dtype(), "float32");
  EXPECT_EQ(all->shape(), std::vector<std::int64_t>{4});
  EXPECT_EQ(all->elements(), 4U);
  ASSERT_EQ(all->steps(), 50U);
  for (std::size_t i = 0; i < 50; ++i) {
    ASSERT_EQ(all->Get<float>(3, i), static_cast<float>(2 * i + 3));
  }
  const std::vector<std::int64_t> back{98, 48, 47};
  EXPECT_FALSE(tensor->Values(back.data(), back.size(), &error_)) << "no such step";
  EXPECT_EQ(error_.code, TT_READ_USAGE);
  const std::vector<std::int64_t> descending{98, 48};
  const auto two = tensor->Values(descending.data(), descending.size(), &error_);
  ASSERT_TRUE(two) << error_.message;
  EXPECT_FALSE(two->copied());
  EXPECT_EQ(Firsts(*two), (std::vector<float>{98, 48}));
}

TEST_F(ReadTensors, CopiesOnceWhereItIsNot) {
  for (std::int64_t step = 0; step < 20; ++step) {
    recording_.Add("a", step, static_cast<float>(step));
    if (step == 7) recording_.Add("b", step, 0);
    if (step == 14) recording_.NewFile();
  }
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  const auto steps = tensor->Steps(&error_);
  const auto all = tensor->Values(steps->begin(), steps->size(), &error_);
  ASSERT_TRUE(all) << error_.message;
  EXPECT_TRUE(all->copied());
  std::vector<float> expected(20);
  std::iota(expected.begin(), expected.end(), 0.0F);
  EXPECT_EQ(Firsts(*all), expected) << "over a gap and two files, one of which is a .part";
}

TEST_F(ReadTensors, FindsAStepByModeAndRank) {
  recording_.Add("a", 5, 100, 4, "EVAL", 0);
  recording_.Add("a", 5, 10, 4, "TRAIN", 1);
  recording_.Add("a", 5, 20, 4, "TRAIN", 2);
  recording_.Add("a", 5, 11, 4, "TRAIN", 1, 2);
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  const auto first = [&](const std::string& mode, std::int32_t rank) {
    const auto array = tensor->At(5, &error_, mode, rank);
    return array ? array->Get<float>(0) : -1.0F;
  };
  EXPECT_EQ(first("", TT_ANY_RANK), 11) << "TRAIN, the lowest rank, the newest attempt";
  EXPECT_EQ(first("", 2), 20);
  EXPECT_EQ(first("EVAL", TT_ANY_RANK), 100);
  EXPECT_EQ(first("EVAL", 2), -1);
  EXPECT_EQ(error_.code, TT_READ_USAGE);
  EXPECT_NE(error_.message.find("rank 2"), std::string::npos) << error_.message;
  EXPECT_EQ(first("PREDICT", 0), -1);
  EXPECT_FALSE(tensor->At(6, &error_));
  EXPECT_NE(error_.message.find("step 6"), std::string::npos) << error_.message;
}

/// A look for one step reads a part of the index; after some of them all of it is read.
TEST_F(ReadTensors, FindsEachStepWhateverWasLookedForBefore) {
  for (std::int64_t step = 0; step < 40; ++step) {
    recording_.Add("a", step, static_cast<float>(step), 4, step < 30 ? "TRAIN" : "EVAL");
    if (step % 10 == 9) recording_.Flush();
  }
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  EXPECT_FALSE(tensor->At(35, &error_)) << "of TRAIN, in which there are values elsewhere";
  EXPECT_NE(error_.message.find("TRAIN"), std::string::npos) << error_.message;
  EXPECT_FALSE(tensor->At(40, &error_, "PREDICT"));
  for (const std::int64_t step : {29, 0, 17, 3, 28, 1, 0, 16}) {
    const auto values = tensor->At(step, &error_);
    ASSERT_TRUE(values) << error_.message;
    EXPECT_EQ(values->Get<float>(0), static_cast<float>(step));
  }
  EXPECT_EQ(tensor->At(35, &error_, "EVAL")->Get<float>(0), 35);
  auto again = OpenTensor("a");
  const std::vector<std::int64_t> some{20, 5, 10};
  const auto values = again->Values(some.data(), some.size(), &error_);
  ASSERT_TRUE(values) << error_.message;
  EXPECT_EQ(Firsts(*values), (std::vector<float>{20, 5, 10}));
  EXPECT_EQ(again->At(10, &error_)->Get<float>(0), 10) << "of what was located";
}

TEST_F(ReadTensors, RefusesToPutShapesTogetherThatDiffer) {
  recording_.Add("a", 0, 0, 4);
  recording_.Add("a", 1, 0, 5);
  recording_.End();
  auto tensor = OpenTensor("a");
  const auto steps = tensor->Steps(&error_);
  EXPECT_FALSE(tensor->Values(steps->begin(), steps->size(), &error_));
  EXPECT_EQ(error_.code, TT_READ_USAGE);
  EXPECT_NE(error_.message.find("step 1"), std::string::npos) << error_.message;
  EXPECT_TRUE(tensor->At(1, &error_));
}

TEST_F(ReadTensors, GivesStepsOfWhatWasRecorded) {
  for (std::int64_t step = 0; step < 10; ++step) {
    if (step % 2 == 0) recording_.Add("a", step, 0);
    if (step % 3 == 0) recording_.AddStatistics("a", step, 0);
  }
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(ListOf(tensor->Steps(&error_)), (List{0, 2, 3, 4, 6, 8, 9}));
  EXPECT_EQ(ListOf(tensor->Steps(&error_, "TRAIN", 0, TT_RECORDED_VALUES)), (List{0, 2, 4, 6, 8}));
  EXPECT_EQ(ListOf(tensor->Steps(&error_, "", TT_ANY_RANK, TT_RECORDED_STATISTICS)),
            (List{0, 3, 6, 9}));
  EXPECT_FALSE(tensor->Steps(&error_, "EVAL"));
  EXPECT_EQ(error_.code, TT_READ_USAGE);
  auto none = OpenTensor("none");
  ASSERT_TRUE(none) << "nothing is read yet";
  EXPECT_FALSE(none->Steps(&error_));
  EXPECT_NE(error_.message.find("none"), std::string::npos);
}

TEST_F(ReadTensors, GivesTheRowsOfOneTensor) {
  for (std::int64_t step = 0; step < 10; ++step) {
    recording_.AddStatistics("a", step, static_cast<double>(step));
    recording_.AddStatistics("b", step, 0);
  }
  recording_.End();
  auto tensor = OpenTensor("a");
  ASSERT_TRUE(tensor);
  auto table = tensor->Table("statistics", &error_, {"step", "mean", "writer", "name"});
  ASSERT_TRUE(table) << error_.message;
  Batch batch;
  std::int64_t next = 0;
  while (table->Next(&batch, &error_)) {
    for (std::int64_t i = 0; i < batch.rows(); ++i, ++next) {
      EXPECT_EQ(batch.Column<std::int64_t>("step")[i], next);
      EXPECT_EQ(batch.Column<double>("mean")[i], static_cast<double>(next));
      EXPECT_EQ(batch.Text("writer")[i], "agent-a");
      EXPECT_EQ(batch.Text("name")[i], "a");
    }
  }
  EXPECT_EQ(next, 10);
  EXPECT_TRUE(tensor->Table("statistics", &error_));
  EXPECT_FALSE(tensor->Table("steps", &error_));
  EXPECT_EQ(error_.code, TT_READ_USAGE);
}

TEST_F(ReadTensors, ReadsARunWhoseFileStillGrows) {
  recording_.Add("a", 0, 7);
  recording_.Flush();
  auto tensor = OpenTensor("a");
  const auto before = tensor->At(0, &error_);
  ASSERT_TRUE(before) << error_.message;
  recording_.Add("a", 1, 8);
  recording_.Flush();
  EXPECT_EQ(before->Get<float>(0), 7) << "what was given stays";
  auto again = OpenTensor("a");
  const auto after = again->At(1, &error_);
  ASSERT_TRUE(after) << error_.message;
  EXPECT_EQ(after->Get<float>(0), 8);
  recording_.End();
  EXPECT_EQ(after->Get<float>(3), 11) << "also when the file has its name";
}

TEST_F(ReadTensors, FollowsThem) {
  recording_.Add("a", 0, 7);
  recording_.AddStatistics("a", 0, 0.5);
  recording_.End();
  auto run = Run::Open(path_, &error_);
  ASSERT_TRUE(run) << error_.message;
  auto follower = run->Follow({"tensors", "statistics", "histograms"}, &error_);
  ASSERT_TRUE(follower) << error_.message;
  std::vector<std::string> seen;
  Batch batch;
  Follower::State state{};
  while ((state = follower->Next(&batch, &error_)) == Follower::State::kRecords) {
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      seen.push_back(std::string(batch.table()) + " " + std::string(batch.Text("name")[i]));
      if (batch.table() != "tensors" || batch.Text("name")[i] != "a") continue;
      const std::string writer(batch.Text("writer")[i]);
      const std::string file(batch.Text("file")[i]);
      const std::string dtype(batch.Text("dtype")[i]);
      const std::string shape(batch.Text("shape")[i]);
      const tt_tensor_row row{writer.c_str(),
                              file.c_str(),
                              batch.Column<std::uint64_t>("offset")[i],
                              batch.Column<std::uint64_t>("bytes")[i],
                              dtype.c_str(),
                              shape.c_str()};
      const auto values = run->Values(row, &error_);
      ASSERT_TRUE(values) << error_.message;
      EXPECT_EQ(values->Get<float>(0), 7);
    }
  }
  EXPECT_EQ(state, Follower::State::kEnd) << error_.message;
  EXPECT_NE(std::find(seen.begin(), seen.end(), "tensors a"), seen.end());
  EXPECT_NE(std::find(seen.begin(), seen.end(), "statistics a"), seen.end());
}

TEST_F(ReadTensors, SaysWhatIsLost) {
  recording_.Add("a", 0, 7);
  recording_.End();
  fs::resize_file(recording_.folder() / "tensors" / "00000001.safetensors",
                  store::kTensorHeaderBytes + 4);
  auto tensor = OpenTensor("a");
  EXPECT_FALSE(tensor->At(0, &error_));
  EXPECT_NE(error_.message.find("00000001.safetensors"), std::string::npos) << error_.message;
  fs::remove_all(recording_.folder() / "tensors");
  EXPECT_FALSE(OpenTensor("a")->At(0, &error_));
  EXPECT_EQ(error_.code, TT_READ_UNUSABLE);
}

}  // namespace
}  // namespace telltale
