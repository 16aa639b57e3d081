# SPDX-License-Identifier: Apache-2.0
"""The process that one rule in Python runs in: made and fed by src/rules/python_rule.cc over a socket.

Lines of JSON, one object with one key. To the rule: bind, rows, end; from it: ready or error once, then
report, close and recover, and done behind what each of rows and end gave. What the rule prints goes where
the parent has pointed stdout, never into the lines.

There are two processes: the rule's, and its keeper, which the parent started. Whatever the rule starts has the keeper
for its next of kin (PR_SET_CHILD_SUBREAPER), also where it leaves session and process group. The keeper ends all of it
when the rule has ended, when the parent wants no more (the line is closed, or SIGTERM), or when it is too much.

    python -m telltale.rule_host --rule FILE.py:Class
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ._rule import Record, Rule

_LINE_FD = 3
_MOST_PROCESSES = 256
_LOOK_S = 0.2  # How often they are counted.
_PR_SET_CHILD_SUBREAPER = 36
_NOT_SAVED = (
    "TensorUnavailableForStep",
    "TensorUnavailable",
    "ShapeUnavailableForStep",
    "StepUnavailable",
    "StepNotYetAvailable",
    "NoMoreData",
)
_OTHER_TRIAL = re.compile(r"other_trial_(\d+)")
_SMDEBUG_FOLDERS = ("smdebug", "python/smdebug_front", "smdebug_front")


class RuleError(Exception):
    """What is told to the user as it is."""


def _is_smdebugs(error: Exception, *names: str) -> bool:
    """Whether it is one of these exceptions of smdebug, which only the rule itself may have loaded."""
    module = sys.modules.get("smdebug.exceptions")
    kinds = (getattr(module, name, None) for name in names)
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))


class _Adapted(Rule):
    """smdebug's form: invoke_at_step(step) is asked at the end of each training step, once."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.rule: Any = None
        self.asked = -1

    def on_record(self, record: Record) -> None:
        if record.mode != "TRAIN" or record.step <= self.asked:
            return
        self.asked = record.step
        if self.rule is None:
            self.rule = self.make(self)
        holds = self._holds(record.step)
        if holds:
            name = type(self.rule).__name__
            self.report(message=name, evidence={"step": record.step}, cause=f"{name} says so at this step.")
        elif holds is not None and self.is_open():
            self.recover()

    def _holds(self, step: int) -> bool | None:
        """None where the step was not saved, or not what the rule asks of it: passed over, as smdebug does."""
        try:
            required = getattr(self.rule, "req_tensors", None)
            name_them = getattr(self.rule, "set_required_tensors", None)
            if required is not None and callable(name_them):
                required.clear()
                name_them(step)
            return bool(self.rule.invoke_at_step(step))
        except Exception as error:
            if _is_smdebugs(error, "RuleEvaluationConditionMet"):
                return True
            if _is_smdebugs(error, *_NOT_SAVED):
                return None
            raise


