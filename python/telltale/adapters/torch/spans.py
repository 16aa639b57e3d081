# SPDX-License-Identifier: Apache-2.0
"""Spans beside the phases of a step: checkpoints, downloads, making the model, what loggers and callbacks of libraries
take; the data loader's slow items and its queue. Which, and when: docs/guide/spans.md.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from ... import _spans
from ..._native import note, probe
from ..hooking import TIMED
from . import copies, modules

_torch: Any = None
# Datasets keep the paths of their items under one of these names.
_PATHS = (
    "samples",
    "imgs",
    "files",
    "filenames",
    "file_names",
    "file_list",
    "paths",
    "image_paths",
    "images",
)
# When the first module was made, by time.monotonic_ns.
_model_began: int | None = None

# Library -> owner, method and span of what is timed once it is there.
_LIBRARIES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "torch.distributed.checkpoint.state_dict_saver": (
        ("", "save", "checkpoint"),
        ("", "async_save", "checkpoint"),
    ),
    "torch.distributed.checkpoint.state_dict_loader": (("", "load", "checkpoint.load"),),
    "safetensors.torch": (("", "save_file", "checkpoint"), ("", "load_file", "checkpoint.load")),
    "torch.utils.tensorboard.writer": tuple(
        ("SummaryWriter", name, "logging")
        for name in (
            "add_scalar",
            "add_scalars",
            "add_histogram",
            "add_image",
            "add_images",
            "add_figure",
            "flush",
        )
    ),
    "lightning.pytorch.trainer.call": (
        ("", "_call_callback_hooks", "callbacks"),
        ("", "_call_callbacks_on_save_checkpoint", "callbacks"),
    ),
    "pytorch_lightning.trainer.call": (("", "_call_callback_hooks", "callbacks"),),
    "lightning.pytorch.trainer.connectors.checkpoint_connector": (
        ("_CheckpointConnector", "save_checkpoint", "checkpoint"),
    ),
    "transformers.trainer_callback": (("CallbackHandler", "call_event", "callbacks"),),
    "transformers.trainer": (("Trainer", "_save_checkpoint", "checkpoint"),),
    "huggingface_hub.file_download": (("", "hf_hub_download", "download"),),
    "torchvision.datasets.utils": (("", "download_url", "download"),),
    # Batches on their way to a device, where they hold the training up.
    "accelerate.utils.operations": (("", "send_to_device", "host_to_device"),),
    "accelerate.data_loader": (("", "send_to_device", "host_to_device"),),
    "lightning.fabric.utilities.apply_func": (("", "move_data_to_device", "host_to_device"),),
    "wandb.sdk.wandb_run": (("Run", "log", "logging"),),
    "mlflow.tracking.fluent": (("", "log_metric", "logging"), ("", "log_metrics", "logging")),
}
_seen: set[str] = set()


def look() -> None:
    """Hooks what has been loaded since the last time; the first forward of a root module is the end of the
    initialization.
    """
    model_built()
    _spans.begin_loop()
    _libraries()


def _libraries() -> None:
    for name, targets in _LIBRARIES.items():
        module = sys.modules.get(name)
        # Modules of another type may be loaded by being looked at, one that is being loaded is not whole.
        if type(module) is not ModuleType or name in _seen or _loading(module):
            continue
        _seen.add(name)
        for owner, method, span in targets:
            try:
                _spans.timed((getattr(module, owner) if owner else module,), method, span)
            except Exception as error:
                note(f"torch: {name}.{method} not timed: {type(error).__name__}: {error}")


def _loading(module: ModuleType) -> bool:
    return bool(getattr(vars(module).get("__spec__"), "_initializing", False))


def model_built() -> None:
    """The first optimizer was made, or the first model is called."""
    global _model_began
    began, _model_began = _model_began, None
    if began:
        probe.span_ns("model.build", began, time.monotonic_ns(), _spans.RUNTIME)


def _watch_first_module(module: Any) -> None:
    """Notes when the first module is made. The hook is gone after that one."""
    original = vars(module)["__init__"]
    if type(original) is probe.Hook:
        return

    def made(args: tuple[Any, ...], kwargs: dict[str, Any], ns: int) -> None:
        global _model_began
        if vars(module).get("__init__") is hook:
            module.__init__ = original
            _model_began = time.monotonic_ns() - ns

    hook = probe.Hook(original, TIMED, "", 0, made)
    module.__init__ = hook


def _index_in(dataset: Any, index: Any, depth: int = 0) -> tuple[Any, Any]:
    """The dataset and index behind torch's own wrappers of datasets."""
    if depth > 8 or type(index) is not int:
        return dataset, index
    kind = type(dataset)
    if kind is _torch.utils.data.Subset and type(dataset.indices) in (list, tuple, range):
        return _index_in(dataset.dataset, dataset.indices[index], depth + 1)
    if kind is _torch.utils.data.ConcatDataset and index >= 0:
        begin = 0
        for each, end in zip(dataset.datasets, dataset.cumulative_sizes):
            if index < end:
                return _index_in(each, index - begin, depth + 1)
            begin = end
    return dataset, index


