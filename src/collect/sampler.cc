// SPDX-License-Identifier: Apache-2.0
#include "collect/sampler.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "collect/cgroup_source.h"
#include "collect/file_systems.h"
#include "collect/gpu_source.h"
#include "collect/process_tree.h"
#include "collect/source.h"

namespace telltale::collect {

void RowSink::Emit(MetricId id, std::string_view interned_subject, double value, std::int32_t pid) {
  const MetricDesc& metric = Describe(id);
  format::MetricRow& row = out_->emplace_back();
  row.ord_ns = time_ns_;
  row.time_ns = time_ns_;
  row.node = node_;
  row.subject = interned_subject;
  row.name = metric.name;
  row.value = value;
  row.unit = metric.unit;
  row.pid = pid;
}

Reading ReadFile(KeptFile* file, SourceContext* context) {
  Reading reading;
  reading.monotonic_ns = context->clock->MonotonicNs();
  bool failed = false;
  if (const auto text = file->Read(reading.monotonic_ns, &context->buffer, &failed)) {
    reading.text = *text;
    reading.ok = true;
  }
  if (failed) ++context->counters.unreadable;
  return reading;
}

SystemEvent NewEvent(const char* kind, const char* severity, std::string subject,
                     std::int64_t now_ns, std::string message, const nlohmann::ordered_json& data) {
  return {now_ns, kind, severity, std::move(subject), std::move(message), JsonText(data)};
}

namespace {

class SamplerImpl final : public Sampler {
 public:
  explicit SamplerImpl(SamplerOptions options) : node_(std::move(options.node)) {
    context_.root = std::move(options.root);
    if (!context_.root.ends_with('/')) context_.root += '/';
    context_.clock = options.clock;
    context_.patience_ns = options.patience_ns;
    if (!options.nvml.empty()) {
      sources_.push_back(std::make_unique<GpuSource>(&context_, options.nvml));
      vital_.push_back(sources_.back().get());
    }
    sources_.push_back(std::make_unique<FileSystemSource>(&context_));
    sources_.push_back(MakeCpuSource(&context_));
    sources_.push_back(MakeFrequencySource(&context_));
    sources_.push_back(MakeMemorySource(&context_));
    vital_.push_back(sources_.back().get());
    sources_.push_back(MakeDiskSource(&context_));
    sources_.push_back(MakeNetworkSource(&context_));
    if (!options.common_only) {
      sources_.push_back(MakePressureSource(&context_));
      sources_.push_back(MakeRunQueueSource(&context_));
      sources_.push_back(MakeTcpSource(&context_));
      sources_.push_back(MakeNfsSource(&context_));
      auto cgroup = std::make_unique<CgroupSource>(&context_);
      cgroup_ = cgroup.get();
      vital_.push_back(cgroup_);
      sources_.push_back(std::move(cgroup));
    }
    auto tree = std::make_unique<ProcessTree>(&context_);
    tree_ = tree.get();
    vital_.push_back(tree_);
    sources_.push_back(std::move(tree));
  }

  void SetRoots(std::vector<int> pids) override {
    if (!pids.empty() && cgroup_ != nullptr) cgroup_->SetProcess(pids.front());
    tree_->SetRoots(pids);
  }

  void Sample(std::int64_t monotonic_to_run_ns, StringPool* pool,
              std::vector<format::MetricRow>* out, Part part) override {
    const std::size_t before = out->size();
    // One time for all rows of a sample, so that readers can join them.
    RowSink sink(context_.clock->MonotonicNs() + monotonic_to_run_ns, pool->Intern(node_), pool,
                 out);
    const auto wanted = [&](const Source* source) {
      return part == Part::kAll || std::find(vital_.begin(), vital_.end(), source) != vital_.end();
    };
    for (const auto& source : sources_) {
      if (wanted(source.get())) source->Ask();
    }
    // Those that were asked come first in the list: they had the time of all the others.
    for (auto source = sources_.rbegin(); source != sources_.rend(); ++source) {
      if (wanted(source->get())) (*source)->Sample(&sink);
    }
    ++context_.counters.samples;
    context_.counters.rows += out->size() - before;
  }

  std::optional<std::uint64_t> OomKills() override {
    return cgroup_ == nullptr ? std::nullopt : cgroup_->OomKills();
  }

  std::vector<SystemEvent> TakeEvents() override { return std::exchange(context_.events, {}); }

  const SamplerCounters& counters() const override { return context_.counters; }

 private:
  std::string node_;
  SourceContext context_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<const Source*> vital_;  ///< Of these.
  CgroupSource* cgroup_ = nullptr;    ///< Null where there is none.
  ProcessTree* tree_ = nullptr;
};

}  // namespace

std::unique_ptr<Sampler> Sampler::Create(SamplerOptions options) {
  return std::make_unique<SamplerImpl>(std::move(options));
}

}  // namespace telltale::collect
