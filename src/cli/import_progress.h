// SPDX-License-Identifier: Apache-2.0
// A line on the terminal that says how much of its files an import has read. Nothing is written
// where stderr is no terminal, nor in the first second.
// Thread safety: one at a time in a process.
#pragma once
#include <string>
#include <vector>

namespace telltale::cli {

class ImportProgress {
 public:
  explicit ImportProgress(const std::vector<std::string>& paths);
  ~ImportProgress() { End(); }
  ImportProgress(const ImportProgress&) = delete;
  ImportProgress& operator=(const ImportProgress&) = delete;

  /// Takes the line away.
  void End();

 private:
  bool shown_ = false;
};

}  // namespace telltale::cli
