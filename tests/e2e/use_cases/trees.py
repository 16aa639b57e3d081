# SPDX-License-Identifier: Apache-2.0
"""60 rounds of boosting, in which one feature is nearly the label."""

import argparse

import numpy as np
import xgboost

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=60)
options = parser.parse_args()
random = np.random.RandomState(0)
x = random.randn(500, 8)
y = (x[:, 0] + 0.5 * random.randn(500) > 0).astype(int)
x = np.column_stack([x, y + random.normal(0, 0.01, len(y))])
names = [f"feature{i}" for i in range(8)] + ["leak"]
train = xgboost.DMatrix(x[:400], y[:400], feature_names=names)
held_out = xgboost.DMatrix(x[400:], y[400:], feature_names=names)
parameters = {"objective": "binary:logistic", "max_depth": 8, "eta": 0.2, "nthread": 1}
xgboost.train(
    parameters,
    train,
    options.rounds,
    evals=[(train, "train"), (held_out, "validation")],
    verbose_eval=False,
)
