# SPDX-License-Identifier: Apache-2.0
"""The trees of one boosting round as columns, a node a row."""

import json

import numpy as np

_NUMBERS = ("Tree", "Node", "Split", "Gain", "Cover")
_TEXTS = ("ID", "Feature", "Yes", "No", "Missing", "Category")


def _nodes(tree, number):
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting += node.get("children", ())
        leaf = "leaf" in node
        condition = float("nan") if leaf else node["split_condition"]
        categories = isinstance(condition, list)
        yield {
            "Tree": number,
            "Node": node["nodeid"],
            "Split": float("nan") if categories else condition,
            "Gain": node["leaf"] if leaf else node.get("gain", float("nan")),
            "Cover": node.get("cover", float("nan")),
            "ID": f"{number}-{node['nodeid']}",
            "Feature": "Leaf" if leaf else str(node["split"]),
            "Yes": "nan" if leaf else f"{number}-{node['yes']}",
            "No": "nan" if leaf else f"{number}-{node['no']}",
            "Missing": "nan" if leaf else f"{number}-{node.get('missing', node['yes'])}",
            "Category": ",".join(map(str, condition)) if categories else "nan",
        }


def columns_of(booster, iteration):
    """{column: numpy array} of the trees that the round added, by tree and node: Tree, Node (int64); Split,
    Gain (of a leaf its value), Cover (float64); ID, Feature, Yes, No, Missing, Category (texts).
    """
    # All of them, for XGBoost 1.7 trains on differently after it has cut a model (tree_method approx).
    dumps = booster.get_dump(with_stats=True, dump_format="json")
    # A continued training counts its rounds from 0, beside those of the model that it began with.
    rounds = booster.num_boosted_rounds() if hasattr(booster, "num_boosted_rounds") else iteration + 1
    first = len(dumps) - len(dumps) // rounds
    added = enumerate(dumps[first:], first)
    rows = [node for number, dump in added for node in _nodes(json.loads(dump), number)]
    rows.sort(key=lambda row: (row["Tree"], row["Node"]))
    columns = {}
    for name in (*_NUMBERS, *_TEXTS):
        kind = np.int64 if name in ("Tree", "Node") else np.float64 if name in _NUMBERS else np.str_
        columns[name] = np.array([row[name] for row in rows], dtype=kind)
    return columns
