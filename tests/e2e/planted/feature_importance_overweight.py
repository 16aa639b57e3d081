# SPDX-License-Identifier: Apache-2.0
"""One of ten features is the answer itself, a little blurred: a leak.

With --cured all ten say the same amount.
"""

import sys

import numpy as np
import xgboost

ROUNDS = 40


def main() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(2000, 10))
    labels = features.sum(axis=1)
    if "--cured" not in sys.argv:
        features[:, 3] = labels + 0.01 * random.normal(size=len(labels))
    train = xgboost.DMatrix(features, label=labels)
    parameters = {"objective": "reg:squarederror", "max_depth": 4, "eta": 0.3, "gamma": 5, "nthread": 1}
    booster = xgboost.train(parameters, train, ROUNDS, evals=[(train, "train")], verbose_eval=False)
    print(booster.get_score(importance_type="weight"))


if __name__ == "__main__":
    main()
