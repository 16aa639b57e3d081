// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "base/toml_tree.h"
#include "cli/rule_flags.h"
#include "cli/rule_needs.h"
#include "plan/collections.h"
#include "plan/compiler.h"
#include "store/folder.h"

namespace telltale::cli {
namespace {

constexpr std::uint64_t kMaxFileBytes = 8ULL << 20;  ///< Of a plan file.
constexpr std::array<std::string_view, 4> kModes = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};

std::string WhenWords(const plan::When& when) {
  if (when.Never()) return "never";
  std::string out;
  if (when.interval == 1) {
    out = "every step";
  } else if (when.interval > 1) {
    out = fmt::format("every {} steps", when.interval);
  }
  if (when.interval > 0 && when.start > 0) out += fmt::format(" from {}", when.start);
  if (when.interval > 0 && when.end != plan::kNoEnd) out += fmt::format(" before {}", when.end);
  if (!when.steps.empty()) {
    const std::size_t shown = std::min<std::size_t>(when.steps.size(), 6);
    std::string list;
    for (std::size_t i = 0; i < shown; ++i) {
      list += (i == 0 ? "" : ", ") + std::to_string(when.steps[i]);
    }
    if (when.steps.size() > shown) list += fmt::format(" and {} more", when.steps.size() - shown);
    out += (out.empty() ? "steps " : " and steps ") + list;
  }
  return out;
}

std::string WhenWords(const plan::Collection& collection) {
  const auto& when = collection.when;
  if (std::all_of(when.begin(), when.end(), [&](const plan::When& w) { return w == when[0]; })) {
    return WhenWords(when[0]) + (when[0].Never() ? "" : " of each mode");
  }
  std::string out;
  for (std::size_t mode = 0; mode < when.size(); ++mode) {
    if (when[mode].Never()) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : "; ", kModes[mode], WhenWords(when[mode]));
  }
  return out.empty() ? "never" : out;
}

std::string OfWords(const plan::Collection& collection) {
  std::string out;
  const auto add = [&](std::string_view what, const std::vector<std::string>& items) {
    for (const std::string& item : items) {
      out += fmt::format("{}{} '{}'", out.empty() ? "" : ", ", what, Printable(item));
    }
  };
  add("include", collection.include);
  add("tensor", collection.tensors);
  add("module", collection.modules);
  add("exclude", collection.exclude);
  if (!out.empty()) return out;
  return plan::FindBuiltIn(collection.name) != nullptr ? "built in" : "as the program names it";
}

/// Names of the collections that a plan file itself has. REQUIRES: it is one.
std::set<std::string> NamesOf(const std::string& text, const std::string& file) {
  std::set<std::string> names;
  const auto tree = TomlTree::Parse(text, file, "docs/formats/plan.md");
  if (!tree.ok() || !tree->root().contains("collections")) return names;
  for (const auto& [name, ignored] : tree->root().at("collections").items()) names.insert(name);
  return names;
}

/// So many characters are to be changed, added or left out to make the one of the other.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string Padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

void AddPlanFlags(CLI::App* command, PlanFlags* flags) {
  AddOption(command, "--plan", flags->file, "Capture plan, a TOML file (docs/formats/plan.md)");
  AddOption(
      command, "--level", flags->level,
      "Named plan: system (nothing of tensors), steps (the default), tensors, operators, all");
  AddOption(command, "--collect", flags->collect,
            "NAME[:key=value,...]: takes a collection, for example "
            "'gradients:histogram,interval=10'; may be repeated")
      .OneEach();
  AddOption(command, "--window", flags->windows,
            "[NAME:]key=value;...: records operators and kernels of some steps, for example "
            "'steps=100:105;detail=ops,shapes'; may be repeated")
      .OneEach();
}

Result<plan::CapturePlan> PlanOf(const PlanFlags& flags, const plan::CapturePlan& base,
                                 const std::vector<rules::Need>& needs,
                                 const plan::CapturePlan& holds) {
  if (!flags.file.empty() && !flags.level.empty()) {
    return Status(Code::kUsage,
                  fmt::format("--plan and --level both say the whole plan: leave one out, or write "
                              "level = \"{}\" into {}",
                              flags.level, flags.file));
  }
  plan::CapturePlan plan = base;
  std::set<std::string> said;
  if (!flags.file.empty()) {
    const auto text = store::ReadWholeFile(flags.file, kMaxFileBytes);
    if (!text.ok()) {
      const Code code = text.status().code() == Code::kLimit ? Code::kLimit : Code::kUnusable;
      return Status(code, fmt::format("--plan '{}': {}: name a file of docs/formats/plan.md",
                                      flags.file, text.status().message()));
    }
    TELLTALE_ASSIGN_OR_RETURN(plan, plan::FromToml(*text, flags.file));
    said = NamesOf(*text, flags.file);
    // Before the other options, whose patterns are not of the file.
    if (const auto of_file = plan::Compiled::Create(plan); !of_file.ok()) {
      return Status(of_file.status().code(),
                    fmt::format("{}: {}", flags.file, of_file.status().message()));
    }
  }
  if (!flags.level.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(plan, plan::PlanOfLevel(flags.level));
  }
  plan::CapturePlan more;
  for (const std::string& text : flags.collect) {
    TELLTALE_ASSIGN_OR_RETURN(plan::Collection collection, plan::ParseCollect(text));
    said.insert(collection.name);
    more.collections.push_back(std::move(collection));
  }
  for (const std::string& text : flags.windows) {
    TELLTALE_ASSIGN_OR_RETURN(plan::Window window, plan::ParseWindow(text));
    const auto named = [&](const plan::Window& other) { return other.name == window.name; };
    if (std::any_of(more.windows.begin(), more.windows.end(), named)) {
      return Status(
          Code::kUsage,
          fmt::format("--window: two are called '{}': write another name before one, like "
                      "late:steps=100:105",
                      window.name));
    }
    more.windows.push_back(std::move(window));
  }
  plan = plan::Union(std::move(plan), more);
  TELLTALE_RETURN_IF_ERROR(AddNeeds(needs, holds, said, &plan));
  for (plan::Collection& collection : plan.collections) {
    if (said.contains(collection.name)) collection.asked = true;
  }
  const auto compiled = plan::Compiled::Create(plan);
  if (!compiled.ok()) return compiled.status();
  return plan;
}

