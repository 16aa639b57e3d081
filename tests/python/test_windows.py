# SPDX-License-Identifier: Apache-2.0
"""Windows of detail on real trainings: at which steps they open and close, and that outside of them nothing of them
runs. With Debian's torch, which has no Kineto, by a recorder of the test's own and by cProfile.
"""

from __future__ import annotations

import json
import os
import pstats

import pytest
from conftest import AWAIT_PLAN
from waiting import PATIENCE_S

PRELUDE = f"""
import json, os, sys, torch, torch.nn as nn
import telltale
from telltale import _session
{AWAIT_PLAN}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
crit = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 2, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)

class Recorder:
    kind = "trace"
    calls = []
    def in_use(self): return True
    def missing(self, window): return ""
    def conflict(self, window): return ""
    def busy(self): return False
    def start(self, window, facts): self.calls.append(["start", window.name]); self.facts = facts
    def mark(self, label, step, mode): self.calls.append(["mark", label])
    def stop(self, folder, stem):
        self.calls.append(["stop"])
        folder.write(stem + ".x", b"x")
        return [stem + ".x"]
    def size(self): return 0
    def drop(self): self.calls.append(["drop"])
    def forget(self): self.calls.append(["forget"])

def use(recorder):
    _session._recorders[:] = [recorder]
    return recorder

borders = []
def count_borders():
    from telltale._native import probe
    from telltale._windows import manager
    def border(*arguments):
        borders.append(arguments)
        manager().border(*arguments)
    probe.configure(on_border=border)

def train(batches=loader):
    net.train()
    for a, b in batches:
        opt.zero_grad(); crit(net(a), b).backward(); opt.step()

def evaluate():
    net.eval()
    with torch.no_grad():
        for a, b in loader: net(a)
"""


@pytest.fixture
def windows(telltale, tmp_path):
    """Runs a training under windows, and gives back its records with `.folder`, the run directory."""

    def run(text: str, plan: dict, **options):
        file = tmp_path / "windows.json"
        file.write_text(json.dumps(plan) if plan else "")
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        env = {"PROBE_HOST_WINDOWS": str(file), "PROBE_HOST_RUN": str(folder), **options.pop("env", {})}
        recording = telltale.python(PRELUDE + text, env=env, **options)
        recording.folder = folder
        return recording

    return run


def closed(run):
    return sorted((row["facts"]["first"], row["facts"]["last"]) for row in run.events("window.closed"))


def output(run):
    return json.loads(run.out.strip().splitlines()[-1])


TELL = "print(json.dumps(use_it.calls))\n"


def test_without_a_window_no_code_of_windows_runs(windows):
    run = windows(
        """
count_borders()
train()
print(json.dumps([borders, "telltale._windows" in sys.modules]))
""",
        {},
    ).assert_clean()
    assert len(run.steps()) == 6
    assert output(run) == [[], True], "the test itself has loaded it; no border was told"


def test_outside_of_a_window_that_is_planned_no_border_is_told(windows):
    run = windows(
        """
use_it = use(Recorder())
count_borders()
for epoch in range(10): train()
print(json.dumps([len(borders), min(b[0] for b in borders[1:]), max(b[0] for b in borders)]))
""",
        {"w": {"steps": "30:33", "detail": ["ops"]}},
    ).assert_clean()
    assert len(run.steps()) == 60
    told, first, last = output(run)
    # The first, when the plan is read; in the window each fetch and each forward; the border of its end.
    assert (first, last) == (30, 33)
    assert told <= 1 + 2 * 3 + 1
    assert closed(run) == [(30, 32)]


def test_a_window_has_the_steps_that_were_asked_for(windows):
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(4): train()\n" + TELL,
        {"w": {"steps": "2,5:8", "detail": ["ops"]}, "later": {"every": 10, "length": 2, "detail": ["ops"]}},
    ).assert_clean()
    marks = [call[1] for call in output(run) if call[0] == "mark"]
    assert marks == [f"ProfilerStep#{step}" for step in (0, 1, 2, 5, 6, 7, 10, 11, 20, 21)]
    assert closed(run) == [(0, 1), (2, 2), (5, 7), (10, 11), (20, 21)]
    (first, *_) = run.events("window.closed")
    assert first["facts"]["window"] == "later" and first["facts"]["early"] == ""
    (name,) = first["facts"]["files"]
    assert (run.folder / name).read_text() == "x"


