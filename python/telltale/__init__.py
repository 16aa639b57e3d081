# SPDX-License-Identifier: Apache-2.0
"""Telltale in a training script: optional, since `telltale run -- python train.py` records without a
line of it. Outside `telltale run` every call here does nothing and costs next to nothing.

    import telltale

    for batch in stream:
        with telltale.span("tokenize"):
            tokens = tokenize(batch)
        loss = train(tokens)
        telltale.log(loss=loss, tokens=len(tokens))
        telltale.step()

And afterwards, or while it goes on, the reading side (docs/python.md):

    run = telltale.open("telltale-runs/x")
    run.pandas("steps"), run.findings()

Thread safety: all functions may be called from any thread; step() belongs on the thread that trains.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ._native import probe as _probe
from .errors import DamageWarning, ReadError, TelltaleError, TrialStopped

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ._plan import Plan
    from ._reading import Run
    from ._rule import Rule as Rule
    from ._stop import Stop, Trial

# Without open: `from telltale import *` must not hide Python's own.
__all__ = [
    "DamageWarning",
    "ReadError",
    "TelltaleError",
    "TrialStopped",
    "active",
    "capture",
    "log",
    "on_stop",
    "save_tensor",
    "span",
    "step",
    "stop_requested",
    "trial",
    "window",
]
__version__ = "0.1.0"

_F = TypeVar("_F", bound=Callable[..., Any])


class _NoSpan:
    """A span that records nothing; one object serves all."""

    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: _F) -> _F:
        return function


_NO_SPAN = _NoSpan()

if _probe is not None:
    from . import _exceptions, _session, _stacks

    _session.start()
    _exceptions.install()
    _stacks.install()
    span = _probe.span
else:

    def span(name: str) -> Any:
        """A context manager, or decorator, that records how long its block took.

        Args:
            name: what the block does; keep the number of different names small (they share a
                table; beyond it spans are recorded as "(folded)" and counted).

        Raises:
            TypeError: `name` is not a str.
        """
        if not isinstance(name, str):
            raise TypeError("telltale.span: the name must be a str")
        return _NO_SPAN


def _span_of(name: str) -> Any:
    """What a span's copies and pickles are made by, here or where nothing is recorded.

    Users' checkpoints name it: neither its name nor its argument ever changes.
    """
    return span(name)


def active() -> bool:
    """Whether this process is being recorded."""
    return _probe is not None and bool(_probe.ready(0))


def step() -> None:
    """Ends the current training step here and begins the next.

    Only needed where Telltale cannot see the step: no DataLoader, no nn.Module, no torch optimizer.
    After the first call only these calls end training steps.
    """
    if _probe is not None:
        _probe.step()
        _answer_stop()


def log(**values: Any) -> None:
    """Records numbers at the current step.

    Args:
        values: name=number. A number is anything that float() takes; a tensor must have one element
            (one on a device is waited for). Unit and meaning are yours; NaN and infinity are kept.
            What is no number is counted in the ledger as skipped and otherwise ignored.
    """
    if _probe is None:
        return
    for name, value in values.items():
        try:
            detach = getattr(value, "detach", None)  # float() of what has a gradient warns.
            _probe.scalar(name, float(value if detach is None else detach()))
        except Exception:
            _probe.count_skipped("log.not_a_number", 1)


def capture(plan: Plan, add: bool = False) -> None:
    """Asks for another capture plan for the whole run, all its processes; returns at once.

    The agent answers in the run: an event `plan` and, with the step from which it holds, `request.done`, or
    `request.refused` with the reason: a plan that makes no sense, a file that cannot be read, more than 4 KiB
    as JSON (use `telltale capture RUN --plan FILE`). None of that is an exception in the training. Outside
    `telltale run` it does nothing. Ask from one rank: each call is a request of its own.

    Args:
        plan: the name of a level ("steps", "tensors", "all", ...); a mapping with the keys of a plan file
            (docs/formats/plan.md), for example {"collections": {"gradients": {"interval": 10}}}; the path
            of a plan file; or the text of one.
        add: add its collections to what is recorded now; else it takes its place.

    Raises:
        TypeError: `plan` is none of these; also outside `telltale run`.
    """
    from ._plan import check, request_of

    check(plan)
    if _probe is not None:
        _probe.request_plan(request_of(plan, add))


def window(
    when: Callable[[int], bool] | None = None,
    steps: int = 1,
    detail: Sequence[str] = ("ops", "kernels", "shapes"),
    name: str = "script",
) -> None:
    """Records in detail what the next steps of this process are made of (docs/guide/windows.md).

    Outside `telltale run` it does nothing.

    Args:
        when: called with the number of each TRAIN step where it begins, on the thread that trains; a window
            opens where it returns a true value, and lasts for `steps` steps. None: the next steps, once.
        steps: of each window, from 1.
        detail: any of "ops", "kernels", "shapes", "stacks", "memory", "flops", "modules", "python".
        name: what the window is called; another call with it takes the place of the one before.

    Raises:
        TypeError, ValueError: the arguments are none of these; also outside `telltale run`.
    """
    from ._window_plan import asked

    wanted = asked(when, steps, detail, name)
    if _probe is not None and _probe.ready(0):
        from ._windows import manager

        manager().add(wanted)


_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")


def save_tensor(
    name: str, value: Any, collection: str = "default", *, step: int | None = None, mode: str | None = None
) -> bool:
    """Gives the capture plan a tensor of your own, at the current step or at one that you number.

    What is recorded of it (statistics, histogram, values, shape), and at which steps, the plan says
    for its collection and its name: nothing where no plan asks, and then this costs next to nothing.

    Args:
        name: what the tensor is called; keep the number of different names small.
        value: a numpy array, a tensor of torch, TensorFlow or JAX (one on a device is waited for and
            copied, where it is due), a list of numbers, a number. Any shape; float16 to float64,
            bfloat16, float8, integers, bool, complex. It is read before the call returns.
        collection: the set of tensors that it belongs to, by which plans ask.
        step: whose tensor it is, from 0; None: the open step.
        mode: "TRAIN", "EVAL", "PREDICT", or "GLOBAL" for what is of none of them; None: that of the open step.

    Returns:
        Whether the plan asked for it and it was given.

    Raises:
        TypeError: `name` or `collection` is not a str, or `step` no int.
        ValueError: `mode` is none of these.
    """
    if not isinstance(name, str) or not isinstance(collection, str):
        raise TypeError("telltale.save_tensor: name and collection must be str")
    if step is not None:
        step = operator.index(step)
    if mode is not None and mode not in _MODES:
        raise ValueError(f"telltale.save_tensor: mode must be one of {', '.join(_MODES)}")
    if _probe is None:
        return False
    from ._capture import save

    try:
        return save(collection, name, value, step=step, mode=None if mode is None else _MODES.index(mode))
    except Exception:
        _probe.count_skipped("save_tensor.failed", 1)
        return False


def on_stop(callback: Callable[[Stop], Any]) -> None:
    """Saves a checkpoint before a rule, or a person, stops the training.

    The callback is called once for a stop, with what is known of it (`why`, `rule`, `who`), on the thread that
    registered it, between two steps: in telltale.step() or telltale.stop_requested(), or, in a loop of torch, in
    the next zero_grad() or fetch of a batch. Then, or after `checkpoint_timeout` seconds, the process gets
    SIGTERM. What it raises is noted and changes nothing. Where several processes must save together use the
    callbacks of telltale.stopping. Outside `telltale run` it does nothing.

    Args:
        callback: takes a telltale.stopping.Stop; what it returns is ignored.

    Raises:
        TypeError: it cannot be called.
    """
    from . import _stop

    _stop.on_stop(callback)


def stop_requested() -> bool:
    """Whether a stop is asked for, in a process that has called on_stop or is in a trial; for the end of each
    step of a loop of your own. What on_stop registered is called in it.

    Raises:
        TrialStopped: in `with telltale.trial()`, which takes it.
    """
    _answer_stop()
    loaded = sys.modules.get(f"{__name__}._stop")
    return loaded is not None and loaded.requested() is not None


def trial() -> Trial:
    """One trial of a search, for `with`: a stop then ends the block, not the process.

    The block ends between two steps, as with on_stop; `stopped` of what `with` gives says that it did.

        with telltale.trial() as trial:
            score = train(parameters)
        if trial.stopped:
            score = float("inf")
    """
    from ._stop import Trial

    return Trial()


def _answer_stop() -> None:
    # Only where somebody has called on_stop or trial.
    loaded = sys.modules.get(f"{__name__}._stop")
    if loaded is not None:
        loaded.check()


def open(path: str | os.PathLike[str]) -> Run:
    """Opens a run directory for reading: one that is being recorded, one that has ended.

    Needs pyarrow, of the version that Telltale was built with, and an installed Telltale.

    Raises:
        ReadError: no such run, one of a later format, no pyarrow or another one.
    """
    # Not at the top: a training imports this package and must not load pyarrow.
    from ._reading import Run

    return Run(path)


def __getattr__(name: str) -> Any:
    # Rule is for rules that run beside a training (docs/guide/custom-rules.md): no training loads it.
    if name == "Rule":
        from ._rule import Rule

        return Rule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
