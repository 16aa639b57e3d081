// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metric_set.h"

#include "base/utf8.h"

namespace telltale::telemetry {

std::string LabelText(std::string_view text) {
  std::string scratch;
  // Cut first: a name may be megabytes. What the cut leaves of a character goes with it.
  const bool cut = text.size() > MetricSet::kMaxLabelBytes;
  if (cut) text = text.substr(0, MetricSet::kMaxLabelBytes);
  if (cut) {
    std::size_t end = text.size();
    while (end > 0 && end + 4 > text.size() &&
           (static_cast<unsigned char>(text[end - 1]) & 0xC0U) == 0x80U) {
      --end;
    }
    if (end > 0 && (static_cast<unsigned char>(text[end - 1]) & 0xC0U) == 0xC0U &&
        Utf8Length(text.substr(end - 1)) == 0) {
      text = text.substr(0, end - 1);
    }
  }
  return std::string(ToValidUtf8(text, &scratch));
}

std::string MetricName(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || digit;
    if (out.empty() && digit) out += '_';
    out += plain ? c : '_';
  }
  return out.empty() ? "_" : out;
}

void MetricSet::Begin(std::string_view run, std::int64_t start_ns, std::int64_t time_ns) {
  run_ = LabelText(run);
  start_ns_ = start_ns;
  time_ns_ = time_ns;
}

void MetricSet::Add(const FamilyDesc& desc, const Labels& labels, double value, bool brief) {
  Point point;
  std::string key;
  const auto add = [&](std::string_view name, std::string text) {
    // An empty label is no label.
    if (text.empty()) return;
    key.append(name).append("\x1f").append(text).append("\x1e");
    point.labels.emplace_back(std::string(name), std::move(text));
  };
  if (!run_.empty()) add("run", run_);
  for (const auto& [name, text] : labels) add(name, LabelText(text));
  point.value = value;
  point.start_ns = start_ns_;
  point.time_ns = time_ns_;
  point.brief = brief;
  const auto [family, fresh] = families_.try_emplace(std::string(desc.name));
  if (fresh) {
    family->second.kind = desc.kind;
    family->second.unit = desc.unit;
    family->second.help = desc.help;
  }
  points_ +=
      family->second.points.insert_or_assign(std::move(key), std::move(point)).second ? 1 : 0;
}

}  // namespace telltale::telemetry
