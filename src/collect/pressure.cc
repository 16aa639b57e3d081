// SPDX-License-Identifier: Apache-2.0
#include "collect/pressure.h"

#include <array>
#include <vector>

#include "collect/text.h"

namespace telltale::collect {
namespace {

struct PressureFile {
  const char* path;
  std::optional<MetricId> some;
  std::optional<MetricId> full;
};
// "full" of the processor is zero for the whole machine by definition.
constexpr std::array<PressureFile, 3> kPressureFiles = {{
    {"proc/pressure/cpu", MetricId::kPsiCpuSome, std::nullopt},
    {"proc/pressure/io", MetricId::kPsiIoSome, MetricId::kPsiIoFull},
    {"proc/pressure/memory", MetricId::kPsiMemorySome, MetricId::kPsiMemoryFull},
}};

class PressureSource final : public Source {
 public:
  explicit PressureSource(SourceContext* context) : context_(context) {
    for (const PressureFile& f : kPressureFiles) {
      files_.push_back(
          {KeptFile(context->root + f.path, KeptFile::Text::kOneRecord), Pressure(f.some, f.full)});
    }
  }

  void Sample(RowSink* sink) override {
    const std::string_view subject = sink->Intern("psi");
    for (Kept& kept : files_) kept.pressure.Sample(&kept.file, subject, context_, sink);
  }

 private:
  struct Kept {
    KeptFile file;
    Pressure pressure;
  };

  SourceContext* context_;
  std::vector<Kept> files_;
};

}  // namespace

void Pressure::Parse(std::string_view text, SourceContext* context) {
  std::string_view line;
  while (NextLine(&text, &line)) {
    const std::string_view kind = NextField(&line);
    std::optional<double>* const value = kind == "some" && some_id_   ? &some_
                                         : kind == "full" && full_id_ ? &full_
                                                                      : nullptr;
    if (value == nullptr) continue;
    constexpr std::string_view kKey = "avg10=";
    const std::string_view field = NextField(&line);
    const auto number =
        field.starts_with(kKey) ? ParseNumber<double>(field.substr(kKey.size())) : std::nullopt;
    if (number) {
      *value = number;
    } else {
      ++context->counters.malformed;
    }
  }
}

void Pressure::Sample(KeptFile* file, std::string_view interned_subject, SourceContext* context,
                      RowSink* sink) {
  if (period_.Due(context->clock->MonotonicNs())) {
    some_.reset();
    full_.reset();
    const Reading reading = ReadFile(file, context);
    if (reading.ok) Parse(reading.text, context);
  }
  if (some_) sink->Emit(*some_id_, interned_subject, *some_);
  if (full_) sink->Emit(*full_id_, interned_subject, *full_);
}

std::unique_ptr<Source> MakePressureSource(SourceContext* context) {
  return std::make_unique<PressureSource>(context);
}

}  // namespace telltale::collect
