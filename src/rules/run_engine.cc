// SPDX-License-Identifier: Apache-2.0
#include "rules/run_engine.h"

#include <fmt/format.h>

#include <utility>

namespace telltale::rules {
namespace {

Engine::ForeignMaker& Foreign() {
  static Engine::ForeignMaker maker;
  return maker;
}

}  // namespace

void SetForeignMaker(Engine::ForeignMaker maker) { Foreign() = std::move(maker); }

const Engine::ForeignMaker& ForeignMaker() { return Foreign(); }

Result<RunEngine> EngineOf(const std::filesystem::path& run, const store::RunInfo& info,
                           const std::optional<RuleSet>& other) {
  RunEngine out;
  auto set = other ? Result<RuleSet>(*other) : RuleSetFromJson(info.rules);
  auto engine = set.ok() ? Engine::Create(*set, Foreign()) : Result<Engine>(set.status());
  if (engine.ok()) {
    out.engine = std::move(engine).value();
    out.set = std::move(set).value();
  } else {
    if (other) return engine.status();
    out.trouble = fmt::format(
        "The rules of the run cannot be read, those that run by default "
        "judge it: {}.",
        engine.status().message());
    out.engine = Engine();
  }
  out.values = std::make_unique<RunValues>(run);
  out.engine.Bind({out.values.get(), run.string()});
  return out;
}

}  // namespace telltale::rules
