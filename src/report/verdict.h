// SPDX-License-Identifier: Apache-2.0
// The verdict in the terminal: at most 24 lines, the same words and order as the report.
#pragma once
#include <cstdio>
#include <string>

#include "report/load.h"

namespace telltale::report {

struct VerdictOptions {
  bool color = false;
  int width = 98;
  /// Of the stream: its terminal's width; colour only on a terminal and without NO_COLOR.
  static VerdictOptions For(std::FILE* stream);
};

std::string FormatVerdict(const RunData& data, const VerdictOptions& options);

}  // namespace telltale::report
