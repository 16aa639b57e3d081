# SPDX-License-Identifier: Apache-2.0
"""What holds a training up before its first step: spans `download`, `network`, `copy`, `unpack`, `program`
(docs/guide/spans.md).

Only methods of classes and functions that nobody passes on are hooked, so that all of it is as it was once the first
step begins, and two hours after the import of the framework where none has: a process that never steps is no training. What the main
thread waits for is told, at most 256 spans of each name: calls that follow each other within a millisecond are one.

Thread safety: told and _unhook are called on any thread, and told looks at calls of the main thread alone; the rest belongs on that thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FunctionType, ModuleType
from typing import Any, Callable

from ._native import note, probe

# Module -> (class within it or "", method, span). SocketIO is what http.client reads from, and with it urllib, requests,
# urllib3, botocore, google-cloud-storage and huggingface_hub.
_CALLS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "socket": (("SocketIO", "readinto", "network"),),
    "ssl": (("SSLSocket", "do_handshake", "network"),),
    "httpcore._backends.sync": (("SyncStream", "read", "network"),),
    "fsspec.asyn": (("", "sync", "network"),),  # Of gcsfs, s3fs, adlfs.
    "s3transfer.futures": (("TransferFuture", "result", "network"),),
    "boto3.s3.transfer": (("S3Transfer", "download_file", "download"),),
    "shutil": (("", "_fastcopy_sendfile", "copy"),),
    "tarfile": (("TarFile", "extractall", "unpack"), ("TarFile", "extract", "unpack")),
    "zipfile": (("ZipFile", "extractall", "unpack"), ("ZipFile", "extract", "unpack")),
    "subprocess": (("Popen", "wait", ""), ("Popen", "communicate", "")),
}

# Programs that are known by name; any other is a `program`.
_PROGRAMS = {
    **dict.fromkeys(
        "aria2c aws axel azcopy curl gcloud gsutil hf huggingface-cli rclone s5cmd wget".split(), "download"
    ),
    **dict.fromkeys(("cp", "mv", "rsync", "scp"), "copy"),
    **dict.fromkeys("7z gunzip gzip pigz tar unpigz unxz unzip unzstd xz zstd".split(), "unpack"),
}

# A fast download is made of calls that take less than a millisecond each, with as little between them.
_LEAST_CALL_NS = 20_000
_LEAST_SPAN_NS = 1_000_000
_BETWEEN_NS = 1_000_000
_MOST_SPANS = 256
# Times kept of each name: calls that follow each other closely are one from then on.
_MOST_KEPT = 4096
# What a start does later is not timed.
_LONGEST_START_NS = 2 * 3600 * 10**9

_times: dict[str, list[tuple[int, int]]] = {}
_hooked: list[tuple[Any, str, Any, Any]] = []
_over = False
# By time.monotonic_ns: the end of the longest start; None: nothing is hooked yet.
_until: int | None = None


def _program(args: tuple[Any, ...]) -> str:
    """What a program that was started does, by its name."""
    command = vars(args[0]).get("args") if args else None
    if type(command) in (list, tuple) and command:
        command = command[0]
    words = command.split(maxsplit=1) if type(command) is str else []
    return _PROGRAMS.get(os.path.basename(words[0]), "program") if words else "program"


def _told(span: str) -> Callable[..., None]:
    def told(args: tuple[Any, ...], kwargs: dict[str, Any], ns: int) -> None:
        end = time.monotonic_ns()
        if _too_late(end) or threading.get_ident() != threading.main_thread().ident:
            return
        _add(_times.setdefault(span or _program(args), []), end - ns, end)

    return told


def _too_late(now: int) -> bool:
    """Whether nothing is timed any more; takes the hooks off once the longest start is over."""
    if not _over and _until is not None and now >= _until:
        _unhook()
    return _over


def _add(times: list[tuple[int, int]], begin: int, end: int) -> None:
    # A call that another one of its name lies within comes after it.
    while times and times[-1][0] >= begin:
        times.pop()
    if times and (begin - times[-1][1] < _BETWEEN_NS or len(times) >= _MOST_KEPT):
        begin = times.pop()[0]
    times.append((begin, end))


def _joined(times: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most 256 of them: those between which least time passed become one."""
    while len(times) > _MOST_SPANS:
        gaps = sorted(after[0] - before[1] for before, after in zip(times, times[1:]))
        border = gaps[len(times) - _MOST_SPANS - 1]
        out = times[:1]
        for begin, end in times[1:]:
            if begin - out[-1][1] <= border:
                out[-1] = (out[-1][0], end)
            else:
                out.append((begin, end))
        times = out
    return times


def look(timed: Callable[..., bool]) -> None:
    """Has the calls of what is loaded by now timed by `timed(owners, name, span, told=)`; what is timed stays so."""
    global _until
    now = time.monotonic_ns()
    if _until is None:
        _until = now + _LONGEST_START_NS
    if _too_late(now):
        return
    for module_name, calls in _CALLS.items():
        module = sys.modules.get(module_name)
        # Modules of another type may be loaded by being looked at.
        if type(module) is not ModuleType:
            continue
        for class_name, name, span in calls:
            try:
                _hook(module, class_name, name, span, timed)
            except Exception as error:
                note(f"start: {module_name}.{name} not timed: {type(error).__name__}: {error}")


def _hook(module: ModuleType, class_name: str, name: str, span: str, timed: Callable[..., bool]) -> None:
    owner: Any = vars(module).get(class_name) if class_name else module
    if owner is None or (class_name and not isinstance(owner, type)):
        return
    original = vars(owner).get(name)
    if type(original) is FunctionType and timed((owner,), name, "", _LEAST_CALL_NS, told=_told(span)):
        _hooked.append((owner, name, original, vars(owner)[name]))


def _unhook() -> None:
    """All is as it was, for good."""
    global _over
    _over = True
    # Another thread may come in here, and take off the same.
    for owner, name, original, hook in list(_hooked):
        if vars(owner).get(name) is hook:
            setattr(owner, name, original)
        if type(owner) is not ModuleType:
            continue
        for module in list(sys.modules.values()):
            if type(module) is ModuleType and vars(module).get(name) is hook:
                setattr(module, name, original)
    _hooked.clear()


def end() -> None:
    """The first step begins: all is as it was, and what was timed is told. Later calls do nothing."""
    _unhook()
    for span, times in _times.items():
        for begin, until in _joined([each for each in times if each[1] - each[0] >= _LEAST_SPAN_NS]):
            probe.span_ns(span, begin, until, 3)
    _times.clear()


def forked() -> None:
    """This is a child, a worker of a loader mostly: what was timed is its parent's, and it has no start of its own."""
    _unhook()
    _times.clear()