def test_it_begins_before_the_fetch_of_its_first_step(windows):
    run = windows(
        """
use_it = use(Recorder())
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i):
        use_it.calls.append(["item", i // 4])
        return data[i]
train(torch.utils.data.DataLoader(Slow(), batch_size=4))
"""
        + TELL,
        {"w": {"steps": "2", "detail": ["ops"]}},
    ).assert_clean()
    calls = output(run)
    begin, end = calls.index(["start", "w"]), calls.index(["stop"])
    assert [call[1] for call in calls[begin:end] if call[0] == "item"] == [2] * 4


def test_an_evaluation_opens_and_closes_no_window_of_training(windows):
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(3): train(); evaluate()\n" + TELL,
        {"at_the_evaluation": {"steps": "6:8", "detail": ["ops"]}},
    ).assert_clean()
    calls = output(run)
    assert len(run.steps("EVAL")) == 18
    assert closed(run) == [(6, 7)]
    # It opened at the fetch of the evaluation, found that out, and opened again where the training went on.
    assert [call[0] for call in calls if call[0] != "mark"] in (
        ["start", "drop", "start", "stop"],
        ["start", "stop"],
    )
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(3): train(); evaluate()\n" + TELL,
        {"around_the_evaluation": {"steps": "4:8", "detail": ["ops"]}},
    ).assert_clean()
    assert closed(run) == [(4, 7)], "the evaluation between them ended nothing"
    marks = [call[1] for call in output(run) if call[0] == "mark"]
    assert [mark for mark in marks if mark.startswith("eval#")] == [f"eval#{i}" for i in range(6)]


def test_windows_of_evaluations_count_their_steps(windows):
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(2): train(); evaluate()\n",
        {"w": {"steps": "2:4", "mode": "eval", "detail": ["ops"]}},
    ).assert_clean()
    (row,) = run.events("window.closed")
    assert (row["facts"]["first"], row["facts"]["last"], row["facts"]["mode"]) == (2, 3, "eval")


def test_a_live_window_opens_at_the_next_step(windows, tmp_path):
    run = windows(
        """
use_it = use(Recorder())
train()
plan = {"live": {"next": 3, "asked_ns": 1, "detail": ["ops"]}}
with open(os.environ["PROBE_HOST_WINDOWS"], "w") as file: json.dump(plan, file)
from telltale._native import probe
while probe.windows() != json.dumps(plan): pass
# What the test has read counts as read: the binding is to look again.
probe.windows_wake(0, None, None, None, False)
train(); train()
""",
        {},
    ).assert_clean()
    (row,) = run.events("window.closed")
    # The fetch that ended the epoch has begun the step already.
    assert (row["facts"]["first"], row["facts"]["last"]) in ((6, 8), (7, 9))
    assert row["facts"]["window"] == "live"


def test_an_agent_that_dies_while_it_writes_them_costs_no_border(windows):
    run = windows(
        """
use_it = use(Recorder())
train()
from telltale._native import probe
def plan(text):
    with open(os.environ["PROBE_HOST_WINDOWS"], "w") as file: file.write(text)
plan("being written")
while probe.windows() is not None: pass
count_borders()
train(); train()
told = len(borders)
# The next agent writes them anew.
live = json.dumps({"live": {"next": 3, "asked_ns": 1, "detail": ["ops"]}})
plan(live)
while probe.windows() != live: pass
probe.windows_wake(0, None, None, None, False)
train(); train()
print(json.dumps([told, len(borders)]))
""",
        {},
    ).assert_clean()
    told, after = output(run)
    assert told == 0 and after > 0
    assert [row["facts"]["window"] for row in run.events("window.closed")] == ["live"]


def test_a_random_share_is_the_same_each_time(windows):
    plan = {"w": {"random": 0.2, "seed": 7, "detail": ["ops"]}}
    code = "use_it = use(Recorder())\nfor epoch in range(10): train()\n"
    first, second = (closed(windows(code, plan).assert_clean()) for _ in range(2))
    assert first == second
    assert 3 <= len(first) <= 25, "of 60 steps a fifth"
    other = closed(windows(code, {"w": {"random": 0.2, "seed": 8, "detail": ["ops"]}}).assert_clean())
    assert other != first


def test_an_expression_on_the_step(windows):
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(4): train()\n",
        {
            "w": {"when": "step % 10 in (3, 4) and not rank", "detail": ["ops"]},
            "bad": {"when": "__import__('os').getpid()", "detail": ["ops"]},
        },
    ).assert_clean()
    assert closed(run) == [(3, 3), (4, 4), (13, 13), (14, 14), (23, 23)]
    (refused,) = run.events("window.refused")
    assert refused["facts"]["window"] == "bad" and "Call" in refused["facts"]["why"]


