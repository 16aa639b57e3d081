# SPDX-License-Identifier: Apache-2.0
"""Rules that end real trainings: the whole way from a record to the end of the process, with a checkpoint,
within the grace time, once whoever is killed meanwhile, and what it saves in the demo."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from conftest import REPO, Telltale
from sklearn.datasets import load_digits
from waiting import PATIENCE_S, wait_until

STOP = """
{set}
[rules.LossNotDecreasing]
[[rules.LossNotDecreasing.actions]]
kind = "stop"
from = "high"
dry_run = false
"""
ALONE = STOP.format(set="defaults = false")

# Its loss is no number from step 20 on. The checkpoint takes until the test says so.
TRAIN = """
import os, signal, sys, time
import telltale

out = sys.argv[1]
term = []
signal.signal(signal.SIGTERM, lambda *_: term.append(1))

def save(stop):
    with open(out + "/saved", "a") as file:
        file.write(stop.rule + "\\n")
    while not os.path.exists(out + "/release"):
        time.sleep(0.01)

telltale.on_stop(save)
step = 0
while not term:
    time.sleep(0.01)
    telltale.log(loss=1.0 if step < 20 else float("nan"))
    telltale.step()
    step += 1
time.sleep(0.5)  # A second SIGTERM would come now.
open(out + "/terms", "w").write(str(len(term)))
"""

# It does not obey SIGTERM.
STUBBORN = """
import signal, sys, time
import telltale

signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + "/begun", "w").close()
while True:
    time.sleep(0.01)
    telltale.log(loss=1.0)
    telltale.step()
"""


def begin(telltale: Telltale, tmp: Path, text: str, *options: object) -> tuple[subprocess.Popen[bytes], Path]:
    script = tmp / "train.py"
    script.write_text(text)
    run = tmp / "run"
    words = ["run", "--quiet", "--no-serve", *options, "-o", run, "--", telltale.python, script, tmp]
    return subprocess.Popen([str(telltale.binary), *map(str, words)]), run


def rows(telltale: Telltale, run: Path, kind: str) -> list[dict[str, Any]]:
    """Events of a kind, with their data as an object."""
    found = [row for row in telltale.rows(run, "events") if row["kind"] == kind]
    return [{**row, "data": json.loads(row["data"])} for row in found]


def stops_answered(telltale: Telltale, run: Path) -> list[dict[str, Any]]:
    """Not the answers to windows, which an outlier of the steps asks for by itself."""
    return [row for row in rows(telltale, run, "request.done") if "stopped" in row["data"]]


def decided(telltale: Telltale, run: Path) -> list[dict[str, Any]]:
    if not (run / "watch").is_dir():
        return []
    return [row["data"] for row in rows(telltale, run, "action.decided")]


def watchers(run: Path) -> list[int]:
    """Pids of this run's watchers."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [b"watch", os.fsencode(run)]:
            found.append(int(folder.name))
    return found


def stops(run: Path) -> list[dict[str, Any]]:
    """Requests to stop that stand in the run directory."""
    requests = [json.loads(path.read_text()) for path in run.glob("requests/*/*.json")]
    return [request for request in requests if request["kind"] == "stop"]


def ask(run: Path, **body: Any) -> None:
    """A request as docs/formats/requests.md has it."""
    now = time.time_ns()
    name = f"{now:016x}{0:016x}"
    folder = run / "requests" / "test"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"version": 1, "id": name, "who": "test", "time_ns": now, "kind": "stop", "body": body})
    (folder / "x.tmp").write_text(text)
    os.rename(folder / "x.tmp", folder / f"{name}.json")


def test_a_rule_saves_a_checkpoint_and_ends_the_training_within_its_grace(
    telltale: Telltale, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text(ALONE)
    (tmp_path / "release").touch()
    process, run = begin(telltale, tmp_path, TRAIN, "--rules", tmp_path / "rules.toml")
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "saved").read_text() == "LossNotDecreasing\n"
    assert (tmp_path / "terms").read_text() == "1"
    (end,) = rows(telltale, run, "run.attempt_end")
    assert end["data"]["stopped"]["rule"] == "LossNotDecreasing"
    assert end["data"]["stopped"]["why"].startswith("LossNotDecreasing: ")
    (term,) = rows(telltale, run, "stop.signal")
    assert term["data"]["signal"] == signal.SIGTERM
    assert 0 <= end["time_ns"] - term["time_ns"] <= 30e9  # The default of `grace`.
    (saved,) = rows(telltale, run, "stop.saved")
    assert saved["time_ns"] <= term["time_ns"]
    (decision,) = decided(telltale, run)
    assert decision["held"] == ""
    assert [row["data"]["outcome"] for row in rows(telltale, run, "action.done")] == ["done"]
    (request,) = stops(run)
    assert end["data"]["stopped"]["request"] == request["id"]
    # Each who looks at the run is told.
    said = "Stopped by the rule LossNotDecreasing"
    assert said in telltale("check", run).stdout
    checked = telltale.check(run)
    assert said in checked["run"]["stopped"]
    assert [(a["action"], a["outcome"]) for a in checked["actions"]] == [("stop", "done")]
    assert telltale("report", run, "-o", tmp_path / "report.html").returncode == 0
    assert said in (tmp_path / "report.html").read_text()


