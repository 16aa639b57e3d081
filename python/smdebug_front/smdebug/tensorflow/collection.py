# SPDX-License-Identifier: Apache-2.0
"""Collections of TensorFlow's hooks."""

from ..core.collection import DEFAULT_TF_COLLECTIONS, CollectionKeys
from ..core.collection import Collection as BaseCollection
from ..core.collection_manager import CollectionManager as BaseCollectionManager
from ..core.logger import get_logger


class Collection(BaseCollection):
    """A collection that tensors, variables, operations and layers can be added to."""

    def add(self, arg):
        """Adds a tf.Tensor, tf.Variable, tf.Operation or a list or set of them, by their names."""
        if isinstance(arg, (list, set, tuple)):
            for part in arg:
                self.add(part)
            return
        outputs = getattr(arg, "outputs", None)
        if outputs is not None and hasattr(arg, "node_def"):
            self.add(list(outputs))
            return
        try:
            self.add_tensor_name(arg.name)
        except AttributeError:  # An eager tensor has none.
            get_logger().warning(
                "smdebug (Telltale): collection %s: a %s without a name cannot be added",
                self.name,
                type(arg).__name__,
            )

    def add_keras_layer(self, layer, inputs=False, outputs=True):
        """Adds the inputs, the outputs or both of a layer."""
        if inputs:
            self.include(f"{layer.name}/inputs")
        if outputs:
            self.include(f"{layer.name}/outputs")


class CollectionManager(BaseCollectionManager):
    """With the collections that a hook of TensorFlow has from the start. Which tensors are weights, gradients,
    losses and so on is known as they come.
    """

    collection_class = Collection

    def __init__(self, collections=None):
        super().__init__(collections)
        if collections is None:
            for name in DEFAULT_TF_COLLECTIONS:
                self.create_collection(name)
            self.get(CollectionKeys.BIASES).include("^(?!gradient).*bias")