def _load(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    sys.path.insert(0, str(path.parent))  # Its neighbours in the pack.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _offer_smdebug() -> None:
    """`from smdebug.rules import Rule` works in rules, by our package where there is no other."""
    if importlib.util.find_spec("smdebug") is not None:
        return
    package = Path(__file__).resolve().parent
    for above in (package.parents[1], package.parents[0]):
        for folder in _SMDEBUG_FOLDERS:
            if (above / folder / "smdebug" / "__init__.py").exists():
                sys.path.append(str(above / folder))
                return


def make_rule(where: str, parameters: dict[str, str]) -> Rule:
    """The rule of FILE.py:Class or module:Class.

    Raises:
        RuleError: there is no such class, or it is no rule.
        Exception: what the user's module or class raises.
    """
    file, _, name = where.rpartition(":")
    if not file or not name:
        raise RuleError(f"{where}: write FILE.py:Class or module:Class")
    _offer_smdebug()
    found = getattr(_load(file), name, None)
    if not inspect.isclass(found):
        raise RuleError(f"{file} has no class {name}")
    if issubclass(found, Rule):
        rule: Rule = found(**parameters)
        if callable(getattr(rule, "invoke_at_step", None)):
            return _own_at_steps(rule)
        return rule
    if callable(getattr(found, "invoke_at_step", None)):
        return _Adapted(_maker(found, parameters))
    raise RuleError(f"{name} is no rule: derive it from telltale.Rule, or give it invoke_at_step(step)")


def _maker(found: Any, parameters: dict[str, str]) -> Any:
    """Makes a rule of smdebug's form; other_trial_0 and so on, as SageMaker numbers them, become trials."""
    numbers = {name: match[1] for name in parameters if (match := _OTHER_TRIAL.fullmatch(name))}
    others = [parameters[name] for name in sorted(numbers, key=lambda name: int(numbers[name]))]
    own = {name: value for name, value in parameters.items() if name not in numbers}

    def make(host: Rule) -> Any:
        if not others:
            return found(host.base_trial, **own)
        from smdebug.trials import create_trial

        return found(host.base_trial, other_trials=[create_trial(path) for path in others], **own)

    return make


def _own_at_steps(rule: Rule) -> Rule:
    """A telltale.Rule with invoke_at_step: reports what it reports, and True as an incident of its own."""
    adapted = _Adapted(None)
    adapted.rule = rule
    adapted.summary, adapted.advice, adapted.wrong_result = rule.summary, rule.advice, rule.wrong_result
    adapted.tables = tuple(dict.fromkeys((*rule.tables, "steps")))
    own_record, own_end, at_step = rule.on_record, rule.on_end, adapted.on_record

    def share() -> None:
        for name in ("_sink", "_now", "_step", "_run"):
            setattr(rule, name, getattr(adapted, name))

    def on_record(record: Record) -> None:
        share()
        if record.table in rule.tables:
            own_record(record)
        if record.table == "steps":
            at_step(record)

    def on_end() -> None:
        share()
        own_end()

    adapted.on_record = on_record  # type: ignore[method-assign]
    adapted.on_end = on_end  # type: ignore[method-assign]
    return adapted


def feed(rule: Rule, message: dict[str, Any]) -> bool:
    """Gives the rule one message of the parent's. Whether it is to be answered with done."""
    if "bind" in message:
        rule._run = str(message["bind"]["run"])
        return False
    if "end" in message:
        rule.on_end()
        return True
    for table, ord_ns, row in message["rows"]:
        record = Record(table, ord_ns, row)
        rule._now = record
        if row.get("mode") == "TRAIN":
            rule._step = max(rule._step, row["step"])
        rule.on_record(record)
    return True


def _plain(value: Any) -> Any:
    """numpy's numbers and the like, for json."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


def _cleaned(value: Any) -> Any:
    """NaN and infinity have no place in JSON: as text in evidence."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    if isinstance(value, dict):
        return {str(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _cleaned(_plain(value))


def line_of(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({kind: _cleaned(body)}, allow_nan=False).encode() + b"\n"


def _what(error: BaseException) -> str:
    """The error and where in the user's code it was raised."""
    if isinstance(error, RuleError):
        return str(error)
    if isinstance(error, MemoryError):
        return "it used up its memory (MemoryError)"
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.abspath(__file__))
    theirs = [one for one in frames if os.path.dirname(os.path.abspath(one.filename)) != ours]
    place = f" ({os.path.basename(theirs[-1].filename)}:{theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {error}{place}"[:2000]


def limit_memory(mib: int) -> None:
    """Beyond it the rule sees MemoryError. What is writable and private counts, on Linux."""
    most = mib << 20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def leave_no_core() -> None:
    """At a limit of 1 the kernel starts no program of core_pattern either. One of 0 may not be raised."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def allow_cpu(seconds: int) -> None:
    """From now on; beyond it the kernel ends the process (SIGXCPU). Whole seconds, as the kernel counts."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, hard))


def _end_with_parent(fd: int) -> None:
    """However the rule hangs, it does not outlive who feeds it."""
    poll = select.poll()
    poll.register(fd, 0)  # Only POLLHUP and POLLERR.
    while True:
        for _, event in poll.poll():
            if event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                os._exit(0)


def _become_next_of_kin() -> None:
    """Processes below this one whose parent ends become its children. Without libc's prctl they do not."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children(pid: int) -> list[int]:
    """Of its first thread: a fork has no other."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # It has ended, or the kernel does not tell.


def _children_by_parent(parent: int) -> list[int]:
    """The same from a look at every process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def _too_many(keeper: int) -> bool:
    """Whether there are more than _MOST_PROCESSES below the keeper."""
    found = 0
    front = _children(keeper)
    while front:
        found += len(front)
        if found > _MOST_PROCESSES:
            return True
        front = [child for pid in front for child in _children(pid)]
    return False


class _Ended(Exception):  # noqa: N818
    """The parent wants no more."""


def _raise_ended(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Once: what ends all must come to its end.
    raise _Ended


class _Keeper:
    """The parent of the rule's process."""

    def __init__(self, line: socket.socket, rule: int) -> None:
        self.line = line
        self.rule = rule
        self.status: int | None = None  # Of waitpid, once the rule has ended.

    def keep(self) -> int:
        """Waits for the rule and ends what it leaves behind. Its wait status; 0 where the parent wanted no more."""
        try:
            self._wait()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except (_Ended, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.status = 0
        self.end_all()
        return self.status or 0

    def end_all(self) -> None:
        """A process that dies leaves its children to this one, so the next turn finds them."""
        while True:
            try:
                if self._reap(os.WNOHANG):
                    continue
                own = os.getpid()
                for pid in _children(own) or _children_by_parent(own):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)  # Not reaped yet: the number is this child's.
                self._reap(0)
            except ChildProcessError:
                return

    def _reap(self, options: int) -> bool:
        pid, status = os.waitpid(-1, options)
        if pid == self.rule and self.status is None:
            self.status = status
        return pid != 0

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.line.fileno(), 0)  # Only POLLHUP and POLLERR.
        with contextlib.suppress(OSError, AttributeError):
            poll.register(os.pidfd_open(self.rule), select.POLLIN)
        while self.status is None:
            while self.status is None and self._reap(os.WNOHANG):
                pass
            if self.status is None and _too_many(os.getpid()):
                self.end_all()
                self.line.sendall(
                    line_of("error", {"text": f"it started more than {_MOST_PROCESSES} processes"})
                )
                self.status = 1 << 8
            if self.status is None:
                events = dict(poll.poll(_LOOK_S * 1000))
                if events.get(self.line.fileno()):
                    raise _Ended


def _code_of(status: int) -> int:
    """For the exit; a signal that ended the rule ends this process too."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


def serve(line: socket.socket, where: str, parameters: dict[str, str], cpu_seconds: int) -> int:
    """Until the parent has no more; 1 where the rule failed."""
    allow_cpu(max(cpu_seconds, 60))  # To import a framework takes longer than a batch.
    try:
        rule = make_rule(where, parameters)
        rule._sink = lambda kind, body: line.sendall(line_of(kind, body))
        ready = {
            "tables": list(rule.tables),
            "summary": rule.summary,
            "advice": rule.advice,
            "wrong_result": bool(rule.wrong_result),
        }
        line.sendall(line_of("ready", ready))
        for text in line.makefile("rb"):
            allow_cpu(cpu_seconds)
            if feed(rule, json.loads(text)):
                line.sendall(line_of("done", {}))
    except (BrokenPipeError, ConnectionResetError):
        return 0  # The parent has gone, or has had enough.
    except BaseException as error:
        # SystemExit too: a rule must not end in silence.
        if isinstance(error, MemoryError):
            traceback.clear_frames(error.__traceback__)  # What took it; else there is none to say so.
        traceback.print_exc()
        line.sendall(line_of("error", {"text": _what(error)}))
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="telltale.rule_host", description="Runs one rule; started by telltale."
    )
    parser.add_argument("--rule", required=True)
    parser.add_argument("--parameters", default="{}")
    parser.add_argument("--memory-mib", type=int, default=1024)
    parser.add_argument("--cpu-seconds", type=int, default=10)
    parser.add_argument("--fd", type=int, default=_LINE_FD)
    options = parser.parse_args(arguments)
    line = socket.socket(fileno=options.fd)
    line.set_inheritable(False)
    leave_no_core()
    _become_next_of_kin()
    signal.signal(signal.SIGTERM, _raise_ended)
    try:
        rule = os.fork()
    except _Ended:
        return 0
    if rule > 0:
        return _code_of(_Keeper(line, rule).keep())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(options.fd,), daemon=True).start()
    limit_memory(options.memory_mib)
    return serve(line, options.rule, json.loads(options.parameters), options.cpu_seconds)


if __name__ == "__main__":
    sys.exit(main())
