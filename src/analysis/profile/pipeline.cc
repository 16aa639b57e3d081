// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/pipeline.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace telltale::analysis::profile {
namespace {

class Chooser {
 public:
  Chooser(const Tree& tree, const Options& options) : tree_(tree), options_(options) {}

  Shown OfTree() {
    Shown root = Account(kRoot);
    if (!options_.start.all()) {
      std::vector<Shown> starts;
      FindStarts(&root.children, &starts);
      root.children = std::move(starts);
    }
    Trim(&root, 1);
    return root;
  }

  Shown OfList() {
    Shown root;
    for (const NodeId id : tree_.node(kRoot).children) {
      if (!Accounted(id)) continue;
      root.children.push_back({id, true, tree_.node(id).self, {}});
    }
    Sort(&root.children);
    AddUp(&root);
    std::vector<Shown>& lines = root.children;
    const auto start = std::find_if(lines.begin(), lines.end(), [&](const Shown& line) {
      return options_.start.Match(tree_.node(line.id).name);
    });
    std::vector<Shown> shown;
    std::int64_t depth = 0;
    for (auto at = start; at != lines.end(); ++at, ++depth) {
      const std::string_view name = tree_.node(at->id).name;
      if (options_.trim.Match(name) || depth >= options_.texts.max_depth) break;
      if (Visible(name, tree_.node(at->id).self)) shown.push_back(std::move(*at));
    }
    lines = std::move(shown);
    if (options_.texts.account_displayed_op_only) AddUp(&root);
    return root;
  }

 private:
  bool Accounted(NodeId id) const {
    if (options_.account.all()) return true;
    const std::vector<std::uint32_t>& types = tree_.node(id).types;
    return std::any_of(types.begin(), types.end(), [&](std::uint32_t type) {
      return options_.account.Match(tree_.type(type));
    });
  }

  /// The node with those below it that count or have such below them.
  Shown Account(NodeId id) {
    Shown out;
    out.id = id;
    out.account = id != kRoot && Accounted(id);
    if (out.account) out.total = tree_.node(id).self;
    for (const NodeId child : tree_.node(id).children) {
      Shown below = Account(child);
      if (!below.account && below.children.empty()) continue;
      out.total.Add(below.total);
      out.children.push_back(std::move(below));
    }
    return out;
  }

  /// The nearest that match, on each way down.
  void FindStarts(std::vector<Shown>* from, std::vector<Shown>* out) {
    for (Shown& one : *from) {
      if (options_.start.Match(tree_.node(one.id).name)) {
        out->push_back(std::move(one));
      } else {
        FindStarts(&one.children, out);
      }
    }
  }

  /// Leaves below `node`, which has this depth, what is shown.
  void Trim(Shown* node, std::int64_t depth) {
    std::vector<Shown> kept;
    if (depth < options_.texts.max_depth) {
      for (Shown& child : node->children) {
        const std::string_view name = tree_.node(child.id).name;
        if (options_.trim.Match(name)) continue;
        const bool shown = Visible(name, child.total);
        Trim(&child, depth + 1);
        if (shown) {
          kept.push_back(std::move(child));
        } else {
          std::move(child.children.begin(), child.children.end(), std::back_inserter(kept));
        }
      }
    }
    node->children = std::move(kept);
    Sort(&node->children);
    if (!options_.texts.account_displayed_op_only) return;
    node->total = node->account ? tree_.node(node->id).self : Stats();
    for (const Shown& child : node->children) node->total.Add(child.total);
  }

  bool Visible(std::string_view name, const Stats& stats) const {
    const OptionTexts& least = options_.texts;
    return stats.requested_bytes >= least.min_bytes && stats.peak_bytes >= least.min_peak_bytes &&
           (least.min_residual_bytes <= 0 || stats.residual_bytes >= least.min_residual_bytes) &&
           stats.output_bytes >= least.min_output_bytes && stats.micros() >= least.min_micros &&
           stats.accelerator_micros() >= least.min_accelerator_micros &&
           (least.min_cpu_micros <= 0 || stats.cpu_micros() >= least.min_cpu_micros) &&
           stats.params >= least.min_params && stats.float_ops >= least.min_float_ops &&
           stats.occurrence >= least.min_occurrence && options_.show.Match(name) &&
           !options_.hide.Match(name);
  }

  void Sort(std::vector<Shown>* siblings) const {
    std::sort(siblings->begin(), siblings->end(), [&](const Shown& a, const Shown& b) {
      if (options_.order_by != nullptr) {
        const double of_a = options_.order_by(a.total);
        const double of_b = options_.order_by(b.total);
        if (of_a != of_b) return of_a > of_b;
      }
      return tree_.node(a.id).name < tree_.node(b.id).name;
    });
  }

  /// Of a list: each line's total is its own and that of the lines after it.
  void AddUp(Shown* root) {
    Stats sum;
    for (auto at = root->children.rbegin(); at != root->children.rend(); ++at) {
      sum.Add(tree_.node(at->id).self);
      at->total = sum;
    }
    root->total = sum;
  }

  const Tree& tree_;
  const Options& options_;
};

}  // namespace

Shown Choose(const Tree& tree, bool list, const Options& options) {
  Chooser chooser(tree, options);
  return list ? chooser.OfList() : chooser.OfTree();
}

}  // namespace telltale::analysis::profile
