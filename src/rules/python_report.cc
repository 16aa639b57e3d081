// SPDX-License-Identifier: Apache-2.0
#include "rules/python_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/printable.h"
#include "format/records.gen.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostSubjectBytes = 200;
constexpr std::size_t kMostTextBytes = 4096;
constexpr std::size_t kMostEvidenceBytes = 65'536;

Status Bad(std::string_view what) {
  return Status(Code::kUnusable, fmt::format("it wrote what is no report: {}", what));
}

/// Left as it is where there is none.
Status ReadText(const ordered_json& in, const char* key, std::size_t most, std::string* out) {
  const auto found = in.find(key);
  if (found == in.end()) return Status();
  if (!found->is_string()) return Bad(fmt::format("{} is no text", key));
  *out = found->get<std::string>();
  if (out->size() > most) return Bad(fmt::format("{} has more than {} bytes", key, most));
  return Status();
}

Status ReadNumber(const ordered_json& in, const char* key, double* out) {
  const auto found = in.find(key);
  if (found == in.end()) return Status();
  if (!found->is_number() || !std::isfinite(found->get<double>())) {
    return Bad(fmt::format("{} is no number", key));
  }
  *out = found->get<double>();
  return Status();
}

/// Within the bound of a finding's row: who reads one leaves out what is beyond.
Status ReadInteger(const ordered_json& in, const char* key, const format::Bound& bound,
                   std::int64_t* out) {
  const auto found = in.find(key);
  if (found == in.end()) return Status();
  if (!found->is_number_integer()) return Bad(fmt::format("{} is no whole number", key));
  const bool beyond =
      found->is_number_unsigned() && std::cmp_greater(found->get<std::uint64_t>(), bound.most);
  *out = beyond ? bound.most : std::clamp(found->get<std::int64_t>(), bound.least, bound.most);
  return Status();
}

Status ReadSeverity(const ordered_json& in, Severity* out) {
  std::string text(Name(*out));
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "severity", kMostTextBytes, &text));
  for (const Severity severity :
       {Severity::kInfo, Severity::kLow, Severity::kMedium, Severity::kHigh}) {
    if (Name(severity) != text) continue;
    *out = severity;
    return Status();
  }
  return Bad(fmt::format("the severity '{}'", Printable(text.substr(0, 40))));
}

Status ReadIncident(const ordered_json& in, Incident* out) {
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "subject", kMostSubjectBytes, &out->subject));
  if (out->subject.empty()) return Bad("an incident without a subject");
  TELLTALE_RETURN_IF_ERROR(ReadSeverity(in, &out->severity));
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "message", kMostTextBytes, &out->message));
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "cause", kMostTextBytes, &out->cause));
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "advice", kMostTextBytes, &out->advice));
  TELLTALE_RETURN_IF_ERROR(ReadInteger(in, "first_step", format::kStepBound, &out->first_step));
  TELLTALE_RETURN_IF_ERROR(ReadInteger(in, "last_step", format::kStepBound, &out->last_step));
  TELLTALE_RETURN_IF_ERROR(ReadInteger(in, "start_ns", format::kTimeBound, &out->start_ns));
  TELLTALE_RETURN_IF_ERROR(ReadInteger(in, "end_ns", format::kTimeBound, &out->end_ns));
  TELLTALE_RETURN_IF_ERROR(ReadNumber(in, "cost_seconds", &out->cost_seconds));
  TELLTALE_RETURN_IF_ERROR(ReadNumber(in, "confidence", &out->confidence));
  out->cost_seconds = std::max(0.0, out->cost_seconds);
  out->confidence = std::clamp(out->confidence, 0.0, 1.0);
  const auto evidence = in.find("evidence");
  if (evidence == in.end()) {
    out->evidence = "{}";
    return Status();
  }
  if (!evidence->is_object()) return Bad("evidence is no object");
  out->evidence = evidence->dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  if (out->evidence.size() > kMostEvidenceBytes) {
    return Bad(fmt::format("evidence of more than {} bytes", kMostEvidenceBytes));
  }
  return Status();
}

Status ReadReady(const ordered_json& in, PythonReport* out) {
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "summary", kMostTextBytes, &out->summary));
  TELLTALE_RETURN_IF_ERROR(ReadText(in, "advice", kMostTextBytes, &out->advice));
  const auto wrong = in.find("wrong_result");
  out->wrong_result = wrong != in.end() && wrong->is_boolean() && wrong->get<bool>();
  const auto tables = in.find("tables");
  if (tables == in.end() || !tables->is_array()) return Bad("it names no tables");
  for (const ordered_json& table : *tables) {
    if (!table.is_string()) return Bad("a table is no text");
    out->tables.push_back(table.get<std::string>());
  }
  return Status();
}

Status Read(const ordered_json& in, PythonReport* out) {
  if (!in.is_object() || in.size() != 1 || !in.begin()->is_object()) {
    return Bad("no object of one object");
  }
  const std::string key = in.begin().key();
  const ordered_json& body = *in.begin();
  if (key == "done") {
    out->kind = PythonReport::Kind::kDone;
    return Status();
  }
  if (key == "error") {
    out->kind = PythonReport::Kind::kError;
    return ReadText(body, "text", kMostTextBytes, &out->error);
  }
  if (key == "ready") {
    out->kind = PythonReport::Kind::kReady;
    return ReadReady(body, out);
  }
  if (key == "report") {
    out->kind = PythonReport::Kind::kReport;
  } else if (key == "close") {
    out->kind = PythonReport::Kind::kClose;
  } else if (key == "recover") {
    out->kind = PythonReport::Kind::kRecover;
  } else {
    return Bad(fmt::format("'{}'", Printable(key.substr(0, 40))));
  }
  return ReadIncident(body, &out->incident);
}

}  // namespace

Result<PythonReport> ParsePythonReport(std::string_view line) {
  PythonReport out;
  try {
    const ordered_json tree = ParseOrderedJson(line);
    if (tree.is_discarded()) {
      return Bad(fmt::format("'{}'", Printable(line.substr(0, 40))));
    }
    TELLTALE_RETURN_IF_ERROR(Read(tree, &out));
  } catch (const std::exception& error) {
    return Bad(error.what());
  }
  return out;
}

}  // namespace telltale::rules
