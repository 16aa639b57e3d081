# SPDX-License-Identifier: Apache-2.0
"""A stop that a rule or a person asks for, inside the training: seen by a thread that looks for requests
(docs/formats/requests.md), answered on the thread that trains, between two steps. Nothing of it exists until
on_stop or trial is called.

Thread safety: on_stop, requested and check may be called from any thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Callable

from ._native import note, probe
from ._run_files import Folder, run_json
from .errors import TrialStopped

_LOOK_S = 0.5
_MOST_BYTES = 1 << 20


class Stop:
    """A request to stop. `id`, `who` asked and `why`; `rule` and `incident` where a rule did, else ""."""

    def __init__(self, request: dict[str, Any]) -> None:
        body = request["body"]
        self.id = str(request["id"])
        self.who = str(request.get("who", ""))
        self.why = str(body.get("why", ""))
        self.rule = str(body.get("rule", ""))
        self.incident = str(body.get("incident", ""))
        self.checkpoint = body.get("checkpoint", True) is not False

    def __repr__(self) -> str:
        return f"Stop(who={self.who!r}, why={self.why!r})"


class Requests:
    """The requests of kind stop in a run directory that were made in this attempt of it.

    As for the agent, a request counts only where its file and the folder of it belong to the owner of the
    run directory, to root or to this user; no link is followed, no pipe is waited for.

    Args:
        run: the run directory.
        since_ns: Unix time; older ones are of attempts before, where they name no attempt.
        attempt: number of this attempt; 0: not known.
    """

    def __init__(self, run: Path, since_ns: int, attempt: int = 0) -> None:
        self._run = run
        self._since_ns = since_ns
        self._attempt = attempt
        self._seen: set[str] = set()

    def look(self) -> Stop | None:
        """The first that was not there at the last look; never raises."""
        try:
            with Folder.at(self._run) as run, run.folder("requests") as requests:
                trusted = {0, os.geteuid(), os.fstat(run.fd).st_uid}
                for who in requests.names():
                    stop = self._look_into(who, requests, trusted)
                    if stop is not None:
                        return stop
        except OSError:
            pass  # No request yet, or a folder that vanishes while we look.
        return None

    def _look_into(self, who: str, requests: Folder, trusted: set[int]) -> Stop | None:
        try:
            with requests.folder(who) as folder:
                if os.fstat(folder.fd).st_uid not in trusted:
                    return None
                for name in folder.names():
                    if not name.endswith(".json") or f"{who}/{name}" in self._seen:
                        continue
                    self._seen.add(f"{who}/{name}")
                    stop = self._read(name, folder, trusted)
                    if stop is not None:
                        return stop
        except OSError:
            pass  # A file, a link, or gone by now.
        return None

    def _read(self, name: str, folder: Folder, trusted: set[int]) -> Stop | None:
        try:
            with folder.open(name) as file:
                if os.fstat(file.fileno()).st_uid not in trusted:
                    return None
                request = json.loads(file.read(_MOST_BYTES))
            if request["kind"] != "stop" or request["version"] > 1 or self._is_earlier(request):
                return None
            return Stop(request)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # Not ours to judge: the agent says what is wrong with it.

    def _is_earlier(self, request: dict[str, Any]) -> bool:
        """Whether it was asked of an attempt before; by the clock only where it does not say of which: the
        clock may have been set since.
        """
        attempt = request.get("attempt")
        if type(attempt) is int and 0 < attempt < 1 << 32 and self._attempt:
            return attempt < self._attempt
        return bool(request["time_ns"] < self._since_ns)


class _State:
    """What this process has registered, and what was asked of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callbacks: list[tuple[Callable[[Stop], Any], int]] = []
        self.savers: set[int] = set()  # Threads whose framework's callback says itself when it has saved.
        self.trials: list[Trial] = []
        self.searches = False  # A trial has begun in this process.
        self.stop: Stop | None = None
        # All that were asked for and are not answered yet: a stricter one takes the place of the one before,
        # any other is refused. Which it is only the agent knows, so one answer is of all of them.
        self.asked: list[Stop] = []
        self.answering: list[Stop] = []  # Callbacks are at work for these.
        self.thread: threading.Thread | None = None
        self.pid = 0
        self.undo: list[Callable[[], None]] = []


_state = _State()


