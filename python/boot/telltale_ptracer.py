# SPDX-License-Identifier: Apache-2.0
"""Where Yama lets a process be read by its parents alone: allows the supervisor's children to read this one, as
`telltale run --stacks` asks for. In each Python process of the training and in its forks.
"""

import os

_PR_SET_PTRACER = 0x59616D61


def allow():
    import ctypes

    tracer = int(os.environ["TELLTALE_PTRACER"])
    prctl = ctypes.CDLL(None).prctl

    def name_it():
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(tracer), 0, 0, 0)

    name_it()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=name_it)
