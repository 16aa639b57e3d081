// SPDX-License-Identifier: Apache-2.0
// A new folder for one test, gone with the object.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace telltale::testing {

class TempFolder {
 public:
  /// In the system's folder for such; `name` tells whose it is where one is left behind.
  explicit TempFolder(const std::string& name) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / ("telltale-" + name + "-XXXXXX")).string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr) << pattern;
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace telltale::testing
