// SPDX-License-Identifier: Apache-2.0
#include "rules/python_rule.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "base/units.h"
#include "format/records.gen.h"
#include "rules/python_report.h"
#include "rules/row_json.h"
#include "rules/rule_process.h"
#include "store/reader.h"

namespace telltale::rules {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t kStartLimitNs = 60 * kSecond;
/// A batch ends where the run's time passes a multiple of this, or it is full: both depend on the
/// records alone.
constexpr std::int64_t kBatchNs = 250'000'000;
constexpr std::size_t kBatchRows = 2048;
constexpr std::size_t kBatchBytes = 1U << 20U;
/// Beyond, it is no rule but a fault.
constexpr std::size_t kMostReportsABatch = 10'000;
constexpr std::size_t kMostIncidents = 10'000;
/// Of all its incidents together: they are kept as long as the run is watched.
constexpr std::size_t kMostIncidentBytes = 16U << 20U;
/// It may hold the others up for half of the time that the run takes, and a minute.
constexpr std::int64_t kWaitFreeNs = 60 * kSecond;

struct Limits {
  double memory_mib = 1024;
  double seconds = 10;      ///< For one batch, on the wall.
  double cpu_seconds = 10;  ///< For one batch, of all its threads.
};

/// What of the parameters is for the host, not for the rule.
struct HostParameters {
  Limits limits;
  std::string python, log;
  std::map<std::string, std::string> of_rule;
};

Status ReadLimit(std::string_view name, const std::string& text, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc() && end == text.data() + text.size() && *out > 0 && *out <= 1e6) {
    return Status();
  }
  return Status(Code::kUsage, fmt::format("{} = '{}' is no number above 0", name, Printable(text)));
}

Result<HostParameters> ReadParameters(const RuleSpec& spec) {
  HostParameters out;
  for (const auto& [name, value] : spec.parameters) {
    if (name == "host_memory_mib") {
      TELLTALE_RETURN_IF_ERROR(ReadLimit(name, value, &out.limits.memory_mib));
    } else if (name == "host_seconds") {
      TELLTALE_RETURN_IF_ERROR(ReadLimit(name, value, &out.limits.seconds));
    } else if (name == "host_cpu_seconds") {
      TELLTALE_RETURN_IF_ERROR(ReadLimit(name, value, &out.limits.cpu_seconds));
    } else if (name == "host_python") {
      out.python = value;
    } else if (name == "host_log") {
      out.log = value;
    } else if (name.starts_with("host_")) {
      return Status(Code::kUsage,
                    fmt::format("no parameter {}: write host_memory_mib, host_seconds, "
                                "host_cpu_seconds, host_python or host_log",
                                Printable(name)));
    } else {
      out.of_rule.emplace(name, value);
    }
  }
  return out;
}

/// lib/telltale/python of the program that runs, where it is one of ours.
fs::path InstalledPackage() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path().parent_path() / "lib/telltale/python";
  return fs::exists(folder / "telltale/rule_host.py", error) ? folder : fs::path();
}

std::string EnvironmentOr(const char* name, std::string otherwise) {
  // Nobody sets variables once threads run.
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr || *value == '\0' ? std::move(otherwise) : std::string(value);
}

/// Ours less what would make the child a part of the recorded training.
std::vector<std::string> ChildEnvironment(const fs::path& package) {
  std::vector<std::string> out;
  std::string path = package.string();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("PYTHONPATH=")) {
      const std::string_view rest = text.substr(text.find('=') + 1);
      if (!rest.empty()) path += (path.empty() ? "" : ":") + std::string(rest);
    } else if (!text.starts_with("TELLTALE_") || text.starts_with("TELLTALE_PREFIX=")) {
      out.emplace_back(text);
    }
  }
  if (!path.empty()) out.push_back("PYTHONPATH=" + path);
  // A pool of threads for each core would only take memory.
  for (const char* pool : {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"}) {
    out.emplace_back(pool);
  }
  return out;
}

