// SPDX-License-Identifier: Apache-2.0
// The verdict in the terminal: every finding of medium or high severity with its cause, its cost,
// what to do and its rule; then what could not be judged; then what Telltale itself cost. The same
// words and order as the report.
#pragma once
#include <cstdio>
#include <string>

#include "report/load.h"

namespace telltale::report {

struct VerdictOptions {
  bool color = false;
  int width = 98;
  bool all = false;  ///< Findings of any severity, and all that could not be judged.
  /// Of the stream: its terminal's width; colour only on a terminal and without NO_COLOR.
  static VerdictOptions For(std::FILE* stream);
};

std::string FormatVerdict(const RunData& data, const VerdictOptions& options);

}  // namespace telltale::report
