// SPDX-License-Identifier: Apache-2.0
// How large the weights of a layer begin, against what the number of its inputs asks for. The
// number of inputs is the elements of a weight by those of its bias, so a layer without a bias
// (mostly one before a normalization, which takes every scale away) is not judged, nor are
// embeddings and the weights of normalizations.
//
// Thread safety: none. Memory: a few numbers a layer.
#pragma once
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace telltale::rules {

class WeightScale {
 public:
  struct Layer {
    std::string name;  ///< Of the weight.
    double inputs = 0;
    double std = 0;
    double usual = 0;  ///< Standard deviation of Kaiming's initialization, the largest of the usual
                       ///< ones: torch's own is 0.4 of it.
    double times() const { return std / usual; }
  };

  void SeeWeight(std::string_view name, std::uint64_t count, double std) {
    weights_.try_emplace(std::string(name), Weight{count, std});
  }
  void SeeBias(std::string_view name, std::uint64_t count) {
    biases_.try_emplace(std::string(name), count);
  }

  bool empty() const { return weights_.empty(); }

  /// The layer whose weights are the largest by what is usual; nothing where none can be judged.
  std::optional<Layer> Largest() const {
    std::optional<Layer> largest;
    for (Layer& layer : Layers()) {
      if (!largest || layer.times() > largest->times()) largest = std::move(layer);
    }
    return largest;
  }

  /// Layers whose weights are at most `times` of what is usual, or all zero, where they are two at
  /// least and half of those that can be judged: through one alone a gradient soon finds its way.
  std::vector<Layer> FarSmaller(double times) const {
    std::vector<Layer> layers = Layers();
    const std::size_t judged = layers.size();
    std::erase_if(layers, [&](const Layer& layer) { return layer.times() > times; });
    if (layers.size() < 2 || 2 * layers.size() < judged) layers.clear();
    return layers;
  }

 private:
  static constexpr double kFewestInputs = 4;

  std::vector<Layer> Layers() const {
    std::vector<Layer> layers;
    for (const auto& [name, weight] : weights_) {
      const auto bias = biases_.find(BiasOf(name));
      if (bias == biases_.end() || bias->second == 0 || weight.count % bias->second != 0) continue;
      const auto inputs = static_cast<double>(weight.count / bias->second);
      if (inputs < kFewestInputs || !std::isfinite(weight.std)) continue;
      layers.push_back({name, inputs, weight.std, std::sqrt(2 / inputs)});
    }
    return layers;
  }

  struct Weight {
    std::uint64_t count = 0;
    double std = 0;
  };

  /// "0.bias" of "0.weight", "rnn.bias_ih_l0" of "rnn.weight_ih_l0"; empty where it is no weight.
  static std::string BiasOf(const std::string& name) {
    const std::size_t last = name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1;
    const std::size_t at = name.find("weight", last);
    return at == std::string::npos ? std::string() : std::string(name).replace(at, 6, "bias");
  }

  std::map<std::string, Weight, std::less<>> weights_;
  std::map<std::string, std::uint64_t, std::less<>> biases_;
};

}  // namespace telltale::rules
