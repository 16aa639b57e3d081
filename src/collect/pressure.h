// SPDX-License-Identifier: Apache-2.0
// Pressure: shares of the last 10 s in which tasks waited, of the machine or of a control group.
#pragma once
#include <optional>
#include <string_view>

#include "collect/period.h"
#include "collect/source.h"

namespace telltale::collect {

/// What one file says. Its shares are rows of every sample, the file is read every second: the
/// kernel works them out every 2 s, and to read it means to ask all cores.
class Pressure {
 public:
  /// A kind without a metric is left out.
  Pressure(std::optional<MetricId> some, std::optional<MetricId> full)
      : some_id_(some), full_id_(full) {}

  void Sample(KeptFile* file, std::string_view interned_subject, SourceContext* context,
              RowSink* sink);
  /// The file is another one from now on.
  void Reset() { period_.Reset(); }

 private:
  void Parse(std::string_view text, SourceContext* context);

  std::optional<MetricId> some_id_, full_id_;
  std::optional<double> some_, full_;
  Period period_{kSlowPeriodNs};
};

}  // namespace telltale::collect
