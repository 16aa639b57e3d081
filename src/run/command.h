// SPDX-License-Identifier: Apache-2.0
// What the supervisor has to know of the training's command before it starts it: where the program
// is, what to call the run, and whether a Python command must go through boot.py.
// Pure functions but for the look at PATH; thread-safe.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::run {

/// True for python, python3, python3.11 and paths that end so.
bool IsPython(std::string_view program);

/// `python -I|-E ...` ignores PYTHONPATH, and `python -S ...` the sitecustomize that lies on it, by
/// which the adapter enters. Such a command is returned with `boot` as its script: `python -I -u
/// boot.py [-m|-c] ...`; the rest of the line is kept. Any other command, and a Python without a
/// script, come back as they were.
std::vector<std::string> ThroughBoot(std::vector<std::string> command,
                                     const std::filesystem::path& boot);

/// Name of a run: the script's or module's name, else the program's; letters, digits, '.', '_',
/// '-', at most 40, never empty.
std::string RunName(const std::vector<std::string>& command);

/// Exit code with which a shell says that a command cannot start, and why.
struct Startable {
  int exit_code = 0;  ///< 0, 126 or 127.
  std::string message;
};
/// Looks the program up as execvp(3) does. An answer of 0 is no promise.
Startable CheckStartable(const std::string& program);

}  // namespace telltale::run
