// SPDX-License-Identifier: Apache-2.0
// A tree of files that stands for /proc and /sys in tests.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "collect/sampler.h"

namespace telltale::collect {

class FixtureTree {
 public:
  FixtureTree() {
    std::string name =
        (std::filesystem::temp_directory_path() / "telltale-collect-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~FixtureTree() { std::filesystem::remove_all(root_); }
  FixtureTree(const FixtureTree&) = delete;
  FixtureTree& operator=(const FixtureTree&) = delete;

  /// Writes in place, so that a reader that keeps the file open sees it, as of /proc.
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary | std::ios::trunc) << text;
  }
  void MakeFolder(const std::string& path) const {
    std::filesystem::create_directories(root_ / path);
  }
  void Remove(const std::string& path) const { std::filesystem::remove_all(root_ / path); }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

/// A sampler over a fixture tree, and its rows by "subject name".
class SampledTree : public ::testing::Test {
 protected:
  using Values = std::map<std::string, double>;

  /// Over the tree; no GPUs, and what answers on a thread of its own is waited for.
  SamplerOptions Options() {
    SamplerOptions options{tree.root(), "host", &clock};
    options.nvml.clear();
    options.patience_ns = 60'000'000'000;
    return options;
  }

  Values Sample() {
    rows.clear();
    if (!sampler) sampler = Sampler::Create(Options());
    sampler->Sample(0, &pool, &rows);
    Values values;
    for (const format::MetricRow& row : rows) {
      const auto key = std::string(row.subject) + " " + std::string(row.name);
      EXPECT_TRUE(values.emplace(key, row.value).second) << key << " twice in one sample";
    }
    return values;
  }

  /// Whoever holds the file open can read it no more, as what the kernel has taken away.
  void CutFile(const std::string& path) const {
    const std::string wanted = std::filesystem::canonical(tree.root() + "/" + path).string();
    std::vector<int> held;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path(), error) == wanted) {
        held.push_back(std::stoi(entry.path().filename().string()));
      }
    }
    EXPECT_FALSE(held.empty()) << wanted;
    const UniqueFd folder(::open(tree.root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const int fd : held) EXPECT_EQ(::dup3(folder.get(), fd, O_CLOEXEC), fd);
  }

  FixtureTree tree;
  FakeClock clock;
  StringPool pool;
  std::vector<format::MetricRow> rows;
  std::unique_ptr<Sampler> sampler;
};

}  // namespace telltale::collect
