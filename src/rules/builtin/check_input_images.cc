// SPDX-License-Identifier: Apache-2.0
// CheckInputImages: the images that a model is trained on are not centred about zero.
//
// SageMaker Debugger's rule of this name knows the input of MXNet's networks by its name alone and
// takes dimension 1 for the channels. Here what the root of a model is given is an image where it
// has four dimensions and few channels, and channels that come last are seen.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "rules/builtin/batch_images.h"
#include "rules/builtin/label_pairs.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::check_input_images {
namespace {

constexpr std::string_view kSageMakersRegex = ".*hybridsequential0_input_0";

constexpr ParameterDesc kParameters[] = {
    {"threshold_mean", 0.2, "", "A channel is not centred where its |mean| is above this."},
    {"threshold_samples", 500, "images", "Images before anything is said, and between two looks."},
    {"regex", 0, "",
     "Images are tensors with this in their names; as it is here, also what the "
     "root of the model, or else its first layer, is given.",
     ".*hybridsequential0_input_0"},
    {"channel", 1, "", "Dimension of the channels, from 0; 3 is found by itself."},
};

constexpr CaptureNeed kCaptures[] = {
    {.collection = "input_image",
     .take = "values",
     .interval = 20,
     .include = "{regex}",
     .asked_only = true},
    // What the root of a model is given.
    {.collection = "root_inputs",
     .take = "values",
     .interval = 20,
     .include = "^(?:(?:sequential|functional|model)[^./]*\\.)?input\\.[^.#]+$",
     .asked_only = true},
};

/// Elements of one capture that are read at most: 16 MiB of doubles.
constexpr std::size_t kMostElements = std::size_t{2} << 20U;
/// But one image as a whole, up to this: pictures of 1,024 x 1,024 are larger.
constexpr std::size_t kLargestImage = std::size_t{8} << 20U;
/// A picture has so many channels; what has more is a layer's.
constexpr std::size_t kFewChannels = 4;
constexpr std::size_t kMostChannels = 256;

class CheckInputImages final : public Rule {
 public:
  explicit CheckInputImages(const Parameters& p)
      : threshold_(p.Get("threshold_mean")),
        samples_(std::max(1.0, p.Get("threshold_samples"))),
        pattern_(p.Text("regex")),
        any_root_(p.Text("regex") == kSageMakersRegex),
        channel_(static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("channel"), 1, 3))) {}

  void Bind(const RuleContext& context) override { values_ = context.values; }

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kTensors) return false;
    const bool named = pattern_.Matches(series.name) || series.collection == "input_image";
    const bool input = any_root_ && series.collection == "inputs";
    if (!named && !input) return false;
    if (named_.size() <= series.id) named_.resize(series.id + 1);
    named_[series.id] = named ? 1 : 0;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    // Where values are captured they say more.
    if (!has_data_) batch_images_.OnRecord(record, reporter);
    if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(record, *tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind != "process.exit") return;
      processes_.End(*event, writer_, [&](Process* process) { Close(process, reporter); });
    }
  }

  void OnEnd(Reporter* reporter) override {
    batch_images_.OnEnd(reporter);
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_ || batch_images_.has_data(); }
  std::string Missing() const override { return batch_images_.Missing(); }

 private:
  struct Channel {
    double sum = 0;
    double squares = 0;
    double count = 0;  ///< Finite elements.
    double mean() const { return count > 0 ? sum / count : 0; }
    double deviation() const {
      return count > 0 ? std::sqrt(std::max(0.0, squares / count - mean() * mean())) : 0;
    }
  };

  struct Process : TrainingProcess {
    std::uint32_t series = kNoSeries;  ///< Of its images.
    std::string name, dtype, shape;
    std::vector<Channel> channels;
    double images = 0;  ///< In the channels.
    std::int64_t first_step = -1;
    std::int64_t first_ns = 0;
    std::int64_t looks = 0;
  };

  /// The dimension of the channels; 0: these are no images.
  std::size_t ChannelsOf(const Shape& shape, bool named) const {
    if (shape.size() != 4) return 0;
    if (shape[channel_] <= kFewChannels) return channel_;
    if (shape[3] <= kFewChannels) return 3;
    return named && shape[channel_] <= kMostChannels ? channel_ : 0;
  }

  static std::size_t LimitOf(std::string_view text) {
    const auto shape = ShapeOf(text);
    if (!shape || shape->empty() || (*shape)[0] == 0) return kMostElements;
    const std::uint64_t of_image = ElementsOf(*shape) / (*shape)[0];
    return static_cast<std::size_t>(
        std::clamp<std::uint64_t>(of_image, kMostElements, kLargestImage));
  }

  void OnTensor(const Record& record, const format::TensorRow& row, Reporter* reporter) {
    if (record.series >= named_.size()) return;
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    // A root is told before the layers beneath it.
    if (process->series != kNoSeries && process->series != record.series) return;
    const auto samples = ReadSamples(record, row, values_, LimitOf(row.shape));
    if (!samples) return;
    const std::size_t dimension = ChannelsOf(samples->shape, named_[record.series] != 0);
    if (dimension == 0) return;
    if (process->series == kNoSeries) {
      process->series = record.series;
      process->name = row.name;
    }
    process->dtype = row.dtype;
    process->shape = row.shape;
    process->last_step = std::max(process->last_step, row.step);
    if (process->images == 0) {
      process->first_step = std::max<std::int64_t>(0, row.step);
      process->first_ns = row.time_ns;
    }
    Add(process, *samples, dimension);
    if (process->images >= samples_) Judge(process, row.time_ns, reporter);
  }

  static void Add(Process* process, const Samples& samples, std::size_t dimension) {
    const std::size_t channels = samples.shape[dimension];
    if (process->channels.size() != channels) {
      process->channels.assign(channels, Channel());
      process->images = 0;
    }
    std::size_t stride = 1;
    for (std::size_t i = dimension + 1; i < samples.shape.size(); ++i) stride *= samples.shape[i];
    for (std::size_t i = 0; i < samples.elements.size(); ++i) {
      const double value = samples.elements[i];
      if (!std::isfinite(value)) continue;
      Channel& channel = process->channels[i / stride % channels];
      channel.sum += value;
      channel.squares += value * value;
      ++channel.count;
    }
    process->images += static_cast<double>(samples.count());
  }

  void Judge(Process* process, std::int64_t ns, Reporter* reporter) {
    has_data_ = true;
    ++process->looks;
    const auto worst = std::max_element(
        process->channels.begin(), process->channels.end(),
        [](const Channel& a, const Channel& b) { return std::abs(a.mean()) < std::abs(b.mean()); });
    if (std::abs(worst->mean()) > threshold_) {
      if (!process->open) processes_.Open(process, process->first_step, process->first_ns);
      Describe(process, *worst, ns);
      reporter->Report(process->incident);
    } else if (process->open) {
      reporter->Recover(process->incident);
      process->open = false;
    }
    process->channels.clear();
    process->images = 0;
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process, const Channel& worst, std::int64_t ns) const {
    Incident& incident = process->incident;
    const double mean = worst.mean();
    const auto at = &worst - process->channels.data();
    // A layer takes no bytes: the model itself makes numbers of them, and may centre them too.
    const bool bytes = process->dtype == "U8" || process->dtype == "I8";
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, ns);
    incident.severity = bytes                 ? Severity::kLow
                        : std::abs(mean) > 10 ? Severity::kHigh
                                              : Severity::kMedium;
    incident.message = "Input images are not normalized";
    incident.cause = fmt::format(
        "Channel {} of {} has a mean of {} and a deviation of {} over {} "
        "images{}.",
        at, process->name, Figure(mean), Figure(worst.deviation()),
        static_cast<std::int64_t>(process->images),
        std::abs(mean) > 10 ? ": pixels of 0 to 255 as they are" : "");
    incident.advice =
        bytes ? "Look whether the model centres them itself (Rescaling, Normalization); else do it."
              : fmt::format(
                    "Subtract the mean of each channel and divide by its deviation: "
                    "Normalize(mean={}, std={}).",
                    List(*process, true), List(*process, false));
    incident.confidence = bytes ? 0.5 : 0.95;
    nlohmann::ordered_json evidence;
    evidence["tensor"] = process->name;
    evidence["images"] = static_cast<std::int64_t>(process->images);
    evidence["mean"] = Rounded(mean);
    nlohmann::ordered_json means = nlohmann::ordered_json::array();
    nlohmann::ordered_json deviations = nlohmann::ordered_json::array();
    for (const Channel& channel : process->channels) {
      means.push_back(Rounded(channel.mean()));
      deviations.push_back(Rounded(channel.deviation()));
    }
    evidence["means"] = std::move(means);
    evidence["deviations"] = std::move(deviations);
    evidence["dtype"] = process->dtype;
    evidence["shape"] = process->shape;
    incident.evidence = JsonText(evidence);
  }

  /// "[0.485, 0.456, 0.406]"
  static std::string List(const Process& process, bool means) {
    std::string out = "[";
    for (const Channel& channel : process.channels) {
      if (out.size() > 1) out += ", ";
      out += Figure(means ? channel.mean() : channel.deviation());
    }
    return out + "]";
  }

  const double threshold_;
  const double samples_;
  const TensorPattern pattern_;
  const bool any_root_;
  const std::size_t channel_;

  TensorValues* values_ = nullptr;
  BatchImages batch_images_;
  std::vector<char> named_;  ///< By series: 1: by name, 0: an input of any layer.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kCheckInputImagesDesc{
    .name = "CheckInputImages",
    .summary = "The images that a model is given are not centred about zero.",
    .formula =
        "Images are the tensors that regex or the collection input_image names; with the regex as "
        "SageMaker has it, else the first input of a process that has four dimensions and at most "
        "4 channels, which is that of the model's root. Channels are dimension `channel`, or the "
        "last one where that alone is small. Each threshold_samples images: m = mean of a channel "
        "over all of them, finite elements alone. Medium where max |m| > threshold_mean, high "
        "where "
        "it is above 10, low where the images are bytes, which the model itself has to turn into "
        "numbers. Over where the next images are centred. Where no values are captured: of the "
        "events `batch.images` of at least 64 images together (16 at the end of the process), what "
        "the first convolution is given. Of the channel with the largest |m|, s its standard "
        "deviation: medium where |m| > s / 2 and √(m² + s²) > 3 (pixels of 0 to 1 are below), high "
        "where that is above 30, unless the model normalizes right behind that convolution. Costs "
        "no time.",
    .how_to_fix =
        "torchvision.transforms.Normalize(mean, std) after ToTensor, keras.layers.Normalization "
        "adapted to the training data; the same for validation and in production.",
    .table_mask = store::MaskOf(format::TableId::kTensors) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .example = "`torch.from_numpy(pixels).float()` of pictures with pixels of 0 to 255."};

std::unique_ptr<Rule> MakeCheckInputImages(const Parameters& parameters) {
  return std::make_unique<CheckInputImages>(parameters);
}

}  // namespace telltale::rules::check_input_images
