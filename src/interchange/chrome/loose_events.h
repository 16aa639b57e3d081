// SPDX-License-Identifier: Apache-2.0
// Pairs begins with ends: B and E nest on their row, b and e (also S and F) find each other by
// category and id. Slices go to the sink row by row, since such traces are small.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "format/records.gen.h"
#include "interchange/chrome/block_parser.h"

namespace telltale::interchange {

class LooseEvents {
 public:
  /// Gets a slice with the trace's times; its texts are valid during the call. Fills what is of the
  /// file: rank, window, step.
  using Emit = std::function<void(format::SliceRow&, const ChromeTrack&)>;

  explicit LooseEvents(Emit emit) : emit_(std::move(emit)) {}

  void Take(const ChromeLoose& event, const ChromeTrack& track);
  /// What is still open ends with the trace. Call it once.
  void Finish(std::int64_t end_ns);

  std::uint64_t ends_without_begin() const { return ends_without_begin_; }
  std::uint64_t begins_without_end() const { return begins_without_end_; }

 private:
  struct Open {
    ChromeLoose begin;
    ChromeTrack track;
  };
  void Close(const Open& open, std::int64_t end_ns, const std::string& end_args);

  const Emit emit_;
  std::map<std::pair<std::string, std::string>, std::vector<Open>> nested_;
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<Open>> async_;
  std::size_t open_ = 0;
  std::uint64_t ends_without_begin_ = 0;
  std::uint64_t begins_without_end_ = 0;
};

}  // namespace telltale::interchange
