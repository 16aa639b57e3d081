# SPDX-License-Identifier: Apache-2.0
"""The windows of detail that the plan has, as the training reads them (docs/formats/plan.md): at which steps each
opens. Checked by the agent already; what it could not check, an expression, is checked here.

Thread safety: values; the manager's thread.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable

MODES = ("train", "eval", "predict")
DETAIL = ("ops", "kernels", "shapes", "stacks", "memory", "flops", "modules", "python")
DEFAULT_DETAIL = ("ops", "kernels", "shapes")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
# A draw looks so many windows ahead for the next one.
_DRAWS = 1000
_U64 = (1 << 64) - 1
_MAX_NODES = 100


@dataclass
class Window:
    """One window of the plan. The fields are the keys of a plan file."""

    name: str
    steps: list[tuple[int, int]] = field(default_factory=list)
    next: int = 0
    every: int = 0
    every_seconds: float = 0.0
    random: float = 0.0
    seed: int = 0
    start_time: float = 0.0
    duration: float = 0.0
    first_graph: bool = False
    when: str = ""
    length: int = 1
    mode: str = "train"
    ranks: list[int] = field(default_factory=list)
    detail: tuple[str, ...] = DEFAULT_DETAIL
    timer: str = "total"
    seconds: float = 60.0
    bytes: int = 64 << 20
    count: int = 100
    asked_ns: int = 0
    predicate: Callable[[int], bool] | None = None

    @classmethod
    def read(cls, name: str, keys: dict[str, Any]) -> Window:
        """From the plan's JSON.

        Raises:
            ValueError: the expression is none.
        """
        window = cls(name)
        for key, value in keys.items():
            if key == "steps":
                value = [_range(text) for text in value.split(",")]
            elif key == "detail":
                value = tuple(value)
            if hasattr(window, key):  # A later agent may know more.
                setattr(window, key, value)
        if window.when:
            window.predicate = expression(window.when)
        return window

    @property
    def trace(self) -> tuple[str, ...]:
        """What of `detail` a framework's profiler records."""
        return tuple(word for word in self.detail if word != "python")

    def key(self) -> tuple[str, int]:
        """Tells it from one of the same name that was asked for at another time."""
        return self.name, self.asked_ns


def asked(when: Any, steps: Any, detail: Any, name: Any) -> Window:
    """A window that a program asks for; see telltale.window."""
    if when is not None and not callable(when):
        raise TypeError("telltale.window: when must be callable, or None")
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError("telltale.window: steps must be an int")
    if steps < 1:
        raise ValueError(f"telltale.window: {steps} steps: write 1 or more")
    words = (detail,) if isinstance(detail, str) else tuple(detail)
    wrong = [word for word in words if word not in DETAIL]
    if wrong or not words:
        raise ValueError(f"telltale.window: detail {list(words)!r}: write any of {', '.join(DETAIL)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"telltale.window: {name!r} is no name: write letters, digits, '-' and '_'")
    window = Window(name, detail=words, asked_ns=time.time_ns())
    if when is None:
        window.next = steps
    else:
        window.predicate = when
        window.length = steps
    return window


def _range(text: str) -> tuple[int, int]:
    begin, colon, end = text.partition(":")
    return int(begin), int(end) if colon else int(begin) + 1


def drawn(window: Window, block: int) -> bool:
    """Whether the block of `length` steps is one of the random share: the same in every process."""
    # SplitMix64 (Steele, Lea, Flood 2014) of a counter: its outputs are as good as independent.
    x = (
        window.seed * 0x9E3779B97F4A7C15 + zlib.crc32(window.name.encode()) + (block + 1) * 0xD1342543DE82EF95
    ) & _U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _U64
    return (x ^ (x >> 31)) < window.random * window.length * 2**64


def end_at(window: Window, step: int) -> int | None:
    """Where a window that the number of the step alone opens would end; None: the step opens none."""
    for begin, end in window.steps:
        if begin <= step < end:
            return end
    if window.every and step % window.every == 0:
        return step + window.length
    if window.random and step % window.length == 0 and drawn(window, step // window.length):
        return step + window.length
    return None


def next_step(window: Window, step: int) -> int | None:
    """The first step from `step` on that opens the window by its number; None: none does."""
    found: list[int] = []
    for begin, end in window.steps:
        if step < end:
            found.append(max(begin, step))
            break
    if window.every:
        found.append(-(-step // window.every) * window.every)
    if window.random:
        block = -(-step // window.length)
        # Where none is drawn for so long it is looked for again there.
        last = block + _DRAWS
        while block < last and not drawn(window, block):
            block += 1
        found.append(block * window.length)
    return min(found, default=None)


_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def expression(text: str) -> Callable[[int], bool]:
    """A Python expression on the step: numbers, `step` and `rank`, arithmetic, comparisons, and, or, not, in.

    It comes with a plan, from whoever may ask for one: nothing in it can be called or looked up.

    Raises:
        ValueError: it is none, or has anything else in it.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text}' is no expression: {error}") from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ValueError(f"'{text[:60]}...' is too long an expression")
    run = _compiled(tree, text)
    return lambda step: bool(run({"step": step, "rank": rank()}))


def rank() -> int:
    """Of this process, as the environment says."""
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def _compiled(node: ast.AST, text: str) -> Callable[[dict[str, int]], Any]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        return lambda names: value
    if isinstance(node, ast.Name) and node.id in ("step", "rank"):
        name = node.id
        return lambda names: names[name]
    if isinstance(node, ast.BoolOp):
        parts = [_compiled(value, text) for value in node.values]
        every = isinstance(node.op, ast.And)
        return lambda names: (all if every else any)(part(names) for part in parts)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        unary, operand = _UNARY[type(node.op)], _compiled(node.operand, text)
        return lambda names: unary(operand(names))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        binary = _BINARY[type(node.op)]
        left, right = _compiled(node.left, text), _compiled(node.right, text)
        return lambda names: binary(left(names), right(names))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        return _comparison(node, text)
    raise ValueError(
        f"'{text}': {type(node).__name__} is not of an expression on the step: write for example "
        "step % 1000 < 3 and rank == 0"
    )


def _operand(node: ast.AST, text: str) -> Callable[[dict[str, int]], Any]:
    """Beside a comparison, and there alone, a list may stand: it is never multiplied."""
    if not isinstance(node, (ast.Tuple, ast.List)):
        return _compiled(node, text)
    items = [_compiled(item, text) for item in node.elts]
    return lambda names: [item(names) for item in items]


def _comparison(node: ast.Compare, text: str) -> Callable[[dict[str, int]], Any]:
    operators = [_COMPARE[type(op)] for op in node.ops]
    operands = [_operand(value, text) for value in (node.left, *node.comparators)]

    def compare(names: dict[str, int]) -> bool:
        values = [operand(names) for operand in operands]
        return all(op(a, b) for op, a, b in zip(operators, values, values[1:]))

    return compare
