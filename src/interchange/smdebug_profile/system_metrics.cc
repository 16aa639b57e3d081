// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_profile/system_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/units.h"
#include "base/utf8.h"
#include "interchange/json_scan.h"

namespace telltale::interchange {

/// One line.
struct SystemMetrics::Sample {
  std::string_view type, name, dimension, node;
  std::optional<double> value;
  std::optional<std::int64_t> time_us;
  std::string_view text, value_text, time_text;
};

namespace {

constexpr std::size_t kMaxSeries = 1U << 16;
constexpr std::int32_t kMaxCores = 4096;
/// Whose cores are summed up; those of others beyond are taken as they are.
constexpr std::size_t kMaxNodesOfFile = 256;
constexpr std::string_view kNoNode = "node";
/// A longer one is taken apart each time.
constexpr std::size_t kLongestLine = 512;

/// How a metric of SageMaker's is called here.
struct Translation {
  std::string_view theirs, ours, unit;
};
constexpr Translation kTranslations[] = {
    {"GPUUtilization", "gpu.utilization", "percent"},
    {"GPUMemoryUtilization", "gpu.memory_percent", "percent"},
    {"MemoryUsedPercent", "mem.used_percent", "percent"},
    {"IOPS", "disk.ops_rate", "1/s"},
    {"ReadThroughputInBytesPerSecond", "disk.read_bytes_rate", "bytes/s"},
    {"WriteThroughputInBytesPerSecond", "disk.write_bytes_rate", "bytes/s"},
    {"ReceiveBytesPerSecond", "net.recv_bytes_rate", "bytes/s"},
    {"TransmitBytesPerSecond", "net.send_bytes_rate", "bytes/s"},
};

/// 3 of "cpu3"; -1 where there is no number.
std::int32_t NumberAtEnd(std::string_view name) {
  const std::size_t digits = name.find_first_of("0123456789");
  if (digits == std::string_view::npos) return -1;
  std::int32_t number = -1;
  const auto [end, error] =
      std::from_chars(name.data() + digits, name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? number : -1;
}

std::string Lower(std::string_view text) {
  std::string out(text.substr(0, 256));
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

bool BeginsNumber(std::string_view word) {
  return !word.empty() && JsonScanner::BeginsNumber(word[0]);
}

bool IsTime(std::int64_t time_us) { return time_us >= 0 && time_us <= INT64_MAX / kUs; }

bool SameSample(std::string_view key, std::string_view a, std::string_view b, std::string_view c,
                std::string_view d) {
  if (key.size() != a.size() + b.size() + c.size() + d.size() + 3) return false;
  const auto part = [&](std::string_view text) {
    const bool same = key.starts_with(text);
    key.remove_prefix(std::min(key.size(), text.size() + 1));
    return same;
  };
  return part(a) && part(b) && part(c) && part(d);
}

}  // namespace

void SystemMetrics::Read(std::string_view text) {
  JsonScanner scanner(text);
  time_text_ = {};
  while (scanner.FindObject()) {
    if (TakeExpected(&scanner)) continue;
    Sample sample;
    bool numbers = true;
    const char* const begin = scanner.rest().data();
    const bool whole = scanner.ReadObject([&](std::string_view key, const JsonValue& value) {
      if (JsonIs(key, "Type")) {
        sample.type = value.text;
      } else if (JsonIs(key, "Name")) {
        sample.name = value.text;
      } else if (JsonIs(key, "Dimension")) {
        sample.dimension = value.text;
      } else if (JsonIs(key, "NodeId")) {
        sample.node = value.text;
      } else if (JsonIs(key, "Value")) {
        sample.value = value.Number();
        sample.value_text = value.text;
        numbers = numbers && value.kind == JsonValue::Kind::kNumber;
      } else if (JsonIs(key, "Timestamp")) {
        sample.time_us = value.Scaled(6);
        sample.time_text = value.text;
        numbers = numbers && value.kind == JsonValue::Kind::kNumber;
      }
    });
    if (!whole || !sample.value || !sample.time_us || !IsTime(*sample.time_us)) {
      ++damaged_;
      continue;
    }
    if (numbers) {
      sample.text = {begin, static_cast<std::size_t>(scanner.rest().data() - begin)};
    }
    Take(sample);
  }
  for (Node& node : nodes_) Close(&node);
}

bool SystemMetrics::TakeExpected(JsonScanner* scanner) {
  if (known_.empty()) return false;
  const std::size_t at = guess_ < known_.size() ? guess_ : 0;
  const Known& known = known_[at];
  const Line& line = known.line;
  const std::string_view text = scanner->rest();
  if (line.before.empty() || !text.starts_with(line.before)) return false;
  const std::string_view first = JsonScanner::WordAt(text.substr(line.before.size()));
  std::size_t size = line.before.size() + first.size();
  if (!text.substr(size).starts_with(line.between)) return false;
  size += line.between.size();
  const std::string_view second = JsonScanner::WordAt(text.substr(size));
  size += second.size();
  if (!text.substr(size).starts_with(line.behind)) return false;
  if (!BeginsNumber(first) || !BeginsNumber(second)) return false;
  const JsonValue value{JsonValue::Kind::kNumber, line.value_first ? first : second, false};
  const JsonValue time{JsonValue::Kind::kNumber, line.value_first ? second : first, false};
  const auto number = value.Number();
  if (!number) return false;
  if (time.text != time_text_) {
    const auto time_us = time.Scaled(6);
    if (!time_us || !IsTime(*time_us)) return false;
    time_us_ = *time_us;
    time_text_ = time.text;
  }
  scanner->Advance(size + line.behind.size());
  guess_ = at + 1;
  Add(known, time_us_, *number);
  return true;
}

void SystemMetrics::Take(const Sample& sample) {
  Add(KnownOf(sample), *sample.time_us, *sample.value);
}

void SystemMetrics::Add(const Known& known, std::int64_t time_us, double value) {
  ++read_;
  const std::int64_t time_ns = time_us * kUs;
  if (known.role == Role::kAsIs) {
    out_->Add(time_ns, known.series, value);
    return;
  }
  Node& node = nodes_[known.node];
  if (node.open && node.time_ns != time_ns) Close(&node);
  node.open = true;
  node.time_ns = time_ns;
  const auto core = static_cast<std::size_t>(known.core);
  if (node.cores.size() <= core) node.cores.resize(core + 1);
  Core& at = node.cores[core];
  at.named = true;
  if (known.role == Role::kCoreBusy) {
    at.busy = value;
    at.idle_series = known.series;
  } else {
    at.wait = value;
    out_->Add(time_ns, known.series, value);
  }
}

/// The node's own values are the means of its cores that were sampled together.
void SystemMetrics::Close(Node* node) {
  if (!node->open) return;
  node->open = false;
  double busy = 0;
  double wait = 0;
  double cores = 0;
  double waits = 0;
  for (Core& core : node->cores) {
    if (core.busy >= 0) {
      const double idle = std::clamp(100 - core.busy - std::max(0.0, core.wait), 0.0, 100.0);
      out_->Add(node->time_ns, core.idle_series, idle);
      busy += core.busy;
      ++cores;
    }
    if (core.wait >= 0) {
      wait += core.wait;
      ++waits;
    }
    core.busy = core.wait = -1;
  }
  if (waits > 0) {
    wait /= waits;
    out_->Add(node->time_ns, node->wait, wait);
  }
  if (cores > 0) {
    busy /= cores;
    out_->Add(node->time_ns, node->busy, busy);
    out_->Add(node->time_ns, node->idle, std::clamp(100 - busy - wait, 0.0, 100.0));
  }
}

const SystemMetrics::Known& SystemMetrics::KnownOf(const Sample& sample) {
  const auto same = [&](std::uint32_t at) {
    return SameSample(known_[at].key, sample.type, sample.name, sample.dimension, sample.node);
  };
  if (guess_ < known_.size() && same(static_cast<std::uint32_t>(guess_))) {
    return Hit(guess_, sample);
  }
  std::uint64_t hash = 1469598103934665603U;
  for (const std::string_view text : {sample.type, sample.name, sample.dimension, sample.node}) {
    for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 1099511628211U;
    hash = (hash ^ 0x1F) * 1099511628211U;
  }
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (same(at->second)) return Hit(at->second, sample);
  }
  // Beyond the limit all that is new is one.
  if (known_.size() >= kMaxSeries) return known_.back();
  known_.push_back(Describe(sample));
  by_hash_.emplace(hash, static_cast<std::uint32_t>(known_.size() - 1));
  return Hit(known_.size() - 1, sample);
}

const SystemMetrics::Known& SystemMetrics::Hit(std::size_t at, const Sample& sample) {
  guess_ = at + 1;
  Known& known = known_[at];
  const bool value_first = sample.value_text.data() < sample.time_text.data();
  const std::string_view first = value_first ? sample.value_text : sample.time_text;
  const std::string_view second = value_first ? sample.time_text : sample.value_text;
  if (sample.text.empty() || sample.text.size() > kLongestLine) {
    known.line = {};
    return known;
  }
  const auto offset = [&](const char* to) {
    return static_cast<std::size_t>(to - sample.text.data());
  };
  const std::size_t between = offset(first.data() + first.size());
  const std::size_t behind = offset(second.data() + second.size());
  Line& line = known.line;
  line.before.assign(sample.text.substr(0, offset(first.data())));
  line.between.assign(sample.text.substr(between, offset(second.data()) - between));
  line.behind.assign(sample.text.substr(behind));
  line.value_first = value_first;
  return known;
}

SystemMetrics::Known SystemMetrics::Describe(const Sample& sample) {
  Known known;
  known.key =
      fmt::format("{}\x1F{}\x1F{}\x1F{}", sample.type, sample.name, sample.dimension, sample.node);
  const std::string node(sample.node.empty() ? kNoNode : sample.node.substr(0, 256));
  const std::string type = Lower(sample.type);
  const std::int32_t number = NumberAtEnd(sample.name);
  // The metric is the dimension of a core or GPU; of all else mostly the name.
  const std::string_view words[] = {sample.dimension, sample.name};
  if (type == "cpu" && number >= 0 && number < kMaxCores && nodes_.size() < kMaxNodesOfFile) {
    const std::string subject = fmt::format("cpu:{}", number);
    known.core = number;
    known.node = NodeOf(node);
    if (sample.dimension == "CPUUtilization") {
      known.role = Role::kCoreBusy;
      known.series = SeriesOf(node, subject, "cpu.idle", "percent");
      return known;
    }
    if (sample.dimension == "I/OWaitPercentage") {
      known.role = Role::kCoreWait;
      known.series = SeriesOf(node, subject, "cpu.iowait", "percent");
      return known;
    }
  }
  for (const std::string_view word : words) {
    const auto* const found =
        std::find_if(std::begin(kTranslations), std::end(kTranslations),
                     [&](const Translation& translation) { return translation.theirs == word; });
    if (found == std::end(kTranslations)) continue;
    std::string subject = "node";
    if (found->ours.starts_with("gpu.")) subject = fmt::format("gpu:{}", std::max(0, number));
    if (found->ours.starts_with("disk.")) subject = "disk:all";
    if (found->ours.starts_with("net.")) {
      // Of the training's container, or of the platform beside it.
      const std::string_view side = word == sample.name ? sample.dimension : sample.name;
      subject = side.empty() ? "net:all" : "net:" + Lower(side);
    }
    known.series = SeriesOf(node, subject, std::string(found->ours), std::string(found->unit));
    return known;
  }
  // As it came: what it is stands in its name.
  const std::string_view metric = sample.dimension.empty() ? sample.name : sample.dimension;
  const bool named = !sample.name.empty() && sample.name != metric;
  known.series = SeriesOf(node, named ? std::string(sample.name.substr(0, 256)) : "node",
                          fmt::format("smdebug.{}.{}", type, metric.substr(0, 256)), "");
  return known;
}

std::uint32_t SystemMetrics::NodeOf(std::string_view name) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].name == name) return static_cast<std::uint32_t>(i);
  }
  Node node;
  node.name = std::string(name);
  node.busy = SeriesOf(node.name, "node", "cpu.busy", "percent");
  node.idle = SeriesOf(node.name, "node", "cpu.idle", "percent");
  node.wait = SeriesOf(node.name, "node", "cpu.iowait", "percent");
  nodes_.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::uint32_t SystemMetrics::SeriesOf(const std::string& node, const std::string& subject,
                                      const std::string& name, const std::string& unit) {
  const std::string key = fmt::format("{}\x1F{}\x1F{}", node, subject, name);
  const auto [at, is_new] =
      series_.try_emplace(key, static_cast<std::uint32_t>(out_->names.size()));
  if (is_new) {
    std::string scratch;
    const auto valid = [&](const std::string& text) {
      return std::string(ToValidUtf8(text, &scratch));
    };
    out_->names.push_back({valid(node), valid(subject), valid(name), unit});
  }
  return at->second;
}

}  // namespace telltale::interchange
