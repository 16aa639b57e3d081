// SPDX-License-Identifier: Apache-2.0
#include "interchange/stack_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "base/utf8.h"
#include "interchange/python_frame.h"

namespace telltale::interchange {
namespace {

using protozero::pbf_writer;

// Numbers of fields of pprof's profile.proto.
namespace profile_field {
constexpr std::uint32_t kSampleType = 1;
constexpr std::uint32_t kSample = 2;
constexpr std::uint32_t kMapping = 3;
constexpr std::uint32_t kLocation = 4;
constexpr std::uint32_t kFunction = 5;
constexpr std::uint32_t kText = 6;
constexpr std::uint32_t kTime = 9;
constexpr std::uint32_t kDuration = 10;
constexpr std::uint32_t kComment = 13;
constexpr std::uint32_t kDefaultType = 14;
}  // namespace profile_field
constexpr std::uint32_t kTypeName = 1;
constexpr std::uint32_t kTypeUnit = 2;
constexpr std::uint32_t kSampleLocations = 1;
constexpr std::uint32_t kSampleValues = 2;
constexpr std::uint32_t kLocationId = 1;
constexpr std::uint32_t kLocationMapping = 2;
constexpr std::uint32_t kLocationLine = 4;
constexpr std::uint32_t kLineFunction = 1;
constexpr std::uint32_t kLineNumber = 2;
constexpr std::uint32_t kFunctionId = 1;
constexpr std::uint32_t kFunctionName = 2;
constexpr std::uint32_t kFunctionSystemName = 3;
constexpr std::uint32_t kFunctionFile = 4;
constexpr std::uint32_t kFunctionLine = 5;
constexpr std::uint32_t kMappingId = 1;
/// That nothing needs to be looked up in a binary.
constexpr std::uint32_t kMappingHas[] = {7, 8, 9};
constexpr std::uint64_t kOnlyMapping = 1;

}  // namespace

PprofProfile::PprofProfile(std::vector<SampleType> types, std::size_t default_type)
    : types_(std::move(types)) {
  Text("");
  pbf_writer head(head_);
  for (const SampleType& type : types_) {
    const std::int64_t name = Text(type.name);
    const std::int64_t unit = Text(type.unit);
    pbf_writer out(head, profile_field::kSampleType);
    out.add_int64(kTypeName, name);
    out.add_int64(kTypeUnit, unit);
  }
  head.add_int64(profile_field::kDefaultType, Text(types_[default_type].name));
  pbf_writer mapping(head, profile_field::kMapping);
  mapping.add_uint64(kMappingId, kOnlyMapping);
  for (const std::uint32_t field : kMappingHas) mapping.add_bool(field, true);
}

std::int64_t PprofProfile::Text(std::string_view text) {
  std::string scratch;
  const auto [at, made] = texts_.try_emplace(std::string(ToValidUtf8(text, &scratch)),
                                             static_cast<std::int64_t>(texts_.size()));
  if (made) in_order_.push_back(&at->first);
  return at->second;
}

std::uint64_t PprofProfile::Location(std::string_view frame) {
  const auto [at, made] = locations_.try_emplace(std::string(frame), locations_.size() + 1);
  if (!made) return at->second;
  const FrameName parts = ParseFrame(frame);
  const std::int64_t name = Text(parts.function);
  const std::int64_t file = Text(parts.file);
  pbf_writer out(functions_);
  {
    pbf_writer function(out, profile_field::kFunction);
    function.add_uint64(kFunctionId, at->second);
    function.add_int64(kFunctionName, name);
    function.add_int64(kFunctionSystemName, name);
    function.add_int64(kFunctionFile, file);
    function.add_int64(kFunctionLine, parts.line);
  }
  pbf_writer location(out, profile_field::kLocation);
  location.add_uint64(kLocationId, at->second);
  location.add_uint64(kLocationMapping, kOnlyMapping);
  pbf_writer line(location, kLocationLine);
  line.add_uint64(kLineFunction, at->second);
  line.add_int64(kLineNumber, parts.line);
  return at->second;
}

void PprofProfile::Add(std::span<const std::string_view> frames,
                       std::span<const std::int64_t> values) {
  if (std::all_of(values.begin(), values.end(), [](std::int64_t value) { return value == 0; })) {
    return;
  }
  std::vector<std::uint64_t> stack;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    stack.push_back(Location(*frame));
  }
  pbf_writer body(body_);
  pbf_writer sample(body, profile_field::kSample);
  sample.add_packed_uint64(kSampleLocations, stack.begin(), stack.end());
  sample.add_packed_int64(kSampleValues, values.begin(), values.end());
  ++samples_;
}

void PprofProfile::Comment(std::string_view text) {
  const std::int64_t id = Text(text);
  pbf_writer(head_).add_int64(profile_field::kComment, id);
}

void PprofProfile::Time(std::int64_t begin_ns, std::int64_t duration_ns) {
  pbf_writer head(head_);
  head.add_int64(profile_field::kTime, begin_ns);
  head.add_int64(profile_field::kDuration, duration_ns);
}

Status PprofProfile::Write(ExportFile* file) {
  TELLTALE_RETURN_IF_ERROR(file->Append(head_));
  TELLTALE_RETURN_IF_ERROR(file->Append(body_));
  TELLTALE_RETURN_IF_ERROR(file->Append(functions_));
  std::string piece;
  for (const std::string* const text : in_order_) {
    piece.clear();
    pbf_writer(piece).add_string(profile_field::kText, *text);
    TELLTALE_RETURN_IF_ERROR(file->Append(piece));
  }
  return file->Commit();
}

void AppendCollapsed(std::span<const std::string_view> frames, std::int64_t value,
                     std::string* out) {
  if (value == 0) return;
  bool first = true;
  for (const std::string_view frame : frames) {
    if (!first) out->push_back(';');
    first = false;
    for (const char c : frame) {
      // They divide frames and lines.
      out->push_back(c == ';' ? ':' : c == '\n' || c == '\r' ? ' ' : c);
    }
  }
  fmt::format_to(std::back_inserter(*out), " {}\n", value);
}

}  // namespace telltale::interchange
