// SPDX-License-Identifier: Apache-2.0
// Folders made by hand, for what the real library does not write by itself: damage. What it does
// write is in tests/interchange/test_smdebug.py.
#include "interchange/smdebug_import.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "interchange/tf_event.h"
#include "interchange/tf_record.h"
#include "store/store_testing.h"
#include "store/tensor_file.h"
#include "store/verify.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

/// A folder as smdebug's hook leaves it.
class Recording {
 public:
  explicit Recording(fs::path path) : path_(std::move(path)) {}

  /// Adds a float32 tensor to the step that Write writes.
  void Add(const std::string& name, const std::vector<float>& values) {
    Append(name, [&](protozero::pbf_writer* tensor) {
      tensor->add_enum(1, static_cast<std::int32_t>(TfType::kFloat));
      {
        protozero::pbf_writer shape(*tensor, 2);
        if (values.size() != 1) {
          protozero::pbf_writer extent(shape, 2);
          extent.add_int64(1, static_cast<std::int64_t>(values.size()));
        }
      }
      tensor->add_bytes(4, reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(float));
    });
  }
  void AddText(const std::string& name, const std::string& text) {
    Append(name, [&](protozero::pbf_writer* tensor) { tensor->add_string(8, text); });
  }

  void Write(std::int64_t step, const std::string& mode, std::int64_t mode_step,
             const std::string& worker, bool with_events = true) {
    const std::string number = fmt::format("{:012}", step);
    const std::string event_file = fmt::format("events/{}/{}_{}.tfevents", number, number, worker);
    const fs::path index = path_ / "index" / "000000000";
    fs::create_directories(index);
    fs::create_directories(path_ / "events" / number);
    if (with_events) std::ofstream(path_ / event_file, std::ios::binary) << bytes_;
    const nlohmann::json text = {
        {"meta", {{"mode", mode}, {"mode_step", mode_step}, {"event_file_name", event_file}}},
        {"tensor_payload", payload_},
        {"shape_payload", nlohmann::json::array({{{"tensorname", "shape/fc.weight"},
                                                  {"originalname", "fc.weight"},
                                                  {"shape", {2, 3}}}})}};
    std::ofstream(index / (number + "_" + worker + ".json")) << JsonText(text);
    bytes_.clear();
    payload_ = nlohmann::json::array();
  }

  void WriteCollections() {
    const fs::path folder = path_ / "collections" / "000000000";
    fs::create_directories(folder);
    const nlohmann::json text = {{"collections",
                                  {{"all", {{"tensor_names", {"conv1.weight", "loss_0"}}}},
                                   {"mine", {{"tensor_names", {"conv1.weight", "conv1.other"}}}},
                                   {"weights", {{"tensor_names", {"conv1.weight"}}}},
                                   {"losses", {{"tensor_names", {"loss_0"}}}}}},
                                 {"_meta", {{"num_workers", 1}}}};
    std::ofstream(folder / "worker_0_collections.json") << JsonText(text);
  }

  fs::path EventFile(std::int64_t step, const std::string& worker) const {
    return path_ / "events" / fmt::format("{:012}", step) /
           fmt::format("{:012}_{}.tfevents", step, worker);
  }

 private:
  template <class F>
  void Append(const std::string& name, F&& fill) {
    std::string event_bytes;
    {
      protozero::pbf_writer event(event_bytes);
      event.add_double(1, 1.6e9 + static_cast<double>(count_++));
      protozero::pbf_writer summary(event, 5);
      protozero::pbf_writer value(summary, 1);
      value.add_string(1, name);
      protozero::pbf_writer tensor(value, 8);
      fill(&tensor);
    }
    const std::size_t begin = bytes_.size();
    AppendRecord(event_bytes, &bytes_);
    payload_.push_back(
        {{"tensorname", name}, {"start_idx", begin}, {"length", bytes_.size() - begin}});
  }

  const fs::path path_;
  std::string bytes_;
  nlohmann::json payload_ = nlohmann::json::array();
  int count_ = 0;
};

class SmdebugImport : public ::testing::Test {
 protected:
  const store::TempFolder folder_;
  const fs::path from_ = folder_.path() / "smdebug";
  const fs::path run_ = folder_.path() / "run";
  Recording recording_{from_};
};

