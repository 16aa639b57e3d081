// SPDX-License-Identifier: Apache-2.0
// A file that is held open is read by its descriptor alone, whatever has come under its name.
#include "interchange/trace_input.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "interchange/importer.h"
#include "store/store_testing.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

class HeldFileTest : public ::testing::Test {
 protected:
  void Write(const fs::path& name, const std::string& text) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
  }
  /// Opens a file of this text; then its name leads to another one.
  UniqueFd Hold(const std::string& text) const {
    Write("trace", text);
    UniqueFd fd = run_files::OpenToRead({folder_.path(), "trace"});
    Write("elsewhere", "what lies elsewhere");
    fs::remove(path_);
    fs::create_symlink("elsewhere", path_);
    return fd;
  }

  store::TempFolder folder_;
  const fs::path path_ = folder_.path() / "trace";
};

TEST_F(HeldFileTest, ItsOwnBytesAreReadEachTimeFromTheirBegin) {
  const UniqueFd fd = Hold("its own text");
  ASSERT_TRUE(fd);
  std::string damage;
  for (int i = 0; i < 2; ++i) {
    const auto text = ReadTrace({path_, fd.get()}, 1000, &damage);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, "its own text");
  }
  EXPECT_EQ(ReadTrace(path_, 1000, &damage).value(), "what lies elsewhere");
}

TEST_F(HeldFileTest, ItIsLookedAtByItsDescriptorAndKeepsItsName) {
  const UniqueFd fd = Hold(R"({"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1}]})");
  ASSERT_TRUE(fd);
  const auto file = LookAtFile({path_, fd.get()});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->name, "trace");
  EXPECT_TRUE(file->head.starts_with(R"({"traceEvents")")) << file->head;
  const Importer* const importer = DetectImporter(*file);
  ASSERT_NE(importer, nullptr);
  EXPECT_EQ(importer->name, "chrome");
}

TEST_F(HeldFileTest, AnImporterThatOpensByPathIsNotGivenIt) {
  const UniqueFd fd = Hold(std::string("SQLite format 3\0", 16) + std::string(100, '\0'));
  ASSERT_TRUE(fd);
  const auto held = LookAtFile({path_, fd.get()});
  ASSERT_TRUE(held.ok()) << held.status().message();
  EXPECT_EQ(DetectImporter(*held), nullptr);
  ImportFile named = *held;
  named.held = -1;
  ASSERT_NE(DetectImporter(named), nullptr);
  EXPECT_EQ(DetectImporter(named)->name, "nsys");
}

}  // namespace
}  // namespace telltale::interchange
