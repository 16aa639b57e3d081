// SPDX-License-Identifier: Apache-2.0
// The command line as a contract: exit codes, one line for an error, JSON that parses.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "base/json.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class CliTest : public ::testing::Test {
 protected:
  Outcome Run(const std::string& arguments) {
    const std::string err = (dir_ / "stderr").string();
    const std::string command =
        "cd '" + dir_.string() + "' && " TELLTALE_BINARY " " + arguments + " 2>'" + err + "'";
    Outcome outcome;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return outcome;
    char buffer[4096];
    for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      outcome.out.append(buffer, n);
    }
    const int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream in(err);
    outcome.err.assign(std::istreambuf_iterator<char>(in), {});
    return outcome;
  }

  /// What, where, why, what to do: one line, of the command.
  void ExpectOneLine(const Outcome& outcome, const std::string& command) {
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("telltale " + command + ": ")) << outcome.err;
  }

  void WriteSample(const std::string& name, bool healthy = false) {
    testing::SampleRun sample;
    sample.name = name;
    sample.learns = healthy;
    if (healthy) sample.wait_share = 0.02;
    const Status written = testing::WriteRun(dir_ / name, sample);
    ASSERT_TRUE(written.ok()) << written.message();
  }

  const testing::TempFolder folder_{"cli"};
  const fs::path dir_ = folder_.path();
};

TEST_F(CliTest, CompareIsAGate) {
  WriteSample("before", true);
  WriteSample("same", true);
  WriteSample("slow");
  const Outcome same = Run("compare before same --fail-on regression --json");
  EXPECT_EQ(same.code, 0) << same.err << same.out;
  EXPECT_FALSE(ParseJson(same.out)["regression"].get<bool>());
  // The loss of "slow" stays where it is, and that of "before" falls.
  const Outcome worse = Run("compare before slow --fail-on regression --junit out.xml");
  EXPECT_EQ(worse.code, 10) << worse.err << worse.out;
  EXPECT_NE(worse.out.find("B is worse than A."), std::string::npos) << worse.out;
  EXPECT_TRUE(fs::exists(dir_ / "out.xml"));
  EXPECT_EQ(Run("compare before slow").code, 0);
  ExpectOneLine(Run("compare before nowhere"), "compare");
  EXPECT_EQ(Run("compare before nowhere").code, 3);
  EXPECT_EQ(Run("compare before").code, 2);
  EXPECT_EQ(Run("compare before slow --fail-on anything").code, 2);
}

