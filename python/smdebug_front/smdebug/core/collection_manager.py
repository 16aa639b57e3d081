# SPDX-License-Identifier: Apache-2.0
"""The collections of one hook or trial."""

from ..exceptions import SMDebugError, SMDebugTypeError
from .collection import Collection


class CollectionManager:
    """Collections by name; `collection_class` is what new ones become."""

    collection_class = Collection

    def __init__(self, collections=None):
        self.collections = {} if collections is None else collections

    def create_collection(self, name):
        if name not in self.collections:
            self.collections[name] = self.collection_class(name)

    def get_collections(self):
        return self.collections

    def add(self, arg):
        """Adds a collection, in place of one of its name, or makes one of a name."""
        if isinstance(arg, str):
            self.create_collection(arg)
        elif isinstance(arg, Collection):
            self.collections[arg.name] = arg
        else:
            raise SMDebugTypeError(f"{arg!r} must be a Collection or a name")

    def get(self, name, create=True):
        if name not in self.collections:
            if not create:
                raise SMDebugError(f"there is no collection {name}")
            self.create_collection(name)
        return self.collections[name]

    def to_json_dict(self):
        return {name: collection.to_json_dict() for name, collection in self.collections.items()}

    @classmethod
    def from_json_dict(cls, collections):
        return cls({name: cls.collection_class.from_dict(fields) for name, fields in collections.items()})

    def __eq__(self, other):
        if not isinstance(other, CollectionManager):
            return NotImplemented
        return self.collections == other.collections

    __hash__ = None

    def __repr__(self):
        return f"<class CollectionManager: collection_names={list(self.collections)}>"
