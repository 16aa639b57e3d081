// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/alert_rules.h"

namespace telltale::telemetry {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 24;

Json Source() { return {{"type", "prometheus"}, {"uid", "${datasource}"}}; }

struct Panel {
  std::string_view title, type;
  std::string_view unit;  ///< By Grafana's name.
  int width = 8;
  int height = 8;
  std::vector<std::pair<std::string_view, std::string_view>> queries;  ///< PromQL, legend.
  bool stacked = false;
};

Json Target(std::string_view expression, std::string_view legend, char id, bool table) {
  return {{"refId", std::string(1, id)},
          {"datasource", Source()},
          {"expr", expression},
          {"legendFormat", legend},
          {"instant", table},
          {"range", !table},
          {"format", table ? "table" : "time_series"}};
}

Json Render(const Panel& panel, int id, int x, int y) {
  const bool table = panel.type == "table";
  Json targets = Json::array();
  char name = 'A';
  for (const auto& [expression, legend] : panel.queries) {
    targets.push_back(Target(expression, legend, name++, table));
  }
  Json custom = Json::object();
  if (panel.type == "timeseries") {
    custom = {{"fillOpacity", panel.stacked ? 40 : 0},
              {"showPoints", "never"},
              {"spanNulls", false},
              {"stacking", {{"mode", panel.stacked ? "normal" : "none"}}}};
  }
  Json out = {{"id", id},
              {"title", panel.title},
              {"type", panel.type},
              {"datasource", Source()},
              {"gridPos", {{"h", panel.height}, {"w", panel.width}, {"x", x}, {"y", y}}},
              {"fieldConfig",
               {{"defaults", {{"unit", panel.unit}, {"custom", std::move(custom)}}},
                {"overrides", Json::array()}}},
              {"targets", std::move(targets)}};
  if (table) {
    // The labels are what is read.
    const Json hidden = {{"Time", true},     {"Value", true}, {"__name__", true},
                         {"instance", true}, {"job", true},   {"run", true}};
    const Json organize = {{"id", "organize"}, {"options", {{"excludeByName", hidden}}}};
    out["transformations"] = Json::array({organize});
  }
  if (panel.type == "stat") {
    out["options"] = {
        {"textMode", "name"},
        {"colorMode", "none"},
        {"reduceOptions", {{"calcs", Json::array({"lastNotNull"})}, {"values", false}}}};
  }
  return out;
}

std::vector<Panel> Panels() {
  return {
      {"State",
       "stat",
       "none",
       4,
       4,
       {{"telltale_run_state{run=~\"$run\"} == 1", "{{run}}: {{state}}"}}},
      {"Findings that last",
       "table",
       "none",
       20,
       8,
       {{"telltale_finding{run=~\"$run\"} == 1", ""}}},
      {"Steps a second",
       "timeseries",
       "none",
       8,
       8,
       {{"telltale_steps_per_second{run=~\"$run\"}", "{{run}} {{mode}} rank {{rank}}"}}},
      {"Samples a second",
       "timeseries",
       "none",
       8,
       8,
       {{"telltale_samples_per_second{run=~\"$run\"}", "{{run}} {{mode}} rank {{rank}}"}}},
      {"Time of a step by phase",
       "timeseries",
       "s",
       8,
       8,
       {{"avg by (run, phase) (telltale_step_phase_seconds{run=~\"$run\",mode=\"TRAIN\"})",
         "{{run}} {{phase}}"}},
       true},
      {"Loss",
       "timeseries",
       "none",
       12,
       8,
       {{"telltale_loss{run=~\"$run\"}", "{{run}} {{mode}} rank {{rank}}"}}},
      {"Scalars",
       "timeseries",
       "none",
       12,
       8,
       {{"telltale_scalar{run=~\"$run\",name!=\"loss\"}",
         "{{run}} {{name}} {{mode}} rank {{rank}}"}}},
      {"Processors",
       "timeseries",
       "percent",
       8,
       8,
       {{"telltale_system_cpu_busy_percent{run=~\"$run\",subject=\"node\"}", "{{node}}"},
        {"telltale_system_proc_cpu_percent{run=~\"$run\"}", "{{node}} {{subject}}"}}},
      {"Memory",
       "timeseries",
       "bytes",
       8,
       8,
       {{"telltale_system_mem_used_bytes{run=~\"$run\"}", "{{node}} used"},
        {"telltale_system_mem_total_bytes{run=~\"$run\"}", "{{node}} total"},
        {"telltale_system_proc_rss_bytes{run=~\"$run\"}", "{{node}} training"}}},
      {"Accelerators",
       "timeseries",
       "percent",
       8,
       8,
       {{"telltale_system_gpu_utilization_percent{run=~\"$run\"}", "{{node}} {{subject}}"},
        {"telltale_system_gpu_memory_percent{run=~\"$run\"}", "{{node}} {{subject}} memory"}}},
      {"Disks",
       "timeseries",
       "Bps",
       8,
       8,
       {{"telltale_system_disk_read_bytes_per_second{run=~\"$run\"}", "{{node}} {{subject}} read"},
        {"telltale_system_disk_write_bytes_per_second{run=~\"$run\"}",
         "{{node}} {{subject}} write"}}},
      {"Network",
       "timeseries",
       "Bps",
       8,
       8,
       {{"telltale_system_net_recv_bytes_per_second{run=~\"$run\"}", "{{node}} {{subject}} in"},
        {"telltale_system_net_send_bytes_per_second{run=~\"$run\"}", "{{node}} {{subject}} out"}}},
      {"Time lost",
       "timeseries",
       "s",
       8,
       8,
       {{"telltale_finding_cost_seconds{run=~\"$run\"}", "{{rule}} {{subject}}"}}},
      {"Rules",
       "table",
       "none",
       12,
       10,
       {{"telltale_rule_state{run=~\"$run\",status!~\"NoData|NotApplicable\"} == 1", ""}}},
      {"Records lost",
       "timeseries",
       "none",
       12,
       10,
       {{"increase(telltale_ledger_loss_total{run=~\"$run\"}[$__rate_interval])",
         "{{name}} {{unit}}"}}},
  };
}

}  // namespace

std::string GrafanaDashboard() {
  Json panels = Json::array();
  int id = 0;
  int x = 0;
  int y = 0;
  int row_height = 0;
  for (const Panel& panel : Panels()) {
    if (x + panel.width > kColumns) {
      x = 0;
      y += row_height;
      row_height = 0;
    }
    panels.push_back(Render(panel, ++id, x, y));
    x += panel.width;
    row_height = std::max(row_height, panel.height);
  }
  const Json source = {{"name", "datasource"},
                       {"label", "Prometheus"},
                       {"type", "datasource"},
                       {"query", "prometheus"}};
  const Json run = {
      {"name", "run"},
      {"label", "Run"},
      {"type", "query"},
      {"datasource", Source()},
      {"query", {{"query", "label_values(telltale_run_info, run)"}, {"refId", "run"}}},
      {"refresh", 2},
      {"sort", 2},
      {"multi", true},
      {"includeAll", true}};
  const Json dashboard = {{"title", "Telltale"},
                          {"uid", "telltale"},
                          {"tags", Json::array({"telltale"})},
                          {"schemaVersion", 37},
                          {"editable", true},
                          {"refresh", "15s"},
                          {"time", {{"from", "now-3h"}, {"to", "now"}}},
                          {"templating", {{"list", Json::array({source, run})}}},
                          {"panels", std::move(panels)}};
  return dashboard.dump(2) + "\n";
}

}  // namespace telltale::telemetry
