// SPDX-License-Identifier: Apache-2.0
// The `data` of events beside a training of some steps: lines of KIND, a tab, and the JSON text.
#include <cstdint>
#include <string_view>

#include "base/string_pool.h"
#include "base/utf8.h"
#include "fuzz.h"
#include "judged.h"

namespace telltale::fuzz {
namespace {

constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;
constexpr std::int64_t kStepNs = 100'000'000;
constexpr std::int64_t kSteps = 60;

void AddSteps(format::Rows* rows) {
  for (std::int64_t i = 0; i < kSteps; ++i) {
    format::StepRow step;
    step.time_ns = kBegin + i * kStepNs;
    step.duration_ns = kStepNs;
    step.ord_ns = step.time_ns + step.duration_ns;
    step.step = i;
    step.mode = "TRAIN";
    step.pid = 100;
    step.attempt = 1;
    step.data_wait_ns = kStepNs / 2;
    step.forward_ns = step.backward_ns = kStepNs / 8;
    step.other_ns = step.duration_ns - step.data_wait_ns - step.forward_ns - step.backward_ns;
    step.micro_steps = step.optimizer_calls = 1;
    step.batch_size = 32;
    rows->steps.push_back(step);
    format::ScalarRow loss;
    loss.time_ns = loss.ord_ns = step.ord_ns;
    loss.name = "loss";
    loss.value = 1.0;
    loss.step = i;
    loss.mode = "TRAIN";
    loss.pid = 100;
    loss.attempt = 1;
    rows->scalars.push_back(loss);
  }
}

}  // namespace

TELLTALE_FUZZ_TARGET(event_data) {
  StringPool pool;
  std::string mended;
  format::Rows rows;
  AddSteps(&rows);
  for (std::int64_t i = 0; !bytes.empty() && i < 4 * kSteps; ++i) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(line.size() + 1, bytes.size()));
    const std::size_t tab = std::min(line.find('\t'), line.size());
    format::EventRow event;
    event.time_ns = event.ord_ns = kBegin + i * kStepNs / 4;
    event.kind = pool.Intern(ToValidUtf8(line.substr(0, tab), &mended));
    event.data = pool.Intern(ToValidUtf8(line.substr(std::min(tab + 1, line.size())), &mended));
    event.severity = "medium";
    event.subject = "proc:100";
    event.step = i / 4;
    event.pid = 100;
    event.attempt = 1;
    rows.events.push_back(event);
  }
  JudgeRows(&rows);
}

}  // namespace telltale::fuzz