Result<plan::CapturePlan> PlanOfRun(const PlanFlags& flags, const rules::RuleSet& set) {
  // A whole plan is the user's word: of the rules only those that the user names add to it.
  const std::vector<rules::Need> asked = NeedsOfAsked(set, false);
  if (flags.whole()) {
    TELLTALE_ASSIGN_OR_RETURN(plan::CapturePlan plan, PlanOf(flags, Nothing(), asked));
    MarkAsked(asked, &plan);
    return plan;
  }
  const std::vector<rules::Need> needs = NeedsOfAsked(set, true);
  plan::CapturePlan base = plan::DefaultPlan();
  TELLTALE_RETURN_IF_ERROR(AddNeeds(needs, Nothing(), {}, &base));
  TELLTALE_ASSIGN_OR_RETURN(plan::CapturePlan plan, PlanOf(flags, base, needs));
  MarkAsked(asked, &plan);
  return plan;
}

plan::CapturePlan Nothing() {
  plan::CapturePlan plan;
  plan.level = "custom";
  return plan;
}

std::vector<std::string> LikelySlips(const plan::CapturePlan& plan) {
  constexpr std::size_t kGlobal = 3;    // In Collection::when.
  constexpr std::size_t kShortest = 4;  // Shorter names are all alike.
  constexpr std::size_t kNear = 2;
  std::vector<std::string> out;
  for (const plan::Collection& collection : plan.collections) {
    const std::string& name = collection.name;
    const auto& when = collection.when;
    if (!when[kGlobal].Never() && std::all_of(when.begin(), when.begin() + kGlobal,
                                              [](const plan::When& w) { return w.Never(); })) {
      out.push_back(
          fmt::format("The collection '{}' is taken in GLOBAL steps alone, which no framework has: "
                      "it gets what the program saves in that mode; else write train, eval or "
                      "predict.",
                      Printable(name)));
    }
    const bool by_name_alone =
        collection.include.empty() && collection.tensors.empty() && collection.modules.empty();
    if (!by_name_alone || name.size() < kShortest || name.size() > 64) continue;
    if (plan::FindBuiltIn(name) != nullptr) continue;
    for (const plan::BuiltIn& known : plan::BuiltIns()) {
      if (known.name.size() < kShortest || Distance(name, known.name) > kNear) continue;
      out.push_back(
          fmt::format("The collection '{}' holds only what the program saves under this "
                      "name: for what adapters record write '{}'.",
                      Printable(name), known.name));
      break;
    }
  }
  return out;
}

std::string ExplainPlan(const plan::CapturePlan& plan, const std::vector<rules::Need>& needs) {
  struct Row {
    std::string name, takes, when, of, rules;
  };
  std::vector<Row> rows = {{"collection", "takes", "when", "of", "for the rules"}};
  for (const plan::Collection& collection : plan.collections) {
    rows.push_back({Printable(collection.name), plan::TakeWords(collection.take),
                    WhenWords(collection), OfWords(collection), NeededBy(needs, collection.name)});
    if (rows.back().rules.empty()) rows.back().rules = "-";
  }
  std::size_t widths[4] = {};
  for (const Row& row : rows) {
    widths[0] = std::max(widths[0], row.name.size());
    widths[1] = std::max(widths[1], row.takes.size());
    widths[2] = std::max(widths[2], row.when.size());
    widths[3] = std::max(widths[3], row.of.size());
  }
  std::string out = fmt::format("# Capture plan, level {}. What no line names costs nothing.\n#\n",
                                Printable(plan.level));
  for (const Row& row : rows) {
    out += fmt::format("# {}  {}  {}  {}  {}\n", Padded(row.name, widths[0]),
                       Padded(row.takes, widths[1]), Padded(row.when, widths[2]),
                       Padded(row.of, widths[3]), row.rules);
  }
  if (plan.collections.empty()) out += "# (nothing of tensors)\n";
  for (const plan::Window& window : plan.windows) {
    std::string detail;
    for (const std::string& word : window.detail) detail += (detail.empty() ? "" : ", ") + word;
    out += fmt::format("# window {}: {}: {}; at most {} s each\n", window.name, detail,
                       Printable(plan::WindowTimeWords(window)), window.seconds);
  }
  for (const std::string& line : LikelySlips(plan)) out += fmt::format("# {}\n", line);
  if (const auto compiled = plan::Compiled::Create(plan); compiled.ok()) {
    for (const std::string& line : Unserved(*compiled, needs)) out += fmt::format("# {}\n", line);
  }
  // Escapes of JSON are TOML's too, and what may hold any character is a quoted text in it.
  return out + "\n" + PrintableJson(plan::ToToml(plan));
}

}  // namespace telltale::cli
