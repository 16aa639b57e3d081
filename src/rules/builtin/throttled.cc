// SPDX-License-Identifier: Apache-2.0
// Throttled: the machine holds the training back: a control group's CPU limit, or a GPU's clock
// lowered for heat or power.
//
// A load of 100 % looks the same whether a core runs freely or is taken away each 100 ms; only the
// kernel's own count of the periods, and the driver's reasons, tell them apart.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::throttled {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"periods", 25, "%", "Share of the scheduler's periods in which the group is held back."},
    {"least_loss", 5, "%", "Share of its CPU time that the group must lose."},
    {"gpu_share", 10, "%", "Share of the time in which a GPU is slowed down for a fault."},
    {"clock", 80, "%",
     "Of the highest clock: below it a busy GPU is slow though nothing is said of why."},
    {"window_seconds", 15, "s", "Length of the sliding window."},
};

/// NVML's reasons (nvmlClocksThrottleReason*); permanent bits of its interface.
constexpr std::uint64_t kPowerCap = 0x4;
constexpr std::uint64_t kHardware = 0x8;
constexpr std::uint64_t kSoftwareHeat = 0x20;
constexpr std::uint64_t kHardwareHeat = 0x40;
constexpr std::uint64_t kPowerBrake = 0x80;

/// From this utilization on the clock says something.
constexpr double kBusy = 50;

