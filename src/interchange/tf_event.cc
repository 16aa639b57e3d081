// SPDX-License-Identifier: Apache-2.0
#include "interchange/tf_event.h"

#include <exception>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <protozero/types.hpp>

namespace telltale::interchange {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;
using protozero::tag_and_type;

// Numbers of fields.
namespace event_field {
constexpr std::uint32_t kWallTime = 1;
constexpr std::uint32_t kStep = 2;
constexpr std::uint32_t kFileVersion = 3;
constexpr std::uint32_t kSummary = 5;
}  // namespace event_field
constexpr std::uint32_t kSummaryValue = 1;
namespace value_field {
constexpr std::uint32_t kTag = 1;
constexpr std::uint32_t kSimpleValue = 2;
constexpr std::uint32_t kHistogram = 5;
constexpr std::uint32_t kTensor = 8;
}  // namespace value_field
namespace tensor_field {
constexpr std::uint32_t kType = 1;
constexpr std::uint32_t kShape = 2;
constexpr std::uint32_t kContent = 4;
constexpr std::uint32_t kText = 8;
}  // namespace tensor_field
constexpr std::uint32_t kShapeDimension = 2;
constexpr std::uint32_t kDimensionSize = 1;

constexpr std::uint32_t Bytes(std::uint32_t field) {
  return tag_and_type(field, pbf_wire_type::length_delimited);
}
constexpr std::uint32_t Varint(std::uint32_t field) {
  return tag_and_type(field, pbf_wire_type::varint);
}

std::string_view ViewOf(const protozero::data_view& view) { return {view.data(), view.size()}; }

void ParseShape(pbf_reader shape, std::vector<std::int64_t>* out) {
  while (shape.next()) {
    if (shape.tag_and_type() != Bytes(kShapeDimension)) {
      shape.skip();
      continue;
    }
    std::int64_t size = 0;  // A dimension of size zero is left out on the wire.
    pbf_reader dimension = shape.get_message();
    while (dimension.next()) {
      if (dimension.tag_and_type() == Varint(kDimensionSize)) {
        size = dimension.get_int64();
      } else {
        dimension.skip();
      }
    }
    out->push_back(size);
  }
}

void ParseTensor(pbf_reader tensor, EventValue* out) {
  out->is_tensor = true;
  while (tensor.next()) {
    switch (tensor.tag_and_type()) {
      case Varint(tensor_field::kType):
        out->type = tensor.get_int32();
        break;
      case Bytes(tensor_field::kShape):
        ParseShape(tensor.get_message(), &out->shape);
        break;
      case Bytes(tensor_field::kContent):
        out->content = ViewOf(tensor.get_view());
        break;
      case Bytes(tensor_field::kText):
        out->texts.push_back(ViewOf(tensor.get_view()));
        break;
      default:
        tensor.skip();
    }
  }
  // smdebug writes texts without saying that they are.
  if (out->type == 0 && !out->texts.empty()) {
    out->type = static_cast<std::int32_t>(TfType::kString);
  }
}

EventValue ParseValue(pbf_reader value) {
  EventValue out;
  while (value.next()) {
    switch (value.tag_and_type()) {
      case Bytes(value_field::kTag):
        out.tag = ViewOf(value.get_view());
        break;
      case tag_and_type(value_field::kSimpleValue, pbf_wire_type::fixed32):
        out.simple = static_cast<double>(value.get_float());
        break;
      case Bytes(value_field::kTensor):
        ParseTensor(value.get_message(), &out);
        break;
      default:
        value.skip();
    }
  }
  return out;
}

/// Calls `fill` with the writer of the one value of an event's summary.
template <class F>
std::string ValueEvent(double wall_time_s, std::int64_t step, std::string_view tag, F&& fill) {
  std::string bytes;
  {
    pbf_writer event(bytes);
    event.add_double(event_field::kWallTime, wall_time_s);
    event.add_int64(event_field::kStep, step);
    pbf_writer summary(event, event_field::kSummary);
    pbf_writer value(summary, kSummaryValue);
    value.add_bytes(value_field::kTag, tag.data(), tag.size());
    fill(&value);
  }
  return bytes;
}

}  // namespace

std::string VersionEvent(double wall_time_s) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_double(event_field::kWallTime, wall_time_s);
  event.add_string(event_field::kFileVersion, "brain.Event:2");
  return bytes;
}

std::string ScalarEvent(double wall_time_s, std::int64_t step, std::string_view tag, double value) {
  return ValueEvent(wall_time_s, step, tag, [&](pbf_writer* out) {
    out->add_float(value_field::kSimpleValue, static_cast<float>(value));
  });
}

std::string HistogramEvent(double wall_time_s, std::int64_t step, std::string_view tag,
                           const EventHistogram& histogram) {
  return ValueEvent(wall_time_s, step, tag, [&](pbf_writer* out) {
    pbf_writer message(*out, value_field::kHistogram);
    message.add_double(1, histogram.min);
    message.add_double(2, histogram.max);
    message.add_double(3, histogram.number);
    message.add_double(4, histogram.sum);
    message.add_double(5, histogram.sum_squares);
    message.add_packed_double(6, histogram.limits.begin(), histogram.limits.end());
    message.add_packed_double(7, histogram.counts.begin(), histogram.counts.end());
  });
}

Result<Event> ParseEvent(std::string_view bytes) {
  try {
    Event event;
    pbf_reader message(bytes.data(), bytes.size());
    while (message.next()) {
      switch (message.tag_and_type()) {
        case tag_and_type(event_field::kWallTime, pbf_wire_type::fixed64):
          event.wall_time_s = message.get_double();
          break;
        case Varint(event_field::kStep):
          event.step = message.get_int64();
          break;
        case Bytes(event_field::kSummary): {
          pbf_reader summary = message.get_message();
          while (summary.next()) {
            if (summary.tag_and_type() == Bytes(kSummaryValue)) {
              event.values.push_back(ParseValue(summary.get_message()));
            } else {
              summary.skip();
            }
          }
          break;
        }
        default:
          message.skip();
      }
    }
    return event;
  } catch (const std::exception& error) {
    return {Code::kUnusable, std::string("no event of TensorFlow's: ") + error.what()};
  }
}

}  // namespace telltale::interchange
