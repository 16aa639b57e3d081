// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/aws_credentials.h"
#include "base/clock.h"
#include "base/http_client.h"
#include "base/printable.h"
#include "telemetry/cloudwatch.h"

namespace telltale::telemetry {
namespace {

constexpr std::size_t kMaxMessage = 300;
/// Credentials are asked for anew so long before they expire.
constexpr std::int64_t kRenewNs = 300'000'000'000;

bool IsTaken(int status) { return status >= 200 && status < 300; }

/// As OTLP says, and any 5xx of AWS.
bool MayBeRetried(int status) { return status == 408 || status == 429 || status >= 500; }

Sent Refused(const HttpResponse& response, const std::string& url, const std::string& why) {
  const bool auth = response.status == 401 || response.status == 403;
  std::string message = fmt::format("{} answered {}", HttpOrigin(url), response.status);
  if (!why.empty()) message += ": " + Printable(why.substr(0, kMaxMessage));
  if (response.status == 404) message += ": is the path of the address right?";
  return {Status(auth ? Code::kAuth : Code::kIo, std::move(message)),
          MayBeRetried(response.status),
          response.retry_after_s.value_or(0),
          0,
          {}};
}

Sent Unsent(const Status& status) {
  // Nobody there may come; a wrong address stays wrong.
  return {status, status.code() == Code::kIo || status.code() == Code::kLimit, 0, 0, {}};
}

class OtlpSink final : public MetricSink {
 public:
  explicit OtlpSink(OtlpOptions options) : options_(std::move(options)) {}

  Sent Send(const MetricSet& metrics, std::int64_t timeout_ms) override {
    HttpRequest request;
    request.url = options_.url;
    request.headers = options_.headers;
    request.headers.emplace_back("Content-Type: application/x-protobuf");
    request.body = ToOtlp(metrics, options_.resource);
    request.ca_file = options_.ca_file;
    request.timeout_ms = timeout_ms;
    request.connect_timeout_ms = std::min(request.connect_timeout_ms, timeout_ms);
    const auto response = SendHttp(request);
    if (!response.ok()) return Unsent(response.status());
    if (!IsTaken(response->status)) return Refused(*response, options_.url, {});
    const OtlpAnswer answer = ParseOtlpAnswer(response->body);
    const auto rejected = static_cast<std::size_t>(std::max<std::int64_t>(0, answer.rejected));
    Sent sent;
    sent.points = metrics.points() - std::min(rejected, metrics.points());
    if (rejected > 0) {
      sent.note = fmt::format("{} of {} points were refused: {}", rejected, metrics.points(),
                              Printable(answer.message.substr(0, kMaxMessage)));
    }
    return sent;
  }

 private:
  const OtlpOptions options_;
};

class CloudWatchSink final : public MetricSink {
 public:
  explicit CloudWatchSink(CloudWatchOptions options) : options_(std::move(options)) {
    if (options_.url.empty()) options_.url = CloudWatchUrl(options_.region);
  }

  Sent Send(const MetricSet& metrics, std::int64_t timeout_ms) override {
    const std::int64_t now = Clock::System().RealtimeNs();
    if (!credentials_ ||
        (credentials_->expires_ns != 0 && credentials_->expires_ns - now < kRenewNs)) {
      auto found = FindAwsCredentials();
      if (!found.ok()) return {found.status(), false, 0, 0, {}};
      credentials_ = std::move(found).value();
    }
    CloudWatchBodies bodies = ToCloudWatch(metrics, options_.name_space);
    for (std::string& body : bodies.bodies) {
      HttpRequest request;
      request.url = options_.url;
      request.headers = {"Content-Type: application/x-www-form-urlencoded"};
      request.body = std::move(body);
      request.timeout_ms = timeout_ms;
      request.connect_timeout_ms = std::min(request.connect_timeout_ms, timeout_ms);
      request.aws = AwsSignature{credentials_->access_key, credentials_->secret_key,
                                 credentials_->session_token, options_.region, "monitoring"};
      const auto response = SendHttp(request);
      if (!response.ok()) return Unsent(response.status());
      if (IsTaken(response->status)) continue;
      const std::string why = CloudWatchError(response->body);
      Sent refused = Refused(*response, options_.url, why);
      if (why.starts_with("Throttling")) refused.retry = true;
      if (why.starts_with("ExpiredToken")) {
        // A role's keys are made anew.
        credentials_.reset();
        refused.retry = true;
      }
      return refused;
    }
    Sent sent;
    sent.points = bodies.metrics;
    if (bodies.left_out > 0) {
      sent.note = fmt::format(
          "{} values that are no finite number were left out, as CloudWatch "
          "takes none",
          bodies.left_out);
    }
    return sent;
  }

 private:
  CloudWatchOptions options_;
  std::optional<AwsCredentials> credentials_;
};

}  // namespace

std::unique_ptr<MetricSink> MakeOtlpSink(OtlpOptions options) {
  return std::make_unique<OtlpSink>(std::move(options));
}

std::unique_ptr<MetricSink> MakeCloudWatchSink(CloudWatchOptions options) {
  return std::make_unique<CloudWatchSink>(std::move(options));
}

std::int64_t PauseMs(std::int64_t interval_ms, int failures, std::int64_t retry_after_s) {
  if (failures <= 0) return interval_ms;
  std::int64_t pause = std::max<std::int64_t>(interval_ms, 1);
  for (int i = 1; i < failures && pause < kLongestPauseMs; ++i) pause *= 2;
  if (retry_after_s > 0) {
    pause = std::max(pause, std::min(retry_after_s, kLongestPauseMs / 1000) * 1000);
  }
  return std::min(pause, std::max(kLongestPauseMs, interval_ms));
}

}  // namespace telltale::telemetry