class Throttled final : public Rule {
 public:
  explicit Throttled(const Parameters& p)
      : periods_(p.Get("periods")),
        least_loss_(p.Get("least_loss") / 100),
        gpu_share_(p.Get("gpu_share") / 100),
        clock_(p.Get("clock") / 100),
        window_s_(std::max(1.0, p.Get("window_seconds"))) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    struct Entry {
      std::string_view name;
      What what;
    };
    static constexpr std::array kCgroup = {
        Entry{"cgroup.cpu_limit", kLimit},
        Entry{"cgroup.cpu_used", kUsed},
        Entry{"cgroup.cpu_throttled", kHeld},
        Entry{"cgroup.cpu_throttled_periods", kPeriods},
    };
    static constexpr std::array kGpu = {
        Entry{"gpu.utilization", kUtilization},
        Entry{"gpu.throttled", kGpuThrottled},
        Entry{"gpu.throttle_reasons", kReasons},
        Entry{"gpu.clock_sm", kClock},
        Entry{"gpu.clock_sm_max", kClockMax},
        Entry{"gpu.temperature", kTemperature},
        Entry{"gpu.power", kPower},
    };
    if (series.collection == "cgroup") {
      for (const Entry& entry : kCgroup) {
        if (series.name != entry.name) continue;
        sampler_.Read(series, entry.what);
        return true;
      }
      return false;
    }
    const int gpu = UnitOf(series.collection, "gpu:");
    if (gpu < 0) return false;
    for (const Entry& entry : kGpu) {
      if (series.name != entry.name) continue;
      sampler_.Read(series, entry.what, gpu);
      return true;
    }
    return false;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [key, group] : groups_) Close(&group.watched, reporter);
    for (auto& [key, device] : devices_) Close(&device.watched, reporter);
  }

  bool has_data() const override { return has_data_; }
  /// Neither a limit nor a GPU: nothing can be held back.
  bool applies() const override { return !groups_.empty() || !devices_.empty(); }
  std::string Missing() const override {
    return applies() ? std::string() : "neither a processor limit nor a GPU was seen";
  }

 private:
  enum What : int {
    kNone,
    kLimit,
    kUsed,
    kHeld,
    kPeriods,
    kUtilization,
    kGpuThrottled,
    kReasons,
    kClock,
    kClockMax,
    kTemperature,
    kPower,
  };

  struct GroupCell : CellBase {
    using CellBase::CellBase;
    TimeMean limit, used, held, periods;  ///< Cores; percent of a core; the same; percent.
    void Add(const GroupCell& other) {
      AddBase(other);
      limit.Add(other.limit);
      used.Add(other.used);
      held.Add(other.held);
      periods.Add(other.periods);
    }
    /// Share of the CPU time that it wanted and did not get.
    double loss() const {
      if (!used.known() || !held.known()) return 0;
      const double wanted = used.value() + held.value();
      return wanted > 0 ? std::clamp(held.value() / wanted, 0.0, 1.0) : 0;
    }
  };
  struct Group {
    explicit Group(double window_s) : window(std::min(1.0, window_s), window_s) {}
    CellWindow<GroupCell> window;
    Watched watched;
    std::string subject;
    double cost_s = 0;
  };

  struct GpuCell : CellBase {
    using CellBase::CellBase;
    TimeMean utilization, throttled, temperature, power;
    TimeMean speed;  ///< Clock / highest clock, of the time in which it was busy.
    // Seconds of each reason; one sample may have several.
    double known_s = 0, heat_s = 0, brake_s = 0, hardware_s = 0, cap_s = 0, fault_s = 0;
    void Add(const GpuCell& other) {
      AddBase(other);
      utilization.Add(other.utilization);
      throttled.Add(other.throttled);
      temperature.Add(other.temperature);
      power.Add(other.power);
      speed.Add(other.speed);
      known_s += other.known_s;
      heat_s += other.heat_s;
      brake_s += other.brake_s;
      hardware_s += other.hardware_s;
      cap_s += other.cap_s;
      fault_s += other.fault_s;
    }
    /// Seconds lost, where speed goes with the clock.
    double lost_s() const {
      return speed.known() ? speed.seconds * std::max(0.0, 1 - speed.value()) : 0;
    }
  };
  struct Device {
    explicit Device(double window_s) : window(std::min(1.0, window_s), window_s) {}
    CellWindow<GpuCell> window;
    Watched watched;
    std::string subject;
    double cost_s = 0;
  };

  static void Close(Watched* watched, Reporter* reporter) {
    if (watched->open) reporter->Close(watched->incident);
    watched->open = false;
  }

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    const double limit = sample.SumOf(kLimit);
    const double periods = sample.SumOf(kPeriods);
    if (limit > 0 || !std::isnan(periods)) {
      const auto [at, added] = groups_.try_emplace(node.writer, window_s_);
      Group& group = at->second;
      if (added) group.subject = fmt::format("cgroup on {}", node.name);
      GroupCell cell(sample);
      cell.limit.Add(limit, cell.seconds);
      cell.used.Add(sample.SumOf(kUsed), cell.seconds);
      cell.held.Add(sample.SumOf(kHeld), cell.seconds);
      cell.periods.Add(periods, cell.seconds);
      group.watched.CloseBefore(cell, reporter);
      if (group.window.Push(cell)) JudgeGroup(&group, reporter);
    }
    for (const SampleValue& value : sample.values) {
      // Of each device once: its utilization, or where that is not sampled its clock.
      const bool once = value.what == kUtilization ||
                        (value.what == kClock && std::isnan(sample.Of(kUtilization, value.unit)));
      if (once) OnGpu(node, sample, value.unit, reporter);
    }
  }

  void OnGpu(const SampledNode& node, const Sample& sample, std::int32_t gpu, Reporter* reporter) {
    const auto [at, added] = devices_.try_emplace({node.writer, gpu}, window_s_);
    Device& device = at->second;
    if (added) device.subject = fmt::format("gpu:{} on {}", gpu, node.name);
    GpuCell cell(sample);
    const double seconds = cell.seconds;
    const double utilization = sample.Of(kUtilization, gpu);
    cell.utilization.Add(utilization, seconds);
    cell.throttled.Add(sample.Of(kGpuThrottled, gpu), seconds);
    cell.temperature.Add(sample.Of(kTemperature, gpu), seconds);
    cell.power.Add(sample.Of(kPower, gpu), seconds);
    const double highest = sample.Of(kClockMax, gpu);
    if (highest > 0 && utilization >= kBusy) {
      cell.speed.Add(sample.Of(kClock, gpu) / highest, seconds);
    }
    if (const double reasons = sample.Of(kReasons, gpu); reasons >= 0 && reasons < 9e15) {
      const auto bits = static_cast<std::uint64_t>(reasons);
      cell.known_s = seconds;
      cell.heat_s = (bits & (kSoftwareHeat | kHardwareHeat)) != 0 ? seconds : 0;
      cell.brake_s = (bits & kPowerBrake) != 0 ? seconds : 0;
      cell.hardware_s = (bits & kHardware) != 0 ? seconds : 0;
      cell.cap_s = (bits & kPowerCap) != 0 ? seconds : 0;
      cell.fault_s =
          (bits & (kSoftwareHeat | kHardwareHeat | kPowerBrake | kHardware)) != 0 ? seconds : 0;
    }
    device.watched.CloseBefore(cell, reporter);
    if (device.window.Push(cell)) JudgeGpu(&device, reporter);
  }

  void JudgeGroup(Group* group, Reporter* reporter) {
    const GroupCell& total = group->window.total();
    if (!group->window.full() || !total.periods.known()) return;
    has_data_ = true;
    Watched& watched = group->watched;
    const bool bad = total.periods.value() >= periods_ && total.loss() >= least_loss_;
    if (!watched.open) {
      if (!bad || !total.training()) return;
      watched.Open(group->subject, total, Severity::kMedium);
      group->cost_s = total.seconds * total.loss();
    } else if (total.periods.value() < periods_ / 2) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      const GroupCell& newest = group->window.newest();
      watched.Extend(newest);
      group->cost_s += newest.seconds * newest.loss();
    }
    if (total.periods.value() >= 2 * periods_ && total.loss() >= 0.3) {
      watched.Raise(Severity::kHigh);
    }
    Incident& incident = watched.incident;
    incident.message = fmt::format("CPU limit holds training back: {:.0f} %", 100 * total.loss());
    const double limit = total.limit.value();
    const std::string limited = total.limit.known() ? fmt::format("may use {} {}", Figure(limit),
                                                                  limit == 1 ? "core" : "cores")
                                                    : std::string("has a CPU limit");
    incident.cause = fmt::format(
        "The control group {}, takes {} and is stopped in {:.0f} % of the scheduler's periods: it "
        "loses {} cores' time.",
        limited, Figure(total.used.value() / 100), total.periods.value(),
        Figure(total.held.value() / 100));
    const int threads = total.limit.known() ? std::max(1, FewAsInt(limit)) : 1;
    incident.advice = fmt::format(
        "Let no more threads run than the limit has cores (OMP_NUM_THREADS={}, "
        "torch.set_num_threads, num_workers), or raise it (docker --cpus, resources.limits.cpu, "
        "cpu.max).",
        threads);
    incident.cost_seconds = group->cost_s;
    incident.confidence = total.loss() >= 0.2 ? 0.9 : 0.7;
    nlohmann::ordered_json evidence;
    evidence["throttled_periods"] = Rounded(total.periods.value());
    evidence["lost_share"] = Rounded(total.loss());
    if (total.limit.known()) evidence["limit_cores"] = Rounded(limit);
    if (total.used.known()) evidence["used_percent"] = Rounded(total.used.value());
    if (total.held.known()) evidence["held_back_percent"] = Rounded(total.held.value());
    evidence["window_seconds"] = Rounded(total.seconds);
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  /// Why a GPU is slow.
  enum class Slow : std::uint8_t { kNot, kFault, kUnsaid, kCap };

  Slow WhyOf(const GpuCell& total, double threshold) const {
    const double share = total.known_s > 0 ? total.fault_s / total.known_s : 0;
    if (share >= threshold) return Slow::kFault;
    const bool slow = total.speed.known() && total.speed.seconds * 2 >= total.seconds &&
                      total.speed.value() < clock_;
    if (total.known_s > 0) {
      return slow && total.cap_s * 2 >= total.known_s ? Slow::kCap : Slow::kNot;
    }
    if (total.throttled.known()) {
      return total.throttled.value() >= 100 * threshold ? Slow::kUnsaid : Slow::kNot;
    }
    return slow ? Slow::kUnsaid : Slow::kNot;
  }

  void JudgeGpu(Device* device, Reporter* reporter) {
    const GpuCell& total = device->window.total();
    if (!device->window.full()) return;
    if (total.known_s <= 0 && !total.throttled.known() && !total.speed.known()) return;
    has_data_ = true;
    Watched& watched = device->watched;
    const Slow why = WhyOf(total, watched.open ? gpu_share_ / 2 : gpu_share_);
    if (!watched.open) {
      if (why == Slow::kNot) return;
      watched.Open(device->subject, total, Severity::kLow);
      device->cost_s = total.lost_s();
    } else if (why == Slow::kNot) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      watched.Extend(device->window.newest());
      device->cost_s += device->window.newest().lost_s();
    }
    const double lost = total.speed.known() ? std::max(0.0, 1 - total.speed.value()) : 0;
    if (why == Slow::kFault) watched.Raise(lost >= 0.2 ? Severity::kHigh : Severity::kMedium);
    DescribeGpu(device, total, why);
    reporter->Report(watched.incident);
  }

  static void DescribeGpu(Device* device, const GpuCell& total, Slow why) {
    Incident& incident = device->watched.incident;
    const std::string gpu = device->subject.substr(0, device->subject.find(' '));
    const double share = total.known_s > 0 ? 100 / total.known_s : 0;
    const std::string clock =
        total.speed.known()
            ? fmt::format("; its clock is at {:.0f} % of the highest", 100 * total.speed.value())
            : std::string();
    const std::string heat =
        total.temperature.known() ? fmt::format(" ({:.0f} °C)", total.temperature.value()) : "";
    const std::string power =
        total.power.known() ? fmt::format(" ({:.0f} W)", total.power.value()) : "";
    if (why == Slow::kFault && total.heat_s >= std::max(total.brake_s, total.hardware_s)) {
      incident.message = fmt::format("{} slows down from heat", gpu);
      incident.cause =
          fmt::format("The driver lowers the clock for heat in {:.0f} % of the time{}{}.",
                      share * total.heat_s, heat, clock);
      incident.advice =
          "Look at the cooling of this machine (fans, air flow, inlet temperature), or move the "
          "run "
          "to another one.";
    } else if (why == Slow::kFault && total.brake_s > 0) {
      incident.message = fmt::format("{} slows down for want of power", gpu);
      incident.cause = fmt::format(
          "The machine's power supply makes the device brake in {:.0f} % of the time{}{}.",
          share * total.brake_s, power, clock);
      incident.advice = "Have the power supply of this machine looked at, or move the run.";
    } else if (why == Slow::kFault) {
      incident.message = fmt::format("{} is slowed down by its hardware", gpu);
      incident.cause =
          fmt::format("The hardware lowers the clock (heat or power) in {:.0f} % of the time{}{}.",
                      share * total.hardware_s, heat, clock);
      incident.advice =
          "Have this machine looked at (nvidia-smi -q -d PERFORMANCE), or move the run.";
    } else if (why == Slow::kCap) {
      incident.message = fmt::format("{} runs at its power limit", gpu);
      incident.cause = fmt::format("The power limit lowers the clock in {:.0f} % of the time{}{}.",
                                   share * total.cap_s, power, clock);
      incident.advice =
          "A full load mostly does this. Where the limit was set lower than the device's own, "
          "raise "
          "it (nvidia-smi -pl).";
    } else {
      incident.message = fmt::format("{} runs below its clock", gpu);
      incident.cause = "cause not found";
      incident.advice = "Ask the driver for the reason: nvidia-smi -q -d PERFORMANCE,CLOCK.";
    }
    incident.cost_seconds = device->cost_s;
    incident.confidence = why == Slow::kFault ? 0.9 : 0.6;
    nlohmann::ordered_json evidence;
    if (total.utilization.known()) evidence["utilization"] = Rounded(total.utilization.value());
    if (total.speed.known()) evidence["clock_share"] = Rounded(total.speed.value());
    if (total.throttled.known()) evidence["throttled_percent"] = Rounded(total.throttled.value());
    if (total.known_s > 0) {
      evidence["heat_percent"] = Rounded(share * total.heat_s);
      evidence["power_brake_percent"] = Rounded(share * total.brake_s);
      evidence["hardware_percent"] = Rounded(share * total.hardware_s);
      evidence["power_cap_percent"] = Rounded(share * total.cap_s);
    }
    if (total.temperature.known()) evidence["temperature_c"] = Rounded(total.temperature.value());
    if (total.power.known()) evidence["power_w"] = Rounded(total.power.value());
    evidence["window_seconds"] = Rounded(total.seconds);
    incident.evidence = JsonText(evidence);
  }

  const double periods_;
  const double least_loss_;
  const double gpu_share_;
  const double clock_;
  const double window_s_;
  MachineSampler sampler_;
  std::map<std::uint32_t, Group> groups_;                             ///< By writer.
  std::map<std::pair<std::uint32_t, std::int32_t>, Device> devices_;  ///< By (writer, GPU).
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kThrottledDesc{
    .name = "Throttled",
    .summary = "The machine holds the training back: a CPU limit, a GPU's heat or power.",
    .formula =
        "Over window_seconds. Control group, while TRAIN steps go on: held back in at least "
        "`periods` of the scheduler's periods, and lost = throttled / (used + throttled) CPU time "
        "≥ "
        "least_loss; medium, high from twice `periods` with 30 % lost; over below half of "
        "`periods`. GPU: gpu.throttle_reasons names heat, power brake or hardware slowdown in "
        "gpu_share of the samples: medium, high where a busy device's clock is 20 % below the "
        "highest; the power limit alone with a clock below `clock` of the highest is low, as is a "
        "slow clock, or gpu.throttled ≥ gpu_share, of which no reason is recorded. Over below half "
        "of gpu_share. Cost = time × lost, or busy time × (1 − clock / highest clock): assumes "
        "that "
        "the training would have used what was taken, and that speed goes with the clock.",
    .how_to_fix =
        "CPU: no more threads than the limit has cores, or a higher limit. GPU: cooling, power "
        "supply, power limit; another machine.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "`docker run --cpus=2` on a machine of 64 cores: torch starts 64 threads, which use up the "
        "200 ms of CPU time of a period of 100 ms in its first 4 ms and then all stand still.",
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSamples),
};

std::unique_ptr<Rule> MakeThrottled(const Parameters& parameters) {
  return std::make_unique<Throttled>(parameters);
}

}  // namespace telltale::rules::throttled
