// SPDX-License-Identifier: Apache-2.0
// What a profile is made of: a tree of nodes with what each cost by itself. Sums over subtrees are
// the pipeline's (pipeline.h).
//
// Memory: some 200 bytes a node, at most Tree::kMostNodes of them; what would be one more is
// counted with its parent. Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/string_pool.h"

namespace telltale::analysis::profile {

/// Of one node by itself, or of all below it too.
struct Stats {
  double host_ns = 0;
  double device_ns = 0;
  double occurrence = 0;       ///< How often it ran.
  double definitions = 0;      ///< In how many places it was called.
  double requested_bytes = 0;  ///< Allocated while it ran.
  double peak_bytes = 0;       ///< Most of it allocated at a time, each run's added up.
  double residual_bytes = 0;   ///< Allocated less released.
  double output_bytes = 0;     ///< What it gave, and what it copied.
  double float_ops = 0;
  double params = 0;

  double micros() const { return (host_ns + device_ns) / 1000; }
  double accelerator_micros() const { return device_ns / 1000; }
  double cpu_micros() const { return host_ns / 1000; }

  void Add(const Stats& other);
  /// Everything that is counted once a step; parameters and definitions are not.
  void Divide(double steps);
};

/// How often a node ran with inputs of these shapes, and for how long.
struct ShapeUse {
  std::uint64_t occurrence = 0;
  double host_ns = 0;
};

using NodeId = std::uint32_t;
inline constexpr NodeId kRoot = 0;
/// As tfprof's output has it.
inline constexpr std::string_view kRootName = "_TFProfRoot";

struct Node {
  std::string_view name;
  NodeId parent = kRoot;
  std::vector<NodeId> children;
  Stats self;
  /// In a list: with everything that it called, recursion counted once. Else zero.
  double host_with_callees_ns = 0;
  double device_with_callees_ns = 0;
  std::vector<std::uint32_t> types;  ///< Names by Tree::type().
};

class Tree {
 public:
  static constexpr std::size_t kMostNodes = 1'000'000;
  static constexpr std::size_t kMostShapes = 64;  ///< Different ones of a node.

  Tree();
  Tree(Tree&&) = default;
  Tree& operator=(Tree&&) = default;

  /// The child of that name, made where there is none; `parent` itself beyond the limits.
  NodeId Child(NodeId parent, std::string_view name);
  void AddType(NodeId id, std::string_view type);
  void AddShape(NodeId id, std::string shape, const ShapeUse& use);
  void SetValue(NodeId id, std::string value) { values_[id] = std::move(value); }

  Node& node(NodeId id) { return nodes_[id]; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  std::size_t size() const { return nodes_.size(); }
  std::string_view type(std::uint32_t id) const { return types_[id]; }
  /// Distance from the root.
  std::size_t Depth(NodeId id) const;
  const std::map<std::string, ShapeUse>* shapes(NodeId id) const;
  const std::string* value(NodeId id) const;
  /// Slices that have no node of their own.
  std::uint64_t folded() const { return folded_; }

 private:
  struct Key {
    NodeId parent;
    std::string_view name;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.name) * 31 + key.parent * 0x9E3779B97F4A7C15ULL;
    }
  };

  StringPool pool_;
  std::vector<Node> nodes_;
  std::vector<std::uint16_t> depths_;
  std::unordered_map<Key, NodeId, Hash> index_;
  std::vector<std::string_view> types_;
  std::unordered_map<std::string_view, std::uint32_t> type_ids_;
  std::unordered_map<NodeId, std::map<std::string, ShapeUse>> shapes_;
  std::unordered_map<NodeId, std::string> values_;
  std::uint64_t folded_ = 0;
};

/// The same nodes as one list below the root: those of one name are one.
Tree Flatten(const Tree& tree);

}  // namespace telltale::analysis::profile
