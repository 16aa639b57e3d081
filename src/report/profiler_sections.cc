// SPDX-License-Identifier: Apache-2.0
#include "report/profiler_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "report/append.h"
#include "report/svg.h"
#include "report/text.h"
#include "rules/registry.h"

namespace telltale::report {
namespace {

using nlohmann::ordered_json;

/// Percentiles above and below this are what the sentences on usage speak of.
constexpr double kMuch = 70;
/// A GPU whose percentiles lie this far apart is busy in bursts.
constexpr double kBursts = 50;
constexpr double kMuchBetween = 0.25;
constexpr double kOneSided = 0.7;
constexpr std::size_t kMaxRows = 64;

/// The summary of a rule, run by itself or as a part of ProfilerReport; not an object: there is
/// none.
ordered_json SummaryOf(const RunData& data, std::string_view rule) {
  for (const rules::RuleState& state : data.replay.rules) {
    const std::string& is = state.rule.empty() ? state.name : state.rule;
    if (is == rule && !state.summary.empty()) {
      return ParseOrderedJson(state.summary);
    }
  }
  if (rule == "ProfilerReport") return {};
  const ordered_json all = SummaryOf(data, "ProfilerReport");
  const auto part = all.is_object() ? all.find(std::string(rule)) : all.end();
  if (!all.is_object() || part == all.end() || !part->is_object()) return {};
  const auto summary = part->find("summary");
  return summary == part->end() ? ordered_json() : *summary;
}

const ordered_json& At(const ordered_json& of, const std::string& key) {
  static const ordered_json kNothing;
  if (!of.is_object()) return kNothing;
  const auto found = of.find(key);
  return found == of.end() ? kNothing : *found;
}

double NumberOf(const ordered_json& of, const std::string& key) {
  const ordered_json& value = At(of, key);
  return value.is_number() ? value.get<double>() : 0;
}

std::string WordsOf(const ordered_json& of, const std::string& key) {
  const ordered_json& value = At(of, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string OfHundred(double percent) { return Percent(percent / 100); }

std::string Paragraph(const std::string& sentence) {
  return sentence.empty() ? std::string()
                          : fmt::format("<p class=\"s m\">{}</p>\n", Escape(sentence));
}

void Head(std::string* out, std::string_view id, std::string_view title, std::string_view small) {
  Add(out, "<div class=\"gap\" id=\"{}\"><h3>{} <small>{}</small></h3>\n", id, title, small);
}

BoxRow RowOf(std::string name, const ordered_json& box) {
  return {std::move(name),      NumberOf(box, "whisker_low"), NumberOf(box, "p25"),
          NumberOf(box, "p50"), NumberOf(box, "p75"),         NumberOf(box, "whisker_high"),
          NumberOf(box, "p05"), NumberOf(box, "p95")};
}

std::string Boxes(const ordered_json& boxes, std::string_view what) {
  std::vector<BoxRow> rows;
  if (!boxes.is_object()) return {};
  for (const auto& [name, box] : boxes.items()) {
    if (rows.size() < kMaxRows) rows.push_back(RowOf(name, box));
  }
  return DrawBoxes(rows,
                   fmt::format("Box plots of {}, percent: whiskers, quartiles and median of {} "
                               "devices.",
                               what, rows.size()));
}

/// Parts of a whole as a bar with a key.
std::string Shares(const std::vector<Segment>& segments, const std::string& sentence) {
  double all = 0;
  for (const Segment& s : segments) all += s.seconds;
  std::string out = DrawSegments(segments, sentence);
  if (out.empty()) return {};
  out += "<div class=\"key n\">";
  for (const Segment& s : segments) {
    if (s.seconds <= 0) continue;
    Add(&out, "<span><i style=\"background:{}\"></i>{} {}</span>", s.token, Escape(s.name),
        Percent(s.seconds / all));
  }
  return out + "</div>\n";
}

// The sections.

std::string Initialization(const RunData& data) {
  using analysis::RunPhase;
  const analysis::RunShares shares = data.summary.run_shares();
  const double before = shares.seconds_of(RunPhase::kInitialization);
  const double loop = shares.seconds_of(RunPhase::kLoop);
  std::string out;
  if (loop > 0 && before > loop) {
    out += Paragraph(
        fmt::format("Initialization took {}, longer than the training loop ({}): look there first.",
                    Duration(before), Duration(loop)));
  }
  const ordered_json summary = SummaryOf(data, "MaxInitializationTime");
  const double seconds = NumberOf(summary, "seconds");
  const double most = 60 * NumberOf(summary, "threshold_minutes");
  if (seconds > 0 && seconds > most) {
    out +=
        Paragraph(fmt::format("The first step of attempt {:.0f} began {} after its start; "
                              "MaxInitializationTime allows {}.",
                              NumberOf(summary, "attempt"), Duration(seconds), Duration(most)));
  }
  return out;
}

std::string GpuUtilization(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "LowGPUUtilization");
  const ordered_json& gpus = At(summary, "gpus");
  if (!gpus.is_object()) return {};
  std::string out;
  Head(&out, "gpu-utilization", "GPU utilization", "percent of the time, while steps were made");
  out += Boxes(gpus, "GPU utilization");
  std::size_t said = 0;
  for (const auto& [name, box] : gpus.items()) {
    const double p95 = NumberOf(box, "p95");
    const double p05 = NumberOf(box, "p05");
    if (NumberOf(box, "max") <= 0) {
      out += Paragraph(fmt::format("{} was never used.", name));
    } else if (p95 < kMuch) {
      out += Paragraph(fmt::format("{} is little used: at most {} in 95 % of the samples.", name,
                                   OfHundred(p95)));
    } else if (p95 - p05 > kBursts) {
      out += Paragraph(fmt::format("{} is busy in bursts: from {} (p5) to {} (p95).", name,
                                   OfHundred(p05), OfHundred(p95)));
    } else {
      continue;
    }
    if (++said == kMaxRows) break;
  }
  return out + "</div>\n";
}

std::string Balance(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "LoadBalancing");
  const ordered_json& gpus = At(summary, "gpus");
  if (!gpus.is_object()) return {};
  std::string out;
  Head(&out, "balance", "Workload balance", "how often each GPU was how busy; its newest samples");
  if (gpus.size() < 2) {
    return out + Paragraph("One GPU: there is nothing to balance.") + "</div>\n";
  }
  out += "<div class=\"two\">\n";
  std::size_t shown = 0;
  for (const auto& [name, gpu] : gpus.items()) {
    if (++shown > 8) break;
    std::vector<double> bins;
    if (const ordered_json& counts = At(gpu, "histogram"); counts.is_array()) {
      for (const ordered_json& count : counts) {
        bins.push_back(count.is_number() ? count.get<double>() : 0);
      }
    }
    Add(&out, "<div><p class=\"s\">{}, mean {}</p>{}</div>\n", Escape(name),
        OfHundred(NumberOf(gpu, "mean")),
        DrawBins(bins, "0", "100 %", 380,
                 fmt::format("Distribution of the utilization of {}.", name)));
  }
  out += "</div>\n";
  if (const ordered_json& pairs = At(summary, "pairs"); pairs.is_array() && !pairs.empty()) {
    out +=
        "<table><thead><tr><th scope=\"col\">GPU</th><th scope=\"col\">GPU</th><th "
        "scope=\"col\" class=\"r\">distance, 0 to 0.833</th></tr></thead><tbody>\n";
    for (const ordered_json& pair : pairs) {
      Add(&out, "<tr><td>{}</td><td>{}</td><td class=\"r\">{}</td></tr>\n",
          Escape(WordsOf(pair, "a")), Escape(WordsOf(pair, "b")),
          Significant(NumberOf(pair, "distance")));
    }
    out += "</tbody></table>\n";
  }
  return out + "</div>\n";
}

std::string DataLoading(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "Dataloader");
  const ordered_json& nodes = At(summary, "nodes");
  if (!nodes.is_object()) return {};
  const bool gpu = At(SummaryOf(data, "LowGPUUtilization"), "gpus").is_object();
  std::string out;
  Head(&out, "data-loading", "Data loading", "time that one batch takes to make");
  for (const auto& [name, node] : nodes.items()) {
    const ordered_json& load = At(node, "load_ms");
    if (load.is_object()) {
      out += Paragraph(
          fmt::format("{}: a batch takes {} (p25), {} (median), {} (p95); {} were made.", name,
                      Duration(NumberOf(load, "p25") / 1e3), Duration(NumberOf(load, "p50") / 1e3),
                      Duration(NumberOf(load, "p95") / 1e3),
                      Thousands(SaturatingCast(NumberOf(load, "count")))));
      std::vector<double> bins;
      const ordered_json& histogram = At(load, "histogram");
      if (const ordered_json& counts = At(histogram, "bins"); counts.is_array()) {
        for (const ordered_json& count : counts) {
          bins.push_back(count.is_number() ? count.get<double>() : 0);
        }
      }
      out += DrawBins(bins, "0", Duration(NumberOf(histogram, "to_ms") / 1e3), 380,
                      fmt::format("Distribution of load times on {}.", name));
    }
    // Whether they are too few or too many the rule says, by its own band.
    out += Paragraph(fmt::format("{}: {:g} workers (median) beside {:g} cores.", name,
                                 NumberOf(node, "workers"), NumberOf(node, "cores")));
    const ordered_json& loaders = At(node, "loaders");
    if (!loaders.is_array()) continue;
    const auto any = [&](auto&& is) { return std::any_of(loaders.begin(), loaders.end(), is); };
    if (gpu && any([](const ordered_json& l) {
          const ordered_json& pin = At(l, "pin_memory");
          return pin.is_boolean() && !pin.get<bool>();
        })) {
      out += Paragraph("A loader has pin_memory=False: with True, copies to the GPU are faster.");
    }
    if (any([](const ordered_json& l) {
          const ordered_json& persistent = At(l, "persistent_workers");
          return NumberOf(l, "workers") > 0 && persistent.is_boolean() && !persistent.get<bool>();
        })) {
      out += Paragraph("A loader has persistent_workers=False: its workers begin anew each epoch.");
    }
  }
  return out + "</div>\n";
}

std::string BatchSizes(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "BatchSize");
  const ordered_json& nodes = At(summary, "nodes");
  if (!nodes.is_object()) return {};
  std::string out;
  Head(&out, "batch-size", "Batch size", "room in cores, GPUs and GPU memory; percent");
  for (const auto& [name, node] : nodes.items()) {
    std::vector<BoxRow> rows;
    if (At(node, "cpu").is_object()) rows.push_back(RowOf("cores of " + name, At(node, "cpu")));
    for (const auto& [key, label] :
         {std::pair("gpus", "utilization"), std::pair("gpu_memory", "memory")}) {
      const ordered_json& boxes = At(node, key);
      if (!boxes.is_object()) continue;
      for (const auto& [device, box] : boxes.items()) {
        if (rows.size() < kMaxRows) rows.push_back(RowOf(fmt::format("{} {}", device, label), box));
      }
    }
    out += DrawBoxes(rows, fmt::format("Box plots of what {} used.", name));
  }
  for (const rules::Finding& f : data.replay.findings) {
    if (f.rule != "BatchSize") continue;
    out += Paragraph(fmt::format("{}: {} Last seen {}.", f.incident.subject, f.incident.advice,
                                 Utc(f.incident.end_ns)));
  }
  return out + "</div>\n";
}