def _attempt(run: Path) -> tuple[int, int]:
    """When this attempt began, and its number; now and 0 where that cannot be read."""
    import time

    try:
        with Folder.at(run) as folder:
            newest = run_json(folder)["attempts"][-1]
            return int(newest["start_ns"]), int(newest["number"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return time.time_ns(), 0


def _watch(requests: Requests, ended: threading.Event) -> None:
    while not ended.wait(_LOOK_S):
        try:
            stop = requests.look()
            if stop is not None:
                arrived(stop)
        except Exception as error:
            note(f"stop: looking for requests failed: {error}")


def _listen() -> None:
    """Starts the thread, once in each process."""
    run = os.environ.get("TELLTALE_RUN")
    if probe is None or not run or _state.pid == os.getpid():
        return
    _state.pid = os.getpid()
    folder = Path(run)
    _state.thread = threading.Thread(
        target=_watch,
        args=(Requests(folder, *_attempt(folder)), threading.Event()),
        name="telltale-stop",
        daemon=True,
    )
    _state.thread.start()


def arrived(stop: Stop) -> None:
    """Somebody asks for a stop: the next end of a step answers it. Where a checkpoint is being written for one
    that came before, that checkpoint is of this one too: no step has been made since.
    """
    with _state.lock:
        between = _state.searches and not (_state.trials or _state.callbacks)
        if between:
            _state.stop = stop
        # One without a checkpoint concerns trials alone: their processes are not to be ended.
        elif not (_state.trials or (stop.checkpoint and _state.callbacks)):
            return
        elif _state.answering:
            _state.answering.append(stop)
        else:
            if not _state.asked:
                # First: what answers it also takes the hooks away.
                _hook_boundaries()
                _state.stop = stop
            _state.asked.append(stop)
    if between:
        _say("stop.kept", stop, "no trial goes on, and the process is to begin more")


def _hook_boundaries() -> None:
    """From now on, and only now that a stop is asked for, the places where a loop of torch is between two
    steps answer it: an optimizer's zero_grad, and the next batch of a loader.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    places: list[tuple[Any, str]] = []
    try:
        places.append((torch.optim.Optimizer, "zero_grad"))
        places.append((torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"))
    except AttributeError:
        pass
    for owner, name in places:
        try:
            _wrap(owner, name)
        except Exception as error:
            note(f"stop: {name} could not be hooked: {error}")


def _wrap(owner: Any, name: str) -> None:
    there = owner.__dict__[name]

    def between_steps(*args: Any, **kwargs: Any) -> Any:
        check()
        return there(*args, **kwargs)

    def undo() -> None:
        if owner.__dict__.get(name) is between_steps:
            setattr(owner, name, there)

    setattr(owner, name, between_steps)
    _state.undo.append(undo)


def _unhook() -> None:
    for undo in reversed(_state.undo):
        undo()
    _state.undo.clear()


def _say(kind: str, stop: Stop | None, message: str, **more: Any) -> None:
    if probe is None:
        return
    try:
        data = json.dumps({"request": stop.id} if stop is not None else more)
        probe.event(kind, 0, "run", message, data)
    except Exception as error:
        note(f"stop: {kind} could not be said: {error}")


def requested() -> Stop | None:
    """The stop that was asked for, else None; of several the first that is not answered."""
    return _state.stop


def check(saved: bool = False) -> None:
    """Answers a stop that was asked for, where the calling thread is one that registered for it.

    Args:
        saved: a framework's callback has saved on this thread. Where one is to, an end of a step answers
            nothing: the agent would end the process before the checkpoint is written.

    Raises:
        TrialStopped: in a trial, which is thereby given up.
    """
    if not _state.asked or _state.pid not in (0, os.getpid()):
        return  # Nothing is asked, or a child that was forked meanwhile: it saves nothing for its parent.
    me = threading.get_ident()
    with _state.lock:
        stop = _state.stop
        if not _state.asked or stop is None:
            return
        trial = next((each for each in reversed(_state.trials) if each.thread == me), None)
        mine = [callback for callback, thread in _state.callbacks if thread == me]
        if trial is None and (not mine or (me in _state.savers and not saved)):
            return
        answered, _state.asked = _state.asked, []
        if trial is None:
            _state.answering = answered
        _unhook()
    if trial is not None:
        trial.stop = stop
        trial.stops += answered
        raise TrialStopped(stop.why or "the trial was stopped")
    failures: list[str] = []
    try:
        for callback in mine:
            try:
                callback(stop)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}"[:500])
                note(f"stop: a callback failed: {failures[-1]}")
    finally:
        with _state.lock:
            # With those that came meanwhile.
            answered, _state.answering = _state.answering, []
    # Not before all callbacks are through: the agent waits for nothing more then.
    for each in answered:
        for failure in failures:
            _say("stop.failed", each, failure)
        if not failures:
            _say("stop.saved", each, "what was registered with on_stop is done")


def on_stop(callback: Callable[[Stop], Any], saver: bool = False) -> None:
    """Registers what to do before a stop; see telltale.on_stop. `saver`: it is a framework's
    callback, which saves in its own time and then calls check(saved=True).
    """
    if not callable(callback):
        raise TypeError("telltale.on_stop: the callback must be callable")
    if probe is None:
        return
    with _state.lock:
        if not saver or (callback, threading.get_ident()) not in _state.callbacks:
            _state.callbacks.append((callback, threading.get_ident()))
        if saver:
            _state.savers.add(threading.get_ident())
    _listen()
    _say("stop.ready", None, "saves before a stop")


def saves_no_more() -> None:
    """This thread's training by a framework has ended: from here on an end of a step answers again."""
    with _state.lock:
        _state.savers.discard(threading.get_ident())


class Trial:
    """One trial of a search; made by telltale.trial. `stop` is the Stop that ended it, else None."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stop: Stop | None = None
        self.stops: list[Stop] = []  # All that this answers.

    @property
    def stopped(self) -> bool:
        """Whether a stop has ended it."""
        return self.stop is not None

    def __enter__(self) -> Trial:
        self.thread = threading.get_ident()
        if probe is not None:
            with _state.lock:
                # One that nobody has answered yet is of a trial on another thread.
                if not _state.asked:
                    _state.stop = None
                _state.trials.append(self)
                _state.searches = True
            _listen()
            _say("stop.ready", None, "gives up its trial on a stop", trial=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        late: list[Stop] = []
        with _state.lock:
            if self in _state.trials:
                _state.trials.remove(self)
            if not (_state.trials or _state.callbacks):
                late, _state.asked = _state.asked, []
            if late:
                _unhook()
        for each in late:
            _say("stop.kept", each, "the trial had ended before")
        if self.stop is None:
            return False
        # Also where somebody has caught TrialStopped, or raised something else since: the agent must not end
        # the whole search for a trial that is over.
        for each in self.stops:
            _say("stop.kept", each, "the trial is given up, its process goes on")
        return isinstance(error, TrialStopped)
