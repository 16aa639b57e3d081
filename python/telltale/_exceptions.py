# SPDX-License-Identifier: Apache-2.0
"""Exceptions that end a process, a thread or a worker: the event process.exception, for RunEnd.

Nothing of the program is replaced that it could see: uncaught exceptions come by the interpreter's audit event
(native/exceptions.h), exceptions of threads by the function that each thread calls when it ends, exceptions of
children of multiprocessing by a finalizer, which runs while the exception is on its way. No exception, frame or traceback is
kept, no variable is read, and no code of the program's is called: of its own types of exceptions only the name and
those arguments are taken that are text or numbers. With TELLTALE_EXCEPTION_TEXT=0 no text is taken at all.

Thread safety: any thread may tell.
"""

from __future__ import annotations

import json
import os
import re
import sys
from types import TracebackType
from typing import Any, Callable

from ._native import note, probe

_CAUGHT, _MAKES_CAUGHT = 18, 19  # Kinds of Hook, as HookKind in hook.h.
_WORKER, _OTHER = 1, 2  # Kinds of process, as tt_process_kind.
_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")

_FRAMES = 8
_FILE = 300
_SHORT_FILE = 100
_NAME = 100
_MESSAGE_BYTES = 1024
_READ = 64 << 10
"""Characters of a text that are looked at: a worker's traceback may be in it."""
# An event's data of more than 4 KiB is left out as a whole.
_MOST_BYTES = 3900
_MOST_EVENTS = 20
"""Of one process; the uncaught exception that ends it is told in any case."""

_worker_finders: list[Callable[[], int | None]] = []


class _State:
    text = True
    audited = False
    told = 0
    watches_forks = False
    """Also in what is forked: it has the list that we are in."""
    finalizer_pid = 0
    """The child of multiprocessing that tells its end."""


class _Anchor:
    """What multiprocessing holds on to by a weak reference."""


_anchor = _Anchor()


def find_worker_with(finder: Callable[[], int | None]) -> None:
    """Lets an adapter say which worker of a data loader this process is (None: another process)."""
    _worker_finders.append(finder)


def _worker() -> int | None:
    for find in _worker_finders:
        worker = find()
        if worker is not None:
            return worker
    return None


