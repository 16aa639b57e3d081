// SPDX-License-Identifier: Apache-2.0
// File systems that answer, and one whose server is dead.
#include "collect/file_systems.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/units.h"
#include "collect/fixture.h"
#include "collect/source.h"

namespace telltale::collect {
namespace {

constexpr std::chrono::seconds kGenerous{60};

/// Servers of file systems; the paths in `dead` are not answered until they are no longer there.
class Servers {
 public:
  std::optional<FileSystemRoom> Ask(const std::string& path) {
    std::unique_lock lock(mutex_);
    asked_.insert(path);
    change_.notify_all();
    change_.wait(lock, [&] { return dead_.count(path) == 0; });
    return FileSystemRoom{1000, 250, 75, 10};
  }
  void Kill(const std::string& path) {
    const std::scoped_lock lock(mutex_);
    dead_.insert(path);
  }
  void Revive(const std::string& path) {
    const std::scoped_lock lock(mutex_);
    dead_.erase(path);
    change_.notify_all();
  }
  void AwaitQuestion(const std::string& path) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(change_.wait_for(lock, kGenerous, [&] { return asked_.count(path) != 0; }));
  }
  std::set<std::string> asked() {
    const std::scoped_lock lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  std::set<std::string> dead_, asked_;
};

class FileSystemsTest : public ::testing::Test {
 protected:
  using Values = std::map<std::string, double>;

  void SetUp() override {
    context_.root = tree_.root() + "/";
    context_.clock = &clock_;
    context_.patience_ns = 60 * kSecond;
    tree_.Write("proc/self/mountinfo",
                "1 0 0:1 / / rw - overlay overlay rw\n"
                "2 1 0:2 / /proc rw - proc proc rw\n"
                "3 1 8:1 / /data rw - ext4 /dev/sda1 rw\n"
                "4 1 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
                "5 1 0:3 / /run rw - tmpfs tmpfs rw\n"
                "6 1 0:4 / /dev/shm rw - tmpfs shm rw\n"
                "7 1 0:5 / /mnt/nfs rw - nfs4 server:/x rw\n"
                "8 1 0:6 / /hidden rw - ext4 /dev/sdb rw\n"
                "9 1 0:7 / /hidden rw - squashfs /dev/loop0 ro\n");
  }
  Values Sample() {
    if (!source_) {
      source_ = std::make_unique<FileSystemSource>(
          &context_, [servers = servers_](const std::string& path) { return servers->Ask(path); });
    }
    rows_.clear();
    RowSink sink(0, "host", &pool_, &rows_);
    source_->Ask();
    source_->Sample(&sink);
    Values values;
    for (const auto& row : rows_) {
      values.emplace(std::string(row.subject) + " " + std::string(row.name), row.value);
    }
    return values;
  }
  std::string Path(const std::string& point) const { return tree_.root() + point; }

  FixtureTree tree_;
  FakeClock clock_;
  SourceContext context_;
  std::shared_ptr<Servers> servers_ = std::make_shared<Servers>();
  StringPool pool_;
  std::vector<format::MetricRow> rows_;
  std::unique_ptr<FileSystemSource> source_;
};

TEST_F(FileSystemsTest, EachThatHoldsDataIsAskedOnceEveryTenSeconds) {
  const Values first = Sample();
  EXPECT_EQ(servers_->asked(),
            (std::set<std::string>{Path("/"), Path("/data"), Path("/dev/shm"), Path("/mnt/nfs")}));
  EXPECT_EQ(first.size(), 16U);
  EXPECT_DOUBLE_EQ(first.at("fs:/data fs.size"), 1000);
  EXPECT_DOUBLE_EQ(first.at("fs:/data fs.available"), 250);
  EXPECT_DOUBLE_EQ(first.at("fs:/data fs.used"), 75);
  EXPECT_DOUBLE_EQ(first.at("fs:/data fs.inodes_used"), 10);
  clock_.Advance(9 * kSecond);
  EXPECT_TRUE(Sample().empty());
  clock_.Advance(kSecond);
  EXPECT_EQ(Sample().size(), 16U);
  EXPECT_TRUE(context_.events.empty());
}

TEST_F(FileSystemsTest, ADeadServerHoldsUpNothingAndIsSaid) {
  servers_->Kill(Path("/mnt/nfs"));
  context_.patience_ns = 0;  // As a machine that is slower than any patience.
  Values v = Sample();
  servers_->AwaitQuestion(Path("/mnt/nfs"));
  for (int i = 0; i < 6000 && v.size() < 12; ++i) {  // Until the three others have answered.
    v.merge(Sample());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(v.size(), 12U);
  context_.patience_ns = 60 * kSecond;
  clock_.Advance(kSecond);
  v = Sample();  // Would last a minute if the dead one were waited for once more.
  EXPECT_EQ(v.count("fs:/mnt/nfs fs.size"), 0U);
  EXPECT_EQ(v.count("fs:/mnt/nfs fs.silent"), 0U) << "1 s is no reason to worry";
  clock_.Advance(5 * kSecond);
  v = Sample();
  EXPECT_DOUBLE_EQ(v.at("fs:/mnt/nfs fs.silent"), 6);
  clock_.Advance(10 * kSecond);
  v = Sample();
  EXPECT_DOUBLE_EQ(v.at("fs:/mnt/nfs fs.silent"), 16);
  EXPECT_DOUBLE_EQ(v.at("fs:/data fs.size"), 1000) << "the others are asked on";
  ASSERT_EQ(context_.events.size(), 1U) << "said once";
  EXPECT_EQ(context_.events[0].kind, "filesystem.silent");
  EXPECT_EQ(context_.events[0].subject, "fs:/mnt/nfs");
  EXPECT_EQ(context_.events[0].message, "/mnt/nfs has not answered for 6 s");

  servers_->Revive(Path("/mnt/nfs"));
  for (int i = 0; i < 6000 && context_.events.size() < 2; ++i) {
    v = Sample();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(context_.events.size(), 2U);
  EXPECT_EQ(context_.events[1].kind, "filesystem.answers");
  EXPECT_DOUBLE_EQ(v.at("fs:/mnt/nfs fs.size"), 1000);
  EXPECT_EQ(v.count("fs:/mnt/nfs fs.silent"), 0U);
}

TEST_F(FileSystemsTest, TheEndDoesNotWaitForADeadServer) {
  servers_->Kill(Path("/mnt/nfs"));
  context_.patience_ns = 0;
  Sample();
  servers_->AwaitQuestion(Path("/mnt/nfs"));
  source_.reset();
  servers_->Revive(Path("/mnt/nfs"));
}

TEST_F(FileSystemsTest, AMountThatIsGoneIsForgotten) {
  Sample();
  tree_.Write("proc/self/mountinfo", "3 1 8:1 / /data rw - ext4 /dev/sda1 rw\n");
  clock_.Advance(10 * kSecond);
  EXPECT_EQ(Sample().size(), 4U);
}

TEST_F(FileSystemsTest, ThisMachinesRootHasASize) {
  context_.root = "/";
  RowSink sink(0, "host", &pool_, &rows_);
  FileSystemSource source(&context_);
  source.Ask();
  source.Sample(&sink);
  for (const auto& row : rows_) {
    EXPECT_GE(row.value, 0) << row.subject << " " << row.name;
    if (row.unit == "percent") {
      EXPECT_LE(row.value, 100) << row.subject << " " << row.name;
    }
  }
}

}  // namespace
}  // namespace telltale::collect
