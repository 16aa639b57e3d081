// SPDX-License-Identifier: Apache-2.0
#include "telemetry/alert_rules.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/registry.h"

namespace telltale::telemetry {
namespace {

struct Alert {
  std::string name, expression, hold, severity, summary, description;
};

/// A text of JSON is one of YAML. What Prometheus would take for a template is none.
std::string Quoted(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c == '{' && plain.ends_with('{')) plain += ' ';
    plain += c;
  }
  return JsonText(nlohmann::json(plain));
}

/// With templates in it, that Prometheus fills in.
std::string Template(const std::string& text) { return JsonText(nlohmann::json(text)); }

void Append(std::string* out, const Alert& alert, const std::string& summary) {
  *out += fmt::format(
      "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n"
      "          severity: {}\n        annotations:\n          summary: {}\n"
      "          description: {}\n",
      alert.name, Template(alert.expression), alert.hold, Template(alert.severity), summary,
      Quoted(alert.description));
}

std::vector<Alert> General() {
  return {
      {"TelltaleCustomRule", "telltale_finding{kind=\"custom\"} == 1", "0s",
       "{{ $labels.severity }}", "{{ $labels.run }}: {{ $labels.rule }}: {{ $labels.subject }}",
       "A rule of your own has found something: the page of the run shows it with its evidence."},
      {"TelltaleRunFailed", "telltale_run_state{state=~\"failed|killed|lost\"} == 1", "0s", "high",
       "{{ $labels.run }} is {{ $labels.state }}",
       "The training has ended by an error or a signal, or nobody saw its end: `telltale report` "
       "shows its last steps."},
      {"TelltaleNoSteps",
       "min by (run) (telltale_last_step_age_seconds) > 900 and on (run) "
       "telltale_run_state{state=\"running\"} == 1",
       "1m", "high", "{{ $labels.run }}: no step for {{ $value | humanizeDuration }}",
       "The run goes on and no rank has ended a step for 15 minutes: look at the rules "
       "HungTraining and Straggler, and at what the processes do."},
      {"TelltaleLossNotFinite", "telltale_loss != telltale_loss or abs(telltale_loss) == Inf", "0s",
       "high", "{{ $labels.run }}: the loss is not finite",
       "The newest loss is NaN or infinite: what follows is lost time. Stop the run, go back to "
       "the "
       "last good checkpoint."},
      {"TelltaleRuleDoesNotWork", "telltale_rule_state{status=~\"Error|Suspended\"} == 1", "5m",
       "low", "{{ $labels.run }}: {{ $labels.rule }} is {{ $labels.status }}",
       "This rule looks no more: `telltale rules status RUN` says why."},
      {"TelltaleRecordsLost", "increase(telltale_ledger_loss_total[10m]) > 0", "5m", "low",
       "{{ $labels.run }}: {{ $labels.name }}: the recording has holes",
       "Records were dropped or could not be written: `telltale check RUN` says which and why. The "
       "training is not harmed."},
  };
}

}  // namespace

std::string AlertRules() {
  std::string out =
      "# Printed by `telltale export prometheus-rules`. Alerts of the metrics that telltale "
      "exports: "
      "docs/guide/metrics-out.md.\n"
      "# Labels of each alert: run, severity (info, low, medium, high), and of findings rule and "
      "subject.\n"
      "groups:\n  - name: telltale-runs\n    rules:\n";
  for (const Alert& alert : General()) Append(&out, alert, Template(alert.summary));
  out += "  - name: telltale-rules\n    rules:\n";
  for (const rules::RuleEntry& entry : rules::Registry()) {
    const rules::RuleDesc& desc = *entry.desc;
    const Alert alert{
        fmt::format("Telltale{}", desc.name),
        fmt::format("telltale_finding{{kind=\"{}\",severity!=\"info\"}} == 1", desc.name),
        "0s",
        "{{ $labels.severity }}",
        {},
        fmt::format("{} {}", desc.summary, desc.how_to_fix)};
    Append(
        &out, alert,
        Template(fmt::format("{{{{ $labels.run }}}}: {}: {{{{ $labels.subject }}}}", desc.name)));
  }
  return out;
}

}  // namespace telltale::telemetry
