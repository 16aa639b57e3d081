// SPDX-License-Identifier: Apache-2.0
// Images that are not centred, by the events `batch.images`: the means of what the first
// convolution is given. Thread safety: none. Memory: a few numbers a channel.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/saturate.h"
#include "rules/builtin/loop_rule.h"

namespace telltale::rules {

struct BatchImagesProcess : LoopProcess {
  struct Channel {
    double sum = 0;
    double squares = 0;
  };
  std::vector<Channel> channels;
  double images = 0;
  bool normalized = false;  ///< By the model, right behind its first layer.
  std::int64_t first_step = -1;
  std::int64_t first_ns = 0;

  double MeanOf(const Channel& channel) const { return channel.sum / images; }
  double SizeOf(const Channel& channel) const { return std::sqrt(channel.squares / images); }
  double DeviationOf(const Channel& channel) const {
    const double mean = MeanOf(channel);
    return std::sqrt(std::max(0.0, channel.squares / images - mean * mean));
  }
};

class BatchImages final : public LoopRule<BatchImagesProcess> {
 protected:
  std::string Lacks() const override { return "no convolution was given images"; }
  bool Reads(std::string_view kind) const override { return kind == "batch.images"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               BatchImagesProcess* process) override {
    const double images = NumberIn(data, "images");
    const std::vector<double> means = NumbersIn(data, "means");
    const std::vector<double> squares = NumbersIn(data, "squares");
    if (!(images >= 1 && images <= 1e6) || means.empty() || means.size() != squares.size()) return;
    if (process->channels.size() != means.size()) {
      process->channels.assign(means.size(), {});
      process->images = 0;
      process->first_step = std::max<std::int64_t>(0, event.step);
      process->first_ns = event.time_ns;
    }
    for (std::size_t i = 0; i < means.size(); ++i) {
      process->channels[i].sum += images * means[i];
      process->channels[i].squares += images * squares[i];
    }
    process->images += images;
    process->normalized = FlagIn(data, "normalized");
    if (process->images >= kLeastImages) Judge(process);
  }

  void OnExit(BatchImagesProcess* process) override {
    if (process->images >= kFewImages) Judge(process);
  }

 private:
  static constexpr double kLeastImages = 64;
  static constexpr double kFewImages = 16;  ///< Of a run that ends sooner.
  /// A mean that is so much of the deviation is not in the middle.
  static constexpr double kOffCentre = 0.5;
  /// Root mean squares: weights are made for inputs of about 1. Pixels of 0 to 1 are below 1.
  static constexpr double kLarge = 3;
  static constexpr double kVeryLarge = 30;

  static std::vector<double> NumbersIn(const nlohmann::json& data, const char* name) {
    std::vector<double> out;
    const auto found = data.find(name);
    if (found == data.end() || !found->is_array()) return out;
    for (const nlohmann::json& each : *found) {
      // NaN and Inf are told as text.
      if (!each.is_number()) return {};
      out.push_back(each.get<double>());
    }
    return out;
  }

  void Judge(BatchImagesProcess* process) {
    SeesData();
    const auto worst = std::max_element(
        process->channels.begin(), process->channels.end(),
        [&](const auto& a, const auto& b) { return std::abs(a.sum) < std::abs(b.sum); });
    const double mean = process->MeanOf(*worst);
    const double deviation = process->DeviationOf(*worst);
    const double size = process->SizeOf(*worst);
    // Pixels of 0 to 1 cost next to nothing, nor does what the model normalizes itself.
    if (!(std::abs(mean) > kOffCentre * deviation) || process->normalized || !(size > kLarge)) {
      TakeBack(process, "");
      return;
    }
    Incident incident = BeginAt(process->first_step, process->first_ns,
                                size > kVeryLarge ? Severity::kHigh : Severity::kMedium);
    incident.message = "Input images are not normalized: their mean is far from 0";
    incident.cause = fmt::format(
        "Channel {} of what the first convolution is given has a mean of {} and a standard "
        "deviation of {} over {} images.",
        worst - process->channels.begin(), Figure(mean), Figure(deviation),
        SaturatingCast(process->images));
    std::string means;
    std::string deviations;
    for (const auto& channel : process->channels) {
      const char* const comma = means.empty() ? "" : ", ";
      means += comma + Figure(process->MeanOf(channel));
      deviations += comma + Figure(process->DeviationOf(channel));
    }
    incident.advice = fmt::format(
        "Subtract the mean of each channel and divide by its standard deviation: Normalize(mean="
        "[{}], std=[{}]), for the training and for everything that the model is given later.",
        means, deviations);
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["images"] = SaturatingCast(process->images);
    evidence["mean"] = Rounded(mean);
    evidence["deviation"] = Rounded(deviation);
    incident.evidence = JsonText(evidence);
    Say(process, "", std::move(incident));
  }
};

}  // namespace telltale::rules
