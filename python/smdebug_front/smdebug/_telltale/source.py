# SPDX-License-Identifier: Apache-2.0
"""Where a trial's steps and tensors come from: what hooks of this package saved into runs, or a run that
Telltale recorded by itself. Each follows its runs: every record is read once.
"""

import os
import time

from ..core.collection_manager import CollectionManager
from ..core.logger import get_logger
from ..core.modes import ModeKeys
from ..exceptions import MissingCollectionFiles
from . import package
from .recorder import pointers
from .saved import HEADER_ROW, Saved

_MODES = {mode.name: mode for mode in ModeKeys}
# A hook has said that it is closed, and rows of it are still on their way to the run.
_LAST_ROWS_S = 10.0
_LOOK_S = 0.2
# So long after a step's end its rows are there, but for those that the way to the disk has dropped, which these counters
# of the agent's tell.
_ON_THEIR_WAY_S = 10.0
_DROPPED = ("raw.dropped_", "raw.lost")


# What a source tells the trial that polls it (smdebug.trials.Trial):
#   add_step(mode, step, global_step)       a step is known
#   add_row(name, mode, step, worker, make) a row is there; gives the Saved to put it into
# and what it is asked: is_written(mode, step, rows): whether all rows of a step are there; `rows`: worker ->
# number of rows that were added.


