// SPDX-License-Identifier: Apache-2.0
// Whose code runs: what this user has asked for, and nothing that a run says.
#include "rules/python_consent.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "rules/rule_set.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;

RuleSpec Python(const char* rule, const char* limit = "1") {
  RuleSpec spec{.name = "mine", .source = RuleSource::kPython, .rule = rule};
  spec.parameters["limit"] = limit;
  return spec;
}

RuleSet SetOf(const RuleSpec& spec) {
  RuleSet set;
  set.rules.push_back(spec);
  return set;
}

class PythonConsentTest : public ::testing::Test {
 protected:
  store::TempFolder folder_;
  const fs::path file_ = folder_.path() / "telltale/python-rules";
};

TEST_F(PythonConsentTest, WhatWasAskedForIsKnownToLaterProcessesAndNothingElseIs) {
  PythonConsent consent(file_);
  EXPECT_FALSE(consent.Has(Python("/a/mine.py:Mine")));
  const Status kept = consent.Remember(SetOf(Python("/a/mine.py:Mine")));
  ASSERT_TRUE(kept.ok()) << kept.message();
  ASSERT_TRUE(consent.Remember(SetOf(Python("/a/other.py:Other"))).ok());

  const PythonConsent later(file_);
  EXPECT_TRUE(later.Has(Python("/a/mine.py:Mine")));
  EXPECT_TRUE(later.Has(Python("/a/other.py:Other")));
  RuleSpec renamed = Python("/a/mine.py:Mine");
  renamed.name = "of another name";
  EXPECT_TRUE(later.Has(renamed));
  EXPECT_FALSE(later.Has(Python("/b/mine.py:Mine")));
  EXPECT_FALSE(later.Has(Python("/a/mine.py:Mine", "2")));
  // Another interpreter is another program.
  RuleSpec shell = Python("/a/mine.py:Mine");
  shell.parameters["host_python"] = "/bin/sh";
  EXPECT_FALSE(later.Has(shell));
  EXPECT_FALSE(later.Has(Python("/a/mine.py:Mine\", \"x\": \"")));
}

TEST_F(PythonConsentTest, AllowedHoldsForThisProcessAlone) {
  PythonConsent consent(file_);
  consent.Allow(SetOf(Python("/a/mine.py:Mine")));
  EXPECT_TRUE(consent.Has(Python("/a/mine.py:Mine")));
  EXPECT_FALSE(PythonConsent(file_).Has(Python("/a/mine.py:Mine")));
}

TEST_F(PythonConsentTest, AFileThatOthersCanWriteIsNotBelieved) {
  ASSERT_TRUE(PythonConsent(file_).Remember(SetOf(Python("/a/mine.py:Mine"))).ok());
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ASSERT_EQ(::chmod(file_.c_str(), 0620), 0);
  EXPECT_FALSE(PythonConsent(file_).Has(Python("/a/mine.py:Mine")));
  ASSERT_EQ(::chmod(file_.c_str(), 0600), 0);
  EXPECT_TRUE(PythonConsent(file_).Has(Python("/a/mine.py:Mine")));

  const fs::path elsewhere = folder_.path() / "elsewhere";
  fs::rename(file_, elsewhere);
  fs::create_symlink(elsewhere, file_);
  EXPECT_FALSE(PythonConsent(file_).Has(Python("/a/mine.py:Mine")));
}

TEST_F(PythonConsentTest, WhereNothingCanBeKeptItSaysSoAndHoldsForThisProcess) {
  PythonConsent nowhere{fs::path()};
  EXPECT_EQ(nowhere.Remember(SetOf(Python("/a/mine.py:Mine"))).code(), Code::kIo);
  EXPECT_TRUE(nowhere.Has(Python("/a/mine.py:Mine")));
  // Nothing to keep: no word of it.
  EXPECT_TRUE(nowhere.Remember(RuleSet()).ok());

  fs::create_directories(file_);  // A folder stands where the file should.
  PythonConsent blocked(file_);
  EXPECT_EQ(blocked.Remember(SetOf(Python("/a/mine.py:Mine"))).code(), Code::kIo);
  EXPECT_TRUE(blocked.Has(Python("/a/mine.py:Mine")));
}

TEST_F(PythonConsentTest, TheFileDoesNotGrowWithoutAnEnd) {
  PythonConsent consent(file_);
  const std::string large(40'000, 'x');
  for (int i = 0; i < 10; ++i) {
    const std::string limit = std::to_string(i) + large;
    ASSERT_TRUE(consent.Remember(SetOf(Python("/a/mine.py:Mine", limit.c_str()))).ok());
  }
  EXPECT_LE(fs::file_size(file_), PythonConsent::kMostFileBytes);
  const PythonConsent later(file_);
  EXPECT_TRUE(later.Has(Python("/a/mine.py:Mine", ("9" + large).c_str())));
  EXPECT_FALSE(later.Has(Python("/a/mine.py:Mine", ("0" + large).c_str())));
}

}  // namespace
}  // namespace telltale::rules
