// SPDX-License-Identifier: Apache-2.0
#include "interchange/flame_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/printable.h"
#include "interchange/flame_page.h"
#include "interchange/json_out.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kTopFunctions = 25;

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : WithoutControls(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// A JSON string that no element of a page ends in.
std::string Quoted(std::string_view text) {
  std::string json;
  AppendQuoted(WithoutControls(text), &json);
  std::string out;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string InWords(std::int64_t value, std::string_view unit) {
  const auto number = static_cast<double>(value);
  if (unit == "nanoseconds") {
    return value >= 1'000'000'000 ? fmt::format("{:.2f} s", number / 1e9)
                                  : fmt::format("{:.2f} ms", number / 1e6);
  }
  return fmt::format("{} {}", value, unit == "count" ? "" : unit);
}

}  // namespace

std::uint32_t FlameGraph::NameId(std::string_view name) {
  if (const auto found = name_ids_.find(name); found != name_ids_.end()) return found->second;
  const auto id = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  name_ids_.emplace(names_.back(), id);
  return id;
}

void FlameGraph::Add(std::span<const std::string_view> frames, std::int64_t value) {
  if (value <= 0) return;
  std::uint32_t at = 0;
  for (const std::string_view frame : frames) {
    const std::uint32_t name = NameId(frame);
    const auto [child, made] =
        nodes_[at].children.try_emplace(name, static_cast<std::uint32_t>(nodes_.size()));
    at = child->second;
    if (!made) continue;
    nodes_.emplace_back();
    nodes_.back().name = name;
  }
  nodes_[at].own += value;
  total_ += value;
  ++stacks_;
}

Status FlameGraph::Write(const FlameGraphText& text, ExportFile* file, double least) const {
  // A child comes behind its parent: from the back each has the sum of all below it.
  std::vector<Sum> sums(nodes_.size());
  std::vector<std::pair<Sum, std::uint32_t>> own(names_.size());
  for (std::size_t i = 0; i < own.size(); ++i) own[i].second = static_cast<std::uint32_t>(i);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    sums[i] += nodes_[i].own;
    if (i > 0) own[nodes_[i].name].first += nodes_[i].own;
    for (const auto& [name, child] : nodes_[i].children) sums[i] += sums[child];
  }
  const auto smallest = SaturatingCast(static_cast<double>(total_) * least);
  std::uint64_t left_out = 0;
  // [name, value, children], outermost first; names by number, as met.
  std::string tree;
  std::string names;
  std::map<std::uint32_t, std::uint32_t> written;
  const auto write = [&](const auto& self, std::uint32_t at) -> void {
    std::uint32_t number = 0;
    if (at > 0) {
      const auto [name, made] =
          written.try_emplace(nodes_[at].name, static_cast<std::uint32_t>(written.size() + 1));
      if (made) names += ',' + Quoted(names_[nodes_[at].name]);
      number = name->second;
    }
    fmt::format_to(std::back_inserter(tree), "[{},{},[", number, sums[at].value());
    bool first = true;
    for (const auto& [name, child] : nodes_[at].children) {
      if (sums[child] < smallest) {
        ++left_out;
        continue;
      }
      if (!std::exchange(first, false)) tree += ',';
      self(self, child);
    }
    tree += "]]";
  };
  write(write, 0);

  const std::size_t shown = std::min(kTopFunctions, own.size());
  std::partial_sort(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(shown), own.end(),
                    std::greater<>());
  std::string rows;
  for (std::size_t i = 0; i < shown && own[i].first > 0; ++i) {
    fmt::format_to(std::back_inserter(rows),
                   "<tr><td class=r>{}</td><td class=r>{:.1f}&nbsp;%</td><td>{}</td></tr>\n",
                   Escaped(InWords(own[i].first.value(), text.unit)),
                   100.0 * static_cast<double>(own[i].first) / static_cast<double>(total_),
                   Escaped(names_[own[i].second]));
  }
  const std::string subtitle = left_out == 0
                                   ? text.subtitle
                                   : fmt::format("{} · {} frames of less than {:.2f} % left out",
                                                 text.subtitle, left_out, least * 100);
  TELLTALE_RETURN_IF_ERROR(file->Append(
      fmt::format("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                  "<title>{0}</title>\n<style>",
                  Escaped(text.title))));
  TELLTALE_RETURN_IF_ERROR(file->Append(kFlameStyle));
  TELLTALE_RETURN_IF_ERROR(
      file->Append(fmt::format("</style></head><body>\n<h1>{}</h1>\n<p class=q>{}</p>\n",
                               Escaped(text.title), Escaped(subtitle))));
  TELLTALE_RETURN_IF_ERROR(file->Append(kFlameBody));
  TELLTALE_RETURN_IF_ERROR(file->Append(
      "<h2>By their own</h2>\n<table><thead><tr><th class=r>own</th><th class=r>share</th>"
      "<th>frame</th></tr></thead><tbody>\n" +
      rows + "</tbody></table>\n"));
  TELLTALE_RETURN_IF_ERROR(file->Append(
      fmt::format("<script type=\"application/json\" id=\"data\">{{\"unit\":{},\"names\":[{}{}],"
                  "\"tree\":",
                  Quoted(text.unit), Quoted("all"), names)));
  TELLTALE_RETURN_IF_ERROR(file->Append(tree));
  TELLTALE_RETURN_IF_ERROR(file->Append("}</script>\n<script>"));
  TELLTALE_RETURN_IF_ERROR(file->Append(kFlameScript));
  TELLTALE_RETURN_IF_ERROR(file->Append("</script></body></html>\n"));
  return file->Commit();
}

}  // namespace telltale::interchange
