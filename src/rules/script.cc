// SPDX-License-Identifier: Apache-2.0
// The language: docs/formats/rule-scripts.md.
#include "rules/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/string_pool.h"
#include "rules/rule_pack.h"
#include "rules/rule_set.h"
#include "rules/script_run.h"
#include "store/folder.h"
#include "store/tensor_file.h"

namespace telltale::rules {
namespace {

using AnyRow =
    std::variant<format::StepRow, format::ScalarRow, format::SpanRow, format::EventRow,
                 format::MetricRow, format::StatisticRow, format::TensorRow, format::HistogramRow>;

constexpr std::uint64_t kMaxFileBytes = 8ULL << 20;  ///< Of a rules file.
constexpr std::size_t kMaxElements = 1U << 20;       ///< Of a tensor or a series.

struct Line {
  std::vector<std::string> words;
  std::map<std::string, std::string> options;  ///< key=value; a "~" after the key stays with it.
  /// All of them: a key may come twice.
  std::vector<std::pair<std::string, std::string>> given;
  std::string rest;  ///< After " : ", or " data=" of an event.
};

/// Splits at spaces; double quotes keep a word together.
Line Parse(const std::string& text) {
  Line line;
  std::string head = text;
  constexpr std::string_view kData = " data=";
  const auto data = text.starts_with("load event ") ? text.find(kData) : std::string::npos;
  if (data != std::string::npos) {
    head = text.substr(0, data);
    line.rest = text.substr(data + kData.size());
  } else if (const auto colon = text.find(" : "); colon != std::string::npos) {
    head = text.substr(0, colon);
    line.rest = text.substr(colon + 3);
  }
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (char c : head + " ") {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  for (const std::string& w : words) {
    const auto mark = w.find_first_of("=~");
    if (mark == std::string::npos || mark == 0) {
      line.words.push_back(w);
    } else {
      line.given.emplace_back(w.substr(0, mark) + (w[mark] == '~' ? "~" : ""), w.substr(mark + 1));
      line.options[line.given.back().first] = line.given.back().second;
    }
  }
  return line;
}

std::int64_t Duration(const std::string& text) {
  std::size_t used = 0;
  const double value = std::stod(text, &used);
  const std::string unit = text.substr(used);
  const double scale = unit == "ns"                  ? 1
                       : unit == "us"                ? 1e3
                       : unit == "ms"                ? 1e6
                       : unit == "s" || unit.empty() ? 1e9
                       : unit == "m"                 ? 60e9
                                                     : throw std::runtime_error("unit of " + text);
  return std::llround(value * scale);
}

/// A value of a series; missing ones are left out.
struct Point {
  std::int64_t offset;
  double value;
};

/// Deterministic noise in [-1, 1] with mean 0.
class Noise {
 public:
  double Next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11U) / 9007199254740992.0 * 2 - 1;
  }

 private:
  std::uint64_t state_ = 42;
};

/// Terms, separated by spaces: V | _ | VxN | V+DxN | V-DxN | A>B/TxN, each with ~NOISE at the end.
std::vector<Point> PointsOf(const std::string& text, Noise* noise) {
  std::vector<Point> out;
  std::int64_t offset = 0;
  std::istringstream in(text);
  for (std::string term; in >> term;) {
    double amplitude = 0;
    if (const auto tilde = term.find('~'); tilde != std::string::npos) {
      amplitude = std::stod(term.substr(tilde + 1));
      term.resize(tilde);
    }
    std::int64_t count = 1;
    if (const auto times = term.find('x'); times != std::string::npos) {
      count = std::stoll(term.substr(times + 1));
      term.resize(times);
    }
    if (term == "_") {
      offset += count;
      continue;
    }
    std::size_t used = 0;
    const double first = std::stod(term, &used);
    const std::string tail = term.substr(used);
    double step = 0;
    double target = first;
    double tau = 0;
    if (!tail.empty() && (tail[0] == '+' || tail[0] == '-')) {
      step = std::stod(tail);
    } else if (!tail.empty() && tail[0] == '>') {
      target = std::stod(tail.substr(1), &used);
      tau = std::stod(tail.substr(used + 2));
    } else if (!tail.empty()) {
      throw std::runtime_error("term " + term);
    }
    if (count > static_cast<std::int64_t>(kMaxElements)) throw std::runtime_error("too many");
    for (std::int64_t i = 0; i < count; ++i) {
      const double at = static_cast<double>(i);
      const double base =
          tau > 0 ? target + (first - target) * std::exp(-at / tau) : first + step * at;
      out.push_back({offset++, amplitude > 0 ? base + amplitude * noise->Next() : base});
    }
  }
  return out;
}

/// "a | b" → a, b.
std::vector<std::string> Parts(const std::string& text) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (true) {
    const std::size_t bar = text.find('|', at);
    out.push_back(text.substr(at, bar == std::string::npos ? bar : bar - at));
    if (bar == std::string::npos) return out;
    at = bar + 1;
  }
}

