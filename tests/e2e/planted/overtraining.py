# SPDX-License-Identifier: Apache-2.0
"""300 rounds of boosting where the fifteenth or so was the best: the rest learns the noise.

With --cured early stopping ends it.
"""

import sys

import numpy as np
import xgboost


def data(rows: int, seed: int) -> xgboost.DMatrix:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 8))
    labels = 100 * features[:, 0] + 100 * random.normal(size=rows)
    return xgboost.DMatrix(features, label=labels)


def main() -> None:
    cured = "--cured" in sys.argv
    train, validation = data(300, 1), data(600, 2)
    parameters = {"objective": "reg:squarederror", "max_depth": 5, "eta": 0.2, "nthread": 1}
    results: dict[str, dict[str, list[float]]] = {}
    xgboost.train(
        parameters,
        train,
        num_boost_round=300,
        evals=[(train, "train"), (validation, "validation")],
        early_stopping_rounds=5 if cured else None,
        evals_result=results,
        verbose_eval=False,
    )
    losses = results["validation"]["rmse"]
    print(f"best round {int(np.argmin(losses))} of {len(losses)}")


if __name__ == "__main__":
    main()
