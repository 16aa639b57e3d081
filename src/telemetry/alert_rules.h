// SPDX-License-Identifier: Apache-2.0
// Files for those who read the metrics: alert rules for Prometheus and Alertmanager, a dashboard
// for Grafana. Made of the tables of rules and families, so that neither can part from them.
#pragma once
#include <string>

namespace telltale::telemetry {

/// A file of alerting rules, YAML: one alert a built-in rule, with what it finds and how to mend
/// it, one for rules of the user's, and those about runs, recordings and rules that do not work.
std::string AlertRules();

/// A dashboard for Grafana 9 and later, JSON; it asks for its data source and the run.
std::string GrafanaDashboard();

}  // namespace telltale::telemetry