/// Samples of a node in which something was a bottleneck.
std::string Bottlenecks(const RunData& data, std::string_view rule, std::string_view id,
                        std::string_view title, std::string_view held_up) {
  const ordered_json summary = SummaryOf(data, rule);
  const ordered_json& nodes = At(summary, "nodes");
  if (!nodes.is_object()) return {};
  std::string out;
  Head(&out, id, title, "samples between training steps");
  for (const auto& [name, node] : nodes.items()) {
    const double samples = NumberOf(node, "samples");
    const double found = NumberOf(node, "bottlenecks");
    const double gpu_samples = NumberOf(node, "gpu_samples");
    const double low = NumberOf(node, "gpu_low");
    if (samples <= 0) continue;
    out += Paragraph(fmt::format("{}: {} of {} samples ({}) are bottlenecks.", name,
                                 Thousands(SaturatingCast(found)),
                                 Thousands(SaturatingCast(samples)), Percent(found / samples)));
    std::vector<Segment> segments;
    if (gpu_samples > 0) {
      segments = {{"GPU busy", "", gpu_samples - low, "var(--p-fwd)"},
                  {"GPU idles", "", std::max(0.0, low - found), "var(--p-other)"},
                  {std::string(held_up), "", std::min(found, low), "var(--p-data)"}};
    } else {
      segments = {{"no bottleneck", "", samples - found, "var(--p-fwd)"},
                  {std::string(held_up), "", found, "var(--p-data)"}};
    }
    out += Shares(segments, fmt::format("Samples of {} by what was seen in them.", name));
  }
  return out + "</div>\n";
}