def test_bounds_end_a_window_early(windows):
    run = windows(
        """
use_it = use(Recorder())
train()
ballast = b"x" * (64 << 20)
train()
""",
        {"w": {"steps": "2:1000", "bytes": 1 << 20, "detail": ["ops"]}},
    ).assert_clean()
    (row,) = run.events("window.closed")
    assert row["facts"]["first"] == 2 and row["facts"]["last"] < 8
    assert "grown" in row["facts"]["early"]
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(5): train()\n",
        {"w": {"steps": "2:1000", "seconds": 0.001, "count": 1, "detail": ["ops"]}},
    ).assert_clean()
    (row,) = run.events("window.closed")
    assert "0.001 s are over" in row["facts"]["early"]


def test_the_size_of_the_trace_ends_a_window_early(windows):
    run = windows(
        """
class Sized(Recorder):
    def size(self): return 300 * sum(call[0] == "mark" for call in self.calls)
use_it = use(Sized())
train(); train()
""",
        {"w": {"steps": "2:1000", "bytes": 1000, "count": 1, "detail": ["ops"]}},
    ).assert_clean()
    (row,) = run.events("window.closed")
    assert (row["facts"]["first"], row["facts"]["last"]) == (2, 5)
    assert "its trace" in row["facts"]["early"]


def test_what_is_open_at_the_end_is_closed_and_kept(windows):
    run = windows(
        "use_it = use(Recorder())\ntrain()\n", {"w": {"steps": "3:1000", "detail": ["ops"]}}
    ).assert_clean()
    (row,) = run.events("window.closed")
    assert (row["facts"]["first"], row["facts"]["last"]) == (3, 5)
    assert row["facts"]["early"] == "the training ended"
    assert all((run.folder / name).exists() for name in row["facts"]["files"])


@pytest.mark.parametrize("where", ["start", "mark", "stop"])
def test_a_failure_switches_windows_off_and_the_training_goes_on(windows, where):
    run = windows(
        f"""
class Broken(Recorder):
    def {where}(self, *arguments): raise OSError("no such thing")
use_it = use(Broken())
for epoch in range(3): train()
"""
        + TELL,
        {"w": {"every": 3, "detail": ["ops"]}},
    ).assert_clean()
    assert len(run.steps()) == 18
    (failed,) = run.events("window.failed")
    assert "no such thing" in failed["facts"]["why"]
    assert len([call for call in output(run) if call[0] == "start"]) <= 1


@pytest.mark.parametrize("place", ["windows", "windows/w"])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_folder_of_a_strangers_run_that_is_none_ends_windows_and_no_more(windows, tmp_path, place, what):
    outside = tmp_path / "outside"
    outside.mkdir()
    planted = tmp_path / "run" / place
    planted.parent.mkdir(parents=True)
    if what == "link":
        planted.symlink_to(outside)
    else:
        os.mkfifo(planted)
    run = windows(
        "use_it = use(Recorder())\nfor epoch in range(3): train()\n" + TELL,
        {"w": {"every": 3, "detail": ["ops"]}},
    ).assert_clean()
    assert len(run.steps()) == 18
    assert closed(run) == []
    (failed,) = run.events("window.failed")
    assert ("links in a run folder" if what == "link" else "Not a directory") in failed["facts"]["why"]
    # The profiler does not go on, and nothing is begun again.
    assert [call[0] for call in output(run) if call[0] != "mark"] == ["start", "drop"]
    assert list(outside.iterdir()) == []


