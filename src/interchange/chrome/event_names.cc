// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/event_names.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace telltale::interchange {
namespace {

struct KindWord {
  std::string_view kind;
  ChromeCategory category;
};
// As Kineto has written them since 2021.
constexpr KindWord kKinds[] = {
    {"cpu_op", {"op", false, true}},
    {"Operator", {"op", false, true}},
    {"Op", {"op", false, false}},  // TensorFlow's timeline-N.json.
    {"user_annotation", {"annotation", false, true}},
    {"gpu_user_annotation", {"device_annotation", true, false}},
    {"python_function", {"python", false, true}},
    {"cuda_runtime", {"runtime", false, false}},
    {"cuda_driver", {"runtime", false, false}},
    {"hip_runtime", {"runtime", false, false}},
    {"hip_driver", {"runtime", false, false}},
    {"xpu_runtime", {"runtime", false, false}},
    {"xpu_driver", {"runtime", false, false}},
    {"mtia_runtime", {"runtime", false, false}},
    {"privateuse1_runtime", {"runtime", false, false}},
    {"privateuse1_driver", {"runtime", false, false}},
    {"Runtime", {"runtime", false, false}},
    {"kernel", {"kernel", true, false}},
    {"Kernel", {"kernel", true, false}},
    {"concurrent_kernel", {"kernel", true, false}},
    {"gpu_memcpy", {"memcpy", true, false}},
    {"Memcpy", {"memcpy", true, false}},
    {"memcpy", {"memcpy", true, false}},
    {"gpu_memset", {"memset", true, false}},
    {"Memset", {"memset", true, false}},
    {"memset", {"memset", true, false}},
    {"cuda_sync", {"sync", true, false}},
    {"cpu_instant_event", {"other", false, true}},
    {"inductor", {"compile", false, false}},
    {"dynamo_timed", {"compile", false, false}},
    {"compile", {"compile", false, false}},
    {"gc", {"gc", false, false}},
    {"io", {"io", false, false}},
};

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// "AddmmBackward0", "NllLossBackward": a node of the autograd graph.
bool IsBackwardNode(std::string_view name) {
  constexpr std::string_view kWord = "Backward";
  if (Contains(name, " ")) return false;
  const std::size_t at = name.rfind(kWord);
  if (at == std::string_view::npos || at == 0 || name.starts_with("aten::")) return false;
  const std::string_view rest = name.substr(at + kWord.size());
  return std::all_of(rest.begin(), rest.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

ChromeCategory CategoryOfKind(std::string_view kind) {
  const auto* const found = std::ranges::find(kKinds, kind, &KindWord::kind);
  return found == std::end(kKinds) ? ChromeCategory{"other", false, false} : found->category;
}

ChromeNameFacts FactsOfName(std::string_view name) {
  ChromeNameFacts facts;
  constexpr std::string_view kStep = "ProfilerStep#";
  if (name.starts_with(kStep)) {
    std::int64_t number = 0;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + kStep.size(), end, number);
    if (error == std::errc() && at == end && number >= 0) facts.step = number;
  }
  facts.data =
      name.starts_with("enumerate(DataLoader)#") || name.starts_with("enumerate(DataPipe)#");
  facts.own_loader =
      facts.data && name.find("_SingleProcessDataLoaderIter") != std::string_view::npos;
  facts.optimizer = name.starts_with("Optimizer.step#");
  facts.aside = name.starts_with("Optimizer.zero_grad#");
  facts.backward = name.starts_with("autograd::engine::evaluate_function: ") ||
                   name == "torch::autograd::AccumulateGrad" || IsBackwardNode(name);
  facts.comm = name.starts_with("nccl:") || name.starts_with("gloo:") || name.starts_with("mpi:") ||
               name.starts_with("ucc:") || name.starts_with("c10d::") ||
               name == "record_param_comms";
  facts.collective_kernel =
      name.starts_with("nccl") || name.starts_with("rccl") || name.starts_with("void nccl");
  facts.module = name.starts_with("nn.Module: ");
  facts.memory = name == "[memory]";
  return facts;
}

}  // namespace telltale::interchange
