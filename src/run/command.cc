// SPDX-License-Identifier: Apache-2.0
#include "run/command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace telltale::run {
namespace {

constexpr std::size_t kMaxNameLength = 40;

/// What a Python command line holds before its script (Python's Modules/getopt.c).
struct PythonLine {
  std::size_t script = 0;  ///< Index of the word that names the code: script, -m or -c; 0: none.
  std::string split;  ///< Not empty: this flag word comes in front and `-m`/`-c` is split off...
  std::string rest;   ///< ...into the option itself, with this text, where it has any.
  bool isolated = false;  ///< PYTHONPATH is ignored.
  bool bare = false;      ///< No site, and so no sitecustomize.
};

PythonLine ParsePython(const std::vector<std::string>& command) {
  PythonLine line;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "--" || word == "-") return line;  // Code from stdin: nothing to hand to boot.py.
    if (word.size() < 2 || word[0] != '-') {
      line.script = i;
      return line;
    }
    if (word[1] == '-') {
      if (word == "--check-hash-based-pycs") ++i;
      continue;
    }
    for (std::size_t at = 1; at < word.size(); ++at) {
      const char flag = word[at];
      if (flag == 'I' || flag == 'E') line.isolated = true;
      if (flag == 'S') line.bare = true;
      if (flag == 'W' || flag == 'X') {
        if (at + 1 == word.size()) ++i;  // Its argument is the next word.
        break;
      }
      if (flag == 'm' || flag == 'c') {
        line.script = i;
        if (at > 1) line.split = word.substr(0, at);
        line.rest = word.substr(at + 1);
        return line;
      }
    }
  }
  return line;
}

std::string Stem(std::string_view path) {
  std::string name(path.substr(path.rfind('/') + 1));
  if (name.size() > 3 && name.ends_with(".py")) name.resize(name.size() - 3);
  return name;
}

std::string Clean(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, kMaxNameLength)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || (c == '.' && !name.empty());
    name += plain ? c : '_';
  }
  return name.empty() ? "run" : name;
}

}  // namespace

bool IsPython(std::string_view program) {
  const std::string_view name = program.substr(program.rfind('/') + 1);
  return name.starts_with("python") &&
         name.find_first_not_of("0123456789.", 6) == std::string_view::npos;
}

std::vector<std::string> ThroughBoot(std::vector<std::string> command,
                                     const std::filesystem::path& boot) {
  if (command.empty() || !IsPython(command[0])) return command;
  const PythonLine line = ParsePython(command);
  if ((!line.isolated && !line.bare) || line.script == 0) return command;
  const auto at = command.begin() + static_cast<std::ptrdiff_t>(line.script);
  const std::string& word = *at;
  if (word[0] != '-') {
    command.insert(at, boot.string());
    return command;
  }
  // -m and -c may hang on other flags (-Ium mod) and hold their text (-mmod): boot.py gets them
  // apart.
  const char option = word[line.split.empty() ? 1 : line.split.size()];
  std::vector<std::string> words;
  if (!line.split.empty()) words.push_back(line.split);
  words.push_back(boot.string());
  words.push_back({'-', option});
  if (!line.rest.empty()) words.push_back(line.rest);
  const auto next = command.erase(at);
  command.insert(next, words.begin(), words.end());
  return command;
}

std::string RunName(const std::vector<std::string>& command) {
  if (command.empty()) return "run";
  if (IsPython(command[0])) {
    const PythonLine line = ParsePython(command);
    if (line.script > 0) {
      const std::string& word = command[line.script];
      if (word[0] != '-') return Clean(Stem(word));
      const char option = word[line.split.empty() ? 1 : line.split.size()];
      if (option == 'c') return "python-c";
      if (!line.rest.empty()) return Clean(line.rest);
      if (line.script + 1 < command.size()) return Clean(command[line.script + 1]);
    }
    return Clean(Stem(command[0]));
  }
  // A launcher (torchrun, env, accelerate): the first script on its line names the run best. A word
  // that is a whole command line, or a variable's, names none: it may hold a secret.
  const auto script = std::find_if(command.begin() + 1, command.end(), [](const std::string& word) {
    return word.size() > 3 && word.ends_with(".py") && word[0] != '-' &&
           word.find_first_of(" \t\n=") == std::string::npos;
  });
  return Clean(Stem(script != command.end() ? *script : command[0]));
}

Startable CheckStartable(const std::string& program) {
  const auto answer = [&](int code, std::string_view why) {
    return Startable{code, fmt::format("cannot start '{}': {}", program, why)};
  };
  const auto runnable = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (program.empty()) return answer(127, "the command is empty: name a program after --");
  if (program.find('/') != std::string::npos) {
    if (::access(program.c_str(), F_OK) != 0) {
      return answer(127, "no such file: check the path and the working directory");
    }
    if (!runnable(program)) {
      return answer(126, "not an executable file: chmod +x it, or name its interpreter");
    }
    return {};
  }
  const char* path_variable = ::getenv("PATH");
  const std::string path =
      path_variable != nullptr ? path_variable : "/usr/local/bin:/usr/bin:/bin";
  bool found = false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = end > begin ? path.substr(begin, end - begin) : ".";
    const std::string candidate = folder + "/" + program;
    if (runnable(candidate)) return {};
    found = found || ::access(candidate.c_str(), F_OK) == 0;
    begin = end + 1;
  }
  return found ? answer(126, "found on PATH, but it is not an executable file: chmod +x it")
               : answer(127, "not found on PATH: check the spelling, or give its path");
}

}  // namespace telltale::run
