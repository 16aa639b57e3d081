# SPDX-License-Identifier: Apache-2.0
"""Passes over a data loader: what each gave, and whether its batches repeat."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..._native import probe
from ..._session import at_end, on_wake
from . import events, length, tensors

# Of what the binding tells of a pass, in this order.
_FIELDS = (
    "epoch",
    "batches",
    "samples",
    "complete",
    "batches_looked_at",
    "batches_repeated",
    "repeated_across_workers",
    "compared_with_last_epoch",
    "same_as_last_epoch",
    "first_batches_looked_at",
    "first_batch_repeats",
    "seconds",
)

_torch: Any = None
# The binding's number of a loader -> what is known of it
_loaders: dict[int, dict[str, Any]] = {}


def _shuffled(sampler: Any) -> bool | None:
    """Whether a sampler gives another order in each epoch; None: it is not one of torch's."""
    samplers = _torch.utils.data
    if isinstance(sampler, samplers.SequentialSampler):
        return False
    if isinstance(
        sampler, (samplers.RandomSampler, samplers.SubsetRandomSampler, samplers.WeightedRandomSampler)
    ):
        return True
    if isinstance(sampler, samplers.DistributedSampler):
        return bool(sampler.shuffle)
    return None


def on_loader(loader: Any, number: int) -> int:
    """The first iterator of a loader: how many workers it has."""
    iterable = isinstance(loader.dataset, _torch.utils.data.IterableDataset)
    own = (
        type(loader.batch_sampler) is not _torch.utils.data.BatchSampler and loader.batch_sampler is not None
    )
    sampler = None if iterable else loader.batch_sampler if own else loader.sampler
    _loaders[number] = {
        "loader_id": events.loader_id(loader),
        "length": length.length_of(loader.dataset),
        "iterable": iterable,
        "workers": int(loader.num_workers),
        "sampler": type(sampler).__name__ if sampler is not None else None,
        "shuffled": _shuffled(sampler) if sampler is not None else None,
    }
    return int(loader.num_workers)


def on_epoch(number: int, passed: tuple[Any, ...]) -> None:
    """A pass is over, or was given up."""
    known = _loaders.get(number)
    if known is None:
        return
    facts = dict(zip(_FIELDS, passed))
    facts["iterators"] = facts["epoch"]
    facts["seconds"] = round(facts["seconds"], 6)
    events.emit("dataloader.epoch", f"loader:{known['loader_id']}", {**known, **facts})


def _awake(_: int) -> None:
    _loaders.clear()


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    on_wake(_awake)
    at_end(probe.finish_batches)
    probe.watch_batches(tensors.careful(on_loader), tensors.careful(on_epoch))
