# SPDX-License-Identifier: Apache-2.0
"""Collections of PyTorch's hook."""

from ..core.collection import DEFAULT_PYTORCH_COLLECTIONS, CollectionKeys
from ..core.collection import Collection as BaseCollection
from ..core.collection_manager import CollectionManager as BaseCollectionManager


class Collection(BaseCollection):
    """A collection that modules can be added to."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._modules = {}

    def add_module_tensors(self, module, inputs=False, outputs=True):
        """Adds the inputs, the outputs or both of a module that is registered with the hook."""
        self._modules[module] = (inputs, outputs)

    @property
    def modules(self):
        return self._modules


class CollectionManager(BaseCollectionManager):
    """With the collections that a hook of PyTorch has from the start."""

    collection_class = Collection

    def __init__(self, collections=None):
        super().__init__(collections)
        if collections is None:
            for name in DEFAULT_PYTORCH_COLLECTIONS:
                self.create_collection(name)
            self.get(CollectionKeys.WEIGHTS).include("^(?!gradient).*weight")
            self.get(CollectionKeys.BIASES).include("^(?!gradient).*bias")
            self.get(CollectionKeys.GRADIENTS).include("^gradient")
            self.get(CollectionKeys.LOSSES).include("[Ll]oss_(?!input).*output")
