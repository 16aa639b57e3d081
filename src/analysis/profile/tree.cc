// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/tree.h"

#include <algorithm>

namespace telltale::analysis::profile {
namespace {

/// Deeper calls count with the one that they are in; the walks over a tree recurse.
constexpr std::size_t kMostDepth = 1000;

}  // namespace

void Stats::Add(const Stats& other) {
  host_ns += other.host_ns;
  device_ns += other.device_ns;
  occurrence += other.occurrence;
  definitions += other.definitions;
  requested_bytes += other.requested_bytes;
  peak_bytes += other.peak_bytes;
  residual_bytes += other.residual_bytes;
  output_bytes += other.output_bytes;
  float_ops += other.float_ops;
  params += other.params;
}

void Stats::Divide(double steps) {
  host_ns /= steps;
  device_ns /= steps;
  occurrence /= steps;
  requested_bytes /= steps;
  peak_bytes /= steps;
  residual_bytes /= steps;
  output_bytes /= steps;
  float_ops /= steps;
}

Tree::Tree() : nodes_(1), depths_(1) { nodes_[kRoot].name = kRootName; }

NodeId Tree::Child(NodeId parent, std::string_view name) {
  const auto found = index_.find({parent, name});
  if (found != index_.end()) return found->second;
  if (nodes_.size() >= kMostNodes || depths_[parent] >= kMostDepth) {
    ++folded_;
    return parent;
  }
  const auto id = static_cast<NodeId>(nodes_.size());
  Node& made = nodes_.emplace_back();
  made.name = pool_.Intern(name);
  made.parent = parent;
  depths_.push_back(static_cast<std::uint16_t>(depths_[parent] + 1));
  nodes_[parent].children.push_back(id);
  index_[{parent, made.name}] = id;
  return id;
}

void Tree::AddType(NodeId id, std::string_view type) {
  auto found = type_ids_.find(type);
  if (found == type_ids_.end()) {
    types_.push_back(pool_.Intern(type));
    found = type_ids_.emplace(types_.back(), static_cast<std::uint32_t>(types_.size() - 1)).first;
  }
  std::vector<std::uint32_t>& types = nodes_[id].types;
  if (std::find(types.begin(), types.end(), found->second) == types.end()) {
    types.push_back(found->second);
  }
}

void Tree::AddShape(NodeId id, std::string shape, const ShapeUse& use) {
  auto& shapes = shapes_[id];
  if (shapes.size() >= kMostShapes && !shapes.contains(shape)) shape = "others";
  ShapeUse& sum = shapes[std::move(shape)];
  sum.occurrence += use.occurrence;
  sum.host_ns += use.host_ns;
}

std::size_t Tree::Depth(NodeId id) const { return depths_[id]; }

const std::map<std::string, ShapeUse>* Tree::shapes(NodeId id) const {
  const auto found = shapes_.find(id);
  return found == shapes_.end() ? nullptr : &found->second;
}

const std::string* Tree::value(NodeId id) const {
  const auto found = values_.find(id);
  return found == values_.end() ? nullptr : &found->second;
}

Tree Flatten(const Tree& tree) {
  Tree list;
  struct Totals {
    double host_ns = 0;
    double device_ns = 0;
  };
  // A child has a higher id than its parent.
  std::vector<Totals> totals(tree.size());
  for (NodeId id = static_cast<NodeId>(tree.size()); id-- > 1;) {
    const Node& node = tree.node(id);
    totals[id].host_ns += node.self.host_ns;
    totals[id].device_ns += node.self.device_ns;
    totals[node.parent].host_ns += totals[id].host_ns;
    totals[node.parent].device_ns += totals[id].device_ns;
  }
  for (NodeId id = 1; id < tree.size(); ++id) {
    const Node& node = tree.node(id);
    const NodeId in_list = list.Child(kRoot, node.name);
    Node& sum = list.node(in_list);
    sum.self.Add(node.self);
    for (const std::uint32_t type : node.types) list.AddType(in_list, tree.type(type));
    if (const auto* shapes = tree.shapes(id)) {
      for (const auto& [shape, use] : *shapes) list.AddShape(in_list, shape, use);
    }
    NodeId up = node.parent;
    while (up != kRoot && tree.node(up).name != node.name) up = tree.node(up).parent;
    if (up == kRoot) {
      sum.host_with_callees_ns += totals[id].host_ns;
      sum.device_with_callees_ns += totals[id].device_ns;
    }
  }
  return list;
}

}  // namespace telltale::analysis::profile