/// The values that `load tensor` has given, by the offset of their rows.
class ScriptValues final : public TensorValues {
 public:
  std::uint64_t Add(std::vector<double> values) {
    values_.push_back(std::move(values));
    return values_.size() - 1;
  }
  Result<std::vector<double>> Read(const Record& record, std::size_t limit) override {
    const auto* row = record.As<format::TensorRow>();
    if (row == nullptr || row->file.empty() || row->offset >= values_.size()) {
      return Status(Code::kUsage, "only the shape was taken");
    }
    std::vector<double> out = values_[row->offset];
    if (out.size() > limit) out.resize(limit);
    return out;
  }

 private:
  std::vector<std::vector<double>> values_;
};

/// The quantiles of a histogram's row, linear within its bins.
std::string Quantiles(const std::vector<double>& bins, double min, double max, double total) {
  constexpr std::array kRanks = {0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99};
  nlohmann::json out = nlohmann::json::array();
  const double width = (max - min) / static_cast<double>(std::max<std::size_t>(1, bins.size()));
  for (const double rank : kRanks) {
    double left = rank * total;
    double value = min;
    for (const double bin : bins) {
      if (left <= bin && bin > 0) {
        value += width * left / bin;
        break;
      }
      left -= bin;
      value += width;
    }
    out.push_back(std::min(value, max));
  }
  return JsonText(out);
}

/// What a path of names, and of numbers in lists, with dots between them leads to; names may have
/// dots themselves.
const nlohmann::json* At(const nlohmann::json& of, const std::string& path) {
  if (of.is_object() && of.contains(path)) return &of.at(path);
  if (of.is_array()) {
    const std::string index = path.substr(0, path.find('.'));
    const bool digits =
        !index.empty() && index.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || index.size() > 6 || std::stoul(index) >= of.size()) return nullptr;
    const nlohmann::json& item = of.at(std::stoul(index));
    return index == path ? &item : At(item, path.substr(index.size() + 1));
  }
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    if (!of.is_object() || !of.contains(path.substr(0, dot))) continue;
    const nlohmann::json* found = At(of.at(path.substr(0, dot)), path.substr(dot + 1));
    if (found != nullptr) return found;
  }
  return nullptr;
}

class Script {
 public:
  Script(std::filesystem::path folder, Engine::ForeignMaker foreign, ScriptOptions options)
      : folder_(std::move(folder)), foreign_(std::move(foreign)), options_(std::move(options)) {}

  ScriptOutcome Run(std::istream& in) {
    std::string text;
    for (number_ = 1; std::getline(in, text); ++number_) {
      while (!text.empty() && (text.back() == ' ' || text.back() == '\\')) {
        const bool joins = text.back() == '\\';
        text.pop_back();
        if (joins) {
          std::string more;
          std::getline(in, more);
          ++number_;
          text += more;
        }
      }
      if (text.empty() || text[0] == '#') continue;
      try {
        Execute(Parse(text));
      } catch (const std::exception& error) {
        Complain(fmt::format("cannot read this line: {}", error.what()));
      }
    }
    if (out_.expectations == 0) Complain("the script expects nothing");
    if (engine_) out_.states = engine_->rule_states();
    return std::move(out_);
  }

 private:
  void Complain(const std::string& what) {
    ++out_.failures;
    out_.text += fmt::format("line {}: {}\n", number_, what);
    if (!engine_) return;
    for (const Finding& f : engine_->findings()) {
      const format::FindingRow row = ToRow(f);
      out_.text += fmt::format(
          "  has: {} {} {} subject={} first_step={} last_step={} cost={:.3f} confidence={:.2f}"
          "\n    {}\n    {}\n    {}\n    {}\n",
          row.rule, row.severity, row.state, row.subject, row.first_step, row.last_step,
          row.cost_seconds, row.confidence, row.message, row.cause, row.advice, row.evidence);
    }
    for (const RuleState& s : engine_->rule_states()) {
      out_.text +=
          fmt::format("  status: {} {} {} {}\n", s.name, Name(s.status), s.error, s.summary);
    }
  }

