// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "plan/collections.h"
#include "plan/compiler.h"
#include "store/folder.h"

namespace telltale::cli {
namespace {

constexpr std::array<std::string_view, 4> kModes = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};

/// What a rule of the table in docs/rules cannot do without.
struct Need {
  std::string_view rule;
  std::string_view collection;
};
constexpr Need kNeeds[] = {{"VanishingGradient", "gradients"}, {"ExplodingTensor", "gradients"}};

std::string WhenWords(const plan::When& when) {
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
  return out.empty() ? "never" : out;
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

std::string Padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

void AddPlanFlags(CLI::App* command, PlanFlags* flags) {
  command->add_option("--plan", flags->file, "Capture plan, a TOML file (docs/formats/plan.md)");
  command->add_option("--level", flags->level,
                      "Named plan: system (nothing of tensors), steps (the default), tensors, all");
  command
      ->add_option("--collect", flags->collect,
                   "NAME[:key=value,...]: takes a collection, for example "
                   "'gradients:histogram,interval=10'; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
}

Result<plan::CapturePlan> PlanOf(const PlanFlags& flags, const plan::CapturePlan& base) {
  plan::CapturePlan plan = base;
  if (!flags.file.empty()) {
    const auto text = store::ReadWholeFile(flags.file);
    if (!text.ok()) {
      return Status(Code::kUnusable,
                    fmt::format("--plan '{}': {}: name a file of docs/formats/plan.md", flags.file,
                                text.status().message()));
    }
    TELLTALE_ASSIGN_OR_RETURN(plan, plan::FromToml(*text, flags.file));
  }
  if (!flags.level.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(plan::CapturePlan level, plan::PlanOfLevel(flags.level));
    plan = flags.file.empty() ? std::move(level) : plan::Union(std::move(plan), level);
  }
  plan::CapturePlan more;
  more.slab_bytes = plan.slab_bytes;
  for (const std::string& text : flags.collect) {
    TELLTALE_ASSIGN_OR_RETURN(plan::Collection collection, plan::ParseCollect(text));
    more.collections.push_back(std::move(collection));
  }
  plan = plan::Union(std::move(plan), more);
  const auto compiled = plan::Compiled::Create(plan);
  if (!compiled.ok()) return compiled.status();
  return plan;
}

std::string ExplainPlan(const plan::CapturePlan& plan) {
  struct Row {
    std::string name, takes, when, of;
  };
  std::vector<Row> rows = {{"collection", "takes", "when", "of"}};
  for (const plan::Collection& collection : plan.collections) {
    rows.push_back({Printable(collection.name), plan::TakeWords(collection.take),
                    WhenWords(collection), OfWords(collection)});
  }
  std::size_t widths[3] = {};
  for (const Row& row : rows) {
    widths[0] = std::max(widths[0], row.name.size());
    widths[1] = std::max(widths[1], row.takes.size());
    widths[2] = std::max(widths[2], row.when.size());
  }
  std::string out = fmt::format("# Capture plan, level {}. What no line names costs nothing.\n#\n",
                                Printable(plan.level));
  for (const Row& row : rows) {
    out += fmt::format("# {}  {}  {}  {}\n", Padded(row.name, widths[0]),
                       Padded(row.takes, widths[1]), Padded(row.when, widths[2]), row.of);
  }
  if (plan.collections.empty()) out += "# (nothing of tensors)\n";
  if (const auto compiled = plan::Compiled::Create(plan); compiled.ok()) {
    for (const Need& need : kNeeds) {
      const std::uint32_t mask = compiled->MaskOf(need.collection, "");
      bool statistics = false;
      for (std::size_t i = 0; i < compiled->planned().size(); ++i) {
        const bool takes = (mask >> i & 1U) != 0;
        statistics = statistics || (takes && (compiled->planned()[i].take & plan::kStats) != 0);
      }
      if (statistics) continue;
      out += fmt::format("# The rule {} will have no data: no statistics are taken of {}.\n",
                         need.rule, need.collection);
    }
  }
  return out + "\n" + plan::ToToml(plan);
}

}  // namespace telltale::cli
