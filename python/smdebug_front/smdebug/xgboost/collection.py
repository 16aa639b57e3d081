# SPDX-License-Identifier: Apache-2.0
"""Collections of XGBoost's hook."""

from ..core.collection import DEFAULT_XGBOOST_COLLECTIONS, CollectionKeys
from ..core.collection_manager import CollectionManager as BaseCollectionManager


class CollectionManager(BaseCollectionManager):
    """With the collections that a hook of XGBoost has from the start."""

    def __init__(self, collections=None):
        super().__init__(collections)
        if collections is None:
            for name in DEFAULT_XGBOOST_COLLECTIONS:
                self.create_collection(name)
            self.get(CollectionKeys.HYPERPARAMETERS).include("^hyperparameters/.*$")
            self.get(CollectionKeys.METRICS).include("^[a-zA-Z0-9_]+-[a-zA-Z0-9_@.:-]+$")
            # What grows as the model gets better is no loss.
            self.get(CollectionKeys.LOSSES).include("^[a-zA-Z0-9_]+-.+(?<!(auc|map))$")
            self.get(CollectionKeys.PREDICTIONS).include("^predictions$")
            self.get(CollectionKeys.LABELS).include("^labels$")
            self.get(CollectionKeys.FEATURE_IMPORTANCE).include("^feature_importance/.*")
            self.get(CollectionKeys.AVERAGE_SHAP).include("^average_shap/(?!bias$)")
            self.get(CollectionKeys.FULL_SHAP).include("^full_shap/(?!bias$)")
            self.get(CollectionKeys.TREES).include("^trees/.*")
