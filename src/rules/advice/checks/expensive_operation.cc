// SPDX-License-Identifier: Apache-2.0
// The operators, modules and lines that take the most time.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kExpensiveOperation{
    "ExpensiveOperation",
    "Which operators, modules and lines take the most time?",
    "tfprof ExpensiveOperationChecker: operation, graph and code view",
    "The three types of operators with most time of their own on host and device; the three "
    "modules "
    "(ranges where there are none) with most, what nests in them in them; the three Python frames "
    "with most, what they call without another frame in them, from 1 ms on. Info: nothing is lost, "
    "it is where time goes.",
    "",
    [](const RunFacts& run, Findings* out) {
      constexpr std::size_t kTop = 3;
      constexpr std::int64_t kLeastCodeNs = 1'000'000;
      using trace::Category;
      struct Part {
        const NameTotal* name;
        Sum host, device;
        Sum ns() const { return host + device; }
      };
      const auto tell = [&](const RankFacts& rank, std::string about, std::string_view of,
                            std::string_view view, std::vector<Part> parts) {
        Sum all = 0;
        for (const Part& part : parts) all += part.ns();
        std::erase_if(parts, [](const Part& part) { return part.ns() <= 0; });
        if (parts.empty() || all <= 0) return;
        std::stable_sort(parts.begin(), parts.end(),
                         [](const Part& a, const Part& b) { return a.ns() > b.ns(); });
        if (parts.size() > kTop) parts.resize(kTop);
        Advised a;
        a.about = std::move(about);
        a.evidence["top"] = nlohmann::ordered_json::array();
        for (const Part& part : parts) {
          a.evidence["top"].push_back({{"name", part.name->name},
                                       {"count", part.name->count},
                                       {"host_seconds", Rounded(Seconds(part.host))},
                                       {"device_seconds", Rounded(Seconds(part.device))},
                                       {"of_all", Rounded(ShareOf(part.ns(), all))}});
        }
        const Part& first = parts.front();
        a.title = fmt::format("{} take the most time", of);
        a.cause = fmt::format("{} takes {} of the time in {} (host {}, device {}).",
                              first.name->name.substr(0, 200), Percent(ShareOf(first.ns(), all)),
                              a.about, TimeWords(first.host), TimeWords(first.device));
        a.advice =
            fmt::format("See them all: telltale profile RUN --view {} --order_by micros.", view);
        a.confidence = 1;
        out->Add(rank, std::move(a));
      };
      return EachRank(run, false, [&](const RankFacts& rank) {
        std::vector<Part> ops;
        std::vector<Part> kernels;
        std::vector<Part> modules;
        std::vector<Part> ranges;
        std::vector<Part> code;
        for (const NameTotal& name : rank.names) {
          const Part own{&name, name.self_ns, name.device_ns};
          const Part nested{&name, name.host_ns, name.device_ns};
          if (name.on_device) {
            if (name.category == Category::kKernel) kernels.push_back({&name, 0, name.total_ns});
          } else if (name.category == Category::kModule) {
            modules.push_back(nested);
          } else if (name.category == Category::kPython) {
            if (nested.ns() >= kLeastCodeNs) code.push_back(nested);
          } else if (name.category == Category::kAnnotation) {
            ranges.push_back(own);
          } else if ((name.category == Category::kOp || name.category == Category::kComm) &&
                     !trace::IsDataLoaderWait(name.name)) {
            ops.push_back(own);
          }
        }
        const bool has_ops = !ops.empty();
        tell(rank, "operators", has_ops ? "Operators that" : "Kernels that",
             has_ops ? "op" : "kernel", has_ops ? ops : kernels);
        const bool has_modules = !modules.empty();
        tell(rank, has_modules ? "modules" : "ranges", has_modules ? "Modules that" : "Ranges that",
             has_modules ? "module" : "scope", has_modules ? modules : ranges);
        tell(rank, "code", "Lines of Python that", "code", code);
      });
    }};

}  // namespace telltale::rules::advice
