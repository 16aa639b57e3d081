# SPDX-License-Identifier: Apache-2.0
"""What is attached to modules and parameters. A model that is copied or pickled takes what is attached along:
it becomes something that does nothing.
"""

from .tensors import is_traced


def nothing(*args):
    """What stands in a copied or unpickled model."""


class _Attached:
    def __init__(self, hook, name):
        self.hook = hook
        self.name = name

    def __reduce__(self):
        return _nothing, ()

    def __deepcopy__(self, memo):
        return nothing


def _nothing():
    return nothing


class BeforeForward(_Attached):
    """On a root. `owner`: weak reference to it; a replica of DataParallel has its hooks too."""

    def __init__(self, hook, name, owner):
        super().__init__(hook, name)
        self.owner = owner

    def __call__(self, module, inputs):
        if not is_traced() and self.hook._live and self.owner() is module:
            self.hook._before_forward(self.name, module)


class AfterForward(BeforeForward):
    """On every module."""

    def __call__(self, module, inputs, outputs):
        if not is_traced() and self.hook._due and self.owner() is module:
            self.hook._after_forward(self.name, inputs, outputs)


class AtGradient(_Attached):
    """On a parameter."""

    def __call__(self, gradient):
        if not is_traced() and self.hook._due:
            self.hook._at_gradient(self.name, gradient)