std::uint32_t MaskOfTables(const std::vector<std::string>& names, std::string* unknown) {
  std::uint32_t mask = 0;
  for (const std::string& name : names) {
    std::uint32_t bit = 0;
    for (const format::TableDesc& table : format::kTables) {
      if (table.name == name) bit = store::MaskOf(table.id) & RowJsonTables();
    }
    if (bit == 0) *unknown = name;
    mask |= bit;
  }
  return mask;
}

std::size_t BytesOf(const Incident& incident) {
  return incident.subject.size() + incident.message.size() + incident.evidence.size() +
         incident.cause.size() + incident.advice.size();
}

class PythonRule final : public Rule {
 public:
  PythonRule(const RuleSpec& spec, const Limits& limits, std::unique_ptr<RuleProcess> process,
             PythonReport ready, std::uint32_t table_mask)
      : name_(spec.name),
        formula_(spec.rule),
        ready_(std::move(ready)),
        table_mask_(table_mask),
        limit_ns_(static_cast<std::int64_t>(limits.seconds * 1e9)),
        process_(std::move(process)) {
    if (ready_.summary.empty()) ready_.summary = "A rule of yours, in Python.";
    if (ready_.advice.empty()) ready_.advice = "Look at what the rule reads.";
  }

  /// Its texts are those of this rule, which outlives it.
  std::unique_ptr<RuleDesc> Describe() const {
    auto desc = std::make_unique<RuleDesc>();
    desc->name = name_;
    desc->summary = ready_.summary;
    desc->formula = formula_;
    desc->how_to_fix = ready_.advice;
    // Metrics are the clock that goes on while a training hangs.
    desc->table_mask = table_mask_ | store::MaskOf(format::TableId::kMetrics);
    desc->wrong_result = ready_.wrong_result;
    return desc;
  }

  void Bind(const RuleContext& context) override {
    const ordered_json run = {{"bind", {{"run", context.run}}}};
    Send(run.dump(-1, ' ', true, ordered_json::error_handler_t::replace), nullptr);
  }

  bool Wants(const Series& series) override {
    if ((table_mask_ & store::MaskOf(series.table)) != 0) return true;
    const std::string key = series.name + '\x1f' + series.collection;
    if (clock_.empty()) clock_ = key;
    return clock_ == key;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (first_ns_ == 0) first_ns_ = record.ord_ns;
    now_ns_ = std::max(now_ns_, record.ord_ns);
    const std::int64_t bucket = record.ord_ns / kBatchNs;
    if (bucket != bucket_) {
      bucket_ = bucket;
      Flush(reporter);
    }
    if ((table_mask_ & store::MaskOf(record.table)) == 0) return;
    if (rows_ > 0) batch_ += ',';
    if (!AppendRowJson(record, &batch_)) return;
    ++rows_;
    has_data_ = true;
    if (rows_ >= kBatchRows || batch_.size() >= kBatchBytes) Flush(reporter);
  }

  void OnEnd(Reporter* reporter) override {
    Flush(reporter);
    Collect(reporter);
    Send(R"({"end":{}})", reporter);
    outstanding_ = true;
    Collect(reporter);
    CloseAll(reporter);
    process_.reset();
  }

  bool has_data() const override { return has_data_; }

 private:
  /// Takes what it said of the batch before, then gives it this one. So it computes while the
  /// records of the next come together, and what it says is always taken at the same record.
  void Flush(Reporter* reporter) {
    Collect(reporter);
    if (rows_ == 0) return;
    Send("{\"rows\":[" + batch_ + "]}", reporter);
    outstanding_ = true;
    rows_ = 0;
    batch_.clear();
  }

  void Send(std::string_view line, Reporter* reporter) {
    if (!process_) return;
    const std::int64_t deadline_ns = Clock::System().MonotonicNs() + limit_ns_;
    const Status sent = process_->SendLine(line, limit_ns_);
    if (!sent.ok()) SuspendFor(InTime(sent, deadline_ns), reporter);
  }

