# SPDX-License-Identifier: Apache-2.0
"""Hands what a hook saves to Telltale's probe, and tells a trial where it went.

In Telltale's tables a tensor of hook number n is (collection "smdebug/<collection>", name as smdebug calls
it), with the step and mode of smdebug's own counting; "smdebug#n/..." from the second hook of a process on.
Two scalars frame each saved step: "smdebug/global_step" at its begin (value: the step over all modes) and
"smdebug/saved" at its end (value: the rows that found room on their way). A pointer file in out_dir, one a
worker, names the run and the collections.

Thread safety: as the hook's: one thread at a time.
"""

import errno
import itertools
import json
import os
import time

from ..core.logger import get_logger
from . import package

# What is taken of a tensor, as TT_TAKE_ of telltale/probe.h.
STATS, HISTOGRAM, RAW, SHAPE, MORE = 1, 2, 4, 8, 16

POINTER_PREFIX = "telltale-"
POINTER_VERSION = 1
_MOST_POINTER_BYTES = 16 << 20

_numbers = itertools.count(1)
_said_inert = False
_missing = object()
_probe = _missing
_dtype_codes = {}


def _dtype_code(dtype):
    """tt_dtype of a numpy dtype; None: the probe does not read it."""
    if dtype not in _dtype_codes:
        _dtype_codes[dtype] = package.part("_capture").numpy_dtype_code(dtype)
    return _dtype_codes[dtype]


def probe():
    """Telltale's native binding, or None where this process is not recorded."""
    global _probe
    if _probe is _missing:
        try:
            native = package.part("_native").probe
            _probe = native if native is not None and hasattr(native, "record") else None
        except ImportError as error:
            get_logger().warning("smdebug (Telltale): %s", error)
            _probe = None
    return _probe


def recording():
    """Whether this process is recorded; where not, says so once."""
    global _said_inert
    native = probe()
    if native is not None and native.ready(0):
        return True
    if not _said_inert:
        _said_inert = True
        get_logger().warning(
            "smdebug (Telltale): nothing is saved, for this process is not recorded: start it as "
            "`telltale run -- python ...`; the training goes on"
        )
    return False


def pointer_folder(out_dir):
    """Where the pointer files of an out_dir lie: there, or in the run where it is in a bucket."""
    if out_dir.startswith("s3://"):
        run = os.environ.get("TELLTALE_RUN")
        return os.path.join(run, "smdebug", *out_dir[5:].split("/")) if run else None
    return os.path.abspath(os.path.expanduser(out_dir))


def _opened(folder, make=False):
    """A folder of pointer files, as telltale._run_files opens it. In the run no link is followed on the way to it;
    elsewhere it is the program's own.
    """
    files = package.part("_run_files")
    run = os.environ.get("TELLTALE_RUN")
    inside = os.path.join(run, "smdebug", "") if run else None
    if inside is None or not os.path.join(folder, "").startswith(inside):
        if make:
            os.makedirs(folder, exist_ok=True)
        return files.Folder.at(folder)
    opened = files.Folder.at(run)
    for name in ["smdebug", *folder[len(inside) :].split(os.sep)]:
        if name:
            with opened as above:
                opened = above.folder(name, make)
    return opened


def pointers(folder):
    """The pointer files of a folder, parsed; [] where there are none."""
    found = []
    if folder is None:
        return found
    try:
        with _opened(folder) as opened:
            for name in opened.names():
                if name.startswith(POINTER_PREFIX) and name.endswith(".json"):
                    try:
                        pointer = json.loads(opened.read(name, _MOST_POINTER_BYTES))
                    except (OSError, ValueError):
                        continue
                    if isinstance(pointer, dict) and pointer.get("format") == "telltale-smdebug":
                        found.append(pointer)
    except (OSError, ImportError):
        pass
    return found