TEST_F(SmdebugImport, AModeThatIsNoneIsDamage) {
  recording_.Add("a", {1});
  recording_.Write(0, "ModeKeys.EVAL", 0, "worker_0");
  recording_.Add("a", {2});
  recording_.Write(1, "TRAINING", 1, "worker_0");
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->damaged, 1U);
  ASSERT_EQ(report->notes.size(), 1U);
  EXPECT_NE(report->notes[0].find("'TRAINING' is no mode"), std::string::npos) << report->notes[0];
  EXPECT_EQ(report->steps, 1U);
}

/// Files may grow to so many bytes only, as on a disk that is full.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit low{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &low);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(SmdebugImport, HalfARunIsNotLeft) {
  recording_.Add("a", std::vector<float>(100'000, 1.0F));
  recording_.Write(0, "TRAIN", 0, "worker_0");
  {
    const FileLimit limit(65'536);
    const auto report = ImportSmdebug(from_, run_);
    ASSERT_FALSE(report.ok());
  }
  EXPECT_FALSE(fs::exists(run_));
  EXPECT_TRUE(ImportSmdebug(from_, run_).ok());
  // A folder that was there before is left alone.
  EXPECT_EQ(ImportSmdebug(from_, run_).status().code(), Code::kUsage);
  EXPECT_TRUE(fs::exists(run_ / "run.json"));
}

TEST_F(SmdebugImport, MakesARunThatVerifies) {
  recording_.WriteCollections();
  for (int step = 0; step < 20; ++step) {
    const auto value = static_cast<float>(step);
    recording_.Add("conv1.weight", {value, -2 * value, 0.5F});
    recording_.Add("loss_0", {10 - value});
    recording_.Add("smdebug/reductions/mean/fc.weight", {value});
    recording_.Add("smdebug/reductions/abs_min/fc.weight", {0.25F});
    recording_.Add("scalar/accuracy", {value / 20});
    recording_.AddText("hyperparameters/booster", "gbtree");
    recording_.Write(step, step < 10 ? "TRAIN" : "EVAL", step % 10, "worker_0");
    recording_.Add("conv1.weight", {1, 2, 3});
    recording_.Write(step, step < 10 ? "TRAIN" : "EVAL", step % 10, "worker_3");
  }
  const auto report = ImportSmdebug(
      from_, run_, {.telltale_version = "9", .file_bytes = store::kTensorHeaderBytes + 100});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->steps, 40U);
  EXPECT_EQ(report->workers, 2U);
  EXPECT_EQ(report->values, 80U);
  EXPECT_EQ(report->scalars, 40U);
  EXPECT_EQ(report->texts, 20U);
  EXPECT_EQ(report->damaged, 0U) << (report->notes.empty() ? "" : report->notes[0]);
  EXPECT_EQ(report->unknown_types, 0U);

  const auto verified = store::Verify(run_);
  ASSERT_TRUE(verified.ok()) << verified.status().message();
  EXPECT_TRUE(verified->problems.empty())
      << verified->problems[0].file << ": " << verified->problems[0].what;
  EXPECT_EQ(verified->state, "finished");

  const auto all = store::ReadEverything(run_);
  std::size_t values = 0;
  for (const format::TensorRow& row : all->rows.tensors) {
    if (row.name != "conv1.weight") continue;
    ++values;
    EXPECT_EQ(row.collection, "weights");
    EXPECT_EQ(row.dtype, "F32");
    EXPECT_EQ(row.shape, "[3]");
    const auto opened = store::OpenTensor(run_, "agent-imported", row);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    float first = -1;
    std::memcpy(&first, opened->values.data(), sizeof first);
    const auto global = static_cast<float>(row.mode == "EVAL" ? row.step + 10 : row.step);
    EXPECT_EQ(first, row.rank == 0 ? global : 1);
  }
  EXPECT_EQ(values, 40U);
  for (const format::StatisticRow& row : all->rows.statistics) {
    if (row.name == "conv1.weight" && row.rank == 3) {
      EXPECT_EQ(row.count, 3U);
      EXPECT_EQ(row.mean, 2);
      EXPECT_EQ(row.dtype, "float32");
    }
    if (row.name == "fc.weight") {
      EXPECT_EQ(row.mean, static_cast<double>(row.mode == "EVAL" ? row.step + 10 : row.step));
      EXPECT_TRUE(row.more);
      EXPECT_EQ(row.abs_min, 0.25);
      EXPECT_TRUE(std::isnan(row.max)) << "was not saved";
      EXPECT_EQ(row.count, 0U);
    }
  }
  std::size_t losses = 0;
  std::size_t accuracies = 0;
  for (const format::ScalarRow& row : all->rows.scalars) {
    losses += row.name == "loss" ? 1 : 0;
    accuracies += row.name == "accuracy" ? 1 : 0;
  }
  EXPECT_EQ(losses, 20U) << "the one tensor among the losses";
  EXPECT_EQ(accuracies, 20U);
  ASSERT_EQ(all->rows.steps.size(), 40U);
  ASSERT_EQ(all->rows.events.size(), 20U);
  EXPECT_EQ(all->rows.events[0].data, R"({"count":1,"mode":"TRAIN","values":["gbtree"]})");
}

TEST_F(SmdebugImport, KeepsReductionsThatHaveNoColumn) {
  recording_.Add("smdebug/reductions/mean/a", {1});
  recording_.Add("smdebug/reductions/sum/a", {12});
  recording_.Add("smdebug/reductions/abs_mean/a", {2});
  recording_.Add("smdebug/reductions/abs_max/b", {3});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  ASSERT_TRUE(ImportSmdebug(from_, run_).ok());
  const auto all = store::ReadEverything(run_);
  std::map<std::string, double> scalars;
  for (const format::ScalarRow& row : all->rows.scalars) {
    scalars[std::string(row.name)] = row.value;
  }
  EXPECT_EQ(scalars, (std::map<std::string, double>{{"smdebug/reductions/sum/a", 12},
                                                    {"smdebug/reductions/abs_mean/a", 2},
                                                    {"smdebug/reductions/abs_max/b", 3}}));
  ASSERT_EQ(all->rows.statistics.size(), 2U) << "b too is a tensor of which something is known";
  EXPECT_EQ(all->rows.statistics[0].mean, 1);
}

TEST_F(SmdebugImport, AReductionThatIsNanIsNotOneThatWasNotSaved) {
  const float nan = std::nanf("");
  recording_.Add("smdebug/reductions/mean/a", {nan});
  recording_.Add("smdebug/reductions/l2/a", {2});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  ASSERT_TRUE(ImportSmdebug(from_, run_).ok());
  const auto all = store::ReadEverything(run_);
  ASSERT_EQ(all->rows.scalars.size(), 1U);
  EXPECT_EQ(all->rows.scalars[0].name, "smdebug/reductions/mean/a");
  EXPECT_TRUE(std::isnan(all->rows.scalars[0].value));
  EXPECT_EQ(all->rows.statistics[0].l2, 2);
}

TEST_F(SmdebugImport, GivesEachWorkerARankOfItsOwn) {
  // Sorted: main, worker_0, worker_00, worker_2, worker_7x.
  const std::vector<std::string> workers{"worker_2", "worker_0", "main", "worker_00", "worker_7x"};
  for (std::size_t i = 0; i < workers.size(); ++i) {
    recording_.Add("a", {static_cast<float>(i)});
    recording_.Write(0, "TRAIN", 0, workers[i]);
  }
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->workers, 5U);
  const auto all = store::ReadEverything(run_);
  std::map<std::int32_t, double> means;
  for (const format::StatisticRow& row : all->rows.statistics) means[row.rank] = row.mean;
  ASSERT_EQ(means.size(), 5U) << "none has the rank of another";
  EXPECT_EQ(means[0], 1) << "worker_0 is rank 0, whoever comes before it";
  EXPECT_EQ(means[2], 0);
  EXPECT_EQ(means[1], 2) << "main has the first that is free";
}

