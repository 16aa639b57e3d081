// SPDX-License-Identifier: Apache-2.0
// A program of the product as a child process of a benchmark: what it prints first, what it costs.
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace telltale::bench {

class Child {
 public:
  /// Starts it; it dies with this process.
  explicit Child(std::vector<std::string> words);
  /// SIGTERM, and waits for its end.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line of its stdout; empty at the end.
  std::string Line();
  /// CPU time of all its threads so far.
  double CpuSeconds() const;

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
};

/// `telltale serve ROOT`, with a state folder of its own.
class ServeProcess {
 public:
  explicit ServeProcess(const std::filesystem::path& root);
  std::uint16_t port() const { return port_; }
  /// Header of a request that may ask anything.
  std::string bearer() const { return "Authorization: Bearer " + token_; }
  /// A whole request for the event stream of a run.
  std::string StreamRequest(const std::string& run) const;
  double CpuSeconds() const { return child_.CpuSeconds(); }

 private:
  Child child_;
  std::uint16_t port_ = 0;
  std::string token_;
};

/// A value of sorted ones: 0.5 the median, 0.99 as the limits have it.
double Quantile(const std::vector<double>& sorted, double q);

}  // namespace telltale::bench