TEST_F(CliTest, WrongUsageIsTwoAndOneLine) {
  for (const char* arguments : {"nope", "check", "check a b c", "check --nope", "rules nope",
                                "check . --fail-on terrible", "rules show NoSuchRule", "report"}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << ": " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
  EXPECT_EQ(Run("").code, 2);
  EXPECT_EQ(Run("--help").code, 0);
  EXPECT_NE(Run("check --help").out.find("Examples"), std::string::npos);
}

TEST_F(CliTest, AMissingRunIsThree) {
  for (const std::string command : {"check", "report", "ls", "watch"}) {
    const Outcome outcome = Run(command + " no/such/run");
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    ExpectOneLine(outcome, command);
  }
  EXPECT_EQ(Run("rules status no/such/run").code, 3);
}

TEST_F(CliTest, ARunOfAFutureVersionIsEight) {
  WriteSample("future");
  std::ifstream in(dir_ / "future" / "run.json");
  json info = json::parse(in);
  info["format"]["major"] = 99;
  std::ofstream(dir_ / "future" / "run.json") << info;
  for (const std::string command : {"check", "report"}) {
    const Outcome outcome = Run(command + " future");
    EXPECT_EQ(outcome.code, 8) << outcome.err;
    ExpectOneLine(outcome, command);
  }
}

/// Of several runs the rest is listed: what `ls` of the folder gives is 7.
TEST_F(CliTest, LsOfARunThatCannotBeReadSaysWhyWithItsCode) {
  WriteSample("one", true);
  WriteSample("future");
  std::ifstream in(dir_ / "future" / "run.json");
  json info = json::parse(in);
  info["format"]["major"] = 99;
  std::ofstream(dir_ / "future" / "run.json") << info;
  fs::create_directories(dir_ / "damaged");
  std::ofstream(dir_ / "damaged" / "run.json") << "{ not json";
  for (const auto& [run, code] : {std::pair("future", 8), std::pair("damaged", 3)}) {
    const Outcome outcome = Run(std::string("ls ") + run);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    ExpectOneLine(outcome, "ls");
    EXPECT_EQ(Run(std::string("ls --json ") + run).code, code);
  }
  EXPECT_EQ(Run("ls .").code, 7);
}

TEST_F(CliTest, FailOnDecidesTheExitCode) {
  WriteSample("slow");
  WriteSample("healthy", true);
  EXPECT_EQ(Run("check slow").code, 0);
  EXPECT_EQ(Run("check slow --fail-on low").code, 10);
  EXPECT_EQ(Run("check slow --fail-on high").code, 10);
  EXPECT_EQ(Run("check healthy --fail-on low").code, 0);
  // A rule that could not look is no rule that found nothing.
  std::ofstream(dir_ / "mine.toml") << "[rules.mine]\npython = \"a_module:Mine\"\n"
                                       "parameters = { host_python = \"/nowhere/python\" }\n";
  EXPECT_EQ(Run("check healthy --rules mine.toml").code, 0);
  const Outcome blind = Run("check healthy --rules mine.toml --fail-on low");
  EXPECT_EQ(blind.code, 3) << blind.out;
  EXPECT_NE(blind.err.find("the rule mine could not judge"), std::string::npos) << blind.err;
  EXPECT_EQ(Run("check healthy --rules mine.toml --no-python-rules --fail-on low").code, 0);
}

TEST_F(CliTest, TheVerdictNamesTheReportAndThePage) {
  WriteSample("slow");
  const Outcome outcome = Run("check slow");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto report = outcome.out.find("\n report  telltale report slow\n");
  EXPECT_NE(report, std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\n page    telltale serve slow\n", report), std::string::npos)
      << outcome.out;
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsFiveAndOneLine) {
  WriteSample("slow");
  ASSERT_EQ(setenv("XDG_STATE_HOME", dir_.c_str(), 1), 0);
  for (const std::string arguments : {"--help",
                                      "--version",
                                      "check slow",
                                      "check slow --json",
                                      "check slow --fail-on low",
                                      "report slow",
                                      "report slow --json",
                                      "ls .",
                                      "ls . --json",
                                      "rules list",
                                      "rules list --json",
                                      "rules show InputBound",
                                      "rules show InputBound --json",
                                      "rules show InputBound --markdown",
                                      "rules status slow",
                                      "rules status slow --json",
                                      "query slow steps",
                                      "query slow steps --json",
                                      "query slow steps --limit 1",
                                      "verify slow",
                                      "verify slow --json",
                                      "version",
                                      "version --json",
                                      "doctor",
                                      "doctor --json",
                                      "check --help",
                                      "serve slow",
                                      "serve --print-token"}) {
    for (const char* broken : {" > /dev/full", " >&-"}) {
      const Outcome outcome = Run(arguments + broken);
      EXPECT_EQ(outcome.code, 5) << arguments << broken << ": " << outcome.err;
      ExpectOneLine(outcome, arguments.substr(0, arguments.find(' ')));
      EXPECT_NE(outcome.err.find("cannot write the output: "), std::string::npos) << outcome.err;
    }
  }
}

/// `telltale version | head -0` where the pipe's signal is ignored, as under many launchers.
TEST_F(CliTest, AReaderThatHadEnoughIsNoError) {
  int link[2];
  ASSERT_EQ(pipe(link), 0);
  close(link[0]);
  const std::string err = (dir_ / "stderr").string();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGPIPE, SIG_IGN);
    dup2(link[1], STDOUT_FILENO);
    if (freopen(err.c_str(), "w", stderr) == nullptr) _exit(99);
    execl(TELLTALE_BINARY, "telltale", "version", nullptr);
    _exit(98);
  }
  close(link[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(fs::file_size(err), 0U);
}

TEST_F(CliTest, QuietSaysThatItLeavesOutThePage) {
  const std::string help = Run("run --help").out;
  const auto quiet = help.find("--quiet");
  ASSERT_NE(quiet, std::string::npos) << help;
  EXPECT_NE(help.substr(quiet, help.find("\n  --", quiet) - quiet).find("page"), std::string::npos)
      << help;
}

TEST_F(CliTest, JsonHasTheFieldsOfTheContract) {
  WriteSample("slow");
  const Outcome outcome = Run("check slow --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json out = ParseJson(outcome.out);
  EXPECT_EQ(out["run"]["id"], "slow");
  EXPECT_EQ(out["run"]["state"], "finished");
  EXPECT_EQ(out["run"]["attempts"], 1);
  EXPECT_EQ(out["run"]["steps"], 400);
  ASSERT_EQ(out["findings"].size(), 2U);
  for (const json& finding : out["findings"]) {
    for (const char* field :
         {"rule", "severity", "state", "subject", "first_step", "last_step", "start_ns", "end_ns",
          "message", "evidence", "cause", "cost_seconds", "advice", "confidence"}) {
      EXPECT_TRUE(finding.contains(field)) << field;
    }
    EXPECT_TRUE(finding["evidence"].is_object());
  }
  // Those that nobody has to ask for.
  std::istringstream list(Run("rules list").out);
  std::size_t by_default = 0;
  for (std::string line; std::getline(list, line);) {
    if (!line.ends_with("[--rule]")) ++by_default;
  }
  EXPECT_GT(by_default, 6U);
  EXPECT_EQ(out["rules"].size(), by_default);
  ASSERT_EQ(out["groups"].size(), 2U);
  for (const json& group : out["groups"]) {
    EXPECT_EQ(group["findings"].size(), 1U);
    EXPECT_TRUE(group["money"].is_null());
  }
  const json priced = ParseJson(Run("check slow --price 36 --json").out);
  EXPECT_NEAR(priced["groups"][0]["money"]["lost"].get<double>(),
              priced["groups"][0]["lost_seconds"].get<double>() / 100, 1e-9);

  const json ls = ParseJson(Run("ls . --json").out);
  ASSERT_EQ(ls["runs"].size(), 1U);
  for (const char* field : {"id", "state", "attempts", "steps"}) {
    EXPECT_TRUE(ls["runs"][0].contains(field)) << field;
  }
  EXPECT_GE(ParseJson(Run("rules list --json").out)["rules"].size(), 50U);
  EXPECT_GE(ParseJson(Run("rules status slow --json").out)["rules"].size(), 6U);
  EXPECT_EQ(ParseJson(Run("rules show InputBound --json").out)["name"], "InputBound");
  EXPECT_TRUE(ParseJson(Run("version --json").out).contains("version"));
  EXPECT_TRUE(ParseJson(Run("report slow --json").out).contains("report"));
  EXPECT_TRUE(fs::exists(dir_ / "slow" / "report.html"));
}

TEST_F(CliTest, ADamagedRunIsSevenAndStillJudged) {
  WriteSample("slow");
  for (const auto& entry : fs::directory_iterator(dir_ / "slow" / "agent-sample")) {
    if (entry.path().filename().string().starts_with("metrics-")) {
      fs::resize_file(entry.path(), 100);
    }
  }
  const Outcome outcome = Run("check slow --json");
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  ExpectOneLine(outcome, "check");
  EXPECT_EQ(ParseJson(outcome.out)["findings"].size(), 2U);
  EXPECT_EQ(Run("check slow --fail-on high").code, 10);
  EXPECT_EQ(Run("report slow").code, 7);
}

TEST_F(CliTest, LsSkipsWhatIsNoRun) {
  WriteSample("one", true);
  fs::create_directories(dir_ / "deep" / "er");
  std::ofstream(dir_ / "deep" / "er" / "run.json") << "{ not json";
  const Outcome outcome = Run("ls .");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.out.find("one"), std::string::npos);
  ExpectOneLine(outcome, "ls");
  const fs::path empty = dir_ / "empty";
  fs::create_directories(empty);
  EXPECT_EQ(Run("ls empty").code, 0);
}

/// A supervisor that was killed before its server could ask to be told of that.
TEST_F(CliTest, AServerWhoseSupervisorIsGoneEndsAtOnce) {
  WriteSample("one");
  int link[2];
  ASSERT_EQ(pipe(link), 0);
  const pid_t supervisor = fork();
  ASSERT_GE(supervisor, 0);
  if (supervisor == 0) {
    const pid_t self = getpid();
    if (fork() != 0) _exit(0);
    while (getppid() == self) usleep(1000);
    const std::string parent = std::to_string(self);
    const std::string fd = std::to_string(link[1]);
    const std::string run = (dir_ / "one").string();
    execl(TELLTALE_BINARY, "telltale", "serve", "--link-fd", fd.c_str(), "--parent", parent.c_str(),
          run.c_str(), nullptr);
    _exit(1);
  }
  close(link[1]);
  ASSERT_EQ(waitpid(supervisor, nullptr, 0), supervisor);
  char byte = 0;
  EXPECT_EQ(read(link[0], &byte, 1), 0) << "it served: nobody would end it";
  close(link[0]);
}

/// Without who asked: of a file all is asked for by name, of flags what they name.
json WithoutAsked(json plan) {
  for (auto& [name, collection] : plan["collections"].items()) collection.erase("asked");
  return plan;
}

TEST_F(CliTest, ExplainPlanPrintsAPlanFileAndStartsNothing) {
  const Outcome outcome =
      Run("run --level tensors --collect 'losses:values,interval=1' --explain-plan");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("[collections.losses]"), std::string::npos) << outcome.out;
  EXPECT_FALSE(fs::exists(dir_ / "telltale-runs"));
  // What it prints is a plan, the same one.
  std::ofstream(dir_ / "plan.toml") << outcome.out;
  const Outcome again = Run("run --plan plan.toml --explain-plan --json");
  EXPECT_EQ(again.code, 0) << again.err;
  const json plan = ParseJson(again.out);
  EXPECT_EQ(plan["level"], "custom");
  EXPECT_EQ(plan["collections"]["losses"]["interval"], 1);
  EXPECT_EQ(plan["collections"]["gradients"]["train"]["interval"], 100);
  EXPECT_EQ(WithoutAsked(plan),
            WithoutAsked(ParseJson(Run("run --level tensors --collect 'losses:values,interval=1' "
                                       "--explain-plan --json")
                                       .out)));
}

TEST_F(CliTest, APlanCannotCommandATerminal) {
  // C1's control sequence introducer, and a mark that turns the direction of writing.
  const std::string marks = "\xc2\x9b\xe2\x80\xae";
  const std::string options = "--collect 'x" + marks + ":include=a" + marks + "' --explain-plan";
  const Outcome text = Run("run " + options);
  const Outcome document = Run("run " + options + " --json");
  for (const Outcome& outcome : {text, document}) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find('\x9b'), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find("\xe2\x80\xae"), std::string::npos) << outcome.out;
  }
  std::ofstream(dir_ / "marks.toml") << text.out;
  const json same = ParseJson(Run("run --plan marks.toml --explain-plan --json").out);
  EXPECT_EQ(WithoutAsked(same), WithoutAsked(ParseJson(document.out)));
  EXPECT_TRUE(same["collections"].contains("x" + marks));
}