TEST_F(SmdebugImport, TakesNamesOfAnyLength) {
  const std::string name(1 << 20, 'x');
  recording_.Add(name, {1, 2});
  recording_.Add("a", {3, 4});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok()) << report.status().message().substr(0, 200);
  EXPECT_EQ(report->values, 2U);
  const auto all = store::ReadEverything(run_);
  std::set<std::string> names;
  for (const format::TensorRow& row : all->rows.tensors) names.emplace(row.name);
  EXPECT_TRUE(names.contains(name.substr(0, 4096))) << "cut as a name that Telltale records";
  EXPECT_TRUE(store::Verify(run_)->problems.empty());
}

TEST_F(SmdebugImport, WhatIsNoFileHoldsUpNobody) {
  recording_.Add("a", {1});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  recording_.Add("a", {1});
  recording_.Write(1, "TRAIN", 1, "worker_0");
  fs::remove(recording_.EventFile(1, "worker_0"));
  ASSERT_EQ(::mkfifo(recording_.EventFile(1, "worker_0").c_str(), 0600), 0);
  const fs::path index = from_ / "index" / "000000000";
  ASSERT_EQ(::mkfifo((index / "000000000002_worker_0.json").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", index / "000000000003_worker_0.json");
  // A step, an offset and a shape that are no whole numbers.
  std::ofstream(index / "000000000004_worker_0.json")
      << R"({"meta": {"mode": "TRAIN", "mode_step": 1e300}})";
  std::ofstream(index / "000000000005_worker_0.json")
      << R"({"meta": {"mode": "TRAIN", "mode_step": 5},
            "shape_payload": [{"originalname": "b", "shape": [1e300]}]})";
  std::ofstream(index / "000000000006_worker_0.json")
      << R"({"meta": {"mode": "TRAIN", "mode_step": 6, "event_file_name": "events"},
            "tensor_payload": [{"tensorname": "b", "start_idx": -5, "length": 8}]})";
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->values, 1U);
  EXPECT_EQ(report->damaged, 6U);
  EXPECT_TRUE(store::Verify(run_)->problems.empty());
}

