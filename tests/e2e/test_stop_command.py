# SPDX-License-Identifier: Apache-2.0
"""`telltale stop` on real trainings: what it asks for, what it says came of it, and its exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Telltale
from waiting import PATIENCE_S, wait_until

# Saves when it is asked to, once the test lets it; SIGTERM ends it as it ends any program.
SAVES = """
import os, sys, time
import telltale

out = sys.argv[1]

def save(stop):
    open(out + "/saved", "a").write(stop.why + "\\n")
    while not os.path.exists(out + "/release"):
        time.sleep(0.01)

telltale.on_stop(save)
open(out + "/begun", "w").close()
while True:
    time.sleep(0.01)
    telltale.log(loss=1.0)
    telltale.step()
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


def begin(
    telltale: Telltale, tmp: Path, text: str, *, shell: str | None = None
) -> tuple[subprocess.Popen[bytes], Path]:
    script = tmp / "train.py"
    script.write_text(text)
    run = tmp / "run"
    training = [telltale.python, str(script), str(tmp)]
    if shell is not None:
        training = ["/bin/sh", "-c", shell + '"$@"; :', "sh", *training]
    process = subprocess.Popen(
        [str(telltale.binary), "run", "--quiet", "--no-serve", "-o", str(run), "--", *training]
    )
    wait_until("the training", (tmp / "begun").exists, process)
    wait_until("its record", lambda: rows(telltale, run, "process.start"), process)
    return process, run


def rows(telltale: Telltale, run: Path, kind: str) -> list[dict[str, Any]]:
    if not any(run.glob("agent-*")):
        return []
    return [json.loads(row["data"]) for row in telltale.rows(run, "events") if row["kind"] == kind]


def requests(run: Path) -> list[Path]:
    """Those for a stop: an outlier of the steps asks for a window by itself."""
    paths = run.glob("requests/*/*.json")
    return [path for path in paths if json.loads(path.read_text())["kind"] == "stop"]


def test_it_says_what_happened_to_each_process(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "release").touch()
    process, run = begin(telltale, tmp_path, SAVES)
    done = telltale("stop", run, "--why", "the loss has settled")
    assert (done.returncode, done.stderr) == (0, "")
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert (tmp_path / "saved").read_text() == "the loss has settled\n"
    lines = done.stdout.splitlines()
    assert (
        lines[0].startswith("request ") and "then SIGTERM is sent" in lines[0] and "30 s to end" in lines[0]
    )
    assert any(line.endswith(": SIGTERM was sent to 1 process") for line in lines), done.stdout
    assert any(line.endswith(": the training is stopped here") for line in lines), done.stdout
    assert re.fullmatch(r"  rank 0 \(pid \d+\): saved a checkpoint; SIGTERM sent; has ended", lines[-1]), (
        done.stdout
    )
    (end,) = rows(telltale, run, "run.attempt_end")
    assert end["stopped"]["why"] == "the loss has settled"
    again = telltale("stop", run)
    assert again.returncode == 3 and "is killed: only a running training" in again.stderr
    assert len(requests(run)) == 1