  void Collect(Reporter* reporter) {
    if (!outstanding_ || !process_) return;
    const std::int64_t began_ns = Clock::System().MonotonicNs();
    const std::int64_t deadline_ns = began_ns + limit_ns_;
    // Nothing of it counts before the rule is done with the batch: one that goes wrong in the
    // middle must set nothing off by what it said before.
    std::vector<PythonReport> said;
    std::size_t bytes = 0;
    while (true) {
      if (said.size() > kMostReportsABatch) {
        SuspendFor(Status(Code::kLimit, "it reports without an end"), reporter);
      }
      const std::int64_t left_ns = deadline_ns - Clock::System().MonotonicNs();
      auto line = process_->ReadLine(std::max<std::int64_t>(left_ns, 1));
      if (!line.ok()) SuspendFor(InTime(line.status(), deadline_ns), reporter);
      auto report = ParsePythonReport(*line);
      if (!report.ok()) SuspendFor(report.status(), reporter);
      if (report->kind == PythonReport::Kind::kDone) break;
      if (report->kind == PythonReport::Kind::kError) {
        SuspendFor(Status(Code::kUnusable, report->error), reporter);
      }
      bytes += line->size();
      if (bytes > kMostIncidentBytes) SuspendFor(TooMuchText(), reporter);
      said.push_back(std::move(*report));
    }
    outstanding_ = false;
    for (PythonReport& report : said) Take(std::move(report), reporter);
    // Of a batch the last state alone: a rule that reports with each record fills no journal.
    for (const std::string& subject : std::exchange(changed_, {})) {
      reporter->Report(open_.at(subject));
    }
    waited_ns_ += Clock::System().MonotonicNs() - began_ns;
    if (waited_ns_ > kWaitFreeNs + (now_ns_ - first_ns_) / 2) {
      SuspendFor(Status(Code::kLimit, fmt::format("it held the other rules up for {:.0f} s",
                                                  static_cast<double>(waited_ns_) / 1e9)),
                 reporter);
    }
  }

  void Take(PythonReport report, Reporter* reporter) {
    switch (report.kind) {
      case PythonReport::Kind::kReport: {
        Incident& incident = report.incident;
        const auto known = open_.find(incident.subject);
        if (known == open_.end() && ++incidents_ > kMostIncidents) {
          SuspendFor(Status(Code::kLimit,
                            fmt::format("it reported more than {} incidents", kMostIncidents)),
                     reporter);
        }
        if (incident.message.empty()) incident.message = name_;
        if (incident.advice.empty()) incident.advice = ready_.advice;
        if (incident.cause.empty()) incident.cause = "cause not found";
        const std::size_t bytes = BytesOf(incident);
        const std::size_t before = known == open_.end() ? 0 : BytesOf(known->second);
        bytes_ += bytes > before ? bytes - before : 0;
        if (bytes_ > kMostIncidentBytes) SuspendFor(TooMuchText(), reporter);
        if (known == open_.end()) {
          reporter->Report(incident);
          std::string subject = incident.subject;
          open_.emplace(std::move(subject), std::move(incident));
        } else {
          changed_.insert(incident.subject);
          known->second = std::move(incident);
        }
        return;
      }
      case PythonReport::Kind::kClose:
      case PythonReport::Kind::kRecover: {
        const auto known = open_.find(report.incident.subject);
        if (known == open_.end()) return;
        Incident& incident = known->second;
        incident.end_ns = std::max(incident.end_ns, report.incident.end_ns);
        incident.last_step = std::max(incident.last_step, report.incident.last_step);
        report.kind == PythonReport::Kind::kClose ? reporter->Close(incident)
                                                  : reporter->Recover(incident);
        changed_.erase(known->first);
        open_.erase(known);
        return;
      }
      case PythonReport::Kind::kError:
      case PythonReport::Kind::kReady:
      case PythonReport::Kind::kDone:
        SuspendFor(Status(Code::kUnusable, "it wrote what is no report: ready, twice"), reporter);
    }
  }

  void CloseAll(Reporter* reporter) {
    if (reporter != nullptr) {
      for (const auto& [subject, incident] : open_) reporter->Close(incident);
    }
    open_.clear();
    changed_.clear();
  }

  static Status TooMuchText() {
    return Status(Code::kLimit, fmt::format("its incidents have more than {} MiB of text",
                                            kMostIncidentBytes >> 20U));
  }

