# SPDX-License-Identifier: Apache-2.0
"""A folder that Amazon's smdebug wrote: imported by `telltale import smdebug` into a run directory for as long as the
trial lives, with the folder's own collections and numbers of steps.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import weakref

from ..core.collection_manager import CollectionManager
from ..core.logger import get_logger
from ..core.modes import ModeKeys
from ..exceptions import IndexReaderException
from . import package
from .saved import HEADER_ROW, Saved

_MODES = {mode.name: mode for mode in ModeKeys}
_INDEX_FILE = re.compile(r"^(\d+)_(.+)\.json$")
# What the import keeps under the name that smdebug gave it, since no column of `statistics` is that.
_REDUCTIONS = "smdebug/reductions/"
_PARTIAL = 7
# What a damaged file raises: it may be any JSON.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def _files(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(root, name), name


def _read(path):
    if not os.path.isfile(path):  # A pipe would hold us up.
        raise OSError(f"{path} is no file")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _import(folder):
    """(the folder to delete, the run in it)."""
    there = tempfile.mkdtemp(prefix="telltale-smdebug-")
    run = os.path.join(there, "run")
    command = [package.part("sagemaker._command").path(), "import", "smdebug", folder, "-o", run]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode not in (0, _PARTIAL):
        shutil.rmtree(there, ignore_errors=True)
        raise IndexReaderException(done.stderr.strip() or f"{folder} cannot be imported")
    if done.returncode == _PARTIAL:
        get_logger().warning("smdebug (Telltale): %s", done.stderr.strip())
    return there, run


class ImportedSource:
    """As HookSource, of a training that has ended."""

    def __init__(self, folder):
        self._steps = {}
        workers = set()
        for path, name in _files(os.path.join(folder, "index")):
            match = _INDEX_FILE.match(name)
            if match is None:
                continue
            try:
                meta = _read(path)["meta"]
                where = _MODES[meta["mode"].rpartition(".")[2]], int(meta["mode_step"])
            except _DAMAGE:  # The import counts and names it.
                continue
            self._steps[where] = int(match.group(1))
            workers.add(match.group(2))
        self.workers = sorted(workers)
        self._collections = CollectionManager()
        for path, _ in sorted(_files(os.path.join(folder, "collections"))):
            try:
                self._collections = CollectionManager.from_json_dict(_read(path)["collections"])
                break
            except _DAMAGE:
                continue
        there, self._run = _import(folder)
        weakref.finalize(self, shutil.rmtree, there, ignore_errors=True)
        self.ended = False

    def collections(self):
        return self._collections

    def is_saved(self, collection):
        """True: which were only configured is not known."""
        return True

    def home(self, name):
        """None: what is in a collection is what its configuration says."""
        return None

    def is_written(self, mode, step, rows):
        """All is there."""
        return True

    def poll(self, sink):
        if self.ended:
            return
        self.ended = True
        for (mode, step), number in self._steps.items():
            sink.add_step(mode, step, number)
        with package.telltale().open(self._run) as run:
            for table in ("tensors", "statistics"):
                for batch in run.reader(table):
                    self._take(sink, table, batch)
            for batch in run.reader("scalars", where=f"name like '{_REDUCTIONS}%'"):
                self._take_reductions(sink, batch)
            for batch in run.reader("events", where="kind = 'smdebug.text'"):
                self._take_texts(sink, batch)

    def _worker(self, rank):
        worker = f"worker_{rank}"
        if worker not in self.workers and rank < len(self.workers):
            return self.workers[rank]
        return worker

    def _take(self, sink, table, batch):
        columns = (batch.column(c).to_pylist() for c in ("name", "mode", "step", "rank"))
        for row, (name, mode, step, rank) in enumerate(zip(*columns)):
            # A damaged index may have named any mode.
            if name == HEADER_ROW or mode not in _MODES:
                continue
            worker = self._worker(rank)
            saved = sink.add_row(name, _MODES[mode], step, worker, lambda: Saved(self._run, False))
            saved.set(table, batch, row)

    def _take_reductions(self, sink, batch):
        columns = (batch.column(c).to_pylist() for c in ("name", "mode", "step", "rank", "value"))
        for tag, mode, step, rank, value in zip(*columns):
            if mode not in _MODES:
                continue
            reduction, _, name = tag[len(_REDUCTIONS) :].partition("/")
            worker = self._worker(rank)
            saved = sink.add_row(name, _MODES[mode], step, worker, lambda: Saved(self._run, False))
            saved.set_reduction(reduction, value)

    def _take_texts(self, sink, batch):
        columns = (batch.column(c).to_pylist() for c in ("subject", "data", "step", "rank"))
        for name, data, step, rank in zip(*columns):
            data = json.loads(data)
            if data["mode"] not in _MODES:
                continue
            worker = self._worker(rank)
            saved = sink.add_row(name, _MODES[data["mode"]], step, worker, lambda: Saved(self._run, False))
            saved.set_texts(data["values"], data["count"])