class HookSource:
    """What hooks saved: the pointer files of a folder, and the runs that they name."""

    def __init__(self, folder):
        self._folder = folder
        self._followers = {}
        self._read_collections = None
        self._manager = None
        self._pointers = []
        self._workers = {}
        self._framework = None
        self._looked = 0.0
        self._begun = {}
        # (mode, step) -> worker -> (number of rows, when that was told)
        self._expected = {}
        # (mode, step, worker) -> rows that were told of and have not come (of an open step: below zero), and their sum.
        self._lacking = {}
        self._lacking_rows = 0
        # Counter -> value
        self._dropped = {}
        self._closed_at = None
        self.ended = False
        self._wait_for_all()

    def _wait_for_all(self):
        warned = 0
        while True:
            self._pointers = pointers(self._folder)
            wanted = max((p["num_workers"] for p in self._pointers), default=1)
            if len(self._pointers) >= wanted:
                return
            if self._pointers and all(p["ended"] or not _is_running(p, self._folder) for p in self._pointers):
                raise MissingCollectionFiles
            warned += 1
            if warned % 40 == 0:
                get_logger().warning(
                    "smdebug (Telltale): waiting for a hook to begin in %s: is it the out_dir of a training?",
                    self._folder,
                )
            time.sleep(0.5)

    @property
    def workers(self):
        return sorted(p["worker"] for p in self._pointers)

    def is_written(self, mode, step, rows):
        """Whether every worker has said how many rows it saved, and they are there, or were dropped."""
        expected = self._expected.get((mode, step), {})
        for pointer in self._pointers:
            count, told = expected.get(pointer["worker"], (None, None))
            if count is None:
                return False
            if rows.get(pointer["worker"], 0) < count and not self._has_dropped(told):
                return False
        return True

    def _has_dropped(self, told):
        """Whether what lacks of a step that was told of then can only be among what was dropped."""
        if time.monotonic() - told < _ON_THEIR_WAY_S:
            return False
        return self._lacking_rows <= sum(self._dropped.values())

    def _count(self, mode, step, worker, rows):
        """`rows`: told of; below zero: that have come."""
        key = mode, step, worker
        before = self._lacking.pop(key, 0)
        after = before + rows
        if after != 0:
            self._lacking[key] = after
        self._lacking_rows += max(after, 0) - max(before, 0)

    def collections(self):
        fields = self._pointers[0]["collections"]
        if fields != self._read_collections:
            self._read_collections = fields
            self._manager = CollectionManager.from_json_dict(fields)
        return self._manager

    def is_saved(self, collection):
        """Whether the hook saves a collection, by name, or only has it."""
        return collection in self._pointers[0]["saved"] or collection not in self._pointers[0]["collections"]

    def home(self, name):
        """None: what is in a collection is what its configuration says."""
        return None

    def poll(self, sink):
        """Tells `sink` what is new. Waits for nothing, unless all hooks are closed: then for what they saved
        last.
        """
        while not self.ended:
            self._read(sink)
            if self._is_over(sink):
                self.ended = True
            elif self._closed_at is None:
                return
            else:
                time.sleep(0.02)

    def _look(self):
        now = time.monotonic()
        if now - self._looked >= _LOOK_S or not self._looked:
            self._looked = now
            self._pointers = pointers(self._folder) or self._pointers
            if self._closed_at is None and all(p["ended"] for p in self._pointers):
                self._closed_at = now
        self._workers = {(_run_of(p, self._folder), p["key"], p["pid"]): p["worker"] for p in self._pointers}

    def _is_over(self, sink):
        if self._closed_at is None:
            return all(follower.ended for follower in self._followers.values())
        begun = all(self._begun.get(p["worker"], 0) >= (p["steps"] or 0) for p in self._pointers)
        if begun and sink.all_written():
            return True
        if time.monotonic() - self._closed_at < _LAST_ROWS_S and not all(
            follower.ended for follower in self._followers.values()
        ):
            return False
        return True

    def _read(self, sink):
        self._look()
        for pointer in self._pointers:
            run = _run_of(pointer, self._folder)
            if run not in self._followers:
                tables = ("scalars", "statistics", "tensors", "ledger")
                self._followers[run] = package.telltale().open(run).follow(*tables)
        for run, follower in self._followers.items():
            for table, batch in follower.poll():
                if table == "ledger":
                    self._take_counters(run, batch)
                    continue
                for (of_run, key, pid), worker in self._workers.items():
                    if of_run == run:
                        self._take(sink, run, table, batch, key, pid, worker)

    def _take_counters(self, run, batch):
        columns = (batch.column(c).to_pylist() for c in ("name", "subject", "pid", "attempt", "value"))
        for name, *whose, value in zip(*columns):
            if name.startswith(_DROPPED):
                self._dropped[(run, name, *whose)] = value

    def _take(self, sink, run, table, batch, key, pid, worker):
        import pyarrow.compute as compute

        mask = compute.equal(batch.column("pid"), pid)
        if table == "scalars":
            mask = compute.and_(mask, compute.starts_with(batch.column("name"), f"{key}/"))
            batch = batch.filter(mask)
            for name, mode, step, value in zip(
                *(batch.column(c).to_pylist() for c in ("name", "mode", "step", "value"))
            ):
                if name == f"{key}/global_step":
                    self._begun[worker] = self._begun.get(worker, 0) + 1
                    sink.add_step(_MODES[mode], step, int(value))
                elif name == f"{key}/saved":
                    told = int(value), time.monotonic()
                    self._expected.setdefault((_MODES[mode], step), {})[worker] = told
                    self._count(_MODES[mode], step, worker, int(value))
            return
        mask = compute.and_(mask, compute.starts_with(batch.column("collection"), f"{key}/"))
        batch = batch.filter(mask)
        of_sample = self._pointers[0]["framework"] == "pytorch"
        columns = (batch.column(c).to_pylist() for c in ("name", "mode", "step"))
        for row, (name, mode, step) in enumerate(zip(*columns)):
            saved = sink.add_row(name, _MODES[mode], step, worker, lambda: Saved(run, of_sample))
            saved.set(table, batch, row)
            self._count(_MODES[mode], step, worker, -1)


def _run_of(pointer, folder):
    """The run of a pointer; where both were moved, beside it as before."""
    run = pointer["run"]
    if not os.path.exists(run):
        beside = os.path.normpath(os.path.join(folder, pointer.get("run_relative") or "."))
        if os.path.exists(os.path.join(beside, "run.json")):
            return beside
    return run


