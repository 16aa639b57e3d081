# SPDX-License-Identifier: Apache-2.0
"""XGBoost with early_stopping_rounds trains all the rounds that it is given although the validation loss has been rising for a long time.
evals names the validation set first and the training set last, and XGBoost's early stopping watches the last one: the loss of the
training set, which always falls."""

import sys

import numpy as np
import xgboost

CURED = sys.argv[1:] == ["cured"]
rng = np.random.default_rng(0)
ROUNDS, PATIENCE = 300, 30

rows = rng.standard_normal((7000, 40)).astype(np.float32)
signal = rows[:, 0] + 0.7 * rows[:, 1] * rows[:, 2] + 0.5 * np.sin(3 * rows[:, 3])
answer = (signal + rng.standard_normal(7000) * 1.0 > 0).astype(np.float32)
train = xgboost.DMatrix(rows[:4000], answer[:4000])
valid = xgboost.DMatrix(rows[4000:], answer[4000:])

settings = {
    "objective": "binary:logistic",
    "eval_metric": "logloss",
    "eta": 0.06,
    "max_depth": 6,
    "nthread": 1,
    "seed": 0,
}
evals = [(train, "train"), (valid, "valid")] if CURED else [(valid, "valid"), (train, "train")]
history = {}
booster = xgboost.train(
    settings,
    train,
    ROUNDS,
    evals=evals,
    early_stopping_rounds=PATIENCE,
    evals_result=history,
    verbose_eval=40,
)

loss = history["valid"]["logloss"]
best = int(np.argmin(loss))
print(
    f"truth: {len(loss)} of {ROUNDS} rounds trained, the validation loss was best in round {best} ({loss[best]:.4f}) and ends at {loss[-1]:.4f}"
)
