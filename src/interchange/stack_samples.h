// SPDX-License-Identifier: Apache-2.0
// Stacks with values, for flame graphs: pprof's profile.proto, and collapsed stacks. Whoever has a
// tree of costs adds each node's own. docs/guide/export.md.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "interchange/export_file.h"

namespace telltale::interchange {

struct SampleType {
  std::string name;  ///< "time", "bytes".
  std::string unit;  ///< "nanoseconds", "bytes", "count".
};

/// A profile for `pprof`. Memory: each distinct text once, some bytes a frame of each stack.
class PprofProfile {
 public:
  PprofProfile(std::vector<SampleType> types, std::size_t default_type);

  /// `frames` from the outermost to the innermost, `values` one a type. All zero: left out.
  void Add(std::span<const std::string_view> frames, std::span<const std::int64_t> values);
  void Comment(std::string_view text);
  /// When it began, how long it took, in ns.
  void Time(std::int64_t begin_ns, std::int64_t duration_ns);
  std::uint64_t samples() const { return samples_; }
  /// Ends the profile. The file compresses, as pprof wants it.
  Status Write(ExportFile* file);

 private:
  std::int64_t Text(std::string_view text);
  std::uint64_t Location(std::string_view frame);

  std::vector<SampleType> types_;
  std::unordered_map<std::string, std::int64_t> texts_;
  std::vector<const std::string*> in_order_;
  std::unordered_map<std::string, std::uint64_t> locations_;
  std::string body_;       ///< Samples, encoded.
  std::string functions_;  ///< Functions and locations, encoded.
  std::string head_;
  std::uint64_t samples_ = 0;
};

/// "outermost;...;innermost 123\n"; nothing where the value is zero.
void AppendCollapsed(std::span<const std::string_view> frames, std::int64_t value,
                     std::string* out);

}  // namespace telltale::interchange