std::string GpuMemory(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "GPUMemoryIncrease");
  const ordered_json& gpus = At(summary, "gpus");
  if (!gpus.is_object()) return {};
  std::string out;
  Head(&out, "gpu-memory", "GPU memory", "percent, while steps were made");
  out += Boxes(gpus, "GPU memory");
  for (const auto& [name, box] : gpus.items()) {
    const double p95 = NumberOf(box, "p95");
    const double p05 = NumberOf(box, "p05");
    if (p95 < 50) {
      out += Paragraph(
          fmt::format("{} has half of its memory to spare (p95 {}).", name, OfHundred(p95)));
    } else if (p95 - p05 > kBursts) {
      out += Paragraph(fmt::format("The memory of {} swings from {} (p5) to {} (p95).", name,
                                   OfHundred(p05), OfHundred(p95)));
    }
  }
  return out + "</div>\n";
}

}  // namespace

std::string UsageVerdict(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "OverallSystemUsage");
  const ordered_json& nodes = At(summary, "nodes");
  if (!nodes.is_object()) return {};
  std::string out;
  for (const auto& [name, lines] : nodes.items()) {
    const ordered_json* cpu = nullptr;
    double gpu_p95 = 0;
    double gpu_p50 = 100;
    bool gpu = false;
    for (const ordered_json& line : lines) {
      const std::string metric = WordsOf(line, "metric");
      if (metric == "CPU") cpu = &line;
      if (metric != "GPU") continue;
      gpu = true;
      gpu_p95 = std::max(gpu_p95, NumberOf(line, "p95"));
      gpu_p50 = std::min(gpu_p50, NumberOf(line, "p50"));
    }
    if (cpu == nullptr) continue;
    const double cpu_p95 = NumberOf(*cpu, "p95");
    const double cpu_p50 = NumberOf(*cpu, "p50");
    std::string sentence;
    if (gpu && gpu_p95 < kMuch && cpu_p95 < kMuch) {
      sentence =
          fmt::format("GPUs and cores are little used (p95 {} and {}): a smaller machine may do.",
                      OfHundred(gpu_p95), OfHundred(cpu_p95));
    } else if (gpu && gpu_p95 < kMuch) {
      sentence = fmt::format(
          "GPUs are little used (p95 {}) while cores are busy (p95 {}): the cores may hold them "
          "up.",
          OfHundred(gpu_p95), OfHundred(cpu_p95));
    } else if (gpu && gpu_p50 > kMuch) {
      sentence = fmt::format("GPUs are well used: each at least {} in half of the samples.",
                             OfHundred(gpu_p50));
    } else if (gpu) {
      sentence = fmt::format("Half of the time the least busy GPU is below {}, the cores below {}.",
                             OfHundred(gpu_p50), OfHundred(cpu_p50));
    } else if (cpu_p95 >= kMuch) {
      sentence = fmt::format("Cores are well used (p95 {}).", OfHundred(cpu_p95));
    } else {
      sentence = fmt::format("Cores are little used (p95 {}): a smaller machine may do.",
                             OfHundred(cpu_p95));
    }
    out += Paragraph(fmt::format("{}: {}", name, sentence));
  }
  return out;
}