TEST_F(CliTest, TheFolderOfSmdebugIsSaidAsJsonToo) {
  const Outcome plain = Run("smdebug-path");
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(ParseJson(Run("smdebug-path --json").out)["path"].get<std::string>() + "\n", plain.out);
}

TEST_F(CliTest, APlanThatStarvesRulesIsSaidAtTheStart) {
  const std::string words = "of the rules get less than they need";
  EXPECT_NE(Run("run -o a --no-serve --level system -- true").err.find(words), std::string::npos);
  EXPECT_EQ(Run("run -o b --no-serve -- true").err.find(words), std::string::npos);
  EXPECT_EQ(Run("run -o c --no-serve --quiet --level system -- true").err.find(words),
            std::string::npos);
}

TEST_F(CliTest, ExplainPlanNamesRulesWithoutData) {
  const std::string none = Run("run --level system --explain-plan").out;
  EXPECT_NE(none.find("The rule VanishingGradient will have no data"), std::string::npos) << none;
  EXPECT_EQ(Run("run --explain-plan").out.find("will have no data"), std::string::npos);
}

TEST_F(CliTest, WhatRulesNeedMakesThePlan) {
  const auto plan_of = [&](const std::string& options) {
    const Outcome outcome = Run("run " + options + " --explain-plan --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return ParseJson(outcome.out)["collections"];
  };
  const json all = plan_of("");
  const json list = ParseJson(Run("rules list --json").out);
  for (const json& rule : list["rules"]) {
    if (!rule["by_default"].get<bool>()) continue;
    for (const json& need : rule["captures"]) {
      const auto name = need["collection"].get<std::string>();
      if (name.empty() || name.front() == '{') continue;  // What a parameter names.
      if (need["asked_only"].get<bool>()) continue;
      ASSERT_TRUE(all.contains(name)) << name;
      EXPECT_LE(all[name]["train"]["interval"], need["interval"]) << name;
    }
  }
  const json one = plan_of("--level system --rule VanishingGradient");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_TRUE(one.contains("gradients"));
  for (const char* arguments :
       {"--rule NoSuchRule", "--no-rule NoSuchRule", "--rule VanishingGradient:nothing=1"}) {
    const Outcome wrong = Run(std::string("run --explain-plan ") + arguments);
    EXPECT_EQ(wrong.code, 2) << arguments;
    ExpectOneLine(wrong, "run");
  }
  EXPECT_EQ(Run("run --rules nowhere.toml --explain-plan").code, 3);
}

TEST_F(CliTest, TheRulesStandInRunJsonAndAreThoseOfTheReplay) {
  std::ofstream(dir_ / "rules.toml") << "off = ['InputBound']\nprice_per_hour = 2.5\n"
                                        "[rules.mine]\nrule = 'VanishingGradient'\n"
                                        "parameters = { threshold = 1e-3 }\n";
  const Outcome outcome = Run("run -o r --quiet --no-serve --rules rules.toml -- true");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream in(dir_ / "r/run.json");
  const json rules = json::parse(in)["rules"];
  EXPECT_EQ(rules["off"], json::array({"InputBound"}));
  EXPECT_EQ(rules["price_per_hour"], 2.5);
  EXPECT_EQ(rules["rules"]["mine"]["parameters"]["threshold"], "0.001");
  const auto names_of = [&](const std::string& arguments) {
    std::set<std::string> names;
    const json checked = ParseJson(Run("check r --json " + arguments).out);
    for (const json& rule : checked["rules"]) names.insert(rule["name"].get<std::string>());
    return names;
  };
  const auto own = names_of("");
  EXPECT_TRUE(own.contains("mine") && own.contains("VanishingGradient"));
  EXPECT_FALSE(own.contains("InputBound"));
  const auto more = names_of("--rule InputBound --no-rule mine");
  EXPECT_TRUE(more.contains("InputBound"));
  EXPECT_FALSE(more.contains("mine"));
}

TEST_F(CliTest, CodeThatARunNamesRunsOnlyWhereTheUserHasAskedForIt) {
  const fs::path ran = dir_ / "ran";
  const fs::path python = dir_ / "python.sh";
  std::ofstream(python) << "#!/bin/sh\n: > '" << ran.string() << "'\nexit 1\n";
  fs::permissions(python, fs::perms::owner_all);
  std::ofstream(dir_ / "mine.py") << "class Mine: pass\n";
  std::ofstream(dir_ / "rules.toml")
      << "[rules.mine]\npython = 'mine.py:Mine'\n"
      << "parameters = { host_python = '" << python.string() << "' }\n";
  ASSERT_EQ(unsetenv("TELLTALE_PYTHON_RULES"), 0);
  ASSERT_EQ(setenv("XDG_STATE_HOME", (dir_ / "own").c_str(), 1), 0);
  ASSERT_EQ(Run("run -o r --quiet --no-serve --rules rules.toml -- true").code, 0);
  const auto runs = [&](const std::string& arguments) {
    fs::remove(ran);
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
    return fs::exists(ran);
  };
  EXPECT_TRUE(runs("check r"));
  EXPECT_TRUE(runs("report r"));
  EXPECT_FALSE(runs("check r --no-python-rules"));

  // Who has not asked for it: another user, or this one with a run from elsewhere.
  ASSERT_EQ(setenv("XDG_STATE_HOME", (dir_ / "other").c_str(), 1), 0);
  EXPECT_FALSE(runs("check r"));
  EXPECT_FALSE(runs("report r"));
  EXPECT_FALSE(runs("rules status r"));
  for (const json& rule : ParseJson(Run("check r --json").out)["rules"]) {
    if (rule["name"] != "mine") continue;
    EXPECT_EQ(rule["status"], "Error");
    EXPECT_NE(rule["error"].get<std::string>().find("--python-rules"), std::string::npos) << rule;
  }
  EXPECT_TRUE(runs("check r --python-rules"));
  EXPECT_TRUE(runs("report r --python-rules"));
  EXPECT_TRUE(runs("check r --rules rules.toml"));
  // That was for once.
  EXPECT_FALSE(runs("check r"));
  ASSERT_EQ(setenv("TELLTALE_PYTHON_RULES", "on", 1), 0);
  EXPECT_TRUE(runs("rules status r"));
  ASSERT_EQ(unsetenv("TELLTALE_PYTHON_RULES"), 0);
}

TEST_F(CliTest, ARunWithoutAFolderGetsOneOfItsOwn) {
  const auto runs = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_ / "telltale-runs")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  ASSERT_EQ(Run("run --quiet -- true").code, 0);
  const auto first = runs();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(std::regex_match(*first.begin(), std::regex(R"(\d{8}-\d{6}-true)")))
      << *first.begin();
  EXPECT_TRUE(fs::exists(dir_ / "telltale-runs" / *first.begin() / "run.json"));
  EXPECT_EQ(Run("check telltale-runs/" + *first.begin()).code, 0);

  // Without --quiet the first line names it.
  const Outcome said = Run("run --no-serve -- true");
  EXPECT_EQ(said.code, 0) << said.err;
  auto second = runs();
  ASSERT_EQ(second.size(), 2U) << "one is made a run, also within a second";
  second.erase(*first.begin());
  EXPECT_NE(said.err.substr(0, said.err.find('\n')).find("telltale-runs/" + *second.begin()),
            std::string::npos)
      << said.err;
}