def test_links_in_the_place_of_a_windows_files_lead_nowhere(windows, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("lies outside")
    run = windows(
        f"""
use_it = use(Recorder())
place = os.path.join(os.environ["TELLTALE_RUN"], "windows", "w")
os.makedirs(place)
name = f"rank0-step2-{{os.getpid()}}.x"
for end in ("", ".part", f".{{os.getpid()}}.part"): os.symlink({str(outside)!r}, os.path.join(place, name + end))
for epoch in range(3): train()
"""
        + TELL,
        {"w": {"steps": "2:4", "detail": ["ops"]}},
    ).assert_clean()
    assert closed(run) == [(2, 3)]
    (event,) = run.events("window.closed")
    (name,) = event["facts"]["files"]
    assert not (run.folder / name).is_symlink() and (run.folder / name).read_text() == "x"
    assert outside.read_text() == "lies outside"


def test_this_torch_has_no_operators_and_says_so_once(windows):
    if __import__("torch").autograd.kineto_available():
        pytest.skip("this torch has Kineto: tests/frameworks tests it")
    run = windows("train(); train()\n", {"w": {"every": 2}}).assert_clean()
    (refused,) = run.events("window.refused")
    assert "no operators on this torch" in refused["message"]
    assert run.events("window.closed") == []


def test_a_forked_child_leaves_the_window_of_its_parent(windows):
    run = windows(
        """
use_it = use(Recorder())
train()
pid = os.fork()
if pid == 0:
    os._exit(0 if use_it.calls[-1] == ["forget"] and not __import__("telltale._windows")._windows.manager().opened else 1)
print(os.waitpid(pid, 0)[1])
train()
""",
        {"w": {"steps": "3:9", "detail": ["ops"]}},
    ).assert_clean()
    assert run.out.strip() == "0"
    assert closed(run) == [(3, 8)]


def test_python_functions_of_a_window_by_step(windows):
    run = windows(
        """
def busy():
    return sum(i * i for i in range(20000))
def step():
    busy()
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad(); crit(net(a), b).backward(); step(); opt.step()
""",
        {"w": {"steps": "4:6", "detail": ["python"], "timer": "cpu"}},
    ).assert_clean()
    (row,) = run.events("window.closed")
    files = {tuple(name.rsplit("-", 4)[1:]): name for name in row["facts"]["files"]}
    phases = ("data_wait", "forward", "backward", "optimizer", "other")
    assert set(files) == {("train", step, phase, "cpu.pstats") for step in "45" for phase in phases}
    for step in "45":
        for phase in phases:
            stats = pstats.Stats(str(run.folder / files["train", step, phase, "cpu.pstats"])).stats
            calls = {key[2]: value for key, value in stats.items()}
            assert ("busy" in calls) == (phase == "other")
            fetches = any(key[2] == "__getitem__" and key[0].endswith("dataset.py") for key in stats)
            assert fetches == (phase == "data_wait")
        busy = {key[2]: value for key, value in stats.items()}["busy"]
        assert busy[0] == 1 and busy[3] > 0


def test_another_profiler_is_named_and_left_alone(windows):
    run = windows(
        """
import cProfile
profile = cProfile.Profile()
profile.enable()
train()
profile.disable()
print(any(key[2] == "train" for key in __import__("pstats").Stats(profile).stats))
""",
        {"w": {"steps": "2:4", "detail": ["python"]}},
    ).assert_clean()
    (refused,) = run.events("window.refused")
    assert "cProfile" in refused["facts"]["why"]
    assert run.out.strip() == "True", "the program's own profile is whole"
    assert run.events("window.closed") == []


def test_a_profiler_that_begins_within_a_window_is_whole_and_the_window_ends(windows):
    run = windows(
        """
import cProfile
profile = cProfile.Profile()
def marked(): pass
number = 0
for epoch in range(2):
    for a, b in loader:
        if number == 4: profile.enable()
        opt.zero_grad(); crit(net(a), b).backward(); marked(); opt.step()
        number += 1
profile.disable()
print(number, next(each.callcount for each in profile.getstats() if getattr(each.code, "co_name", "") == "marked"))
""",
        {"w": {"steps": "2:12", "detail": ["python"]}},
    ).assert_clean()
    number, marked = map(int, run.out.split())
    assert marked == number - 4
    (row,) = run.events("window.closed")
    assert "ended early: a profiler of the program's own was started" in row["message"]
    assert row["facts"]["files"]


def test_a_predicate_of_the_programs_own(windows):
    run = windows(
        """
use_it = use(Recorder())
asked = []
telltale.window(lambda step: asked.append(step) or step == 4, steps=2, detail=["ops"])
train(); train()
print(json.dumps(asked))
""",
        {},
    ).assert_clean()
    assert closed(run) == [(4, 5)]
    numbers = output(run)
    assert numbers == sorted(set(numbers)), "once a step, though a step has two borders"


def test_what_is_no_window_is_an_error_with_and_without_a_run(telltale):
    script = telltale.script(
        """
import telltale
for wrong in ({"steps": 0}, {"detail": ["all"]}, {"detail": []}, {"name": "../x"}):
    try: telltale.window(**wrong)
    except ValueError: print("refused")
telltale.window()
"""
    )
    import os
    import sys

    from conftest import PYTHON_DIR

    env = {**os.environ, "PYTHONPATH": str(PYTHON_DIR)}
    env.pop("TELLTALE_SOCKET", None)
    import subprocess

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["refused"] * 4, "")
