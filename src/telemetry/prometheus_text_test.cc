// SPDX-License-Identifier: Apache-2.0
#include "telemetry/prometheus_text.h"

#include <gtest/gtest.h>

#include <limits>

#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

MetricSet Sample() {
  MetricSet set;
  set.Begin("try \"1\"\n\\", 0, 0);
  set.Add(kSteps, {{"mode", "TRAIN"}, {"rank", "0"}}, 12);
  set.Add(kLoss, {{"mode", "TRAIN"}, {"rank", "0"}}, std::numeric_limits<double>::quiet_NaN());
  set.Add(kScalar, {{"name", "a"}}, std::numeric_limits<double>::infinity());
  set.Add(kScalar, {{"name", "b"}}, -std::numeric_limits<double>::infinity());
  set.Add(kScalar, {{"name", "c"}}, 1e-9);
  set.Begin("", 0, 0);
  set.Add(kRuns, {}, 1);
  return set;
}

TEST(PrometheusText, IsEscapedAndOfOneBlockAFamily) {
  EXPECT_EQ(ToText(Sample(), TextFormat::kPrometheus),
            "# HELP telltale_loss The newest scalar 'loss' of a mode and rank.\n"
            "# TYPE telltale_loss gauge\n"
            "telltale_loss{run=\"try \\\"1\\\"\\n\\\\\",mode=\"TRAIN\",rank=\"0\"} NaN\n"
            "# HELP telltale_runs Runs in this answer.\n"
            "# TYPE telltale_runs gauge\n"
            "telltale_runs 1\n"
            "# HELP telltale_scalar The newest value of each scalar that the training logs.\n"
            "# TYPE telltale_scalar gauge\n"
            "telltale_scalar{run=\"try \\\"1\\\"\\n\\\\\",name=\"a\"} +Inf\n"
            "telltale_scalar{run=\"try \\\"1\\\"\\n\\\\\",name=\"b\"} -Inf\n"
            "telltale_scalar{run=\"try \\\"1\\\"\\n\\\\\",name=\"c\"} 1e-09\n"
            "# HELP telltale_steps_total Steps of a mode and rank.\n"
            "# TYPE telltale_steps_total counter\n"
            "telltale_steps_total{run=\"try \\\"1\\\"\\n\\\\\",mode=\"TRAIN\",rank=\"0\"} 12\n");
}

TEST(PrometheusText, OpenMetricsNamesCountersWithoutTheirEndAndEnds) {
  const std::string text = ToText(Sample(), TextFormat::kOpenMetrics);
  EXPECT_NE(text.find("# TYPE telltale_steps counter\ntelltale_steps_total{"), std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
  EXPECT_EQ(ToText(MetricSet(), TextFormat::kOpenMetrics), "# EOF\n");
  EXPECT_EQ(ToText(MetricSet(), TextFormat::kPrometheus), "");
}

TEST(PrometheusText, TheFormatIsTheOneThatIsAskedFor) {
  using enum TextFormat;
  EXPECT_EQ(FormatOf(""), kPrometheus);
  EXPECT_EQ(FormatOf("*/*"), kPrometheus);
  EXPECT_EQ(FormatOf("text/html, application/xhtml+xml;q=0.9"), kPrometheus);
  // What Prometheus 2.42 and 3 send.
  EXPECT_EQ(FormatOf("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
                     "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            kOpenMetrics);
  EXPECT_EQ(FormatOf("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
                     "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2"),
            kOpenMetrics);
  EXPECT_EQ(FormatOf("application/openmetrics-text;version=1.0.0;q=0.1,text/plain;q=0.9"),
            kPrometheus);
  EXPECT_EQ(FormatOf("application/openmetrics-text;version=2.0.0"), kPrometheus);
  EXPECT_EQ(FormatOf(" application/openmetrics-text "), kOpenMetrics);
  EXPECT_EQ(FormatOf(";;,,=;q=,"), kPrometheus);
}

}  // namespace
}  // namespace telltale::telemetry