std::string ModeWords(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "OverallFrameworkMetrics");
  const ordered_json& modes = At(summary, "modes");
  if (!modes.is_array()) return {};
  std::string shares;
  double train = 0;
  for (const ordered_json& mode : modes) {
    const std::string name = WordsOf(mode, "mode");
    shares +=
        fmt::format("{}{} {}", shares.empty() ? "" : ", ", name, Percent(NumberOf(mode, "share")));
    if (name == "TRAIN") train = NumberOf(mode, "share");
  }
  const double between = NumberOf(summary, "between_steps_share");
  std::string words = fmt::format("From the first step to the last: {}, between steps {}.", shares,
                                  Percent(between));
  if (train > 0 && 1 - train > kMuchBetween) {
    words += fmt::format(" {} of that time is no training step: look at what happens in it.",
                         Percent(1 - train));
  }
  // A sentence of its own, whatever was said before it.
  const ordered_json& phases = At(At(summary, "phases"), "TRAIN");
  const double forward = NumberOf(phases, "forward");
  const double backward = NumberOf(phases, "backward");
  const double both = forward + backward;
  if (both > 0 && std::max(forward, backward) > kOneSided * both) {
    words += fmt::format(" Of forward and backward together, {} takes {}.",
                         forward > backward ? "forward" : "backward",
                         Percent(std::max(forward, backward) / both));
  }
  return Paragraph(words);
}

