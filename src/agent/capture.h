// SPDX-License-Identifier: Apache-2.0
// The capture plan of a run while it goes on: follows requests for another one, from readers and
// from inside the training, holds the budget, and brings what comes of both to every producer's
// control page. Each edit is answered once, whatever dies when: the answer's mark travels with its
// event. Thread safety: none; the agent's thread.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/budget.h"
#include "agent/outbox.h"
#include "agent/own_cpu.h"
#include "agent/producer.h"
#include "base/status.h"
#include "format/batch.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"
#include "store/requests.h"

namespace telltale::agent {

struct CaptureOptions {
  std::filesystem::path run;
  plan::CapturePlan plan;                 ///< As the attempt was started.
  double overhead_budget = 0.01;          ///< Part of step time.
  std::filesystem::path profiler_config;  ///< SageMaker's; read again when it changes. May be none.
  /// Requests of earlier attempts are refused, whatever the clocks say; 0: not known.
  std::uint32_t attempt = 0;
  std::int64_t attempt_start_ns = 0;  ///< Unix time; tells it of requests that name no attempt.
  /// Takes a request of kind "stop" and answers it in time; not ok: it is refused. May be null.
  std::function<Status(const store::Request&, std::int64_t now_ns, Outbox*)> stop;
  /// Whether an agent before has begun with it: such a one is taken before all others. May be null.
  std::function<bool(const store::RequestId&)> stop_begun;
  /// Is told of one of this attempt that an agent before has answered. May be null.
  std::function<void(const store::Request&)> stop_answered;
  /// The same of kind "lookback".
  std::function<Status(const store::Request&, std::int64_t now_ns, Outbox*)> look_back;
};

class Capture {
 public:
  /// Whether the journal holds the answer to a request.
  using Answered = std::function<bool(const store::RequestId&)>;
  using Producers = std::vector<std::unique_ptr<Producer>>;

  /// kUsage, kLimit: the plan is none.
  static Result<std::unique_ptr<Capture>> Create(CaptureOptions options, Answered answered);

  /// The event `plan` of the start.
  void SayPlan(std::int64_t now_ns, Outbox* outbox) { SayPlan("telltale run", {}, now_ns, outbox); }
  /// An agent before had thinned the plan, this one begins without.
  void SayThinningEnded(std::int64_t now_ns, Outbox* outbox) {
    budget_.SayAgain("Another agent", now_ns, outbox, true);
  }

  /// Looks for requests and for answers that are due. `now_ns`: run clock.
  void Poll(std::int64_t now_ns, Outbox* outbox);
  /// Rows of the batch that the journal is given next.
  void Offer(const format::Rows& rows);
  /// Whether it has them.
  void Settle(bool taken, std::int64_t now_ns, Outbox* outbox);
  /// The newest sample of the machine, and every few seconds the processor time of all that is
  /// ours.
  void See(std::span<const format::MetricRow> sample) { own_cpu_.See(sample, AllowedCores()); }
  void CountOwn(std::uint64_t cpu_ns, std::int64_t now_ns, Outbox* outbox);

  /// A producer that was adopted: publishes the plan to it.
  void Introduce(Producer* producer) const;
  /// Answers a producer's new names; not between an edit and its publication. True where more may
  /// come soon: there were some, or a part of the plan has followed the steps.
  bool AnswerNames(Producer* producer) const;
  /// A request was taken over whose first step has not come yet.
  bool waits() const { return !open_.empty(); }
  /// Publishes what has changed, if anything, to all.
  void Publish(const Producers& producers, const std::function<std::int64_t()>& run_now);

  /// Some histogram is taken, so a helper thread may be at work in each producer.
  bool TakesHistograms() const;
  std::uint32_t sampling_stretch() const { return budget_.sampling_stretch(); }
  const plan::Governor& governor() const { return budget_.governor(); }
  /// The budget left nothing, or little, of what was planned a short while ago.
  bool Strained(std::int64_t now_ns) const { return budget_.Strained(now_ns); }

 private:
  /// A request that was taken and is answered when the first step under it is known.
  struct Open {
    store::RequestId id{};
    std::string who;
    std::int64_t published_ns = 0;  ///< 0: not yet.
    std::string windows;            ///< Names of those that it asked for; empty: it is of a plan.
  };
  /// From inside the training: becomes a request once the journal has its event.
  struct Asked {
    std::string who;
    std::string body;
  };
  struct SeenStep {
    unsigned mode = 0;
    std::int64_t step = 0;
    std::int64_t begin_ns = 0;
  };

  Capture(CaptureOptions options, Answered answered, plan::Compiled compiled, std::string windows);
  /// `asked_ns`: when, Unix time.
  Result<plan::CapturePlan> PlanOf(const std::string& body, std::int64_t asked_ns) const;
  Status Edit(const std::string& body, std::int64_t asked_ns);
  Status Edit(plan::CapturePlan plan);
  /// Looks whether SageMaker's file has changed, and takes its windows over.
  void LookAtProfilerConfig(std::int64_t now_ns, Outbox* outbox);
  /// A request of kind "profile". `windows`: names of what it asks for.
  Status EditWindows(const store::Request& request, std::string* windows);
  /// Whether it was asked of an attempt that is over.
  bool Earlier(const store::Request& request) const;
  /// When: of this attempt not before it began, however the asker's clock was set.
  std::int64_t AskedNs(const store::Request& request) const;
  void Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox);
  /// And what of it is thinned, where anything was.
  void SayPlan(const std::string& who, const std::string& id, std::int64_t now_ns, Outbox* outbox);
  void Refuse(const store::RequestId& id, const std::string& who, const std::string& why,
              std::int64_t now_ns, Outbox* outbox) const;
  void Done(const Open& open, const SeenStep* step, std::int64_t now_ns, Outbox* outbox) const;

  const CaptureOptions options_;
  const Answered answered_;
  plan::CapturePlan plan_;
  plan::Compiled compiled_;
  std::string windows_;  ///< As the control page carries them.
  Budget budget_;
  OwnCpu own_cpu_;
  store::RequestReader requests_;
  std::int64_t config_looked_ns_ = 0;
  std::int64_t config_changed_ns_ = 0;  ///< Its time of change when it was read; 0: not there.
  std::uint64_t epoch_ = 1;
  bool edited_ = false;     ///< Since it was last published.
  bool producers_ = false;  ///< There were some when it was last published.
  bool first_look_ = true;
  std::vector<Open> open_;
  std::vector<Asked> asked_;
  std::vector<SeenStep> steps_;                         ///< Offered.
  std::array<std::int64_t, 4> newest_{-1, -1, -1, -1};  ///< Step of each mode that has ended.
};

}  // namespace telltale::agent