  void Execute(const Line& line) {
    const std::string& verb = line.words.at(0);
    if (verb == "rule") {
      Start(OneRule(line));
    } else if (verb == "rules") {
      Start(RulesFile(line.words.at(1)));
    } else if (verb == "load") {
      Load(line);
    } else if (verb == "save") {
      Save(line.words.at(1));
    } else if (verb == "end") {
      Flush();
      engine_->End();
      Keep();
      Clear();
    } else if (verb == "expect") {
      Flush();
      ++out_.expectations;
      Expect(line);
    } else {
      throw std::runtime_error("no such verb");
    }
  }

  static RuleSet OneRule(const Line& line) {
    RuleSpec spec;
    spec.rule = line.words.at(1);
    spec.name = spec.rule;
    for (const auto& [key, value] : line.options) {
      if (key == "preset") {
        spec.preset = value;
      } else if (key == "as") {
        spec.name = value;
      } else {
        spec.parameters[key] = value;
      }
    }
    RuleSet set;
    set.defaults = false;
    set.rules.push_back(std::move(spec));
    return set;
  }

  /// The rules that the file names, and no others.
  RuleSet RulesFile(const std::string& name) const {
    const std::filesystem::path path = RulesFileOf(folder_ / name);
    const auto text = store::ReadWholeFile(path, kMaxFileBytes);
    if (!text.ok()) throw std::runtime_error(text.status().message());
    auto set = RuleSetFromToml(*text, name);
    if (!set.ok()) throw std::runtime_error(set.status().message());
    const Status complete = CompleteRules(path, &*set);
    if (!complete.ok()) throw std::runtime_error(complete.message());
    set->defaults = false;
    return std::move(*set);
  }

  void Start(const RuleSet& set) {
    auto engine = Engine::Create(options_.rules.value_or(set), foreign_);
    if (!engine.ok()) throw std::runtime_error(engine.status().message());
    if (!engine_ && !pending_.empty()) throw std::runtime_error("records before the first rule");
    engine_ = std::make_unique<Engine>(std::move(engine).value());
    engine_->SettleAtOnce();
    values_ = ScriptValues();
    engine_->Bind({&values_, runs_.own_folder()});
    Clear();
  }

  void Clear() {
    pending_.clear();
    clock_ns_ = 0;
    next_step_.clear();
  }

  /// What was loaded and not fed yet is a run on disk.
  void Save(const std::string& name) {
    format::Rows rows;
    for (Pending& pending : pending_) {
      std::visit([&](const auto& row) { TableOf(&rows, row).push_back(row); }, pending.row);
    }
    const Status saved = runs_.Save(name, std::move(rows));
    if (!saved.ok()) throw std::runtime_error(saved.message());
    Clear();
  }

