# SPDX-License-Identifier: Apache-2.0
"""Of three classes two cannot be told apart: their labels were given by chance.

With --cured all three have features of their own.
"""

import sys

import numpy as np
import xgboost

ROUNDS = 60


def data(rows: int, cured: bool, seed: int) -> xgboost.DMatrix:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    features = random.normal(size=(rows, 6))
    features[:, 0] += 6 * (labels == 0)
    if cured:
        features[:, 1] += 6 * (labels == 1)
    return xgboost.DMatrix(features, label=labels)


def main() -> None:
    cured = "--cured" in sys.argv
    train, test = data(1500, cured, 1), data(600, cured, 2)
    parameters = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "eta": 0.3, "nthread": 1}
    booster = xgboost.train(
        parameters, train, ROUNDS, evals=[(train, "train"), (test, "test")], verbose_eval=False
    )
    guessed = booster.predict(test).argmax(axis=1)
    print(f"accuracy {(guessed == test.get_label()).mean():.3f}")


if __name__ == "__main__":
    main()