def test_who_lives_on_is_named_and_sigkill_ends_it(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path, STUBBORN, shell='trap "" TERM; ')
    done = telltale("stop", run, "--grace", "1")
    assert done.returncode == 4, done.stdout
    assert "2 of its processes are still running: run the command again with --kill" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"^  the command \(pid \d+\): SIGTERM sent; still running$", done.stdout, re.M), (
        done.stdout
    )
    assert re.search(r"^  rank 0 \(pid \d+\): SIGTERM sent; still running$", done.stdout, re.M), done.stdout
    assert process.poll() is None
    killed = telltale("stop", run, "--grace", "1", "--kill", "--json")
    assert (killed.returncode, killed.stderr) == (0, "")
    document = json.loads(killed.stdout)
    assert document["stopped"] is True
    (machine,) = document["machines"]
    assert machine["refused"] is None
    processes = machine["answer"]["processes"]
    assert sorted(each["root"] for each in processes) == [False, True]
    assert {each["state"] for each in processes} == {"ended"}
    assert {each["sigterm"] for each in processes} == {"sent"}
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_sigkill_also_reaches_those_that_outlive_the_command(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path, STUBBORN, shell="")
    done = telltale("stop", run, "--grace", "3", "--kill")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^  the command \(pid \d+\): SIGTERM sent; has ended$", done.stdout, re.M), done.stdout
    killed = r"^  rank 0 \(pid \d+\): SIGTERM sent; SIGKILL sent; has ended$"
    assert re.search(killed, done.stdout, re.M), done.stdout
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_it_waits_for_a_checkpoint_and_a_second_stop_is_refused_meanwhile(
    telltale: Telltale, tmp_path: Path
) -> None:
    process, run = begin(telltale, tmp_path, SAVES)
    asked = telltale("stop", run, "--wait", "0", "--json")
    assert (asked.returncode, asked.stderr) == (0, "")
    name = json.loads(asked.stdout)["request"]
    assert [path.stem for path in requests(run)] == [name]
    wait_until("the checkpoint", (tmp_path / "saved").exists, process)
    second = telltale("stop", run)
    assert second.returncode == 2
    assert f"is being stopped already, by request {name}" in second.stderr
    slow = telltale("stop", run, "--wait", "1", "--json")
    assert slow.returncode == 2
    assert json.loads(slow.stdout)["machines"][0]["answer"] is None
    assert process.poll() is None
    (tmp_path / "release").touch()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    (done,) = [row for row in rows(telltale, run, "request.done") if row["id"] == name]
    assert done["stopped"] is True and done["processes"][0]["answer"] == "saved"


def test_a_stricter_stop_takes_the_place_of_one_that_waits(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path, SAVES)
    patient = subprocess.Popen(
        [str(telltale.binary), "stop", str(run), "--checkpoint", "--checkpoint-seconds", "600", "--json"],
        stdout=subprocess.PIPE,
    )
    # The checkpoint is never done.
    wait_until("the checkpoint", (tmp_path / "saved").exists, process)
    killed = telltale("stop", run, "--no-checkpoint", "--grace", "5", "--kill", "--why", "at once", "--json")
    assert (killed.returncode, killed.stderr) == (0, "")
    assert process.wait(PATIENCE_S) < 0
    stricter = json.loads(killed.stdout)
    assert stricter["stopped"] is True and stricter["machines"][0]["goes_on_as"] is None
    # Who asked first is told what became of it.
    out, _ = patient.communicate(timeout=PATIENCE_S)
    assert patient.returncode == 0
    first = json.loads(out)
    assert first["stopped"] is True and first["request"] != stricter["request"]
    (machine,) = first["machines"]
    assert machine["goes_on_as"] == stricter["request"]
    assert machine["answer"] == stricter["machines"][0]["answer"]
    done = {row["id"]: row for row in rows(telltale, run, "request.done")}
    assert done[first["request"]]["goes_on_as"] == stricter["request"]
    assert done[first["request"]]["stopped"] is False
    assert {each["sigterm"] for each in done[first["request"]]["processes"]} == {"none"}
    (end,) = rows(telltale, run, "run.attempt_end")
    assert end["stopped"]["why"] == "at once"


def test_without_a_checkpoint_nobody_is_waited_for(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path, SAVES)
    done = telltale("stop", run, "--no-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "saved").exists()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_run_that_is_over_is_not_asked(telltale: Telltale, finished_run: Path) -> None:
    before = requests(finished_run)
    done = telltale("stop", finished_run)
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"{finished_run} is finished: only a running training can be stopped" in done.stderr
    assert requests(finished_run) == before


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        (["--checkpoint", "--no-checkpoint"], "exclude each other"),
        (["--grace", "-1"], "--grace -1 is out of range"),
        (["--wait", "100000"], "--wait 100000 is out of range"),
        (["--checkpoint-seconds", "86401"], "--checkpoint-seconds 86401 is out of range"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    telltale: Telltale, finished_run: Path, options: list[str], needle: str
) -> None:
    done = telltale("stop", finished_run, *options)
    assert done.returncode == 2 and needle in done.stderr
