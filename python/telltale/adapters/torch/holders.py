# SPDX-License-Identifier: Apache-2.0
"""Which library holds a fetch: a few fetches of a process run under a profile function, which stops after some thousand
calls. The time goes to the outermost library whose cure is known (pandas, and not the NumPy that it calls).
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import sysconfig
import time
from types import CodeType, FrameType, ModuleType
from typing import Any

from ..._native import note, probe
from ..._profilers import profiler_at_work, stop_profile

# Libraries, and modules of Python itself, that rules have a cure for (src/rules/builtin/loader_cures.cc).
_KNOWN = frozenset(
    "pandas PIL cv2 numpy scipy skimage torchaudio librosa soundfile h5py zarr lmdb sqlite3 pyarrow polars requests "
    "urllib urllib3 http socket ssl boto3 botocore s3fs fsspec gcsfs zipfile tarfile gzip bz2 lzma zlib pickle json re "
    "csv xml tokenizers transformers spacy nltk threading fcntl subprocess imageio decord av nibabel pydicom rasterio "
    "torch.load numpy.load multiprocessing.Lock".split()
)
# Modules of C, by the name under which a user knows them.
_NAMES = {
    "_socket": "socket",
    "_ssl": "ssl",
    "_thread": "threading",
    "_multiprocessing": "multiprocessing",
    "_pickle": "pickle",
    "_json": "json",
    "_sre": "re",
    "_csv": "csv",
    "_bz2": "bz2",
    "_lzma": "lzma",
    "_sqlite3": "sqlite3",
    "_io": "io",
    "posix": "os",
    "nt": "os",
    "_elementtree": "xml",
    "select": "socket",
}
# A profile ends after so many calls and returns, and so long.
_MOST_EVENTS = 4000
_MOST_NS = 400_000_000
_MOST_PROFILES = 16
# Time between two is at least this, and so many times what the one before cost.
_LEAST_PAUSE_NS = 2_000_000_000
_PAUSE_FACTOR = 200
_EVENT_NS = 1500
# A stretch at least so long may hold time in which another program had the core.
_CROWDED_NS = 500_000
# Functions that are a cause of their own, by library and name.
_FUNCTIONS = {
    ("torch", "load"): "torch.load",
    ("numpy", "load"): "numpy.load",
    # Locks that processes share; a lock of threading is of one process, and other workers do not wait for it.
    ("multiprocessing", "__enter__"): "multiprocessing.Lock",
    ("multiprocessing", "acquire"): "multiprocessing.Lock",
}
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")

_package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_homes = tuple(
    {os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib")}
    | {os.path.join(os.path.dirname(os.path.realpath(os.__file__)), "")}
)

_profiles = 0
_pause_until = 0
_running: _Profile | None = None


def _library(path: str) -> str:
    """The library that a source file belongs to; empty: it is the user's own."""
    for folder in ("/site-packages/", "/dist-packages/"):
        at = path.rfind(folder)
        if at >= 0:
            name = path[at + len(folder) :].split("/", 1)[0]
            return name[:-3] if name.endswith(".py") else name
    if path.startswith(_package):
        return "telltale"
    for home in _homes:
        if path.startswith(home):
            name = path[len(home) :].split("/", 1)[0]
            return name[:-3] if name.endswith(".py") else name
    if path.startswith("<frozen"):
        return path[8:-1].partition(".")[0] or "importlib"
    # Code that was made at run time (a dataclass, numpy's dispatchers) belongs to who calls it.
    return "<made>" if path.startswith("<") and path not in ("<stdin>", "<string>") else ""


class _Frame:
    """A call on the stack: whose time it is, and the user's line below which it lies."""

    __slots__ = ("in_c", "inner", "line", "own", "owner")

    def __init__(
        self, owner: tuple[str, str], line: tuple[str, int], own: bool, inner: str, in_c: bool = False
    ):
        self.owner, self.line, self.own, self.inner, self.in_c = owner, line, own, inner, in_c


