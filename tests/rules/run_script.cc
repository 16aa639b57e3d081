// SPDX-License-Identifier: Apache-2.0
// Runs one rule script: loads records written as text, feeds them in order to one rule, compares
// its findings with what the script expects. The language: tests/rules/README.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "base/string_pool.h"
#include "rules/engine.h"

namespace telltale::rules {
namespace {

using AnyRow = std::variant<format::StepRow, format::ScalarRow, format::SpanRow, format::EventRow,
                            format::MetricRow, format::StatisticRow>;

struct Line {
  std::vector<std::string> words;
  std::map<std::string, std::string> options;  ///< key=value; a "~" after the key stays with it.
  std::string rest;                            ///< After " : ".
};

/// Splits at spaces; double quotes keep a word together.
Line Parse(const std::string& text) {
  Line line;
  std::string head = text;
  if (const auto colon = text.find(" : "); colon != std::string::npos) {
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
      line.options[w.substr(0, mark) + (w[mark] == '~' ? "~" : "")] = w.substr(mark + 1);
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

/// Values of a series; nullopt-like NaN payload is not needed: missing steps are left out.
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
std::vector<Point> Series(const std::string& text, Noise* noise) {
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
    for (std::int64_t i = 0; i < count; ++i) {
      const double at = static_cast<double>(i);
      const double base =
          tau > 0 ? target + (first - target) * std::exp(-at / tau) : first + step * at;
      out.push_back({offset++, amplitude > 0 ? base + amplitude * noise->Next() : base});
    }
  }
  return out;
}

class Script {
 public:
  int Run(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error("cannot read it");
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
    if (expectations_ == 0) Complain("the script expects nothing");
    return failures_ == 0 ? 0 : 1;
  }

 private:
  void Complain(const std::string& what) {
    ++failures_;
    fmt::print("line {}: {}\n", number_, what);
    if (!engine_) return;
    for (const Finding& f : engine_->findings()) {
      const format::FindingRow row = ToRow(f);
      fmt::print(
          "  has: {} {} {} subject={} first_step={} last_step={} cost={:.3f} confidence={:.2f}"
          "\n    {}\n    {}\n    {}\n    {}\n",
          row.rule, row.severity, row.state, row.subject, row.first_step, row.last_step,
          row.cost_seconds, row.confidence, row.message, row.cause, row.advice, row.evidence);
    }
    for (const RuleState& s : engine_->rule_states()) {
      fmt::print("  status: {} {} {}\n", s.name, Name(s.status), s.error);
    }
  }

  void Execute(const Line& line) {
    const std::string& verb = line.words.at(0);
    if (verb == "rule") {
      Start(line);
    } else if (verb == "load") {
      Load(line);
    } else if (verb == "end") {
      Flush();
      engine_->End();
    } else if (verb == "expect") {
      Flush();
      ++expectations_;
      Expect(line);
    } else {
      throw std::runtime_error("no such verb");
    }
  }

  void Start(const Line& line) {
    const RuleEntry* entry = FindRule(line.words.at(1));
    if (entry == nullptr) throw std::runtime_error("no such rule");
    Parameters parameters(*entry->desc);
    for (const auto& [key, value] : line.options) {
      if (const Status set = parameters.SetText(key, value); !set.ok()) {
        throw std::runtime_error(set.message());
      }
    }
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(entry->desc, entry->make(parameters));
    engine_ = std::make_unique<Engine>(std::move(rules));
    pending_.clear();
    clock_ns_ = 0;
    next_step_.clear();
  }

  static std::string Option(const Line& line, const std::string& key,
                            const std::string& otherwise) {
    const auto found = line.options.find(key);
    return found == line.options.end() ? otherwise : found->second;
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
      std::int64_t begin = at;
      for (std::int64_t i = 0; i < count; ++i) {
        format::StepRow row;
        fill(&row, begin);
        row.step = from + i;
        row.mode = pool_.Intern(mode);
        row.data_wait_ns = wait;
        row.other_ns = other;
        row.forward_ns = (every - wait - other) / 2;
        row.backward_ns = every - wait - other - row.forward_ns;
        row.duration_ns = every;
        row.skipped = Option(line, "skipped", "0") == "1";
        row.optimizer_calls = static_cast<std::uint32_t>(std::stoul(Option(line, "calls", "1")));
        if (slow > 0 && row.step % slow_every == slow_every - 1) {
          row.duration_ns += slow;
          (slow_phase == "data_wait" ? row.data_wait_ns
           : slow_phase == "forward" ? row.forward_ns
                                     : row.other_ns) += slow;
          if (line.options.contains("span")) {
            format::SpanRow span;
            fill(&span, begin);
            span.duration_ns = slow;
            span.ord_ns += slow;
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
      for (const Point& point : Series(line.rest, &noise_)) {
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
      for (const Point& point : Series(line.rest, &noise_)) {
        format::StatisticRow row;
        row.step = from + point.offset * interval;
        fill(&row, at + row.step * every + every / 2);
        row.name = pool_.Intern(name);
        row.collection = pool_.Intern(Option(line, "collection", "gradients"));
        row.mode = pool_.Intern(mode);
        row.dtype = "float32";
        row.count = elements;
        row.nan_count = std::isnan(point.value) ? 1 : 0;
        row.inf_count = std::isinf(point.value) ? 1 : 0;
        row.zero_count = point.value == 0 ? elements : std::stoull(Option(line, "zeros", "0"));
        const double value = std::isfinite(point.value) ? point.value : 1;
        row.l1 = value * static_cast<double>(elements - row.zero_count);
        row.l2 = value * std::sqrt(static_cast<double>(elements));
        row.min = std::stod(Option(line, "min", fmt::format("{}", -value)));
        row.max = std::stod(Option(line, "max", fmt::format("{}", value)));
        row.mean = std::stod(Option(line, "mean", "0"));
        row.std = std::sqrt(std::max(0.0, value * value - row.mean * row.mean));
        Push(row);
        last = (point.offset + 1) * interval;
      }
      next_step_[counter] = from + last;
    } else if (kind == "metric") {
      for (const Point& point : Series(line.rest, &noise_)) {
        format::MetricRow row;
        row.time_ns = row.ord_ns = kEpoch + at + (point.offset + 1) * every;
        row.node = pool_.Intern(fmt::format("n{}", writer_));
        row.subject = pool_.Intern(Option(line, "subject", "node"));
        row.name = pool_.Intern(name);
        row.value = point.value;
        if (row.subject.starts_with("proc:") && row.subject != "proc:tree") {
          row.pid = std::stoi(std::string(row.subject.substr(5)));
        }
        Push(row);
      }
    } else if (kind == "event") {
      format::EventRow row;
      fill(&row, at);
      row.kind = pool_.Intern(line.words.at(2));
      row.data = pool_.Intern(line.rest);
      Push(row);
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
    for (const Pending& pending : pending_) {
      std::visit(
          [&](const auto& r) {
            engine_->Feed({r.ord_ns, pending.writer, std::remove_cvref_t<decltype(r)>::kTable, &r});
          },
          pending.row);
    }
    pending_.clear();
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
      if (Name(engine_->rule_states().at(0).status) != line.words.at(2)) Complain("another status");
    } else if (what == "finding") {
      const bool any = std::any_of(engine_->findings().begin(), engine_->findings().end(),
                                   [&](const Finding& f) { return Matches(f, line); });
      if (!any) Complain("no such finding");
    } else {
      throw std::runtime_error("no such expectation");
    }
  }

  static bool Matches(const Finding& finding, const Line& line) {
    const format::FindingRow row = ToRow(finding);
    const auto evidence = nlohmann::json::parse(row.evidence, nullptr, false);
    if (!evidence.is_object()) return false;
    for (const auto& [key, want] : line.options) {
      bool ok = false;
      if (key == "severity") {
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
        const std::string name = key.substr(9);
        const auto dot = name.find('.');
        const bool nested = dot != std::string::npos && evidence.contains(name.substr(0, dot));
        const nlohmann::json& of = nested ? evidence.at(name.substr(0, dot)) : evidence;
        const auto found = of.find(nested ? name.substr(dot + 1) : name);
        ok = found != of.end() &&
             (found->is_number() ? InRange(found->get<double>(), want)
                                 : found->dump() == want || found->dump() == '"' + want + '"');
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

  int number_ = 0;
  int failures_ = 0;
  int expectations_ = 0;
  std::unique_ptr<Engine> engine_;
  StringPool pool_;
  Noise noise_;
  std::vector<Pending> pending_;
  std::uint32_t writer_ = 0;  ///< Of what is loaded now: the agent of its node.
  std::int64_t clock_ns_ = 0;
  std::map<std::string, std::int64_t> next_step_;
};

}  // namespace
}  // namespace telltale::rules

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: run_rule_script SCRIPT\n");
    return 2;
  }
  try {
    return telltale::rules::Script().Run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[1], error.what());
    return 2;
  }
}