std::string OperationWords(const RunData& data) {
  const ordered_json summary = SummaryOf(data, "OverallFrameworkMetrics");
  const ordered_json& operations = At(summary, "operations");
  if (!operations.is_object()) return {};
  std::string words;
  for (const auto& [category, of] : operations.items()) {
    const ordered_json& list = At(of, "list");
    if (!list.is_array() || list.size() < 2) continue;
    words +=
        fmt::format("{}The most expensive of {}: {}, {} of {}.", words.empty() ? "" : " ", category,
                    WordsOf(list.front(), "name"), Percent(NumberOf(list.front(), "share")),
                    Duration(NumberOf(of, "seconds")));
  }
  return Paragraph(words);
}

std::string RuleAdvice(const RunData& data) {
  std::vector<const rules::RuleState*> fired;
  for (const rules::RuleState& state : data.replay.rules) {
    if (state.incidents > 0) fired.push_back(&state);
  }
  if (fired.empty()) return {};
  std::stable_sort(fired.begin(), fired.end(),
                   [](const rules::RuleState* a, const rules::RuleState* b) {
                     return a->incidents > b->incidents;
                   });
  std::string out =
      "<table class=\"gap\"><thead><tr><th scope=\"col\">Fired</th><th scope=\"col\" "
      "class=\"r\">incidents</th><th scope=\"col\" style=\"padding-left:14px\">What it looks "
      "for</th><th scope=\"col\">What helps</th></tr></thead><tbody>\n";
  for (const rules::RuleState* state : fired) {
    const rules::RuleEntry* entry =
        rules::FindRule(state->rule.empty() ? state->name : state->rule);
    if (entry == nullptr) continue;
    Add(&out,
        "<tr><td class=\"n\">{}</td><td class=\"r\">{}</td><td class=\"m\" "
        "style=\"padding-left:14px\">{}</td><td class=\"m\">{}</td></tr>\n",
        Escape(state->name), state->incidents, Escape(entry->desc->summary),
        Escape(entry->desc->how_to_fix));
  }
  return out + "</tbody></table>\n";
}

std::string ProfilerSections(const RunData& data) {
  return Initialization(data) + GpuUtilization(data) + Balance(data) + DataLoading(data) +
         BatchSizes(data) +
         Bottlenecks(data, "CPUBottleneck", "cpu-bottlenecks", "CPU bottlenecks",
                     "waits for cores") +
         Bottlenecks(data, "IOBottleneck", "io-bottlenecks", "I/O bottlenecks",
                     "waits for storage") +
         GpuMemory(data);
}

}  // namespace telltale::report