TEST_F(CliTest, ARuleScriptThatDoesNotHoldIsTenAndSaysItsLine) {
  std::ofstream(dir_ / "good.test") << "rule InputBound\n"
                                       "load steps count=100 every=100ms data_wait=60ms\n"
                                       "expect finding state=open\n";
  std::ofstream(dir_ / "bad.test") << "rule InputBound\n"
                                      "load steps count=100 every=100ms data_wait=60ms\n"
                                      "expect none\n";
  const Outcome bad = Run("rules test bad.test");
  EXPECT_EQ(bad.code, 10) << bad.err;
  EXPECT_NE(bad.out.find("line 3: expected no finding"), std::string::npos) << bad.out;
  const json both = ParseJson(Run("rules test good.test bad.test --json").out);
  ASSERT_EQ(both["scripts"].size(), 2U);
  EXPECT_EQ(both["scripts"][1]["failures"], 1);
  EXPECT_EQ(Run("rules test nowhere.test").code, 3);
  std::ofstream(dir_ / "own.toml") << "[rules.mine]\nrule = 'InputBound'\n";
  std::ofstream(dir_ / "own.test") << "rules own.toml\n"
                                      "load steps count=100 every=100ms data_wait=60ms\n"
                                      "expect finding rule=mine\n";
  const Outcome own = Run("rules test own.test");
  EXPECT_EQ(own.code, 0) << own.out << own.err;
  // Each of two expectations of one field counts.
  std::ofstream(dir_ / "twice.test") << "rule InputBound\n"
                                        "load steps count=100 every=100ms data_wait=60ms\n"
                                        "expect finding message~Data message~loading\n"
                                        "expect finding message~nowhere message~Data\n";
  const Outcome twice = Run("rules test twice.test");
  EXPECT_EQ(twice.code, 10) << twice.err;
  EXPECT_NE(twice.out.find("line 4: no such finding"), std::string::npos) << twice.out;
  EXPECT_EQ(twice.out.find("line 3"), std::string::npos) << twice.out;
}

