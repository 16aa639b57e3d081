# SPDX-License-Identifier: Apache-2.0
"""Parameters of which this process holds a part: distributed tensors, and the flat parameters of
FullyShardedDataParallel. What is recorded is the local part, as `<name>.shard.<rank>`; an event
`tensor.shard` tells once of what it is a part.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ..._native import probe

_MAX_LISTED = 64
_told: set[str] = set()


def is_distributed(tensor: Any) -> bool:
    """Whether it is a torch.distributed.tensor.DTensor; torch.distributed is not loaded for the answer."""
    kind = type(tensor)
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.")


def local_part(tensor: Any) -> Any:
    """The part of a distributed tensor that lies in this process; any other tensor itself."""
    return tensor._local_tensor if is_distributed(tensor) else tensor


def whole_value(tensor: Any) -> Any:
    """The value of a distributed tensor, without asking other ranks; None where they hold a part of it, or where
    it is still on its way.
    """
    if not is_distributed(tensor):
        return tensor
    local = tensor._local_tensor
    if type(local).__name__ == "AsyncCollectiveTensor":
        return None
    return local if all(_is_replicated(placement) for placement in tensor.placements) else None


def _is_replicated(placement: Any) -> bool:
    text = str(placement)
    return text == "R" or text.startswith("Replicate")


def _tell(name: str, facts: dict[str, Any]) -> None:
    if name in _told or len(_told) >= 65536:
        return
    _told.add(name)
    probe.event("tensor.shard", 0, name, "", json.dumps(facts))


class Shards:
    """Names of the parts that this process holds. To be dropped soon: it refers to parameters."""

    def __init__(self, roots: list[Any]) -> None:
        """`roots`: the roots as they were called, with their wrappers."""
        # id(parameter) -> (parameter, facts)
        self._flat: dict[int, tuple[Any, dict[str, Any]]] = {}
        # No model is sharded before its library is loaded.
        if "torch.distributed.fsdp" in sys.modules:
            for root in roots:
                for module in root.modules():
                    if type(module).__name__ == "FullyShardedDataParallel":
                        self._add(getattr(module, "_handle", None))

    def _add(self, handle: Any) -> None:
        if handle is None or not handle.uses_sharded_strategy:
            return
        flat = handle.flat_param
        shapes = [list(shape) for shape in flat._shapes]
        # Without use_orig_params there is one parameter, the flat one.
        if flat._params is None:
            facts = {
                "flat": True,
                "parameters": list(flat._fqns[:_MAX_LISTED]),
                "global_shapes": shapes[:_MAX_LISTED],
            }
            self._flat[id(flat)] = (flat, facts)
        else:
            for parameter, shape in zip(flat._params, shapes):
                self._flat[id(parameter)] = (parameter, {"flat": True, "global_shape": shape})

    def name(self, name: str, parameter: Any) -> str:
        """The name of what this process holds of a parameter: its own where that is all of it."""
        if is_distributed(parameter):
            placements = [str(placement) for placement in parameter.placements]
            if whole_value(parameter) is not None:
                return name
            facts = {
                "global_shape": list(parameter.shape),
                "placements": placements,
                "mesh": list(parameter.device_mesh.shape),
                "coordinate": parameter.device_mesh.get_coordinate(),
            }
        else:
            known = self._flat.get(id(parameter))
            if known is None or known[0] is not parameter:
                return name
            facts = known[1]
        facts["local_shape"] = list(local_part(parameter).shape)
        name = f"{name}.shard.{_rank()}"
        _tell(name, facts)
        return name


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


def forget() -> None:
    """A forked child tells of its own."""
    _told.clear()
