# SPDX-License-Identifier: Apache-2.0
"""XGBoost's classifier in scikit-learn's grid search: nine fits and a last one, on Debian's versions."""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from xgboost import XGBClassifier

x, y = load_breast_cancer(return_X_y=True)
search = GridSearchCV(
    XGBClassifier(n_estimators=150, random_state=0, n_jobs=1), {"max_depth": [2, 3, 4]}, cv=3
)
print(search.fit(x, y, eval_set=[(x, y)], verbose=False).best_params_)
