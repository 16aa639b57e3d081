// SPDX-License-Identifier: Apache-2.0
// A training in plain C++ that tells Telltale what it does: logistic regression on made-up data.
//
//   telltale run -o telltale-runs/cpp -- build/examples/train 2000
//   telltale run -o telltale-runs/cpp -- build/examples/train 2000 1000   # pauses after 1000 steps
//
// Without `telltale run` around it the calls do nothing.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "telltale/probe.hpp"

namespace {

constexpr int kFeatures = 64;
constexpr int kBatch = 256;
constexpr double kLearningRate = 0.1;
constexpr std::uint64_t kOptimizer = 1;  // Any number, one an optimizer.

struct Examples {
  std::vector<float> x = std::vector<float>(kBatch * kFeatures);
  std::vector<float> y = std::vector<float>(kBatch);
};

/// Points on both sides of a plane, some on the wrong one.
void Fetch(std::mt19937* random, const std::vector<float>& plane, Examples* out) {
  std::normal_distribution<float> normal;
  for (int i = 0; i < kBatch; ++i) {
    float side = normal(*random);
    for (int j = 0; j < kFeatures; ++j) {
      const float value = normal(*random);
      out->x[i * kFeatures + j] = value;
      side += value * plane[j];
    }
    out->y[i] = side > 0 ? 1.0F : 0.0F;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int pause_after = argc > 2 ? std::atoi(argv[2]) : 0;
  telltale::Init();
  const std::uint32_t weights_name = telltale::Name("weights");
  const std::uint32_t gradient_name = telltale::Name("gradient");
  const std::uint32_t weights_collection = telltale::Name("weights");
  const std::uint32_t gradients_collection = telltale::Name("gradients");

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> plane(kFeatures);
  for (float& value : plane) value = normal(random);
  std::vector<float> weights(kFeatures);
  std::vector<float> gradient(kFeatures);
  std::vector<float> error(kBatch);
  Examples batch;

  for (int step = 0; step < steps; ++step) {
    tt_fetch_begin();
    Fetch(&random, plane, &batch);
    tt_fetch_end(kBatch);

    tt_forward_begin(TT_MODE_TRAIN);
    double loss = 0;
    int right = 0;
    for (int i = 0; i < kBatch; ++i) {
      float sum = 0;
      for (int j = 0; j < kFeatures; ++j) sum += weights[j] * batch.x[i * kFeatures + j];
      const float guess = 1.0F / (1.0F + std::exp(-sum));
      error[i] = guess - batch.y[i];
      right += (guess > 0.5F) == (batch.y[i] > 0.5F) ? 1 : 0;
      loss -= std::log(std::fmax(batch.y[i] > 0.5F ? guess : 1 - guess, 1e-7F)) / kBatch;
    }
    tt_forward_end(kBatch);

    tt_backward_begin();
    for (int j = 0; j < kFeatures; ++j) {
      float sum = 0;
      for (int i = 0; i < kBatch; ++i) sum += error[i] * batch.x[i * kFeatures + j];
      gradient[j] = sum / kBatch;
    }
    tt_backward_end(1, loss);
    if (tt_wants_stats(gradient_name) != 0) {
      tt_record_stats(gradient_name, gradients_collection, gradient.data(), kFeatures,
                      TT_DTYPE_F32);
    }

    tt_optimizer_begin(kOptimizer);
    for (int j = 0; j < kFeatures; ++j) {
      weights[j] -= static_cast<float>(kLearningRate) * gradient[j];
    }
    tt_optimizer_end(kOptimizer, 0, kLearningRate);
    if (tt_wants_stats(weights_name) != 0) {
      tt_record_stats(weights_name, weights_collection, weights.data(), kFeatures, TT_DTYPE_F32);
    }
    telltale::Log("accuracy", static_cast<double>(right) / kBatch);

    if (step + 1 == pause_after) {
      std::printf("paused after %d steps: press Enter\n", pause_after);
      std::fflush(stdout);
      std::getchar();
    }
  }
  tt_finish();
  std::printf("trained %d steps\n", steps);
  return 0;
}
