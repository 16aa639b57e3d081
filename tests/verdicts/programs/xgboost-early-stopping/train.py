# SPDX-License-Identifier: Apache-2.0
"""XGBoost's own train with two evaluation sets and an early stop, twice in one program."""

import xgboost as xgb
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
train, test = xgb.DMatrix(x[:1400], y[:1400]), xgb.DMatrix(x[1400:], y[1400:])
for depth in (3, 5):
    settings = {
        "objective": "multi:softprob",
        "num_class": 10,
        "max_depth": depth,
        "eta": 0.2,
        "seed": 0,
        "nthread": 1,
    }
    xgb.train(
        settings,
        train,
        200,
        evals=[(train, "train"), (test, "test")],
        early_stopping_rounds=10,
        verbose_eval=50,
    )
