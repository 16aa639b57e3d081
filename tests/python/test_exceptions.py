# SPDX-License-Identifier: Apache-2.0
"""Exceptions that end a process, a thread or a worker are recorded where they were raised, and nothing shows it."""

from __future__ import annotations

import sys

import pytest
from conftest import PYTHON_DIR


def both(telltale, text, *arguments, **options):
    """What was recorded of a script, whose output and exit are those that it has alone."""
    script = telltale.script(text)
    run = telltale.run([sys.executable, script, *arguments], **options)
    plain = telltale.plain([sys.executable, script, *arguments])
    assert (run.code, run.out, run.err) == (plain.returncode, plain.stdout, plain.stderr)
    return run


def facts(run, where=None):
    found = [event["facts"] | {"step": event["step"]} for event in run.events("process.exception")]
    return [each for each in found if where in (None, each["where"])]


TORCH = """
import os, sys, threading, torch
torch.set_num_threads(1)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
def train(count=3):
    for _ in range(count):
        opt.zero_grad(); net(torch.ones(2, 4)).mean().backward(); opt.step()
"""


def test_the_line_of_the_users_own_code_inside_of_a_library(telltale):
    run = both(
        telltale,
        TORCH
        + """
def hook(*_): raise LookupError("inside")
def run_it():
    net.register_forward_hook(hook)
    train()
train(); run_it()
""",
    )
    (fact,) = facts(run)
    assert (fact["type"], fact["message"], fact["line"], fact["function"]) == (
        "LookupError",
        "inside",
        9,
        "hook",
    )
    assert [frame.rpartition("/")[2] for frame in fact["frames"]] == [
        "train.py:9 hook",
        "train.py:7 train",
        "train.py:12 run_it",
        "train.py:13 <module>",
    ]
    assert (fact["where"], fact["thread"], fact["main_thread"], fact["mode"]) == (
        "main",
        "MainThread",
        True,
        "TRAIN",
    )
    assert fact["step"] == 3


def test_where_no_code_is_the_users_it_is_the_innermost_of_all(telltale):
    run = telltale.run([sys.executable, "-m", "json.tool", "/no/such/file"])
    assert facts(run) == []  # argparse ends it by SystemExit.
    run = telltale.run([sys.executable, "-c", "import json; json.loads('{')"])
    (fact,) = facts(run)
    assert (fact["file"], fact["line"]) == ("<string>", 1)
    run = telltale.run([sys.executable, "-m", "tokenize", "/no/such/file"])
    assert run.code == 1


def test_exceptions_within_exceptions(telltale):
    run = both(
        telltale,
        TORCH
        + """
train()
try:
    {}["x"]
except KeyError as error:
    raise ValueError("second") from error
""",
    )
    (fact,) = facts(run)
    assert (fact["type"], fact["caused_by"], fact["line"]) == ("ValueError", "KeyError", 13)


def test_an_endless_recursion_and_no_memory(telltale):
    run = both(
        telltale,
        TORCH
        + """
train()
if sys.argv[1] == "deep":
    def deep(): deep()
    deep()
raise MemoryError
""",
        "deep",
    )
    (fact,) = facts(run)
    assert fact["type"] == "RecursionError"
    assert [frame.rpartition("/")[2] for frame in fact["frames"]] == [
        "train.py:11 deep",
        "train.py:12 <module>",
    ]
    run = both(telltale, (telltale.folder / "train.py").read_text(), "memory")
    assert [fact["type"] for fact in facts(run)] == ["MemoryError"]


@pytest.mark.parametrize("length", [1000, 5000, 10_000_000])
def test_a_text_is_cut_at_a_character(telltale, length):
    run = both(telltale, TORCH + f"train()\nraise ValueError('é' * {length} + chr(1) * 1000)\n")
    (fact,) = facts(run)
    assert fact["message"] == "é" * 512


def test_a_text_of_control_characters_still_fits(telltale):
    run = both(telltale, TORCH + "train()\nraise ValueError(chr(1) * 5000)\n")
    (fact,) = facts(run)
    assert set(fact["message"]) == {"\x01"}


def test_no_text_where_it_is_switched_off(telltale):
    run = both(
        telltale, TORCH + "train()\nraise ValueError('secret')\n", env={"TELLTALE_EXCEPTION_TEXT": "0"}
    )
    (fact,) = facts(run)
    assert "message" not in fact
    assert (fact["type"], fact["line"]) == ("ValueError", 9)


def test_a_text_is_taken_without_calling_the_programs_code(telltale):
    run = both(
        telltale,
        TORCH
        + """
class Loud(Exception):
    def __str__(self): os.write(1, b"asked"); os._exit(9)
    __repr__ = __str__
class Plain(Loud):
    __str__ = Exception.__str__
train()
def bad(): raise Loud("a", 2, Loud())
threading.excepthook = lambda args: None
for target in (bad,):
    thread = threading.Thread(target=target); thread.start(); thread.join()
sys.excepthook = lambda *_: None
raise Plain(Loud(), "only this")
""",
    )
    # Of two threads: which record is drained first is not said.
    assert sorted(fact["message"] for fact in facts(run)) == ["a, 2", "only this"]


