# SPDX-License-Identifier: Apache-2.0
"""How many samples a data set has, without a call of its `__len__`, which may be slow, count its calls or raise: of containers,
arrays and tables of known types by themselves; of another class by what its `__len__` says it would return: a number, an
attribute, the length of one, and sums of those. Nothing of the user's is run; where the code does more, the length is not known.
"""

from __future__ import annotations

import array
import builtins
import collections
import dis
import operator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable

from ..._native import note, probe
from . import tensors

_CONTAINERS = frozenset(
    (list, tuple, dict, str, bytes, bytearray, set, frozenset, range, array.array, collections.deque)
    + (collections.OrderedDict, collections.defaultdict, collections.Counter)
)
# Libraries whose own classes know their length.
_LIBRARIES = frozenset(("pandas", "pyarrow", "datasets"))
# A data set within a data set within ...
_DEEPEST = 5
_MOST_INSTRUCTIONS = 64

_IGNORED = frozenset("RESUME CACHE PRECALL NOP PUSH_NULL COPY_FREE_VARS EXTENDED_ARG".split())
_SELF = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"))
_CONSTANTS = frozenset(("LOAD_CONST", "LOAD_SMALL_INT"))
# Of ints alone; before 3.11 by an instruction each.
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "BINARY_ADD": operator.add,
    "BINARY_SUBTRACT": operator.sub,
    "BINARY_MULTIPLY": operator.mul,
    "BINARY_FLOOR_DIVIDE": operator.floordiv,
}
_NOT_THERE = object()


class _UnknownError(Exception):
    """Only the data set itself could say it."""


def _of_class(kind: type, name: str) -> Any:
    """What a class or one of its bases defines, found without a metaclass of the user's."""
    for each in type.__getattribute__(kind, "__mro__"):
        found = type.__getattribute__(each, "__dict__").get(name, _NOT_THERE)
        if found is not _NOT_THERE:
            return found
    return _NOT_THERE


def _attribute(value: Any, name: str) -> Any:
    """value.name, where that is a plain attribute."""
    kind = type(value)
    if _of_class(kind, "__getattribute__") is not object.__getattribute__:
        raise _UnknownError
    default = _of_class(kind, name)
    if default is not _NOT_THERE and _of_class(type(default), "__get__") is not _NOT_THERE:
        raise _UnknownError  # A property, or the like.
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    found = dict.get(own, name, default)
    if found is _NOT_THERE:
        raise _UnknownError
    return found


def _named(function: FunctionType, name: str) -> Any:
    """What the name of a global, or of a variable around the class, stands for in a function."""
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            raise _UnknownError from None
    found = dict.get(function.__globals__, name, _NOT_THERE)
    if found is _NOT_THERE and name == "len":
        return builtins.len
    if found is _NOT_THERE:
        raise _UnknownError
    return found


def _item(value: Any, index: Any) -> Any:
    if type(value) not in (list, tuple) or type(index) is not int or not -len(value) <= index < len(value):
        raise _UnknownError
    return value[index]


def _combined(operation: str, left: Any, right: Any) -> Any:
    if operation in ("BINARY_SUBSCR", "[]"):
        return _item(left, right)
    operate = _OPERATORS.get(operation)
    if (
        operate is None
        or type(left) is not int
        or type(right) is not int
        or (right == 0 and "/" in operation)
    ):
        raise _UnknownError
    return operate(left, right)


def _would_return(function: FunctionType, own: Any, depth: int) -> Any:
    """What `__len__` would return of `own`, by its instructions."""
    code: CodeType = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or len(code.co_code) > 2 * _MOST_INSTRUCTIONS:
        raise _UnknownError
    stack: list[Any] = []
    for each in dis.get_instructions(code):
        name, argument = each.opname, each.argval
        if name in _IGNORED:
            continue
        if name in _SELF and argument == code.co_varnames[0]:
            stack.append(own)
        elif name in _CONSTANTS:
            stack.append(argument)
        elif name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            stack.append(_named(function, argument))
        elif name == "LOAD_ATTR":
            stack.append(_attribute(stack.pop(), argument))
        elif name in ("CALL", "CALL_FUNCTION") and each.arg == 1:
            value, called = stack.pop(), stack.pop()
            if called is not builtins.len:
                raise _UnknownError
            stack.append(_length(value, depth - 1))
        elif name == "BINARY_OP" or name.startswith("BINARY_"):
            right, left = stack.pop(), stack.pop()
            stack.append(_combined(each.argrepr if name == "BINARY_OP" else name, left, right))
        elif name == "RETURN_VALUE":
            return stack.pop()
        elif name == "RETURN_CONST":
            return argument
        else:
            break
    raise _UnknownError


def _length(value: Any, depth: int = _DEEPEST) -> int:
    kind = type(value)
    if kind in _CONTAINERS:
        return len(value)
    module = type.__getattribute__(kind, "__module__")
    library = module.partition(".")[0] if type(module) is str else ""
    if kind is tensors.tensor_type or (library == "numpy" and kind.__name__ in ("ndarray", "memmap")):
        shape = value.shape
        if not shape:
            raise _UnknownError
        return int(shape[0])
    if library in _LIBRARIES:
        return len(value)
    if module == "torch.utils.data.dataset" and kind.__name__ == "TensorDataset":
        return _length(_item(_attribute(value, "tensors"), 0), depth - 1)
    function = _of_class(kind, "__len__")
    if any(function is base.__len__ for base in (list, tuple, dict)):
        return int(function(value))
    if depth == 0 or type(function) is not FunctionType:
        raise _UnknownError
    found = _would_return(function, value, depth)
    if type(found) is not int or found < 0:
        raise _UnknownError
    return found


def length_of(data: Any) -> int | None:
    """How many samples a data set has; None where that is not known, or it has no length. Never raises."""
    try:
        with tensors.undisturbed():
            return _length(data)
    except _UnknownError:
        return None
    except Exception as error:
        note(f"torch: the length of {type(data).__name__} is not known: {type(error).__name__}: {error}")
        return None


def install(_: ModuleType) -> None:
    probe.configure(length_of=length_of)