def _library_folders() -> tuple[str, ...]:
    folders = [os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    for prefix in {sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(sys.executable or ""))}:
        if prefix:
            folders.append(os.path.join(prefix, "bin"))
    for name in ("torch", "telltale"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            folders.append(os.path.dirname(file))
    return tuple(folder + os.sep for folder in folders)


def _is_users(file: str, libraries: tuple[str, ...]) -> bool:
    """Whether the code is the user's own: no standard library, no installed package, nothing of ours."""
    if file.startswith("<"):
        return file in ("<string>", "<stdin>") or file.startswith("<ipython")
    return not (file.startswith(libraries) or "/site-packages/" in file or "/dist-packages/" in file)


class _Places:
    """Where an exception went by: the innermost places of the user's own code, and the innermost of all."""

    def __init__(self) -> None:
        self._libraries = _library_folders()
        self._users: list[tuple[str, int, str]] = []
        self._last: tuple[str, int, str] | None = None

    def add(self, file: str, line: int, function: str) -> None:
        """The next one inwards."""
        place = (file, line, function)
        self._last = place
        if not _is_users(file, self._libraries) or self._users[-1:] == [place]:
            return
        self._users.append(place)
        del self._users[:-_FRAMES]

    def facts(self) -> dict[str, Any]:
        innermost = self._users[-1] if self._users else self._last
        if innermost is None:
            return {}
        file, line, function = innermost
        frames = [
            f"{file[-_SHORT_FILE:]}:{line} {function[:_NAME]}"
            for file, line, function in reversed(self._users)
        ]
        return {"file": file[-_FILE:], "line": line, "function": function[:_NAME], "frames": frames}


def _places_of(traceback: TracebackType | None) -> _Places:
    places = _Places()
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.add(code.co_filename, traceback.tb_lineno or 0, code.co_name)
        traceback = traceback.tb_next
    return places


def _name_of(kind: type) -> str:
    module = kind.__module__
    return (kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}")[:200]


def _plain(argument: Any) -> str | None:
    """An argument as text, where no code of the program's is needed for that."""
    if isinstance(argument, str):
        return str.__getitem__(argument, slice(0, _READ))
    if type(argument) in (int, float, bool, type(None)):
        try:
            return repr(argument)
        except ValueError:  # An int of thousands of digits.
            return None
    return None


def text_of(exception: BaseException) -> str:
    """What str() says of an exception whose text is Python's own; of others the arguments that are text or numbers."""
    arguments = BaseException.__dict__["args"].__get__(exception)
    texts = [text for text in map(_plain, arguments) if text is not None]
    kind = type(exception)
    if isinstance(exception, KeyError) and len(arguments) == 1 and type(arguments[0]) is str:
        return repr(texts[0])
    if isinstance(exception, OSError) and len(texts) >= 2 and kind.__str__ is OSError.__str__:
        filename = _plain(OSError.filename.__get__(exception))
        name = f": {filename!r}" if filename not in (None, "None") else ""
        return f"[Errno {texts[0]}] {texts[1]}{name}"
    if isinstance(exception, (SyntaxError, UnicodeError)) and kind.__module__ == "builtins":
        return str(exception)
    return texts[0] if len(texts) == 1 else ", ".join(texts)


# A worker's exception is raised again where its results are taken, with its traceback as text.
_AGAIN = re.compile(
    r"^(?:Caught (?P<type>\S+) in (?P<place>DataLoader worker process (?P<worker>\d+)|[^\n]*)\.\n"
    r"Original |\s*-- Process \d+ terminated with the following error:\n)(?=Traceback \(most recent call last\):)"
)
_PLACE = re.compile(r'^  File "([^"\n]+)", line (\d+), in ([^\n]+)$', re.MULTILINE)
_LAST_LINES = re.compile(r"\n(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?\s*\Z", re.DOTALL)


def original_of(text: str) -> dict[str, Any] | None:
    """What a text that holds a worker's or a spawned process's traceback says of it; None: it holds none."""
    again = _AGAIN.match(text)
    if again is None:
        return None
    places = _Places()
    end = again.end()
    for place in _PLACE.finditer(text, again.end()):
        places.add(place.group(1), int(place.group(2)), place.group(3))
        end = place.end()
    facts = places.facts()
    last = _LAST_LINES.search(text, end)
    if last is not None:
        facts["type"] = last.group("type")[:200]
        facts["message"] = (last.group("text") or "").rstrip()
    elif again.group("type"):
        facts["type"] = again.group("type")
    facts["where"] = "spawn" if again.group("place") is None else "thread"
    if again.group("worker"):
        facts["where"] = "worker"
        facts["worker_id"] = int(again.group("worker"))
    return facts


def _cut(text: str, most: int) -> str:
    """The first bytes of it, as whole characters."""
    return text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _thread() -> tuple[str, bool]:
    threading = sys.modules.get("threading")
    if threading is None:
        return "MainThread", True
    ident = threading.get_ident()
    # Not current_thread(): it would make an object for a thread that has none.
    thread = threading._active.get(ident)
    return (thread.name if thread is not None else "")[:_NAME], ident == threading.main_thread().ident


def facts_of(exception: BaseException, where: str) -> dict[str, Any]:
    """The data of the event, but for what does not fit. `where`: main, thread, worker or spawn."""
    facts: dict[str, Any] = {"type": _name_of(type(exception))}
    text = text_of(exception)
    facts["message"] = text
    facts.update(_places_of(exception.__traceback__).facts())
    facts["where"] = where
    original = original_of(text)
    if original is not None:
        # Where it was raised first says more than where it came up again.
        facts["raised_again"] = f"{facts.get('file', '')[-_SHORT_FILE:]}:{facts.get('line', 0)}"
        facts.update(original)
    facts["thread"], facts["main_thread"] = _thread()
    worker = _worker()
    if worker is not None:
        facts["worker_id"] = worker
    cause = exception.__cause__
    if cause is None and not exception.__suppress_context__:
        cause = exception.__context__
    if cause is not None:
        facts["caused_by"] = _name_of(type(cause))
    step, mode = probe.current()
    if step >= 0:
        facts["mode"] = _MODES[mode]
    return facts


def _data(facts: dict[str, Any]) -> str:
    """As JSON that an event has room for."""
    message = facts.pop("message", "")
    if _State.text and message:
        facts["message"] = _cut(message, _MESSAGE_BYTES)
    while True:
        data = json.dumps(facts, ensure_ascii=False)
        if len(data.encode("utf-8", "backslashreplace")) <= _MOST_BYTES:
            return data
        if facts.get("frames"):
            facts["frames"].pop()
        elif facts.get("message"):
            facts["message"] = facts["message"][: len(facts["message"]) // 2]
        else:
            return ""


def _say(exception: BaseException, where: str, **more: Any) -> None:
    _State.told += 1
    if where != "main" and _State.told > _MOST_EVENTS:
        return
    # What was recorded of nothing so far is registered for this event.
    if not probe.ready(_WORKER if where == "worker" else _OTHER):
        return
    facts = facts_of(exception, where)
    facts.update(more)
    place = f"{os.path.basename(facts.get('file', ''))}:{facts.get('line', 0)}"
    probe.event("process.exception", 3, f"proc:{os.getpid()}", f"{facts['type']} in {place}", _data(facts))


def _tell(exception: BaseException, where: str, **more: Any) -> None:
    try:
        _say(exception, where, **more)
    except Exception as error:
        note(f"exceptions: {type(error).__name__}: {error}")


def uncaught(exception: BaseException) -> None:
    """An uncaught exception, which is about to be printed."""
    _tell(exception, "main" if _thread()[1] else "thread")


def of_thread(exception: BaseException) -> None:
    """It has ended a thread."""
    if not isinstance(exception, SystemExit):
        _tell(exception, "thread")


def of_worker(exception: BaseException) -> None:
    """A framework has caught it for good, to raise it again elsewhere: in a loader's worker, or in a thread."""
    _tell(exception, "thread" if _worker() is None else "worker")


def at_exit() -> None:
    """Where the interpreter does not tell of uncaught exceptions: it keeps the last one until its end."""
    if not (_State.audited and probe.on_uncaught(uncaught)):
        tell_last()


def tell_last() -> None:
    """The uncaught exception that the interpreter has printed, if there was one."""
    exception = getattr(sys, "last_value", None)
    if isinstance(exception, BaseException):
        _tell(exception, "main")


def _child_ends() -> None:
    """A child of multiprocessing ends; where an exception ends it, it is being handled now."""
    exception = sys.exc_info()[1]
    if isinstance(exception, SystemExit):
        # The way of those who have printed the exception themselves.
        code, context = exception.code, exception.__context__
        if context is not None and code not in (None, 0):
            _tell(context, "spawn", handled=True)
    elif exception is not None:
        _tell(exception, "spawn")


def _add_finalizer(_: Any = None) -> None:
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _State.finalizer_pid != os.getpid():
        _State.finalizer_pid = os.getpid()
        # Before the process's own end is told (_session), and before its children are ended.
        util.Finalize(None, _child_ends, exitpriority=2)


def watch_multiprocessing() -> None:
    """Has the end of this process told where it is a child of multiprocessing, and of those that it forks."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    if not _State.watches_forks:
        _State.watches_forks = True
        util.register_after_fork(_anchor, _forked)
    process = sys.modules.get("multiprocessing.process")
    # One by spawn imports the program before it becomes the child that it is.
    if process is not None and (
        process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)
    ):
        _add_finalizer()


def _forked(_: Any) -> None:
    # multiprocessing has emptied its list of finalizers.
    _State.told = _State.finalizer_pid = 0
    _add_finalizer()


def _watch_threads() -> None:
    import threading

    make = getattr(threading, "_make_invoke_excepthook", None)
    if make is not None and type(make) is not probe.Hook:
        threading._make_invoke_excepthook = probe.Hook(  # type: ignore[attr-defined]
            make, _MAKES_CAUGHT, None, 0, of_thread
        )


def hook_caught(owner: Any, name: str, tell: Callable[[BaseException], None]) -> None:
    """Has `tell(exception)` called before owner.name, which is called while an exception is handled."""
    original = vars(owner).get(name)
    if original is not None and type(original) is not probe.Hook:
        setattr(owner, name, probe.Hook(original, _CAUGHT, None, 0, tell))


def install() -> None:
    """Once in a process, with the recording's start."""
    _State.text = os.environ.get("TELLTALE_EXCEPTION_TEXT") not in ("0", "off")
    for part in (_watch_uncaught, _watch_threads, watch_multiprocessing):
        try:
            part()
        except Exception as error:
            note(f"exceptions: {type(error).__name__}: {error}")


def _watch_uncaught() -> None:
    _State.audited = bool(probe.on_uncaught(uncaught))