def test_texts_of_the_interpreters_own(telltale):
    script = telltale.script(
        """
import subprocess, sys
from telltale import _exceptions
def fails(how):
    try: how()
    except BaseException: return sys.exc_info()[1]
for error in (
    fails(lambda: {}["k"]), fails(lambda: open("/no/file")), fails(lambda: b"\\xff".decode()),
    fails(lambda: compile("1 +", "x", "exec")), fails(lambda: 1 / 0), fails(lambda: int("x")),
    fails(lambda: __import__("nothing_there")), ValueError(), ValueError(3), OSError(28, "full"), KeyError(1),
):
    print(_exceptions.text_of(error) == str(error) or (_exceptions.text_of(error), str(error)))
"""
    )
    done = telltale.plain(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(PYTHON_DIR)!r}); exec(open({script!r}).read())",
        ]
    )
    assert done.stdout.split("\n") == ["True"] * 11 + [""], done.stderr


def test_a_thread_that_replaces_the_hook(telltale):
    run = both(
        telltale,
        TORCH
        + """
print(threading.excepthook is threading.__excepthook__, sys.excepthook is sys.__excepthook__)
def bad(): raise ValueError("thread")
train()
for hook in (threading.excepthook, lambda args: print("mine", args.thread.name), lambda args: 1 / 0):
    threading.excepthook = hook
    thread = threading.Thread(target=bad, name="loader"); thread.start(); thread.join()
def leaves(): sys.exit(3)
thread = threading.Thread(target=leaves); thread.start(); thread.join()
""",
    )
    found = facts(run)
    assert [fact["where"] for fact in found] == ["thread"] * 3 + ["main"] * (len(found) - 3)
    assert {fact["thread"] for fact in found if fact["where"] == "thread"} == {"loader"}


def test_a_worker_tells_its_own_and_the_main_process_names_it(telltale):
    run = both(
        telltale,
        TORCH
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: raise KeyError("odd")
        return torch.ones(4)
train()
# With more workers torch raises it at the one line or the other, as their batches come.
for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1): train(1)
""",
    )
    found = {("raised_again" in fact): fact for fact in facts(run, "worker")}
    assert len(found) == 2
    for fact in found.values():
        assert (fact["type"], fact["message"], fact["line"], fact["worker_id"]) == (
            "KeyError",
            "'odd'",
            12,
            0,
        )
    assert found[True]["raised_again"].endswith("train.py:16")
    assert found[False]["step"] == -1


def test_a_loop_that_ends_is_no_exception(telltale):
    run = both(
        telltale,
        TORCH
        + """
class Data(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(torch.ones(8, 4))
for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=2): train(1)
try: next(iter([]))
except StopIteration: pass
""",
    )
    assert run.code == 0
    assert facts(run) == []


CHILD = (
    TORCH
    + """
import multiprocessing
def child():
    train(2)
    {end}
if __name__ == "__main__":
    train(1)
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child)
    process.start(); process.join()
    sys.exit(process.exitcode)
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing(telltale, method):
    run = both(telltale, CHILD.format(end="raise OSError(28, 'full', 'c.pt')"), method)
    (fact,) = facts(run)
    assert (fact["where"], fact["type"], fact["message"]) == ("spawn", "OSError", "[Errno 28] full: 'c.pt'")
    assert fact["line"] == 12
    assert fact["step"] == 1


def test_a_child_that_ends_by_exit_in_a_handler(telltale):
    end = "\n    try: 1 / 0\n    except ZeroDivisionError: sys.exit({})"
    run = both(telltale, CHILD.format(end=end.format(4)), "fork")
    (fact,) = facts(run)
    assert (fact["type"], fact["handled"]) == ("ZeroDivisionError", True)
    run = both(telltale, CHILD.format(end=end.format(0)), "fork")
    assert facts(run) == []


def test_a_process_that_loads_nothing_of_ours(telltale):
    run = both(telltale, "import atexit\natexit.register(print, 'last')\ndef f(): return {}[1]\nf()\n")
    (fact,) = facts(run)
    assert (fact["type"], fact["line"], fact["where"]) == ("KeyError", 3, "main")
    assert [process["kind"] for process in run.processes()] == [2]
    run = both(telltale, "import sys\nsys.exit(3)\n")
    assert run.processes() == []


def test_who_audits_is_told_of_no_one(telltale):
    # A hook that refuses others' hooks leaves the way by the interpreter's last exception.
    run = both(
        telltale,
        """
import sys
def refuse(event, _):
    if event == "sys.addaudithook": raise RuntimeError
sys.addaudithook(refuse)
"""
        + TORCH
        + "train()\nraise ValueError('refused')\n",
    )
    assert [fact["message"] for fact in facts(run)] == ["refused"]
