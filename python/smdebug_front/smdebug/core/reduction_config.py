# SPDX-License-Identifier: Apache-2.0
"""What is saved of a tensor in place of its values."""

import json

from ..exceptions import SMDebugValueError
from .utils import parse_bool, split

ALLOWED_REDUCTIONS = ["min", "max", "mean", "std", "variance", "sum", "prod"]
ALLOWED_NORMS = ["l1", "l2"]

_LISTS = (
    ("reductions", ALLOWED_REDUCTIONS),
    ("abs_reductions", ALLOWED_REDUCTIONS),
    ("norms", ALLOWED_NORMS),
    ("abs_norms", ALLOWED_NORMS),
)


class ReductionConfig:
    """Names of reductions and norms, of the values and of their absolute values.

    Where there are any, the values themselves are saved only with `save_raw_tensor`; `save_shape` saves
    the shape.
    """

    def __init__(
        self,
        reductions=None,
        abs_reductions=None,
        norms=None,
        abs_norms=None,
        save_raw_tensor=False,
        save_shape=False,
    ):
        """
        Raises:
            SMDebugValueError: a name that is none of ALLOWED_REDUCTIONS, ALLOWED_NORMS; no boolean.
        """
        given = (reductions, abs_reductions, norms, abs_norms)
        for (field, allowed), names in zip(_LISTS, given):
            names = [] if names is None else list(names)
            for name in names:
                if name not in allowed:
                    raise SMDebugValueError(f"{field}: {name!r} is none of {', '.join(allowed)}")
            setattr(self, field, names)
        for field, value in (("save_raw_tensor", save_raw_tensor), ("save_shape", save_shape)):
            if not isinstance(value, bool):
                raise SMDebugValueError(f"{field}={value!r} must be True or False")
            setattr(self, field, value)

    def asked(self):
        """What is asked for, as (name, of the absolute values)."""
        return [(name, False) for name in (*self.reductions, *self.norms)] + [
            (name, True) for name in (*self.abs_reductions, *self.abs_norms)
        ]

    @classmethod
    def from_dict(cls, params):
        """From the form of the JSON configuration: {"reductions": "min,abs_max,l2_norm", ...}."""
        if params is None:
            return None
        if not isinstance(params, dict):
            raise SMDebugValueError(f"{params!r} must be a dict")
        lists = {field: [] for field, _ in _LISTS}
        for word in filter(None, split(params.get("reductions") or "")):
            absolute = word.startswith("abs_")
            name = word[4:] if absolute else word
            norm = name.endswith("_norm")
            field = ("abs_" if absolute else "") + ("norms" if norm else "reductions")
            lists[field].append(name[:-5] if norm else name)
        return cls(
            **lists,
            save_raw_tensor=parse_bool(params.get("save_raw_tensor"), False),
            save_shape=parse_bool(params.get("save_shape"), False),
        )

    @classmethod
    def from_json(cls, json_str):
        return cls.from_dict(json.loads(json_str))

    def to_json_dict(self):
        words = [
            *self.reductions,
            *(f"{name}_norm" for name in self.norms),
            *(f"abs_{name}" for name in self.abs_reductions),
            *(f"abs_{name}_norm" for name in self.abs_norms),
        ]
        return {
            "save_raw_tensor": self.save_raw_tensor,
            "reductions": ",".join(words),
            "save_shape": self.save_shape,
        }

    def to_json(self):
        return json.dumps(self.to_json_dict())

    def __eq__(self, other):
        if not isinstance(other, ReductionConfig):
            return NotImplemented
        return self.to_json_dict() == other.to_json_dict()

    __hash__ = None

    def __repr__(self):
        return f"<class ReductionConfig: {self.to_json_dict()}>"
