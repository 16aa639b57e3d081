# SPDX-License-Identifier: Apache-2.0
"""Whether the deep splits of a model's trees are of any use to data that it was not trained on: the loss of an
evaluation set with the trees as they are, and with the same trees cut at half of max_depth.

Only of a model whose max_depth was raised above XGBoost's own and allows about as many leaves as there are rows;
of any other, depth is no trouble.
"""

from __future__ import annotations

import json
import math
from typing import Any

_DEFAULT_DEPTH = 6
_MAX_TRAIN_ROWS = 50_000
# Rows of the training for each leaf that a tree may have: above this, depth is left alone.
_ROWS_A_LEAF = 4
_FEW_ROWS = 5
_MAX_TREES = 2_000
_MAX_ROW_TREES = 1_000_000
_MAX_NODES = 1_000_000


def facts(booster: Any, rows: int, evaluated: Any, given: dict[str, Any]) -> dict[str, Any] | None:
    """Of the first round how many leaves have few rows; what cutting the trees does to the evaluation."""
    try:
        depth = int(given.get("max_depth", _DEFAULT_DEPTH))
    except (TypeError, ValueError):
        return None
    if not _DEFAULT_DEPTH < depth < 64 or rows > _MAX_TRAIN_ROWS or rows >= _ROWS_A_LEAF * 2**depth:
        return None
    # What reading the trees costs grows with their nodes: it is bounded before any of it is read.
    in_round = _trees_in_round(given)
    nodes = min(2 ** (depth + 1), 2 * rows)
    if in_round * nodes > _MAX_NODES:
        return None
    found: dict[str, Any] = {"max_depth": depth, "rows": rows, "few_rows": _FEW_ROWS}
    leaves, few, deepest = _first_round(booster, rows)
    found.update(leaves=leaves, few=few, deepest=deepest)
    trees = in_round * int(booster.num_boosted_rounds())
    if evaluated is not None and trees <= _MAX_TREES and trees * nodes <= _MAX_NODES:
        cut = _cut(booster, evaluated, depth // 2, str(given.get("objective", "")))
        if cut:
            found.update(cut)
    return found


def _trees_in_round(given: dict[str, Any]) -> int:
    def number(name: str) -> int:
        try:
            return max(1, int(given.get(name, 1)))
        except (TypeError, ValueError):
            return 1

    return number("num_class") * number("num_parallel_tree")


def _first_round(booster: Any, rows: int) -> tuple[int, int, int]:
    """Leaves, those with few rows, and the greatest depth. All rows have the same weight in the first round, so a
    leaf's share of the cover is its share of the rows.
    """
    leaves = few = deepest = 0
    for text in booster[0:1].get_dump(with_stats=True, dump_format="json"):
        root = json.loads(text)
        cover = float(root["cover"]) or 1.0
        open_nodes = [(root, 0)]
        while open_nodes:
            node, depth = open_nodes.pop()
            deepest = max(deepest, depth)
            children = node.get("children")
            if children:
                open_nodes += [(child, depth + 1) for child in children]
                continue
            leaves += 1
            few += float(node["cover"]) / cover * rows < _FEW_ROWS + 0.5
    return leaves, few, deepest


def _cut(booster: Any, evaluated: Any, depth: int, objective: str) -> dict[str, Any] | None:
    import numpy

    loss = {"binary:logistic": _log_loss, "multi:softprob": _softmax_loss, "reg:squarederror": _squared}.get(
        objective
    )
    if loss is None:
        return None
    model = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]
    trees, groups = model["trees"], model["tree_info"]
    rows = int(evaluated.num_row())
    if not trees or len(trees) > _MAX_TREES or rows * len(trees) > _MAX_ROW_TREES:
        return None
    leaves = booster.predict(evaluated, pred_leaf=True).reshape(rows, -1).astype(numpy.int64)
    margins = booster.predict(evaluated, output_margin=True).astype(numpy.float64).reshape(rows, -1)
    labels = evaluated.get_label().astype(numpy.float64)
    if leaves.shape[1] != len(trees):
        return None
    cut = margins.copy()
    deepest = 0
    for index, tree in enumerate(trees):
        change, reached = _changes(tree, depth)
        deepest = max(deepest, reached)
        cut[:, groups[index]] += change[leaves[:, index]]
    losses = float(loss(margins, labels)), float(loss(cut, labels))
    if not all(math.isfinite(value) for value in losses):
        return None
    return {"cut_at": depth, "deepest": deepest, "loss": losses[0], "cut_loss": losses[1]}


def _changes(tree: dict[str, Any], depth: int) -> tuple[Any, int]:
    """By leaf, what the tree adds less where it ends at `depth`; and how deep it is."""
    import numpy

    weights = numpy.asarray(tree["base_weights"], numpy.float64)
    left, right = tree["left_children"], tree["right_children"]
    values = tree["split_conditions"]
    change = numpy.zeros(len(weights))
    deepest = 0
    scale = 0.0  # The learning rate of its round: of a leaf the value has it in, the weight has not.
    cut_leaves = []
    open_nodes = [(0, 0, 0)]
    while open_nodes:
        node, at, ancestor = open_nodes.pop()
        deepest = max(deepest, at)
        if left[node] >= 0:
            open_nodes += [
                (child, at + 1, child if at + 1 <= depth else ancestor) for child in (left[node], right[node])
            ]
            continue
        if weights[node] != 0:
            scale = values[node] / weights[node]
        if ancestor != node:
            cut_leaves.append((node, ancestor))
    for node, ancestor in cut_leaves:
        change[node] = scale * (weights[ancestor] - weights[node])
    return change, deepest


def _log_loss(margins: Any, labels: Any) -> Any:
    import numpy

    # log(1 + exp(-m)) of the label 1, log(1 + exp(m)) of the label 0.
    return numpy.logaddexp(0, numpy.where(labels > 0.5, -margins[:, 0], margins[:, 0])).mean()


def _softmax_loss(margins: Any, labels: Any) -> Any:
    import numpy

    top = margins.max(axis=1, keepdims=True)
    total = numpy.log(numpy.exp(margins - top).sum(axis=1)) + top[:, 0]
    return (total - margins[numpy.arange(len(labels)), labels.astype(numpy.int64)]).mean()


def _squared(margins: Any, labels: Any) -> Any:
    return ((margins[:, 0] - labels) ** 2).mean() ** 0.5
