# SPDX-License-Identifier: Apache-2.0
"""What is attached to modules and parameters. A model that is copied or pickled takes what is attached along:
it becomes something that does nothing.
"""

import contextlib

from .tensors import is_traced


class _Attached:
    def __init__(self, hook, name):
        self.hook = hook
        self.name = name

    def __reduce__(self):
        # Something of the standard library that takes anything and gives None: such a model can be loaded where
        # there is no smdebug.
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo):
        return contextlib.nullcontext().__exit__


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