TEST_F(SmdebugImport, KeepsWhatIsNotDamaged) {
  for (int step = 0; step < 3; ++step) {
    recording_.Add("a", {1});
    recording_.Add("b", {2});
    recording_.Write(step, "GLOBAL", step, "worker_0");
  }
  recording_.Add("a", {1});
  recording_.Write(3, "GLOBAL", 3, "worker_0", /*with_events=*/false);
  std::ofstream(from_ / "index" / "000000000" / "000000000004_worker_0.json") << "{\"meta\": {";
  // A flipped bit in the middle of the first tensor of step 1.
  std::fstream file(recording_.EventFile(1, "worker_0"),
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(14);
  file.put('\x7f');
  file.close();
  fs::resize_file(recording_.EventFile(2, "worker_0"),
                  fs::file_size(recording_.EventFile(2, "worker_0")) - 1);
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->values, 4U);
  EXPECT_EQ(report->damaged, 4U);
  EXPECT_EQ(report->notes.size(), 4U);
  EXPECT_TRUE(store::Verify(run_)->problems.empty());
}

TEST_F(SmdebugImport, ReadsNothingOutsideOfTheFolder) {
  recording_.Add("a", {1});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  fs::rename(from_ / "events", folder_.path() / "events");
  const fs::path index = from_ / "index" / "000000000" / "000000000000_worker_0.json";
  auto text = nlohmann::json::parse(std::ifstream(index));
  text["meta"]["event_file_name"] = "../events/000000000000/000000000000_worker_0.tfevents";
  std::ofstream(index) << JsonText(text);
  const auto report = ImportSmdebug(from_, run_);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->values, 0U);
  EXPECT_EQ(report->damaged, 1U);
}

TEST_F(SmdebugImport, SaysWhatIsMissing) {
  EXPECT_EQ(ImportSmdebug(from_, run_).status().code(), Code::kUnusable);
  EXPECT_FALSE(fs::exists(run_));
  recording_.Add("a", {1});
  recording_.Write(0, "TRAIN", 0, "worker_0");
  fs::create_directory(run_);
  EXPECT_EQ(ImportSmdebug(from_, run_).status().code(), Code::kUsage);
}

}  // namespace
}  // namespace telltale::interchange