class _Profile:
    def __init__(self) -> None:
        self.events = 0
        self.stack: list[_Frame] = [_Frame(("", ""), ("", 0), False, "")]
        # By owner, then by the user's line: nanoseconds.
        self.time: dict[tuple[tuple[str, str], tuple[str, int]], int] = {}
        # By owner and the innermost known library that it calls.
        self.inner: dict[tuple[str, str], int] = {}
        self.globals: dict[str, Any] = {}
        self.libraries: dict[CodeType, str] = {}
        try:
            self.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.schedstat = -1  # The kernel keeps none.
        self.queued = self._queued()
        self.began = self.last = time.perf_counter_ns()

    def close(self) -> None:
        if self.schedstat >= 0:
            os.close(self.schedstat)
            self.schedstat = -1

    def _queued(self) -> int:
        """Nanoseconds that this thread has waited for a core."""
        if self.schedstat < 0:
            return 0
        return int(os.pread(self.schedstat, 128, 0).split()[1])

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        try:
            now = time.perf_counter_ns()
            self.events += 1
            # What has passed until a call is the caller's, at its line.
            caller = frame.f_back if event == "call" else None
            took = now - self.last
            if took >= _CROWDED_NS:
                before, self.queued = self.queued, self._queued()
                took = max(0, took - (self.queued - before))
            self._charge(frame if caller is None else caller, took)
            if event == "call":
                self.stack.append(self._called(frame))
            elif event == "c_call":
                self.stack.append(self._called_c(arg))
            elif len(self.stack) > 1:
                self.stack.pop()
            if self.events >= _MOST_EVENTS or now - self.began > _MOST_NS:
                stop_profile(self)
            self.last = time.perf_counter_ns()
        except Exception as error:
            stop_profile(self)
            note(f"torch: a fetch was not profiled: {type(error).__name__}: {error}")

    def _charge(self, frame: FrameType, took: int) -> None:
        top = self.stack[-1]
        line = (frame.f_code.co_filename, frame.f_lineno) if top.own else top.line
        key = (top.owner, line)
        self.time[key] = self.time.get(key, 0) + took
        if top.inner and top.inner != top.owner[0]:
            within = (top.owner[0], top.inner)
            self.inner[within] = self.inner.get(within, 0) + took

    def _called(self, frame: FrameType) -> _Frame:
        code = frame.f_code
        library = self.libraries.get(code)
        if library is None:
            library = self.libraries[code] = _library(code.co_filename)
        parent = self.stack[-1]
        line = parent.line
        caller = frame.f_back
        if parent.own and caller is not None:
            line = (caller.f_code.co_filename, caller.f_lineno)
        own = library == ""
        if own:
            self.globals.setdefault(code.co_filename, frame.f_globals)
        # What a dispatcher in C calls is what the user has called.
        dispatched = parent.in_c and parent.owner[0] == library
        if (parent.owner[0] in _KNOWN and not own and not dispatched) or library == "<made>":
            owner = parent.owner
        elif own:
            owner = ("", "")
        else:
            named = _FUNCTIONS.get((library, code.co_name), library) if parent.own else library
            owner = (named, getattr(code, "co_qualname", code.co_name))
        return _Frame(owner, line, own, library if library in _KNOWN else parent.inner)

    def _called_c(self, function: Any) -> _Frame:
        parent = self.stack[-1]
        module = getattr(function, "__module__", None)
        if not isinstance(module, str):
            module = type(getattr(function, "__self__", None)).__module__
        library = module.partition(".")[0]
        library = _NAMES.get(library, library)
        owner = parent.owner
        line = parent.line
        if parent.own:
            # The line is the frame's, where the call was charged last.
            frame = sys._getframe(2)
            line = (frame.f_code.co_filename, frame.f_lineno)
        if owner[0] not in _KNOWN and library not in ("builtins", "NoneType"):
            name = getattr(function, "__name__", "")
            owner = (_FUNCTIONS.get((library, name), library) if parent.own else library, name)
        return _Frame(owner, line, False, library if library in _KNOWN else parent.inner, True)


def _named_on(profile: _Profile, line: tuple[str, int]) -> str:
    """A known library that the user's line names: operators of arrays and ufuncs call no function."""
    names = profile.globals.get(line[0])
    if not isinstance(names, dict):
        return ""
    for word in _WORD.findall(linecache.getline(*line)):
        value = names.get(word)
        if isinstance(value, ModuleType):
            library = value.__name__.partition(".")[0]
            if library in _KNOWN:
                return library
    return ""


def _tell(profile: _Profile) -> None:
    shares: dict[str, int] = {}
    functions: dict[str, dict[str, int]] = {}
    # Of each function by itself: another one's line would name what is not there.
    lines: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
    whole = 0
    for (owner, line), took in profile.time.items():
        library, function = owner
        if library == "telltale":
            continue
        whole += took
        if not library:
            library = _named_on(profile, line)
        name = f"time.{function}" if library == "time" else library
        shares[name] = shares.get(name, 0) + took
        of = functions.setdefault(name, {})
        of[function] = of.get(function, 0) + took
        if line[0]:
            at = lines.setdefault((name, function), {})
            at[line] = at.get(line, 0) + took
    if whole <= 0 or not shares:
        return
    top = max(shares, key=lambda name: shares[name])
    function = max(functions[top], key=lambda name: functions[top][name])
    told: dict[str, Any] = {
        "library": top,
        "function": function[:120],
        "share": round(shares[top] / whole, 3),
        "ns": whole,
        "shares": {
            name: round(took / whole, 3) for name, took in sorted(shares.items(), key=lambda e: -e[1])[:6]
        },
    }
    within = {inner: took for (owner, inner), took in profile.inner.items() if owner == top}
    if within:
        inner = max(within, key=lambda name: within[name])
        if within[inner] > 0.3 * shares[top]:
            told["inner"] = inner
    if own := lines.get((top, function)):
        path, number = max(own, key=lambda line: own[line])
        told["file"], told["line"] = os.path.basename(path)[:120], number
    probe.event("dataloader.held_by", 0, "loader", "", json.dumps(told))


def _begin() -> int:
    global _running
    # In another thread, or too soon, or a profiler of the user's is at work.
    if _running is not None or time.monotonic_ns() < _pause_until or profiler_at_work():
        return 0
    _running = _Profile()
    sys.setprofile(_running)
    return 1


def _end() -> int:
    global _running, _profiles, _pause_until
    profile, _running = _running, None
    if profile is None:
        return 0
    stop_profile(profile)
    profile.close()
    _profiles += 1
    cost = profile.events * _EVENT_NS
    _pause_until = time.monotonic_ns() + max(_LEAST_PAUSE_NS, _PAUSE_FACTOR * cost)
    _tell(profile)
    if _profiles >= _MOST_PROFILES:
        probe.configure(on_fetch=None)
    return cost


def _fetch(begins: bool) -> int:
    """A long fetch begins: 1 where it runs under a profile. One that did has ended: nanoseconds that the profile
    took of it.
    """
    try:
        return _begin() if begins else _end()
    except Exception as error:
        if _running is not None:
            stop_profile(_running)
        probe.configure(on_fetch=None)
        note(f"torch: fetches are not profiled: {type(error).__name__}: {error}")
        return 0


def install(torch: ModuleType) -> None:
    probe.configure(on_fetch=_fetch)