  template <class Row>
  static std::vector<Row>& TableOf(format::Rows* rows, const Row& of) {
    static_cast<void>(of);
    std::vector<Row>* found = nullptr;
    format::ForEachTable(*rows, [&](auto& table) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(table)>, std::vector<Row>>) {
        found = &table;
      }
    });
    return *found;
  }

  static std::string Option(const Line& line, const std::string& key,
                            const std::string& otherwise) {
    const auto found = line.options.find(key);
    return found == line.options.end() ? otherwise : found->second;
  }

  static double Number(const Line& line, const std::string& key, double otherwise) {
    const auto found = line.options.find(key);
    return found == line.options.end() ? otherwise : std::stod(found->second);
  }

  void Load(const Line& line) {
    const std::string& kind = line.words.at(1);
    const std::int64_t at =
        line.options.contains("at") ? Duration(line.options.at("at")) : clock_ns_;
    const std::int64_t every = Duration(Option(line, "every", "100ms"));
    const std::int64_t count = std::stoll(Option(line, "count", "1"));
    writer_ = static_cast<std::uint32_t>(std::stoul(Option(line, "node", "0")));
    const std::string mode = Option(line, "mode", "TRAIN");
    const std::int32_t rank = std::stoi(Option(line, "rank", "0"));
    const std::int32_t pid = std::stoi(Option(line, "pid", std::to_string(100 + rank)));
    const auto attempt = static_cast<std::uint32_t>(std::stoul(Option(line, "attempt", "1")));
    const std::string name = line.words.size() > 2 ? line.words[2] : "";
    const std::string counter = fmt::format("{}/{}/{}/{}/{}", kind, name, mode, rank, attempt);
    const std::int64_t from =
        line.options.contains("from") ? std::stoll(line.options.at("from")) : next_step_[counter];
    const std::int64_t late = Duration(Option(line, "late", "0"));
    const auto fill = [&](auto* row, std::int64_t begin) {
      row->time_ns = kEpoch + begin;
      row->ord_ns = row->time_ns + late;
      row->rank = rank;
      row->pid = pid;
      row->attempt = attempt;
    };
    if (kind == "steps") {
      const std::int64_t wait = Duration(Option(line, "data_wait", "0"));
      const std::int64_t other = Duration(Option(line, "other", "0"));
      const std::int64_t slow = Duration(Option(line, "slow", "0"));
      const std::int64_t slow_every = std::stoll(Option(line, "slow_every", "1"));
      const std::string slow_phase = Option(line, "slow_phase", "other");
      const std::string forward = Option(line, "forward", "");
      std::int64_t begin = at;
      for (std::int64_t i = 0; i < count; ++i) {
        format::StepRow row;
        fill(&row, begin);
        row.step = from + i;
        row.mode = pool_.Intern(mode);
        row.data_wait_ns = wait;
        row.other_ns = other;
        row.forward_ns = forward.empty() ? (every - wait - other) / 2 : Duration(forward);
        row.backward_ns = every - wait - other - row.forward_ns;
        row.duration_ns = every;
        row.skipped = Option(line, "skipped", "0") == "1";
        row.optimizer_calls = static_cast<std::uint32_t>(std::stoul(Option(line, "calls", "1")));
        if (slow > 0 && row.step % slow_every == slow_every - 1) {
          row.duration_ns += slow;
          row.probe_ns = Duration(Option(line, "probe", "0"));
          (slow_phase == "data_wait" ? row.data_wait_ns
           : slow_phase == "forward" ? row.forward_ns
                                     : row.other_ns) += slow;
          if (line.options.contains("span")) {
            format::SpanRow span;
            fill(&span, begin);
            span.duration_ns = line.options.contains("span_takes")
                                   ? Duration(line.options.at("span_takes"))
                                   : slow;
            span.ord_ns += span.duration_ns;
            span.name = pool_.Intern(line.options.at("span"));
            span.category = "user";
            span.mode = row.mode;
            span.step = row.step;
            Push(span);
          }
        }
        row.ord_ns += row.duration_ns;
        begin += row.duration_ns;
        row.micro_steps = static_cast<std::uint32_t>(std::stoul(Option(line, "micro", "1")));
        row.batch_size = std::stoll(Option(line, "batch_size", "32"));
        Push(row);
      }
      next_step_[counter] = from + count;
      clock_ns_ = std::max(clock_ns_, begin);
    } else if (kind == "fetch") {
      const std::int64_t takes = Duration(Option(line, "takes", "10ms"));
      for (std::int64_t i = 0; i < count; ++i) {
        format::SpanRow row;
        fill(&row, at + i * every);
        row.duration_ns = takes;
        row.ord_ns += takes;
        row.name = "fetch";
        row.category = "data";
        row.mode = pool_.Intern(mode);
        Push(row);
      }
    } else if (kind == "scalar") {
      std::int64_t last = 0;
      for (const Point& point : PointsOf(line.rest, &noise_)) {
        format::ScalarRow row;
        fill(&row, at + (point.offset + 1) * every - 1);
        row.name = pool_.Intern(line.words.at(2));
        row.value = point.value;
        row.step = from + point.offset;
        row.mode = pool_.Intern(mode);
        Push(row);
        last = point.offset + 1;
      }
      next_step_[counter] = from + last;
      if (line.options.contains("advance")) clock_ns_ = std::max(clock_ns_, at + last * every);
    } else if (kind == "stats") {
      // A value is the mean absolute value and the root mean square of the elements.
      const std::int64_t interval = std::stoll(Option(line, "interval", "100"));
      const auto elements =
          static_cast<std::uint64_t>(std::stoull(Option(line, "elements", "1000")));
      std::int64_t last = 0;
      for (const Point& point : PointsOf(line.rest, &noise_)) {
        format::StatisticRow row;
        row.step = from + point.offset * interval;
        fill(&row, at + row.step * every + every / 2);
        row.name = pool_.Intern(name);
        row.collection = pool_.Intern(Option(line, "collection", "gradients"));
        row.mode = pool_.Intern(mode);
        row.dtype = pool_.Intern(Option(line, "dtype", "float32"));
        row.count = elements;
        row.nan_count = std::isnan(point.value) ? 1 : 0;
        row.inf_count = std::isinf(point.value) ? 1 : 0;
        row.zero_count = point.value == 0 ? elements : std::stoull(Option(line, "zeros", "0"));
        const double value = std::isfinite(point.value) ? point.value : 1;
        row.l1 = value * static_cast<double>(elements - row.zero_count);
        row.l2 = value * std::sqrt(static_cast<double>(elements));
        row.min = Number(line, "min", -value);
        row.max = Number(line, "max", value);
        row.mean = Number(line, "mean", 0);
        row.std = std::sqrt(std::max(0.0, value * value - row.mean * row.mean));
        Push(row);
        last = (point.offset + 1) * interval;
      }
      next_step_[counter] = from + last;
    } else if (kind == "metric") {
      for (const Point& point : PointsOf(line.rest, &noise_)) {
        format::MetricRow row;
        row.time_ns = row.ord_ns = kEpoch + at + (point.offset + 1) * every;
        row.node = pool_.Intern(fmt::format("n{}", writer_));
        row.subject = pool_.Intern(Option(line, "subject", "node"));
        row.name = pool_.Intern(name);
        row.value = point.value;
        row.unit = pool_.Intern(Option(line, "unit", ""));
        if (row.subject.starts_with("proc:") && row.subject != "proc:tree") {
          row.pid = std::stoi(std::string(row.subject.substr(5)));
        }
        Push(row);
      }
    } else if (kind == "event") {
      format::EventRow row;
      fill(&row, at);
      row.kind = pool_.Intern(line.words.at(2));
      row.severity = pool_.Intern(Option(line, "severity", "info"));
      row.subject = pool_.Intern(Option(line, "subject", ""));
      row.message = pool_.Intern(Option(line, "message", ""));
      row.step = std::stoll(Option(line, "step", "-1"));
      row.data = pool_.Intern(line.rest);
      Push(row);
    } else if (kind == "span") {
      const std::int64_t takes = Duration(Option(line, "takes", "10ms"));
      const std::int64_t step = std::stoll(Option(line, "step", "-1"));
      const std::int64_t step_every = std::stoll(Option(line, "step_every", "0"));
      for (std::int64_t i = 0; i < count; ++i) {
        format::SpanRow row;
        fill(&row, at + i * every);
        row.duration_ns = takes;
        row.ord_ns += takes;
        row.name = pool_.Intern(line.words.at(2));
        row.category = pool_.Intern(Option(line, "category", "user"));
        row.mode = pool_.Intern(mode);
        row.step = step + i * step_every;
        row.tid = std::stoi(Option(line, "tid", std::to_string(pid)));
        Push(row);
      }
    } else if (kind == "tensor") {
      // Values of one step between bars; without any, only the shape is taken.
      const std::int64_t interval = std::stoll(Option(line, "interval", "1"));
      const bool shape_only = line.rest.find_first_not_of(' ') == std::string::npos;
      std::vector<std::string> captures(static_cast<std::size_t>(std::max<std::int64_t>(0, count)));
      if (!shape_only) captures = Parts(line.rest);
      std::int64_t last = 0;
      for (const std::string& capture : captures) {
        format::TensorRow row;
        row.step = from + last;
        last += interval;
        const std::vector<Point> points = PointsOf(capture, &noise_);
        if (points.empty() && !shape_only) continue;
        fill(&row, at + row.step * every + every / 2);
        row.name = pool_.Intern(line.words.at(2));
        row.collection = pool_.Intern(Option(line, "collection", ""));
        row.mode = pool_.Intern(mode);
        row.dtype = pool_.Intern(Option(line, "dtype", "F32"));
        row.shape = pool_.Intern(Option(line, "shape", fmt::format("[{}]", points.size())));
        const auto shape = store::ParseShape(row.shape);
        if (!shape) throw std::runtime_error(fmt::format("shape={}", row.shape));
        if (!shape_only) {
          if (store::TensorBytes(*shape, 1) != points.size()) {
            throw std::runtime_error(
                fmt::format("{} values of shape {}", points.size(), row.shape));
          }
          std::vector<double> values;
          values.reserve(points.size());
          for (const Point& point : points) values.push_back(point.value);
          row.file = "script";
          row.bytes = points.size() * 4;
          row.offset = values_.Add(std::move(values));
        }
        Push(row);
      }
      next_step_[counter] = from + last;
    } else if (kind == "histogram") {
      // The counts of the bins of one step between bars, or those of bins= for `count` steps.
      const std::int64_t interval = std::stoll(Option(line, "interval", "100"));
      std::vector<std::string> captures(static_cast<std::size_t>(std::max<std::int64_t>(0, count)),
                                        Option(line, "bins", ""));
      if (line.rest.find_first_not_of(' ') != std::string::npos) captures = Parts(line.rest);
      std::int64_t last = 0;
      for (std::string capture : captures) {
        std::replace(capture.begin(), capture.end(), ',', ' ');
        std::vector<double> bins;
        double total = 0;
        nlohmann::json counts = nlohmann::json::array();
        for (const Point& point : PointsOf(capture, &noise_)) {
          bins.push_back(point.value);
          total += point.value;
          counts.push_back(static_cast<std::uint64_t>(std::llround(point.value)));
        }
        format::HistogramRow row;
        row.step = from + last;
        last += interval;
        if (bins.empty()) continue;
        fill(&row, at + row.step * every + every / 2);
        row.name = pool_.Intern(line.words.at(2));
        row.collection = pool_.Intern(Option(line, "collection", "gradients"));
        row.mode = pool_.Intern(mode);
        row.dtype = pool_.Intern(Option(line, "dtype", "float32"));
        row.min = Number(line, "min", 0);
        row.max = Number(line, "max", 1);
        row.taken = static_cast<std::uint64_t>(std::llround(total));
        row.count = static_cast<std::uint64_t>(Number(line, "elements", total));
        row.bins = pool_.Intern(JsonText(counts));
        row.quantiles = pool_.Intern(Quantiles(bins, row.min, row.max, total));
        Push(row);
      }
      next_step_[counter] = from + last;
    } else if (kind == "cores") {
      for (std::int64_t i = 0; i < count; ++i) {
        format::MetricRow row;
        row.time_ns = row.ord_ns = kEpoch + at;
        row.node = pool_.Intern(fmt::format("n{}", writer_));
        row.subject = pool_.Intern(fmt::format("cpu:{}", i));
        row.name = "cpu.idle";
        Push(row);
      }
    } else {
      throw std::runtime_error("no such kind of record");
    }
  }

  template <class Row>
  void Push(const Row& row) {
    pending_.push_back({writer_, row});
  }

  void Flush() {
    if (!engine_) throw std::runtime_error("no rule yet");
    const auto ord = [](const Pending& pending) {
      return std::visit([](const auto& r) { return r.ord_ns; }, pending.row);
    };
    std::stable_sort(pending_.begin(), pending_.end(),
                     [&](const Pending& a, const Pending& b) { return ord(a) < ord(b); });
    std::vector<store::OrderedRecord> records;
    for (const Pending& pending : pending_) {
      std::visit(
          [&](const auto& r) {
            records.push_back(
                {r.ord_ns, pending.writer, std::remove_cvref_t<decltype(r)>::kTable, &r});
          },
          pending.row);
    }
    if (options_.records) options_.records(records);
    if (options_.one_by_one) {
      for (const store::OrderedRecord& record : records) engine_->Feed(record);
    } else {
      engine_->Feed(records);
    }
    pending_.clear();
    Keep();
  }

  void Keep() {
    for (Finding& finding : engine_->TakeRevisions()) out_.revisions.push_back(std::move(finding));
  }

  static bool InRange(double value, const std::string& range) {
    const auto dots = range.find("..");
    if (dots == std::string::npos) return std::abs(value - std::stod(range)) < 1e-9;
    return value >= std::stod(range.substr(0, dots)) && value <= std::stod(range.substr(dots + 2));
  }

  void Expect(const Line& line) {
    const std::string& what = line.words.at(1);
    if (what == "none") {
      if (!engine_->findings().empty()) Complain("expected no finding");
    } else if (what == "count") {
      if (engine_->findings().size() != std::stoul(line.words.at(2))) Complain("another number");
    } else if (what == "status") {
      const RuleState state = StateOf(line.words.size() > 3 ? line.words[3] : "");
      if (Name(state.status) != line.words.at(2)) Complain("another status");
      const bool blind = state.status == RuleStatus::kNoData ||
                         (state.status == RuleStatus::kNotApplicable && engine_->ended());
      if (blind && state.missing.empty()) Complain("it does not say what was missing");
    } else if (what == "missing") {
      const RuleState state = StateOf(line.words.size() > 3 ? line.words[3] : "");
      if (state.missing != line.words.at(2)) Complain("missing: " + state.missing);
    } else if (what == "summary") {
      const auto summary = ParseJson(StateOf("").summary);
      for (const auto& [key, want] : line.given) {
        const nlohmann::json* found = At(summary, key);
        if (found == nullptr || !Fits(*found, want)) Complain("another summary: " + key);
      }
    } else if (what == "finding") {
      const bool any = std::any_of(engine_->findings().begin(), engine_->findings().end(),
                                   [&](const Finding& f) { return Matches(f, line); });
      if (!any) Complain("no such finding");
    } else {
      throw std::runtime_error("no such expectation");
    }
  }

  RuleState StateOf(const std::string& name) const {
    for (RuleState& state : engine_->rule_states()) {
      if (name.empty() || state.name == name) return std::move(state);
    }
    throw std::runtime_error("no such rule");
  }

  static bool Fits(const nlohmann::json& value, const std::string& want) {
    if (value.is_number()) return InRange(value.get<double>(), want);
    return JsonText(value) == want || JsonText(value) == '"' + want + '"';
  }

  static bool Matches(const Finding& finding, const Line& line) {
    const format::FindingRow row = ToRow(finding);
    const auto evidence = ParseJson(row.evidence);
    if (!evidence.is_object()) return false;
    for (const auto& [key, want] : line.given) {
      bool ok = false;
      if (key == "rule") {
        ok = row.rule == want;
      } else if (key == "severity") {
        ok = row.severity == want;
      } else if (key == "state") {
        ok = row.state == want;
      } else if (key == "until_end") {
        ok = (finding.until_end ? "true" : "false") == want;
      } else if (key == "subject") {
        ok = row.subject == want;
      } else if (key == "first_step") {
        ok = InRange(static_cast<double>(row.first_step), want);
      } else if (key == "last_step") {
        ok = InRange(static_cast<double>(row.last_step), want);
      } else if (key == "cost") {
        ok = InRange(row.cost_seconds, want);
      } else if (key == "confidence") {
        ok = InRange(row.confidence, want);
      } else if (key == "message~") {
        ok = row.message.find(want) != std::string_view::npos;
      } else if (key == "cause~") {
        ok = row.cause.find(want) != std::string_view::npos;
      } else if (key == "advice~") {
        ok = row.advice.find(want) != std::string_view::npos;
      } else if (key.starts_with("evidence.")) {
        // evidence.KEY, or evidence.KEY.NAME of what has a value by name.
        const nlohmann::json* found = At(evidence, key.substr(9));
        ok = found != nullptr && Fits(*found, want);
      } else {
        throw std::runtime_error("no such field: " + key);
      }
      if (!ok) return false;
    }
    return true;
  }

  struct Pending {
    std::uint32_t writer;
    AnyRow row;
  };

  static constexpr std::int64_t kEpoch = 1'800'000'000'000'000'000;

  const std::filesystem::path folder_;
  const Engine::ForeignMaker foreign_;
  const ScriptOptions options_;
  int number_ = 0;
  ScriptOutcome out_;
  ScriptValues values_;  ///< Before the engine, whose rules may hold it.
  ScriptRuns runs_;
  std::unique_ptr<Engine> engine_;
  StringPool pool_;
  Noise noise_;
  std::vector<Pending> pending_;
  std::uint32_t writer_ = 0;  ///< Of what is loaded now: the agent of its node.
  std::int64_t clock_ns_ = 0;
  std::map<std::string, std::int64_t> next_step_;
};

}  // namespace

Result<ScriptOutcome> RunScript(const std::filesystem::path& file,
                                const Engine::ForeignMaker& foreign, const ScriptOptions& options) {
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file)) {
    return Status(Code::kUnusable, fmt::format("cannot read {}: name a rule script "
                                               "(docs/formats/rule-scripts.md)",
                                               file.string()));
  }
  return Script(file.parent_path(), foreign, options).Run(in);
}

}  // namespace telltale::rules