def _is_running(pointer, folder):
    try:
        with package.telltale().open(_run_of(pointer, folder)) as run:
            return run.state == "running"
    except Exception:
        return False


class RunSource:
    """A run directory as Telltale records it by itself: its own names, a worker a rank, TRAIN, EVAL and
    PREDICT steps as Telltale counts them, scalars as tensors of no dimension. What a newer attempt recorded
    goes before what an older one did at the same step.
    """

    def __init__(self, path):
        self._path = path
        self._follower = package.telltale().open(path).follow("steps", "scalars", "statistics", "tensors")
        # (attempt, rank, pid) -> worker
        self._workers = {}
        self._manager = CollectionManager()
        self._homes = {}
        self._global = {}
        self._unnumbered = {}
        # worker -> mode -> last step that it has closed
        self._closed = {}
        self.ended = False

    @property
    def workers(self):
        return sorted(set(self._workers.values())) or ["worker_0"]

    def collections(self):
        for name in sorted(set(self._homes.values()) | {"default", "all"}):
            self._manager.create_collection(name)
        return self._manager

    def is_saved(self, collection):
        """True: which were only configured is not known."""
        return True

    def home(self, name):
        """The collection of a tensor."""
        return self._homes.get(name)

    def poll(self, sink):
        if self.ended:
            return
        for table, batch in self._follower.poll():
            if table == "steps":
                self._take_steps(sink, batch)
            else:
                self._take_rows(sink, table, batch)
        if self._follower.ended:
            self.ended = True
            for mode, step in self._unnumbered:
                self._number(sink, mode, step)

    def is_written(self, mode, step, rows):
        """Whether every worker that added a row has closed the step."""
        return all(self._closed.get(worker, {}).get(mode, -1) >= step for worker in rows)

    def _worker(self, attempt, rank, pid):
        worker = self._workers.get((attempt, rank, pid))
        if worker is None:
            taken = any(known[:2] == (attempt, rank) for known in self._workers)
            worker = f"worker_{rank}_pid{pid}" if taken else f"worker_{rank}"
            self._workers[(attempt, rank, pid)] = worker
        return worker

    def _number(self, sink, mode, step):
        if (mode, step) not in self._global:
            self._global[(mode, step)] = len(self._global)
        if (mode, step) in self._unnumbered or sink.has_rows(mode, step):
            sink.add_step(mode, step, self._global[(mode, step)])

    def _take_steps(self, sink, batch):
        columns = (batch.column(c).to_pylist() for c in ("mode", "step", "attempt", "rank", "pid"))
        for mode, step, attempt, rank, pid in zip(*columns):
            mode = _MODES[mode]
            self._number(sink, mode, step)
            self._unnumbered.pop((mode, step), None)
            closed = self._closed.setdefault(self._worker(attempt, rank, pid), {})
            closed[mode] = max(step, closed.get(mode, -1))

    def _take_rows(self, sink, table, batch):
        names = batch.column("name").to_pylist()
        if table == "scalars":
            homes = ["losses" if _is_loss(name) else "metrics" for name in names]
        else:
            homes = batch.column("collection").to_pylist()
        columns = (batch.column(c).to_pylist() for c in ("mode", "step", "attempt", "rank", "pid"))
        for row, (name, home, mode, step, attempt, rank, pid) in enumerate(zip(names, homes, *columns)):
            # What hooks saved is opened by their own folder.
            front = home if table != "scalars" else name
            if step < 0 or name == HEADER_ROW or front.startswith(("smdebug/", "smdebug#")):
                continue
            mode = _MODES[mode]
            self._homes.setdefault(name, home)
            worker = self._worker(attempt, rank, pid)
            saved = sink.add_row(name, mode, step, worker, lambda: Saved(self._path, False))
            if saved.is_of(attempt):
                saved.set(table, batch, row)
            if (mode, step) in self._global:
                self._number(sink, mode, step)
            else:
                self._unnumbered[(mode, step)] = True


def _is_loss(name):
    return name == "loss" or name.startswith("loss.") or name.endswith("_loss")
