// SPDX-License-Identifier: Apache-2.0
#include "interchange/nsys_import.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "interchange/recording_sink.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSessionNs = 1'700'000'000'000'000'000;
constexpr std::int64_t kGlobalTid = (77LL << 24) | 78;

class NsysImportTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("telltale-nsys-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A database of these statements, as Nsight's schema has its tables.
  fs::path Make(const std::string& statements) {
    fs::path path = folder_ / "report.sqlite";
    fs::remove(path);
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(database, statements.c_str(), nullptr, nullptr, &error), SQLITE_OK)
        << (error == nullptr ? "" : error);
    sqlite3_close(database);
    return path;
  }

  static std::string Example() {
    const std::string tid = std::to_string(kGlobalTid);
    const std::string pid = std::to_string(77LL << 24);
    return "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
           "INSERT INTO StringIds VALUES (1,'cudaLaunchKernel_v7000'),(2,'void gemm<float>(int)'),"
           "(3,'gemm'),(4,'python'),(5,'poll'),(6,'cudaStreamSynchronize_v3020'),(7,'data');"
           "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);"
           "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (" +
           std::to_string(kSessionNs) +
           ",'');"
           "CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);"
           "INSERT INTO ThreadNames VALUES (4,20," +
           tid +
           ");"
           "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass "
           "INTEGER,"
           " globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);"
           "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000,1200,0," +
           tid + ",5,1,0),(1300,3000,0," + tid +
           ",6,6,0);"
           "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
           " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,"
           " shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,"
           " blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);"
           "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1500,2500,1,7,5," +
           pid +
           ",2,3,4,1,1,256,1,1,32),(2600,2500,1,7,5,0,2,3,1,1,1,1,1,1,1);"
           "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,"
           " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,"
           " copyKind INTEGER);"
           "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (400,500,1,7,4," +
           pid +
           ",4096,1);"
           "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER,"
           " deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,"
           " graphId INTEGER, graphExecId INTEGER);"
           "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (5000,6000,1,7,8," +
           pid +
           ",3,4);"
           "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER,"
           " text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER);"
           "INSERT INTO NVTX_EVENTS VALUES (900,3500,59,'step 12'," +
           tid + ",NULL,0),(910,950,59,NULL," + tid + ",7,0),(960,NULL,34,'mark'," + tid +
           ",NULL,0),(0,NULL,75,'torch'," + tid +
           ",NULL,0);"
           "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER,"
           " correlationId INTEGER, nameId INTEGER, returnValue INTEGER);"
           "INSERT INTO OSRT_API VALUES (100,800," +
           tid +
           ",0,5,1);"
           "CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER);"
           "INSERT INTO SCHED_EVENTS VALUES (1,2);";
  }

  fs::path folder_;
};

TEST_F(NsysImportTest, TablesBecomeSlicesByTheWallClock) {
  const fs::path path = Make(Example());
  RecordingSink sink;
  {
    TraceSource source(&sink, "report.sqlite", 0);
    const Status status = ImportNsys(path, &source);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(sink.counters["damaged"], 1U) << "the kernel that ends before it begins";
  EXPECT_EQ(sink.counters["left_out"], 1U) << "the scheduler's table";
  ASSERT_EQ(sink.slices.size(), 9U);
  const auto kernel = sink.Named("void gemm<float>(int)");
  EXPECT_EQ(kernel.category, "kernel");
  EXPECT_EQ(kernel.time_ns, kSessionNs + 1500);
  EXPECT_EQ(kernel.duration_ns, 1000);
  EXPECT_EQ(kernel.device, 1);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.lane, "stream 7");
  EXPECT_EQ(kernel.step, 12);
  EXPECT_EQ(kernel.pid, 77);
  EXPECT_EQ(kernel.args, R"({"grid":[4,1,1],"block":[256,1,1],"registers per thread":32})");
  const auto launch = sink.Named("cudaLaunchKernel");
  EXPECT_EQ(launch.category, "runtime");
  EXPECT_EQ(launch.correlation, kernel.correlation);
  EXPECT_EQ(launch.pid, 77);
  EXPECT_EQ(launch.tid, 78);
  EXPECT_EQ(launch.lane, "thread 78 (python)");
  EXPECT_EQ(sink.Named("cudaStreamSynchronize").category, "sync");
  EXPECT_EQ(sink.Named("Memcpy HtoD").bytes, 4096);
  EXPECT_EQ(sink.Named("CUDA graph 3").kind, "cuda_graph");
  EXPECT_EQ(sink.Named("step 12").category, "step");
  EXPECT_EQ(sink.Named("data").args, R"({"domain":"torch"})");
  EXPECT_EQ(sink.Named("mark").duration_ns, 0);
  EXPECT_EQ(sink.Named("poll").kind, "osrt");
  ASSERT_EQ(sink.steps.size(), 1U);
  EXPECT_EQ(sink.steps[0].step, 12);
  EXPECT_EQ(sink.steps[0].duration_ns, 2600);
}

TEST_F(NsysImportTest, ADatabaseOfOthersIsRefused) {
  const fs::path path = Make("CREATE TABLE photos (id INTEGER); INSERT INTO photos VALUES (1);");
  RecordingSink sink;
  TraceSource source(&sink, "photos", 0);
  EXPECT_EQ(ImportNsys(path, &source).code(), Code::kUnusable);
}

TEST_F(NsysImportTest, AViewInATablesPlaceIsNotRead) {
  // Ten thousand million rows, were it asked.
  const fs::path path = Make(
      "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
      "SELECT i+1 FROM n WHERE i < 10000000000) SELECT i AS start, i AS end FROM n;"
      "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);"
      "INSERT INTO OSRT_API VALUES (1,2,3,4);");
  RecordingSink sink;
  TraceSource source(&sink, "a", 0);
  EXPECT_TRUE(ImportNsys(path, &source).ok());
  EXPECT_EQ(sink.slices.size(), 1U);
}

TEST_F(NsysImportTest, DamagedPagesAreSurvived) {
  const fs::path path = Make(Example());
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(LooksLikeSqlite(bytes));
  const fs::path damaged_path = folder_ / "damaged.sqlite";
  std::mt19937 dice(7);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = bytes;
    if (round % 3 == 0) damaged.resize(dice() % damaged.size());
    for (int i = 0; i < 8 && !damaged.empty(); ++i) {
      damaged[dice() % damaged.size()] = static_cast<char>(dice() % 256);
    }
    std::ofstream(damaged_path, std::ios::binary) << damaged;
    RecordingSink sink;
    TraceSource source(&sink, "a", 0);
    static_cast<void>(ImportNsys(damaged_path, &source));
  }
}

}  // namespace
}  // namespace telltale::interchange
