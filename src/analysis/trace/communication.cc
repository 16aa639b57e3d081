// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/communication.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "analysis/trace/step_breakdown.h"
#include "base/json.h"
#include "base/saturate.h"
#include "store/column_scan.h"

namespace telltale::analysis::trace {
namespace {

constexpr std::string_view kCollective = "collective.";
/// Ranks whose shares lie further apart than this are named.
constexpr double kApart = 0.05;

/// Of bytes and times: nothing where it is below 0 or more than 63 bits hold.
std::optional<std::int64_t> Whole(const nlohmann::json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if (found->is_number_float()) {
    const auto number = found->get<double>();
    if (!(number >= 0 && number < 0x1p63)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  // What is not below 0 is unsigned to the parser.
  if (!found->is_number_unsigned()) return std::nullopt;
  const auto number = found->get<std::uint64_t>();
  if (number > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

/// The operations that are told apart.
class OperationNames {
 public:
  std::string_view Of(std::string_view name) {
    if (names_.contains(name)) return name;
    if (names_.size() >= kMostOperations) return kOtherOperations;
    names_.emplace(name);
    return name;
  }

 private:
  std::set<std::string, std::less<>> names_;
};

void ReadCollectives(std::string_view text, std::int32_t rank, RecordedCommunication* out) {
  const nlohmann::json data = ParseJson(text);
  if (!data.is_object()) return;
  const auto operations = data.find("operations");
  if (operations != data.end() && operations->is_object()) {
    for (const auto& [name, facts] : operations->items()) {
      const auto bytes = facts.is_object() ? Whole(facts, "bytes") : std::nullopt;
      const auto known = out->collectives.find({rank, name});
      if (!bytes || known == out->collectives.end()) continue;
      known->second.bytes = SaturatingAdd(std::max<std::int64_t>(known->second.bytes, 0), *bytes);
    }
  }
  const auto parallel = data.find("parallel");
  if (parallel == data.end() || !parallel->is_object()) return;
  const auto communication = Whole(*parallel, "communication_ns");
  if (!communication || *communication <= 0) return;
  out->parallel[rank] = {*communication, Whole(*parallel, "overlap_ns").value_or(0)};
}

struct SharedRank {
  std::int32_t rank = 0;
  double share = 0;
};

/// Who waits least comes last: in a collective the others wait for it.
void NoteApart(const std::vector<SharedRank>& ranks, Tables* out) {
  if (ranks.size() < 2) return;
  const auto [least, most] = std::minmax_element(
      ranks.begin(), ranks.end(),
      [](const SharedRank& a, const SharedRank& b) { return a.share < b.share; });
  if (most->share - least->share < kApart) return;
  out->notes.push_back(fmt::format(
      "rank {} spends {:.1f} % of its steps in communication, rank {} {:.1f} %: who communicates "
      "least is who the others wait for",
      least->rank, least->share * 100, most->rank, most->share * 100));
}

}  // namespace

Result<RecordedCommunication> RecordedCommunicationOf(const std::filesystem::path& run,
                                                      store::Salvage* salvage) {
  RecordedCommunication out;
  const auto steps = [&](store::ScanPiece& piece) -> Status {
    const auto& c = piece.columns;
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (c[0].Text(i) != "TRAIN") continue;
      StepCommunication& rank = out.ranks[static_cast<std::int32_t>(c[1].Int(i))];
      ++rank.steps;
      rank.step_ns += c[2].Int(i);
      rank.wait_ns += c[3].Int(i);
    }
    return {};
  };
  TELLTALE_RETURN_IF_ERROR(
      store::ScanColumns(run,
                         {.table = format::StepRow::kTable,
                          .columns = {"mode", "rank", "duration_ns", "comm_wait_ns"}},
                         steps, salvage));
  OperationNames operations;
  const auto spans = [&](store::ScanPiece& piece) -> Status {
    const auto& c = piece.columns;
    for (std::size_t i = 0; i < piece.rows; ++i) {
      const std::string_view name = c[0].Text(i);
      if (!name.starts_with(kCollective) || c[1].Text(i) != "TRAIN") continue;
      CollectiveTotal& total =
          out.collectives[{static_cast<std::int32_t>(c[2].Int(i)),
                           std::string(operations.Of(name.substr(kCollective.size())))}];
      ++total.calls;
      total.total_ns += c[3].Int(i);
    }
    return {};
  };
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
      run, {.table = format::SpanRow::kTable, .columns = {"name", "mode", "rank", "duration_ns"}},
      spans, salvage));
  const auto events = [&](store::ScanPiece& piece) -> Status {
    const auto& c = piece.columns;
    for (std::size_t i = 0; i < piece.rows; ++i) {
      if (c[0].Text(i) != "collectives") continue;
      ReadCollectives(c[2].Text(i), static_cast<std::int32_t>(c[1].Int(i)), &out);
    }
    return {};
  };
  TELLTALE_RETURN_IF_ERROR(store::ScanColumns(
      run, {.table = format::EventRow::kTable, .columns = {"kind", "rank", "data"}}, events,
      salvage));
  return out;
}

Result<Tables> RunCommunication(TraceSource& source, const Options& options) {
  const auto wanted = [&](std::int32_t rank) {
    return options.ranks.empty() ||
           std::find(options.ranks.begin(), options.ranks.end(), rank) != options.ranks.end();
  };
  TELLTALE_ASSIGN_OR_RETURN(const RecordedCommunication recorded,
                            RecordedCommunicationOf(source.run(), source.damage()));
  Tables out;
  Table& ranks = out.Add("ranks", "Step time that each rank spends in communication",
                         {"rank", "source", "steps", "step_ns", "communication_ns", "share",
                          "hidden_ns", "hidden_share"});
  Table& operations =
      out.Add("operations", "Collectives called from Python, in steps of training",
              {"rank", "operation", "calls", "total_ns", "mean_ns", "share", "bytes"});
  operations.shown = options.top;
  std::vector<SharedRank> shares;
  for (const auto& [rank, steps] : recorded.ranks) {
    if (!wanted(rank)) continue;
    ranks.Add({Int(rank), Text("steps"), Int(steps.steps), Int(steps.step_ns), Int(steps.wait_ns),
               Share(steps.wait_ns, steps.step_ns), Cell(), Cell()});
    const auto parallel = recorded.parallel.find(rank);
    if (parallel == recorded.parallel.end()) {
      if (steps.step_ns > 0) {
        shares.push_back(
            {rank, static_cast<double>(steps.wait_ns) / static_cast<double>(steps.step_ns)});
      }
      continue;
    }
    // It communicates within the backward: the steps do not tell of it.
    const ParallelStep& one = parallel->second;
    const std::int64_t mean = steps.step_ns.value() / static_cast<std::int64_t>(steps.steps);
    ranks.Add({Int(rank), Text("parallel"), Int(1), mean, one.communication_ns,
               Share(one.communication_ns, mean), one.overlap_ns,
               Share(one.overlap_ns, one.communication_ns)});
  }
  for (const auto& [key, total] : recorded.collectives) {
    const auto& [rank, name] = key;
    if (!wanted(rank)) continue;
    const auto steps = recorded.ranks.find(rank);
    const Sum step_ns = steps == recorded.ranks.end() ? Sum() : steps->second.step_ns;
    operations.Add({Int(rank), Text(name), Int(total.calls), Int(total.total_ns),
                    Real(static_cast<double>(total.total_ns) / static_cast<double>(total.calls)),
                    Share(total.total_ns, step_ns), total.bytes < 0 ? Cell() : Cell(total.bytes)});
  }
  for (const std::int32_t rank : source.ranks()) {
    if (!source.HasTrace(rank)) continue;
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const StepBreakdown b = StepBreakdownOf(trace);
    Sum wall = 0, communication = 0, overlap = 0;
    for (const StepCost& step : b.steps) {
      wall += step.span.length();
      communication += step.communication_ns;
      overlap += step.overlap_ns;
    }
    if (b.steps.empty()) continue;
    ranks.Add({Int(rank), Text("trace"), Int(b.steps.size()), Int(wall), Int(communication),
               Share(communication, wall), Int(overlap), Share(overlap, communication)});
  }
  if (ranks.rows.empty()) {
    out.notes.emplace_back(
        "no step of training: record one with `telltale run`, or import traces with step marks");
  }
  NoteApart(shares, &out);
  return out;
}

}  // namespace telltale::analysis::trace
