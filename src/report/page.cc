// SPDX-License-Identifier: Apache-2.0
// The report as a page: the verdict and what proves it, then SageMaker Debugger's order of sections
// under the headings of the live page; it ends with what it cannot say. Every text of the run is
// escaped; no script, no request.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/given_name.h"
#include "base/json.h"
#include "format/ledger_names.h"
#include "report/boosting_sections.h"
#include "report/causes.h"
#include "report/html.h"
#include "report/profiler_sections.h"
#include "report/stack_graph.h"
#include "report/style.h"
#include "report/svg.h"
#include "report/text.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::report {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFindings = 50;
constexpr std::size_t kOpenFindings = 7;  ///< The rest folds.
constexpr std::size_t kMaxValues = 60;
constexpr std::string_view kNotCounted =
    " title=\"Not known: the watcher of this run wrote no count. telltale rules status RUN has "
    "it.\"";

class Page {
 public:
  Page(const RunData& data, const std::vector<StackGraph>& stacks)
      : data_(data), s_(data.summary), stacks_(stacks) {}

  std::string Render() {
    Head();
    Findings();
    TheRun();
    Machine();
    WhereAStepGoes();
    Operations();
    Rules();
    Progress();
    Stacks();
    OwnCosts();
    CaptureChanges();
    Unknown();
    Foot();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void Add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  void Head() {
    const rules::Replay& r = data_.replay;
    Add("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
        "<meta name=\"color-scheme\" content=\"light dark\">"
        "<title>Report: {}</title><style>",
        Escape(data_.title()));
    out_ += kStyle;
    out_ += "</style></head>\n<body><main>";
    out_ +=
        "<div class=\"top\"><span class=\"logo\"><svg width=\"20\" height=\"20\" viewBox=\"0 0 20 "
        "20\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.6\" stroke-linecap=\"round\" "
        "aria-hidden=\"true\"><path d=\"M4 2v16\"/><path d=\"M4 7c3-2.4 4.5 2 7.2.3S15 6 18 6.6\"/>"
        "<path d=\"M4 12.5c3 1.8 4.5-1.6 7.2.2s4 .5 6.8-.6\" stroke=\"var(--p-data)\"/></svg>"
        "Telltale report</span>";
    Add("<span class=\"q\">{} · {} · {} steps</span></div>\n", Escape(data_.title()),
        Escape(StateWords(r.state)), Thousands(s_.train_steps()));
    const std::string stopped = StoppedWords(data_);
    Add("<h1 id=\"verdict\">{}</h1>\n<p class=\"lead\">{}{}{}", Escape(Verdict(data_)),
        Escape(stopped), stopped.empty() ? "" : " ", Escape(LostTime(data_)));
    if (!r.ended && s_.last_ns > 0) {
      Add(" Still running: this is what was recorded until {}.", Utc(s_.last_ns));
    }
    out_ += "</p>\n";
  }

  std::vector<Marker> Markers() const {
    std::vector<Marker> markers;
    for (const auto& [number, attempt] : s_.attempts) {
      if (number > 1 && attempt.first_step >= 0) {
        markers.push_back({attempt.first_step, fmt::format("attempt {}", number)});
      }
    }
    for (const rules::Finding& f : data_.replay.findings) {
      if (markers.size() >= 8) break;
      markers.push_back({f.incident.first_step, f.incident.message});
    }
    std::sort(markers.begin(), markers.end(),
              [](const Marker& a, const Marker& b) { return a.x < b.x; });
    return markers;
  }

  static std::string NsLabel(double ns) { return Duration(ns / 1e9); }
  static std::string ValueLabel(double v) { return Significant(v); }

  static std::string_view SeverityShape(rules::Severity severity) {
    switch (severity) {
      case rules::Severity::kHigh:
        return "<path d=\"M6 0 12 6 6 12 0 6Z\" fill=\"currentColor\"/>";
      case rules::Severity::kMedium:
        return "<path d=\"M6 1 12 11.5H0Z\" fill=\"currentColor\"/>";
      default:
        return "<circle cx=\"6\" cy=\"6\" r=\"4.5\" fill=\"none\" stroke=\"currentColor\" "
               "stroke-width=\"1.3\"/>";
    }
  }
  static std::string_view SeverityClass(rules::Severity severity) {
    if (severity == rules::Severity::kHigh) return "bad";
    return severity == rules::Severity::kMedium ? "warn" : "q";
  }

  void Findings() {
    out_ += "<h2 id=\"findings\">Findings</h2>\n";
    const auto& findings = data_.replay.findings;
    if (findings.empty()) {
      Add("<p class=\"m\">{}</p>\n",
          s_.train_rank() < 0 ? "None: there was nothing to judge." : "None.");
    }
    const std::vector<Explanation> groups = Explain(data_);
    std::size_t shown = 0;
    std::size_t of_findings = 0;
    for (const Explanation& group : groups) {
      if (shown == kMaxFindings) break;
      if (shown++ == kOpenFindings) {
        Add("<details><summary>{} more</summary>\n", groups.size() - kOpenFindings);
      }
      of_findings += group.findings.size();
      Group(group);
    }
    if (shown > kOpenFindings) out_ += "</details>\n";
    if (of_findings < findings.size()) {
      Add("<p class=\"s q\">{} more are in <code>telltale check --json</code>.</p>\n",
          findings.size() - of_findings);
    }
    Add("<p class=\"xs q order\">{} {}</p>\n", RulesWords(data_),
        findings.empty() ? "" : kOrderWords);
  }

  /// Findings of one cause: the one that explains the others, with these beneath.
  void Group(const Explanation& group) {
    const rules::Finding& f = data_.replay.findings[group.findings.front()];
    const rules::Incident& i = f.incident;
    const std::string subject = SubjectOf(data_, f);
    Add("<div class=\"f\"><div><span class=\"sev {}\"><svg width=\"12\" height=\"12\" "
        "viewBox=\"0 0 "
        "12 12\" aria-hidden=\"true\">{}</svg>{}</span><div class=\"xs q\">{}</div></div>",
        SeverityClass(group.severity), SeverityShape(group.severity), rules::Name(group.severity),
        SinceWords(f));
    Add("<div><h3>{}{}</h3><p class=\"s m\">{}</p><p class=\"s next\">{}</p>", Escape(i.message),
        subject.empty() ? "" : ": " + Escape(subject), Escape(group.cause), Escape(i.advice));
    if (!group.difference.empty() && group.difference != group.cause) {
      Add("<p class=\"s m\">{}</p>", Escape(group.difference));
    }
    if (const std::string gain = GainWords(data_, group); !gain.empty()) {
      Add("<p class=\"s q\">{}</p>", Escape(gain));
    }
    if (const std::string did = ActionWords(data_, group.findings); !did.empty()) {
      Add("<p class=\"s m\">{}</p>", Escape(did));
    }
    Beneath(group);
    Compared(group);
    Add("<details><summary>Evidence</summary><span class=\"ev\">{}{}confidence {} · rule "
        "{}</span></details></div>",
        Evidence(i.evidence), i.evidence.empty() ? "" : " · ", Percent(i.confidence),
        Escape(f.rule));
    Add("<div class=\"r\"><b>{}</b><div class=\"xs q\">{}</div></div></div>\n",
        Duration(group.lost_seconds),
        group.lost_seconds > 0
            ? fmt::format("lost{}", TogetherWord(data_, group.findings, group.lost_seconds))
            : std::string());
  }

  /// The other findings of a group, one a line.
  void Beneath(const Explanation& group) {
    if (group.findings.size() < 2) return;
    const std::size_t more = group.findings.size() - 1;
    Add("<details><summary>{} more {} about this</summary><ul class=\"s\">", more,
        more == 1 ? "finding" : "findings");
    for (std::size_t n = 1; n < group.findings.size() && n <= kMaxFindings; ++n) {
      const rules::Finding& f = data_.replay.findings[group.findings[n]];
      const std::string subject = SubjectOf(data_, f);
      const std::string since = SinceWords(f);
      Add("<li>{}{}{} <span class=\"q\">{} · rule {}</span></li>", Escape(f.incident.message),
          subject.empty() ? "" : ": " + Escape(subject), since.empty() ? "" : ", " + since,
          rules::Name(f.incident.severity), Escape(f.rule));
    }
    out_ += "</ul></details>";
  }

  /// What was different, side by side.
  void Compared(const Explanation& group) {
    const analysis::Contrast& c = group.contrast;
    if (group.basis == Basis::kNone || (c.times.empty() && c.metrics.empty())) return;
    Add("<details><summary>What was different</summary><p class=\"s q\">{} steps against {} normal "
        "ones ({}). A cause is named where it covers {} of the difference.</p>",
        Thousands(static_cast<std::int64_t>(c.steps_during)),
        Thousands(static_cast<std::int64_t>(c.steps_normal)), Name(group.basis),
        Percent(analysis::CauseTrail::kCoverage));
    out_ +=
        "<table><thead><tr><th scope=\"col\">What</th><th scope=\"col\">Kind</th>"
        "<th scope=\"col\" class=\"r\">While it lasted</th>"
        "<th scope=\"col\" class=\"r\">Normally</th>"
        "<th scope=\"col\" class=\"r\">Explains</th></tr></thead><tbody>";
    for (const analysis::Factor& f : c.times) {
      Add("<tr><td>{}</td><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td>"
          "<td class=\"r\">{}</td></tr>",
          Escape(f.name), analysis::Name(f.kind), Duration(f.during / 1e9),
          Duration(f.normal / 1e9), Percent(std::min(1.0, f.share)));
    }
    for (const analysis::Factor& f : c.metrics) {
      Add("<tr><td>{}</td><td>moves with it</td><td class=\"r\">{} {}</td>"
          "<td class=\"r\">{} {}</td><td class=\"r\">r² {:.2f}</td></tr>",
          Escape(f.name), Significant(f.during), Escape(f.unit), Significant(f.normal),
          Escape(f.unit), f.share);
    }
    out_ += "</tbody></table></details>";
  }

  static std::string Evidence(const std::string& text) {
    const auto parsed = ParseOrderedJson(text);
    if (!parsed.is_object()) return Escape(text);
    std::string out;
    for (const auto& [key, value] : parsed.items()) {
      std::string words = key;
      std::replace(words.begin(), words.end(), '_', ' ');
      const std::string shown = value.is_number_integer() ? Thousands(value.get<std::int64_t>())
                                : value.is_number_float() ? Significant(value.get<double>(), 4)
                                : value.is_null()         ? "—"
                                : value.is_string()       ? value.get<std::string>()
                                                          : JsonText(value);
      out += fmt::format("{}{} {}", out.empty() ? "" : " · ", Escape(words), Escape(shown));
    }
    return out;
  }

  void Item(std::string_view name, const std::string& value) {
    if (value.empty()) return;
    Add("<dt>{}</dt><dd>{}</dd>", name, Escape(value));
  }

  static std::string Field(const json& data, const char* key) {
    if (!data.is_object()) return {};
    const auto found = data.find(key);
    if (found == data.end() || found->is_null()) return {};
    return found->is_string() ? found->get<std::string>() : found->dump();
  }
  json Fact(const std::string& kind) const {
    const auto found = s_.facts.find(kind);
    return found == s_.facts.end() ? json() : ParseJson(found->second);
  }

  void TheRun() {
    const store::RunInfo& info = data_.replay.info;
    using analysis::RunPhase;
    const analysis::RunShares shares = s_.run_shares();
    const double init = shares.seconds_of(RunPhase::kInitialization);
    const double loop = shares.seconds_of(RunPhase::kLoop);
    const double final = shares.seconds_of(RunPhase::kFinalization);
    const double other = shares.seconds_of(RunPhase::kNoStep);
    const double between = shares.seconds_of(RunPhase::kBetween);
    const double all = shares.total;
    const auto share = [&](double seconds) {
      return all > 0 && seconds > 0
                 ? fmt::format("{} ({})", Duration(seconds), Percent(seconds / all))
                 : std::string("not reached");
    };
    out_ += "<section id=\"about\"><h2>1 · The run</h2><dl class=\"d\">";
    const std::int64_t start = info.attempts.empty() ? s_.first_ns : info.attempts.front().start_ns;
    if (start > 0) Item("Start", Utc(start));
    Item("Elapsed", ElapsedWords(data_));
    Item("State", StateWords(data_.replay.state));
    if (info.attempts.size() > 1) Item("Attempts", std::to_string(info.attempts.size()));
    Item("Initialization", share(init));
    Item("Training loop", share(loop));
    Item("Finalization", share(final));
    if (between > 0) Item("Between attempts", share(between));
    std::string command;
    for (const std::string& word : info.command) command += (command.empty() ? "" : " ") + word;
    Item("Command", command);
    Item("Machine",
         fmt::format("{}{}", info.host,
                     s_.cores.empty() ? "" : fmt::format(", {} cores", s_.cores.size())));
    const json framework = Fact("framework");
    const std::string version = Field(framework, "version");
    if (!version.empty()) {
      Item("Framework", fmt::format("{} {}, {} threads", Field(framework, "name"), version,
                                    Field(framework, "threads")));
    }
    const json model = Fact("model");
    if (const auto n = model.is_object() ? model.find("parameters") : model.end();
        model.is_object() && n != model.end() && n->is_number_integer()) {
      Item("Model", fmt::format("{}, {} parameters", Field(model, "class"),
                                Thousands(n->get<std::int64_t>())));
    }
    const json optimizer = Fact("optimizer");
    if (optimizer.is_object()) {
      Item("Optimizer",
           fmt::format("{}, learning rate {}", Field(optimizer, "class"),
                       s_.lr ? fmt::format("{:.3g}", *s_.lr) : Field(optimizer, "lr")));
    }
    for (const std::string& text : s_.loaders) {
      const json loader = ParseJson(text);
      if (!loader.is_object()) continue;
      const std::string batch = Field(loader, "batch_size");
      Item("Data loader",
           fmt::format("{}: {} workers{}", Field(loader, "dataset"), Field(loader, "workers"),
                       batch.empty() ? "" : ", batches of " + batch));
    }
    const analysis::StepGroup* group = s_.Train(s_.train_rank());
    if (group != nullptr && group->steady_ns.count() > 0) {
      const double seconds = group->steady_ns.sum() / 1e9;
      std::string text = fmt::format(
          "{} steps/s", Significant(static_cast<double>(group->steady_ns.count()) / seconds));
      if (group->steady_samples > 0) {
        text += fmt::format(", {} samples/s",
                            Significant(static_cast<double>(group->steady_samples) / seconds));
      }
      Item("Throughput", text);
    }
    out_ += "</dl>\n";
    if (all > 0) {
      std::vector<Segment> segments = {{"initialization", "", init, "var(--ink-3)"},
                                       {"training loop", "", loop, "var(--p-fwd)"},
                                       {"finalization", "", final, "var(--p-opt)"},
                                       {"no step seen", "", other, "var(--p-other)"},
                                       {"between attempts", "", between, "var(--p-data)"}};
      Add("<div class=\"gap\"><h3>Where the run goes <small>{}</small></h3>{}<div class=\"key n\">",
          Duration(all),
          DrawSegments(segments,
                       fmt::format("Initialization {}, training loop {}, finalization {}.",
                                   share(init), share(loop), share(final))));
      for (const Segment& s : segments) {
        if (s.seconds <= 0) continue;
        Add("<span><i style=\"background:{}\"></i>{} {}</span>", s.token, s.name,
            Percent(s.seconds / all));
      }
      out_ += "</div></div>\n";
    }
    out_ += "</section>\n";
  }

  struct MetricLine {
    std::string_view name, label;
    double scale;
    bool zero_hidden;  ///< Left out where it was always zero.
  };

  void Machine() {
    out_ += "<section id=\"machine\"><h2>2 · The machine</h2>\n";
    if (s_.metrics.empty()) {
      out_ += "<p class=\"m\">No sample of the machine was recorded.</p></section>\n";
      return;
    }
    constexpr double kGiB = 1.0 / (1 << 30);
    constexpr std::array kLines = {
        MetricLine{"cpu.idle", "CPU busy, %", 1, false},
        MetricLine{"cpu.iowait", "I/O wait, %", 1, false},
        MetricLine{"cpu.steal", "Stolen, %", 1, true},
        MetricLine{"proc.cpu", "Training's CPU, % of a core", 1, false},
        MetricLine{"proc.rss", "Training's memory, GiB", kGiB, false},
        MetricLine{"proc.threads", "Training's threads", 1, false},
        MetricLine{"mem.used", "Memory used, GiB", kGiB, false},
        MetricLine{"swap.used", "Swap used, GiB", kGiB, true},
        MetricLine{"disk.read_bytes_rate", "Disk read, MB/s", 1e-6, true},
        MetricLine{"disk.write_bytes_rate", "Disk write, MB/s", 1e-6, true},
        MetricLine{"disk.busy", "Disk busy, %", 1, true},
        MetricLine{"net.recv_bytes_rate", "Network in, MB/s", 1e-6, true},
        MetricLine{"net.send_bytes_rate", "Network out, MB/s", 1e-6, true},
        MetricLine{"gpu.utilization", "GPU busy, %", 1, false},
        MetricLine{"gpu.memory_used", "GPU memory, GiB", kGiB, false},
        MetricLine{"psi.cpu.some10", "Waiting for CPU, %", 1, false},
        MetricLine{"psi.io.some10", "Waiting for I/O, %", 1, true},
        MetricLine{"psi.memory.some10", "Waiting for memory, %", 1, true},
    };
    out_ += "<table><thead><tr><th scope=\"col\">Metric</th><th scope=\"col\">Where</th>";
    for (std::string_view head : {"max", "p99", "p95", "p50", "min"}) {
      Add("<th scope=\"col\" class=\"r\">{}</th>", head);
    }
    out_ += "</tr></thead><tbody>\n";
    for (const MetricLine& line : kLines) {
      std::vector<std::pair<const analysis::MetricKey*, const analysis::MetricTotal*>> rows;
      for (const auto* metrics : {&s_.metrics, &s_.process_metrics}) {
        for (const auto& [key, total] : *metrics) {
          if (key.name != line.name || total.values.count() == 0) continue;
          if (line.zero_hidden && total.values.max() <= 0) continue;
          rows.emplace_back(&key, &total);
        }
      }
      // The busiest few; a machine may have dozens of disks.
      std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
        return a.second->values.max() > b.second->values.max();
      });
      if (rows.size() > 6) rows.resize(6);
      bool first = true;
      for (const auto& [key, total] : rows) {
        std::string where = key->subject;
        if (where == "node" || where == "psi") where = key->node;
        if (where == "proc:tree") where = "all its processes";
        if (std::string label = ProcessLabel(s_, key->node, where); !label.empty()) {
          where = std::move(label);
        }
        if (const auto colon = where.find(':'); colon != std::string::npos) {
          where = where.substr(colon + 1);
        }
        if (s_.nodes.size() > 1 && where != key->node) where += " on " + key->node;
        Add("<tr><td>{}</td><td class=\"q\">{}</td>", first ? line.label : "", Escape(where));
        for (double q : {1.0, 0.99, 0.95, 0.5, 0.0}) {
          const analysis::Quantiles& v = total->values;
          const double value = q == 1.0 ? v.max() : (q == 0.0 ? v.min() : v.At(q));
          const double shown = value * line.scale;
          Add("<td class=\"r\">{}</td>",
              shown == 0 ? "0" : (std::abs(shown) < 0.01 ? "&lt; 0.01" : Significant(shown)));
        }
        out_ += "</tr>\n";
        first = false;
      }
    }
    out_ += "</tbody></table>\n";
    out_ += UsageVerdict(data_);
    Heat();
    for (const std::string& words : ResourceWords(data_)) {
      Add("<p class=\"s m\">{}</p>\n", Escape(words));
    }
    if (const std::string words = UsageWords(data_); !words.empty()) {
      Add("<p class=\"s m\">{}</p>\n", Escape(words));
    }
    out_ += "</section>\n";
  }

  void Heat() {
    if (s_.cores.empty()) return;
    std::vector<HeatRow> rows;
    std::vector<analysis::Columns> folded;
    // More rows than can be told apart fold to the maximum, never the mean.
    const std::size_t group = (s_.cores.size() + 47) / 48;
    std::size_t index = 0;
    folded.reserve(s_.cores.size() / group + 1);
    for (const auto& [key, columns] : s_.cores) {
      const std::string name = s_.nodes.size() > 1 ? fmt::format("{}:{}", key.first, key.second)
                                                   : fmt::format("core {}", key.second);
      if (group == 1) {
        rows.push_back({name, &columns});
        continue;
      }
      if (index % group == 0) {
        folded.emplace_back(160, columns.width());
        rows.push_back({name, &folded.back()});
      }
      for (std::size_t i = 0; i < columns.columns().size(); ++i) {
        if (columns.columns()[i].count == 0) continue;
        folded.back().Add(columns.begin() + static_cast<std::int64_t>(i) * columns.width(),
                          columns.columns()[i].max);
      }
      ++index;
    }
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    for (const auto& [key, columns] : s_.cores) {
      begin = std::min(begin, columns.begin());
      end = std::max(end, columns.last() + columns.width());
    }
    Add("<div class=\"gap\"><h3>Cores <small>over time; busy, %; a cell shows its maximum; empty = "
        "nothing recorded</small></h3>{}<div class=\"key n\">",
        DrawHeat(rows, begin, end,
                 fmt::format("How busy {} cores were over {}.", s_.cores.size(),
                             Duration(static_cast<double>(end - begin) / 1e9))));
    constexpr std::array kStops = {"below 10", "10 to 35", "35 to 65", "65 to 90", "90 and more"};
    for (std::size_t i = 0; i < kStops.size(); ++i) {
      Add("<span><i style=\"background:var(--c{});outline:1px solid var(--line)\"></i>{}</span>", i,
          kStops[i]);
    }
    out_ += "</div></div>\n";
  }

  void WhereAStepGoes() {
    out_ += "<section id=\"step-phases\"><h2>3 · Where a step goes</h2>\n";
    const std::int64_t steps = s_.train_steps();
    const auto whole = s_.phases.Mean(std::numeric_limits<std::int64_t>::min(),
                                      std::numeric_limits<std::int64_t>::max());
    if (!whole) {
      out_ += "<p class=\"m\">No step was recorded after the first.</p></section>\n";
      return;
    }
    std::vector<PhaseBar> bars;
    const std::int64_t since = SlowSince(data_);
    const auto before = s_.phases.Mean(std::numeric_limits<std::int64_t>::min(), since);
    const auto after = s_.phases.Mean(since, std::numeric_limits<std::int64_t>::max());
    if (since > 0 && before && after) {
      bars.push_back({fmt::format("steps 0 to {}", Thousands(since)), *before});
      bars.push_back({fmt::format("since step {}", Thousands(since)), *after});
    } else {
      bars.push_back({fmt::format("{} steps, mean", Thousands(steps)), *whole});
    }
    for (const auto& [key, group] : s_.steps) {
      if (key.first == "TRAIN" || group.steps == 0 || bars.size() > 5) continue;
      PhaseBar bar;
      bar.name = fmt::format("{}{} {}, mean", Thousands(static_cast<std::int64_t>(group.steps)),
                             kSpace, key.first);
      for (std::size_t i = 0; i < bar.ns.size(); ++i) {
        bar.ns[i] = static_cast<double>(group.phase_ns[i]) / static_cast<double>(group.steps);
      }
      bars.push_back(bar);
    }
    double sum = 0;
    for (double ns : *whole) sum += ns;
    std::string sentence = "A step takes " + Duration(sum / 1e9) + ":";
    for (std::size_t i = 0; i < whole->size(); ++i) {
      sentence += fmt::format("{} {} {}", i == 0 ? "" : ",", analysis::kPhases[i],
                              Percent(sum > 0 ? (*whole)[i] / sum : 0));
    }
    Add("{}<div class=\"key\">", DrawPhaseBars(bars, sentence + "."));
    for (std::size_t i = 0; i < kPhaseTokens.size(); ++i) {
      Add("<span><i style=\"background:{}\"></i>{} {}</span>", kPhaseTokens[i],
          analysis::kPhases[i], Percent(sum > 0 ? (*whole)[i] / sum : 0));
    }
    out_ += "</div>\n";
    PhaseTable();
    out_ += ModeWords(data_);
    out_ += "</section>\n";
  }

  void PhaseTable() {
    const analysis::StepGroup* group = s_.Train(s_.train_rank());
    if (group == nullptr || group->steady_ns.count() == 0) return;
    out_ += "<div class=\"two gap\"><div><table><thead><tr><th scope=\"col\">Phase, ms</th>";
    for (std::string_view head : {"max", "p99", "p95", "p50", "min"}) {
      Add("<th scope=\"col\" class=\"r\">{}</th>", head);
    }
    out_ += "</tr></thead><tbody>";
    const auto row = [&](std::string_view name, const analysis::Quantiles& v) {
      Add("<tr><td>{}</td>", name);
      for (double value : {v.max(), v.At(0.99), v.At(0.95), v.At(0.5), v.min()}) {
        Add("<td class=\"r\">{}</td>", std::abs(value) < 500 ? "0" : Significant(value / 1e6));
      }
      out_ += "</tr>";
    };
    for (std::size_t i = 0; i < analysis::kPhases.size(); ++i) {
      row(analysis::kPhases[i], group->steady_phase_ns[i]);
    }
    row("step", group->steady_ns);
    out_ += "</tbody></table></div><div>";
    std::vector<std::array<double, 6>> last;
    for (const format::StepRow& step : s_.last_steps) {
      std::array<double, 6> ns{};
      const analysis::PhaseTimes times = analysis::PhasesOf(step);
      for (std::size_t i = 0; i < ns.size(); ++i) ns[i] = static_cast<double>(times[i]);
      last.push_back(ns);
    }
    Add("<h3>Last {} steps <small>by phase{}; the newest at the right</small></h3>{}</div></div>\n",
        last.size(), OfRank(),
        DrawLastSteps(last, s_.last_steps.front().step, s_.last_steps.back().step,
                      fmt::format("The phases of the last {} steps.", last.size())));
  }

  void Operations() {
    out_ += "<section id=\"operations\"><h2>4 · Longest operations</h2>\n";
    if (s_.spans.empty()) {
      out_ += "<p class=\"m\">No span was recorded.</p></section>\n";
      return;
    }
    const std::vector<Operation> all = LongestOperations(s_);
    const auto longest = static_cast<double>(all.front().total->total_ns);
    out_ +=
        "<table><thead><tr><th scope=\"col\">Span</th><th scope=\"col\">Kind</th><th "
        "scope=\"col\"></th>";
    for (std::string_view head : {"count", "p50", "p99", "max", "total"}) {
      Add("<th scope=\"col\" class=\"r\">{}</th>", head);
    }
    out_ += "</tr></thead><tbody>\n";
    for (const auto& [kind, name, total] : all) {
      Add("<tr><td>{}</td><td class=\"q\">{}</td><td><span class=\"bar\"><i "
          "style=\"width:{:.1f}%\"></i></span></td><td class=\"r\">{}</td>",
          Escape(*name), Escape(*kind),
          longest > 0 ? 100 * static_cast<double>(total->total_ns) / longest : 0,
          Thousands(static_cast<std::int64_t>(total->count)));
      for (double ns : {total->duration_ns.At(0.5), total->duration_ns.At(0.99),
                        total->duration_ns.max(), static_cast<double>(total->total_ns)}) {
        Add("<td class=\"r\">{}</td>", Duration(ns / 1e9));
      }
      out_ += "</tr>\n";
    }
    out_ +=
        "</tbody></table>\n<p class=\"s q\">Spans of one process may run beside those of another, "
        "so totals can exceed the run. The longest:";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, s_.longest_spans.size()); ++i) {
      const analysis::LongSpan& span = s_.longest_spans[i];
      Add("{} {} {}{}", i == 0 ? "" : ",", Escape(span.name),
          Duration(static_cast<double>(span.duration_ns) / 1e9),
          span.step >= 0 ? fmt::format(" in step {}", Thousands(span.step)) : "");
    }
    out_ += ".</p>\n";
    out_ += OperationWords(data_);
    out_ += "</section>\n";
  }

  /// Of a rule of the registry, as it ran: "threshold 1e-06, patience 3".
  std::string ParametersOf(const rules::RuleState& state) const {
    const rules::RuleEntry* entry = rules::FindRule(state.rule.empty() ? state.name : state.rule);
    if (entry == nullptr) return {};
    rules::RuleSpec spec;
    spec.name = state.name;
    spec.rule = entry->desc->name;
    for (const rules::RuleSpec& own : data_.replay.rule_set.rules) {
      if (own.name == state.name && own.source == rules::RuleSource::kBuiltIn) spec = own;
    }
    const auto values = rules::ParametersOf(spec);
    if (!values.ok()) return {};
    std::string out = spec.name == spec.rule ? std::string() : spec.rule + ": ";
    bool first = true;
    for (const rules::ParameterDesc& p : entry->desc->parameters) {
      const std::string value = p.text != nullptr ? fmt::format("\"{}\"", values->Text(p.name))
                                                  : fmt::format("{}", values->Get(p.name));
      out += fmt::format("{}{} {}{}", first ? "" : ", ", p.name, value, p.unit == "%" ? " %" : "");
      first = false;
    }
    return out;
  }

  void Rules() {
    const auto& states = data_.replay.rules;
    Add("<section id=\"rules\"><h2>5 · Rules</h2><table><thead><tr><th scope=\"col\">Rule</th><th "
        "scope=\"col\">State</th><th "
        "scope=\"col\" class=\"r\">incidents</th><th scope=\"col\" class=\"r\">data points</th><th "
        "scope=\"col\" style=\"padding-left:14px\">Parameters</th></tr></thead><tbody>\n");
    for (const rules::RuleState& state : states) {
      std::string parameters = ParametersOf(state);
      if (!state.error.empty()) {
        parameters = state.error + (parameters.empty() ? "" : "; ") + parameters;
      }
      if (!state.partial.empty()) {
        parameters = state.partial + (parameters.empty() ? "" : "; ") + parameters;
      }
      if (!state.missing.empty()) {
        parameters = state.missing + (parameters.empty() ? "" : "; ") + parameters;
      }
      Add("<tr><td class=\"n\">{}</td><td class=\"m n\">{}</td><td class=\"r\">{}</td><td "
          "class=\"r\"{}>{}</td><td "
          "class=\"q\" style=\"padding-left:14px\">{}</td></tr>\n",
          Escape(state.name), rules::Name(state.status), state.incidents,
          state.records ? "" : kNotCounted,
          state.records ? Thousands(static_cast<std::int64_t>(*state.records)) : "—",
          Escape(parameters));
    }
    out_ += "</tbody></table>\n";
    out_ += RuleAdvice(data_);
    out_ += "</section>\n";
  }

  void StepTime() {
    const analysis::StepGroup* group = s_.Train(s_.train_rank());
    if (group == nullptr || s_.step_ns.empty()) return;
    LineChart chart;
    chart.series = &s_.step_ns;
    chart.label = NsLabel;
    chart.x_name = "step";
    chart.markers = Markers();
    chart.sentence = fmt::format(
        "Step time over {} steps: median {}, 99 percent below {}, longest {}.",
        Thousands(static_cast<std::int64_t>(group->steps)),
        Duration(group->steady_ns.At(0.5) / 1e9), Duration(group->steady_ns.At(0.99) / 1e9),
        Duration(group->steady_ns.max() / 1e9));
    Add("<h3>Step time <small>by step; line = median, band = min to max{}; ▲ = cut, with its "
        "value</small></h3>{}\n",
        OfRank(), Draw(chart));
  }

  /// " of rank 0" where there are several.
  std::string OfRank() const {
    return s_.ranks.size() > 1 ? fmt::format(" of rank {}", s_.shown_rank()) : std::string();
  }

  void Progress() {
    out_ += "<section id=\"progress\"><h2>6 · Progress</h2>\n";
    StepTime();
    out_ += "<div class=\"two gap\">\n";
    const analysis::StepGroup* group = s_.Train(s_.train_rank());
    if (group != nullptr && group->steady_ns.count() >= 2) {
      Add("<div><h3>Step times <small>how often; without the first step</small></h3>{}</div>\n",
          DrawHistogram(
              group->steady_ns, NsLabel, 380,
              fmt::format("Distribution of {} step durations: median {}.", group->steady_ns.count(),
                          Duration(group->steady_ns.At(0.5) / 1e9))));
    } else {
      out_ += "<p class=\"m\">Step times: no step after the first.</p>\n";
    }
    const analysis::RankScalars& scalars = s_.scalars();
    if (!scalars.loss.empty()) {
      LineChart chart;
      chart.series = &scalars.loss;
      chart.label = ValueLabel;
      chart.x_name = "step";
      chart.zero_based = false;
      chart.cut = true;
      chart.width = 380;
      chart.dots = scalars.eval_loss.empty() ? nullptr : &scalars.eval_loss;
      chart.dots_label = "eval";
      chart.sentence = fmt::format("Loss from {} at the first step to {} at the last.",
                                   Significant(scalars.first_loss.value_or(0)),
                                   std::isfinite(scalars.last_loss.value_or(0))
                                       ? Significant(scalars.last_loss.value_or(0))
                                       : rules::Figure(*scalars.last_loss));
      Add("<div><h3>Loss <small>TRAIN{}, by step{}{}</small></h3>{}", OfRank(),
          scalars.eval_loss.empty() ? "" : "; dots: EVAL",
          scalars.loss_not_finite > 0
              ? fmt::format("; {} not finite, the first in step {}",
                            Thousands(static_cast<std::int64_t>(scalars.loss_not_finite)),
                            Thousands(scalars.loss_not_finite_step))
              : "",
          Draw(chart));
      out_ += "</div>\n";
    } else {
      Add("<p class=\"m\">Loss: {}.</p>\n",
          scalars.loss_not_finite > 0 ? "never finite" : "not recorded");
    }
    out_ += "</div>\n";
    Values();
    out_ += BoostingSections(data_);
    out_ += ProfilerSections(data_);
    out_ += "</section>\n";
  }

  /// Four significant digits, whatever the magnitude: a training logs what it likes.
  static std::string Logged(double value) {
    const double magnitude = std::abs(value);
    if (magnitude == 0 || (magnitude >= 1e-3 && magnitude < 1e9)) return Significant(value, 4);
    return fmt::format("{}{:.4g}", value < 0 ? "−" : "", magnitude);
  }

  /// What was logged: the training's own values, and those that the adapter logs.
  void Values() {
    const auto& values = s_.scalars().values;
    if (values.empty()) return;
    Add("<div class=\"gap\" id=\"values\"><h3>Values <small>as logged{}; each with its "
        "step</small></h3>",
        OfRank());
    out_ += "<table><thead><tr><th scope=\"col\">Value</th><th scope=\"col\">Mode</th>";
    for (std::string_view head : {"last", "step", "min", "step", "max", "step", "count"}) {
      Add("<th scope=\"col\" class=\"r\">{}</th>", head);
    }
    out_ += "</tr></thead><tbody>\n";
    std::size_t shown = 0;
    for (const auto& [key, total] : values) {
      if (++shown > kMaxValues) break;
      Add("<tr><td>{}</td><td class=\"q\">{}</td>", Escape(key.first), Escape(key.second));
      const bool any = total.count > 0;
      for (const analysis::ScalarTotal::At& at : {total.last, total.min, total.max}) {
        Add("<td class=\"r\">{}</td><td class=\"r q\">{}</td>", any ? Logged(at.value) : "—",
            any && at.step >= 0 ? Thousands(at.step) : "—");
      }
      Add("<td class=\"r\">{}{}</td></tr>\n", Thousands(static_cast<std::int64_t>(total.count)),
          total.not_finite > 0 ? fmt::format(", {} not finite",
                                             Thousands(static_cast<std::int64_t>(total.not_finite)))
                               : "");
    }
    out_ += "</tbody></table>";
    if (values.size() > kMaxValues) {
      Add("<p class=\"s q\">{} more are in <code>telltale query RUN scalars</code>.</p>",
          values.size() - kMaxValues);
    }
    out_ += "</div>\n";
  }

  void Stacks() {
    if (stacks_.empty()) return;
    out_ += "<section id=\"stacks\"><h2>Stacks</h2>\n";
    for (std::size_t i = 0; i < stacks_.size(); ++i) {
      out_ += Draw(stacks_[i], fmt::format("s{}-", i));
    }
    Add("<p class=\"s q gap\">To search in all frames, or take one step, phase or rank: "
        "<code>telltale "
        "export flamegraph {} -o stacks.html</code></p></section>\n",
        Escape(AsGiven(data_.path.string())));
  }

  void OwnCosts() {
    Add("<section id=\"own-cost\"><h2>What Telltale costs, and what it lost</h2><p class=\"m\">{}",
        Escape(OwnCost(data_)));
    const auto lost = [](const auto& entry) { return entry.second.loss && entry.second.value > 0; };
    if (std::none_of(s_.ledger.begin(), s_.ledger.end(), lost)) {
      out_ += " Nothing was lost.</p></section>\n";
      return;
    }
    out_ +=
        "</p><table class=\"gap\"><thead><tr><th scope=\"col\">Lost</th><th scope=\"col\" "
        "class=\"r\">count</th>"
        "<th scope=\"col\" style=\"padding-left:14px\">unit</th></tr></thead><tbody>";
    for (const auto& entry : s_.ledger) {
      if (!lost(entry)) continue;
      const auto& [name, total] = entry;
      Add("<tr><td class=\"mono\">{}</td><td class=\"r warn\">{}</td><td class=\"q\" "
          "style=\"padding-left:14px\">{}</td></tr>",
          Escape(name), Thousands(static_cast<std::int64_t>(total.value)), Escape(total.unit));
      if (name == format::kSkipped) Reasons();
    }
    out_ += "</tbody></table></section>\n";
  }

  /// Of what was skipped: rows beneath the one of all.
  void Reasons() {
    for (const SkippedReason& reason : SkippedReasons(s_)) {
      Add("<tr><td class=\"mono q\" style=\"padding-left:14px\">{}</td><td class=\"r q\">{}</td>"
          "<td></td></tr>",
          Escape(reason.name), Thousands(static_cast<std::int64_t>(reason.count)));
    }
  }

  void CaptureChanges() {
    if (s_.thinned.empty() && s_.plans.size() < 2) return;
    out_ += "<section id=\"capture\"><h2>Capture: what was thinned</h2><p class=\"m\">";
    if (const std::string words = CaptureWords(data_); words.empty()) {
      out_ += "Nothing was thinned. ";
    } else {
      Add("{} ", Escape(words));
    }
    out_ += "What was asked for and not taken has no records; nothing stands in for it.</p>";
    out_ += "<ul class=\"s m\">";
    const auto list = [&](const std::deque<analysis::CaptureChange>& changes) {
      for (const analysis::CaptureChange& change : changes) {
        Add("<li>{}: {}</li>", Escape(Utc(change.time_ns)), Escape(change.message));
      }
    };
    list(s_.plans);
    list(s_.thinned);
    out_ += "</ul></section>\n";
  }

  void Unknown() {
    out_ += "<section><h2>What this report cannot say</h2><p class=\"m\">";
    const std::vector<std::string> unknowns = Unknowns(data_);
    for (const std::string& sentence : unknowns) Add("{} ", Escape(sentence));
    if (unknowns.empty()) out_ += "Nothing was dropped, no gap is known, no rule lacked data. ";
    if (!data_.replay.findings.empty()) {
      out_ += "Expected step times are estimates from this run, not measurements. ";
    }
    if (!MoneyOf(data_, 0)) out_ += "No price is known, so costs are in seconds.";
    out_ += "</p>";
    const auto& notes = data_.replay.salvage.notes;
    if (!notes.empty()) {
      out_ += "<ul class=\"s m\">";
      for (std::size_t i = 0; i < std::min<std::size_t>(notes.size(), 20); ++i) {
        Add("<li>{}</li>", Escape(notes[i]));
      }
      if (notes.size() > 20) Add("<li>and {} more</li>", notes.size() - 20);
      out_ += "</ul>";
    }
    out_ += "</section>\n";
  }

  void Foot() {
    const store::RunInfo& info = data_.replay.info;
    Add("<p class=\"xs q gap\">telltale {} · run format {}.{} · this file opens without a network "
        "and "
        "sends nothing · made again with: <code>telltale report "
        "{}</code></p>\n</main></body></html>\n",
        Escape(info.telltale_version), info.format_major, info.format_minor,
        Escape(AsGiven(data_.path.string())));
  }

  const RunData& data_;
  const analysis::Summary& s_;
  const std::vector<StackGraph>& stacks_;
  std::string out_;
};

}  // namespace

std::string RenderReport(const RunData& data, const std::vector<StackGraph>& stacks) {
  return Page(data, stacks).Render();
}

}  // namespace telltale::report