class Recorder:
    """What one hook saves, from one process."""

    def __init__(self, framework, out_dir):
        self._probe = probe()
        number = next(_numbers)
        self.key = "smdebug" if number == 1 else f"smdebug#{number}"
        self._framework = framework
        self._folder = pointer_folder(out_dir)
        self._pid = os.getpid()
        self._worker = None
        self._num_workers = 1
        self._claimed = None
        self._written = None
        self._steps = 0
        # The open step: (mode, step in the mode, step over all modes), rows that found room, whether begun.
        self._step = None
        self._rows = 0
        self._begun = False

    # -- the place --

    @property
    def is_inherited(self):
        """Whether this process was forked from the one that saves."""
        return self._pid != os.getpid()

    def claim(self, worker, num_workers):
        """Whether this process is the one that writes as `worker`: of several that are unknown to each other
        the first.
        """
        self._worker, self._num_workers = worker, num_workers
        if self._claimed is not None and self._pid == os.getpid():
            return self._claimed
        self._pid = os.getpid()  # A forked child claims for itself.
        self._claimed = True
        name = self._file_name()
        try:
            with _opened(self._folder, make=True) as folder:
                try:
                    with folder.create(name, 0o644) as file:
                        file.write(json.dumps(self._owner()).encode())
                except FileExistsError:
                    self._claimed = self._is_stale(folder, name)
        except OSError as error:
            self._fall_back(error)
        if not self._claimed:
            get_logger().warning(
                "smdebug (Telltale): process %d saves nothing: another one already saves to %s as %s",
                self._pid,
                self._folder,
                worker,
            )
        return self._claimed

    def _file_name(self):
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self._worker)
        return f"{POINTER_PREFIX}{safe}.json"

    def _owner(self):
        return {
            "run": os.environ.get("TELLTALE_RUN"),
            "host": os.uname().nodename,
            "pid": self._pid,
            "ended": False,
        }

    def _is_stale(self, folder, name):
        """Whether the pointer that is there is of another run, or of a process that is no more."""
        try:
            there = json.loads(folder.read(name, _MOST_POINTER_BYTES))
            if there["run"] != os.environ.get("TELLTALE_RUN"):
                return True
            if there["ended"]:
                return True
            if there["host"] != os.uname().nodename:
                return False
            os.kill(there["pid"], 0)
        except ProcessLookupError:
            return True
        except OSError as error:
            return error.errno in (errno.ELOOP, errno.EINVAL)  # No file: a link, a pipe.
        except (ValueError, KeyError, TypeError):
            return False
        return there["pid"] == self._pid

    def _fall_back(self, error):
        run = os.environ.get("TELLTALE_RUN")
        if run is None:
            return
        there = os.path.join(run, "smdebug", self._folder.lstrip("/"))
        get_logger().warning(
            "smdebug (Telltale): %s cannot be written (%s): create_trial(%r) opens what this hook saves",
            self._folder,
            error,
            there,
        )
        self._folder = there
        try:
            _opened(there, make=True).close()
        except OSError:
            pass

    def point(self, collections, saved, ended):
        """Writes the pointer file where it would change. `saved`: names of the collections that are."""
        if not self._claimed:
            return
        pointer = {
            "format": "telltale-smdebug",
            "version": POINTER_VERSION,
            **self._owner(),
            "run_relative": os.path.relpath(os.environ.get("TELLTALE_RUN") or ".", self._folder),
            "framework": self._framework,
            "key": self.key,
            "worker": self._worker,
            "num_workers": self._num_workers,
            "collections": collections,
            "saved": saved,
            "ended": ended,
            "steps": self._steps if ended else None,
        }
        if pointer == self._written:
            return
        self._written = pointer
        text = json.dumps({**pointer, "written_ns": time.time_ns()})
        try:
            with _opened(self._folder) as folder:
                folder.write(self._file_name(), text.encode(), 0o644)
        except OSError as error:
            get_logger().warning("smdebug (Telltale): no pointer in %s: %s", self._folder, error)

    # -- the steps --

    def open_step(self, mode, step, global_step):
        """A step begins; nothing is recorded of it before its first tensor."""
        self.close_step()
        self._step = (mode.value - 1, step, global_step)
        self._rows = 0
        self._begun = False

    def close_step(self):
        """Tells how many rows there will be of the open step, where anything was handed over."""
        if self._step is not None and self._begun:
            mode, step, _ = self._step
            self._probe.scalar_at(f"{self.key}/saved", float(self._rows), step, mode)
        self._step = None

    @property
    def has_step(self):
        return self._step is not None

    def _begin(self):
        if not self._begun:
            self._begun = True
            self._steps += 1
            mode, step, global_step = self._step
            self._probe.due(0, step, mode)  # Makes the probe look how much room there is for values.
            self._probe.scalar_at(f"{self.key}/global_step", float(global_step), step, mode)

    # -- the tensors --

    def tensor(self, collection, name):
        """Id of a tensor; 0: the table of names is full."""
        return self._probe.tensor(f"{self.key}/{collection}", name)

    def skipped(self, reason):
        """Counts something that was to be saved and could not be read."""
        self._probe.count_skipped(f"smdebug.{reason}", 1)

    def record_memory(self, tensor, address, dtype, shape, strides, take):
        """An array in main memory, which the caller keeps alive. `strides` in elements; None: C order."""
        self._begin()
        mode, step, _ = self._step
        kept = self._probe.record(tensor, address, dtype, shape, strides, take, step, mode)
        # Of what is dropped (and counted by the probe) no row will come: a trial must not wait for it.
        if kept & (RAW | SHAPE):
            self._rows += 1
        if kept & STATS:
            self._rows += 1

    def record_array(self, tensor, array, take):
        """A numpy array."""
        self._begin()
        dtype, interface = _dtype_code(array.dtype), array.__array_interface__
        strides = interface["strides"]
        if dtype is None or any(stride % array.itemsize for stride in strides or ()):
            self.skipped("dtype")
            return
        if strides is not None:
            strides = tuple(stride // array.itemsize for stride in strides)
        self.record_memory(tensor, interface["data"][0], dtype, array.shape, strides, take)

    def scalar(self, name, value):
        """A number of Telltale's own table of scalars, at the open step; the trial knows nothing of it."""
        mode, step, _ = self._step
        self._probe.scalar_at(name, value, step, mode)
