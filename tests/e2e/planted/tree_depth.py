# SPDX-License-Identifier: Apache-2.0
"""Trees of up to ten splits on 500 rows: each path ends at a row or two.

With --cured they have three.
"""

import sys

import numpy as np
import xgboost

ROUNDS = 40


def main() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(500, 6))
    labels = features[:, 0] * features[:, 1] + random.normal(size=500)
    train = xgboost.DMatrix(features, label=labels)
    depth = 3 if "--cured" in sys.argv else 10
    parameters = {"objective": "reg:squarederror", "max_depth": depth, "eta": 0.1, "nthread": 1}
    booster = xgboost.train(parameters, train, ROUNDS, evals=[(train, "train")], verbose_eval=False)
    print(f"{len(booster.get_dump())} trees")


if __name__ == "__main__":
    main()