  /// Where it was the time that ran out, how much there was.
  Status InTime(const Status& status, std::int64_t deadline_ns) const {
    if (status.code() != Code::kLimit || Clock::System().MonotonicNs() < deadline_ns) return status;
    return Status(Code::kLimit, fmt::format("it took longer than {:.3g} s for a batch of records",
                                            static_cast<double>(limit_ns_) / 1e9));
  }

  /// Ends the process; what it has reported is closed, since nobody looks any more. Throws.
  [[noreturn]] void SuspendFor(const Status& why, Reporter* reporter) {
    process_.reset();
    CloseAll(reporter);
    throw Suspended(Printable(why.message()));
  }

  const std::string name_;
  const std::string formula_;
  PythonReport ready_;
  const std::uint32_t table_mask_;  ///< What the rule reads.
  const std::int64_t limit_ns_;
  std::unique_ptr<RuleProcess> process_;

  std::string clock_;
  std::string batch_;
  std::size_t rows_ = 0;
  std::int64_t bucket_ = 0;
  bool outstanding_ = false;  ///< A batch was sent, and it is not known what the rule says of it.
  std::int64_t first_ns_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t waited_ns_ = 0;
  std::size_t incidents_ = 0;
  bool has_data_ = false;
  std::size_t bytes_ = 0;                 ///< Of the texts of all incidents so far.
  std::map<std::string, Incident> open_;  ///< By subject.
  std::set<std::string> changed_;         ///< Subjects that this batch said something new of.
};

/// As python -m telltale.rule_host, but that no module is looked for in the folder in which the
/// user happens to be.
constexpr const char* kBegin =
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p not in ('', '.')]\n"
    "from telltale.rule_host import main\n"
    "sys.exit(main())\n";

std::vector<std::string> HostCommand(const RuleSpec& spec, const HostParameters& parameters,
                                     const PythonRuleOptions& options) {
  std::string python = parameters.python.empty() ? options.python : parameters.python;
  if (python.empty()) python = EnvironmentOr("TELLTALE_PYTHON", "python3");
  const ordered_json of_rule(parameters.of_rule);
  return {python,
          "-c",
          kBegin,
          "--rule",
          spec.rule,
          "--parameters",
          of_rule.dump(-1, ' ', true, ordered_json::error_handler_t::replace),
          "--memory-mib",
          fmt::format("{:.0f}", parameters.limits.memory_mib),
          "--cpu-seconds",
          fmt::format("{:.0f}", std::max(1.0, parameters.limits.cpu_seconds))};
}

}  // namespace

Result<ForeignRule> MakePythonRule(const RuleSpec& spec, const PythonRuleOptions& options) {
  TELLTALE_ASSIGN_OR_RETURN(const HostParameters parameters, ReadParameters(spec));
  const fs::path package = options.package_dir.empty() ? InstalledPackage() : options.package_dir;
  TELLTALE_ASSIGN_OR_RETURN(auto process,
                            RuleProcess::Start(HostCommand(spec, parameters, options),
                                               ChildEnvironment(package), parameters.log));
  const auto line = process->ReadLine(kStartLimitNs);
  if (!line.ok()) {
    return Status(Code::kUsage,
                  fmt::format("the rule cannot be made: {} (host_log = \"FILE\" keeps what it "
                              "prints)",
                              line.status().message()));
  }
  TELLTALE_ASSIGN_OR_RETURN(PythonReport ready, ParsePythonReport(*line));
  if (ready.kind == PythonReport::Kind::kError) return Status(Code::kUsage, Printable(ready.error));
  if (ready.kind != PythonReport::Kind::kReady) {
    return Status(Code::kUsage, "the rule reports before it was asked");
  }
  std::string unknown;
  const std::uint32_t mask = MaskOfTables(ready.tables, &unknown);
  if (!unknown.empty() || mask == 0) {
    return Status(Code::kUsage,
                  fmt::format("tables: no table '{}': write metrics, spans, steps, scalars, "
                              "statistics, tensors, events or histograms",
                              Printable(unknown)));
  }
  auto rule = std::make_unique<PythonRule>(spec, parameters.limits, std::move(process),
                                           std::move(ready), mask);
  ForeignRule out;
  out.desc = rule->Describe();
  out.rule = std::move(rule);
  return out;
}

}  // namespace telltale::rules
