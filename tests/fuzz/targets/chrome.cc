// SPDX-License-Identifier: Apache-2.0
// Chrome's JSON, cut into blocks so small that events lie over their borders.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/json.h"
#include "fuzz.h"
#include "interchange/chrome/block_parser.h"
#include "interchange/chrome/event_blocks.h"
#include "interchange/chrome/loose_events.h"
#include "interchange/chrome/trace_facts.h"

namespace telltale::fuzz {
namespace {

class MemoryInput final : public interchange::TraceInput {
 public:
  explicit MemoryInput(std::string_view bytes) : rest_(bytes) {}
  Result<std::size_t> Read(char* to, std::size_t size) override {
    const std::size_t n = std::min(size, rest_.size());
    std::memcpy(to, rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }
  const std::string& damage() const override { return damage_; }
  const std::string& trailing() const override { return damage_; }
  bool gzip() const override { return false; }

 private:
  std::string_view rest_;
  const std::string damage_;
};

}  // namespace

TELLTALE_FUZZ_TARGET(chrome) {
  constexpr std::size_t kSmallBlock = 1024;
  MemoryInput input(bytes);
  interchange::EventBlocks blocks(&input, 16U << 20, kSmallBlock);
  interchange::BlockParser parser;
  interchange::TraceFacts facts;
  interchange::LooseEvents loose([](format::SliceRow& row, const interchange::ChromeTrack&) {
    Require(row.duration_ns >= 0);
  });
  std::unique_ptr<interchange::ChromeBlock> before;
  while (true) {
    auto block = blocks.Next();
    if (!block.ok() || *block == nullptr) break;
    auto parsed = parser.Parse(block->get(), "fuzz");
    if (before != nullptr) {
      parsed->flows = interchange::BindFlows(parsed->flows, parsed->tracks, before.get());
    }
    for (const std::int64_t duration_ns : parsed->slices.duration_ns) Require(duration_ns >= 0);
    const std::string_view args = parsed->slices.args;
    std::size_t begin = 0;
    for (const std::int32_t end : parsed->slices.args_end) {
      const auto size = static_cast<std::size_t>(end) - begin;
      Require(size == 0 || !ParseJson(args.substr(begin, size)).is_discarded());
      begin += size;
    }
    for (const auto& event : parsed->loose) loose.Take(event, parsed->tracks[event.track]);
    facts.Take(parsed.get());
    before = std::move(parsed);
  }
  facts.Settle();
  facts.SettleCollectives();
  static_cast<void>(interchange::FitClock(facts, 0, facts, 1'000'000'007));
  loose.Finish(facts.last_ns());
  for (const auto& step : facts.Steps()) Require(step.duration_ns >= 0);
  static_cast<void>(interchange::ReadChromeHeader(blocks.Surroundings()));
}

}  // namespace telltale::fuzz