def _path_in(dataset: Any, index: Any) -> str:
    """The file of an item, where the dataset has a plain list of them; empty where it has not."""
    try:
        facts = vars(dataset)
    except TypeError:
        return ""
    for name in _PATHS:
        paths = facts.get(name)
        if type(paths) not in (list, tuple) or not 0 <= index < len(paths):
            continue
        entry = paths[index]
        if type(entry) in (tuple, list) and entry:
            entry = entry[0]
        path = _spans.file_of(entry)
        if path:
            return path[:1000]
    return ""


def _slow_item(facts: tuple[Any, Any, int, int, int, int, int]) -> None:
    """An item of a batch took far longer than the others of this process."""
    try:
        source, key, position, items, duration, mean, whole = facts
        info = _torch.utils.data.get_worker_info()
        told: dict[str, Any] = {
            "worker_id": info.id if info is not None else None,
            "position": position,
            "items": items,
            "duration_ns": duration,
            "mean_ns": mean,
            "batch_ns": whole,
        }
        index = int(key) if type(key).__name__ in ("int", "int64", "int32") else None
        if index is not None:
            told["index"] = index
            path = _path_in(*_index_in(source, index))
            if path:
                told["file"] = path
        elif type(key) is str:
            told["index"] = key[:200]
        subject = f"worker:{info.id}" if info is not None else "loader"
        _spans.emit("dataloader.slow_item", subject, told)
    except Exception as error:
        note(f"torch: a slow item is not told: {type(error).__name__}: {error}")


def _queue(iterator: Any) -> bool:
    """Tells how many batches the workers have made that the training has not taken. Returns whether the next one is
    in the queue for sure: all that were ordered are made.
    """
    try:
        facts = vars(iterator)
        tasks = facts.get("_task_info")
        if type(tasks) is not dict:
            return False  # Without workers there is no queue.
        ready = sum(len(task) == 2 for task in tasks.values())
        made = facts["_worker_result_queue"]
        ready += made.qsize()
        given = facts.get("_data_queue")
        if given is not None and given is not made:
            ready += given.qsize()  # Of the thread that pins.
        probe.scalar("dataloader.queue", float(ready))
        # One that came out of turn was taken from the queue before.
        queued = len(tasks.get(facts["_rcvd_idx"], ())) == 1
        return queued and 0 < facts["_tasks_outstanding"] <= ready
    except Exception as error:
        note(f"torch: the loader's queue is not told: {type(error).__name__}: {error}")
        probe.configure(on_queue=None)
    return False


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    homes = (torch.serialization, torch)
    saved = _spans.checkpoint("save", "torch.save", 1, "f")
    loaded = _spans.checkpoint("load", "torch.load", 0, "f")
    # A small one takes less than a millisecond, and may begin what takes long (a copy, an upload).
    _spans.timed(homes, "save", "checkpoint", least_ns=100_000, told=saved)
    _spans.timed(homes, "load", "checkpoint.load", told=loaded)
    _spans.timed((torch.hub,), "download_url_to_file", "download")
    for name in ("to", "cuda"):
        _spans.timed((torch.nn.Module,), name, "model.to_device", told=copies.moved)
    _watch_first_module(torch.nn.Module)
    modules.at_root(look)
    _spans.after_imports(_libraries)
    probe.configure(on_item=_slow_item, on_queue=_queue)