TEST_F(CliTest, AWrongPlanIsTwoAndOneLine) {
  std::ofstream(dir_ / "wrong.toml") << "[collections.a]\nintervall = 1\n";
  for (const char* arguments :
       {"run --level most --explain-plan", "run --window 'steps=5:5' -- true",
        "run --collect 'a:nope=1' --explain-plan", "run --collect 'a:include=((' -- true",
        "run --plan wrong.toml -- true"}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    ExpectOneLine(outcome, "run");
    EXPECT_FALSE(fs::exists(dir_ / "telltale-runs")) << arguments;
  }
  EXPECT_NE(Run("run --plan wrong.toml -- true").err.find("wrong.toml:2: collections.a.intervall"),
            std::string::npos);
  EXPECT_EQ(Run("run --plan nowhere.toml -- true").code, 3);
}

TEST_F(CliTest, APlanStandsInRunJson) {
  const Outcome outcome = Run("run -o r --quiet --level system -- true");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream in(dir_ / "r" / "run.json");
  const json info = json::parse(in);
  EXPECT_EQ(info["plan"]["level"], "system");
  const Outcome shown = Run("capture r --show --json");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(ParseJson(shown.out)["plan"]["level"], "system");
}

TEST_F(CliTest, OnlyARunThatGoesOnTakesAnotherPlan) {
  WriteSample("over");
  const Outcome outcome = Run("capture over --level all");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  ExpectOneLine(outcome, "capture");
  EXPECT_FALSE(fs::exists(dir_ / "over" / "requests"));
  EXPECT_EQ(Run("capture over").code, 0) << "a run of before plans shows the default";
  EXPECT_EQ(Run("capture over --show --level all").code, 2);
  EXPECT_EQ(Run("capture no/such/run").code, 3);
}

}  // namespace
}  // namespace telltale
