// SPDX-License-Identifier: Apache-2.0
// SageMaker Debugger's system metrics (system/incremental/*/*.json): a JSON object a line, as
// series of Telltale's own names and units. docs/formats/imports.md.
//
// Thread safety: none. Memory: 20 bytes a sample; for each of at most 65,536 series its names and a
// line of at most 512 bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interchange/json_scan.h"
#include "store/metric_segment.h"

namespace telltale::interchange {

class SystemMetrics {
 public:
  explicit SystemMetrics(store::MetricBlock* out) : out_(out) {}

  /// Reads a file's text; of several, their rows follow one another.
  void Read(std::string_view text);

  std::uint64_t read() const { return read_; }
  std::uint64_t damaged() const { return damaged_; }

 private:
  struct Sample;
  /// What becomes of a value of smdebug's.
  enum class Role : std::uint8_t { kAsIs, kCoreBusy, kCoreWait };
  /// The text around the two numbers of a line, which is the same in all lines of a series.
  struct Line {
    std::string before, between, behind;
    bool value_first = true;
  };
  struct Known {
    std::string key;  ///< Type, name, dimension and node as the file has them.
    Line line;        ///< The last that was taken apart; empty where it has no such form.
    Role role = Role::kAsIs;
    std::uint32_t series = 0;
    std::uint32_t node = 0;
    std::int32_t core = -1;
  };
  struct Core {
    double busy = -1;
    double wait = -1;
    std::uint32_t idle_series = 0;
    bool named = false;
  };
  /// The cores of a node at one time.
  struct Node {
    std::string name;
    std::int64_t time_ns = 0;
    bool open = false;
    std::vector<Core> cores;
    std::uint32_t busy = 0, idle = 0, wait = 0;  ///< Series of the node itself.
  };

  /// The line that the order of those before lets expect, compared as a whole; false, and nothing
  /// read, where it is another.
  bool TakeExpected(JsonScanner* scanner);
  void Take(const Sample& sample);
  void Add(const Known& known, std::int64_t time_us, double value);
  const Known& KnownOf(const Sample& sample);
  const Known& Hit(std::size_t at, const Sample& sample);
  Known Describe(const Sample& sample);
  std::uint32_t SeriesOf(const std::string& node, const std::string& subject,
                         const std::string& name, const std::string& unit);
  std::uint32_t NodeOf(std::string_view name);
  void Close(Node* node);

  store::MetricBlock* const out_;
  std::vector<Known> known_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
  std::size_t guess_ = 0;  ///< Samples come in the same order each time.
  std::vector<Node> nodes_;
  std::map<std::string, std::uint32_t> series_;
  std::string_view time_text_;  ///< Of the sample before, in the text that is read.
  std::int64_t time_us_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t damaged_ = 0;
};

}  // namespace telltale::interchange