def test_a_watcher_that_is_killed_after_its_decision_repeats_no_stop(
    telltale: Telltale, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text(ALONE)
    process, run = begin(telltale, tmp_path, TRAIN, "--rules", tmp_path / "rules.toml")
    wait_until("a decision", lambda: decided(telltale, run))
    killed: set[int] = set()
    for _ in range(2):  # The one that decided, and the one that takes it up.
        (pid,) = wait_until("a watcher", lambda: set(watchers(run)) - killed)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    # The third has done what was left of it by the time that it is there and the checkpoint is taken.
    wait_until("a watcher", lambda: set(watchers(run)) - killed)
    wait_until("the checkpoint", lambda: (tmp_path / "saved").exists())
    (tmp_path / "release").touch()
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "terms").read_text() == "1"
    assert (tmp_path / "saved").read_text() == "LossNotDecreasing\n"
    assert [d["held"] for d in decided(telltale, run)] == [""]
    assert len(stops(run)) == 1
    assert len(rows(telltale, run, "stop.signal")) == 1


def test_who_does_not_obey_is_named_and_killed_only_where_that_is_asked(
    telltale: Telltale, tmp_path: Path
) -> None:
    process, run = begin(telltale, tmp_path, STUBBORN)
    wait_until("the training", lambda: (tmp_path / "begun").exists())
    ask(run, why="x", grace_seconds=0.5)
    (done,) = wait_until("an answer", lambda: stops_answered(telltale, run))
    assert done["data"]["stopped"] is False and len(done["data"]["left"]) == 1
    assert process.poll() is None
    ask(run, why="y", grace_seconds=1.5, kill=True)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    begun = rows(telltale, run, "stop.begun")[-1]
    kill = rows(telltale, run, "stop.signal")[-1]
    assert kill["data"]["signal"] == signal.SIGKILL
    assert kill["time_ns"] - begun["time_ns"] >= 1.5e9
    (end,) = rows(telltale, run, "run.attempt_end")
    assert end["data"]["signal"] == signal.SIGKILL and end["data"]["stopped"]["why"] == "y"


def test_a_dry_run_ends_nothing_and_is_shown(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(ALONE.replace("dry_run = false", ""))
    process, run = begin(telltale, tmp_path, TRAIN, "--rules", tmp_path / "rules.toml")
    wait_until("a decision", lambda: decided(telltale, run))
    assert process.poll() is None
    (pid,) = {row["pid"] for row in telltale.rows(run, "steps")}
    os.kill(pid, signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert stops(run) == [] and not (tmp_path / "saved").exists()
    checked = telltale.check(run)
    assert "stopped" not in checked["run"]
    assert [(a["action"], a["outcome"]) for a in checked["actions"]] == [("stop", "dry run")]


def test_in_the_demo_it_saves_half_of_the_run(telltale: Telltale, tmp_path: Path) -> None:
    """The slow network of `make demo`, with the rules that run by default and one action."""
    (tmp_path / "rules.toml").write_text(STOP.format(set=""))
    run = tmp_path / "run"
    script = REPO / "examples/demo/train_slow.py"
    words = ["--rules", tmp_path / "rules.toml", "--no-serve", "-o", run, "--", telltale.python, script]
    done = telltale("run", *words)
    assert done.returncode == -signal.SIGTERM, done.stderr
    (end,) = rows(telltale, run, "run.attempt_end")
    assert end["data"]["stopped"]["rule"] == "LossNotDecreasing"
    whole = 8 * -(-len(load_digits().target) // 32)  # Epochs times batches of train_slow.py.
    steps = telltale.check(run)["run"]["steps"]
    print(f"stopped at step {steps} of {whole}")
    assert 0 < steps <= whole / 2
