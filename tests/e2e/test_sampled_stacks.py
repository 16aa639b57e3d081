# SPDX-License-Identifier: Apache-2.0
"""`telltale run --stacks` on a real training with the real py-spy: the known hot function is where it must be."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S, await_helpers, wait_until

TRAINING = REPO / "tests/e2e/train_hot.py"


def ledger(telltale: Telltale, run: Path) -> dict[str, int]:
    return {row["name"]: row["value"] for row in telltale.rows(run, "ledger") if row["subject"] == "stacks"}


def events(telltale: Telltale, run: Path) -> list[dict[str, Any]]:
    return [row for row in telltale.rows(run, "events") if row["kind"].startswith("stacks.")]


def collapsed(telltale: Telltale, run: Path, *args: str) -> dict[tuple[str, ...], int]:
    done = telltale("export", "collapsed", run, *args)
    assert done.returncode == 0, done.stderr
    out = {}
    for line in done.stdout.splitlines():
        stack, _, value = line.rpartition(" ")
        out[tuple(stack.split(";"))] = int(value)
    return out


def share(stacks: dict[tuple[str, ...], int], function: str) -> float:
    found = sum(value for stack, value in stacks.items() if any(f.endswith(": " + function) for f in stack))
    return found / sum(stacks.values())


@pytest.fixture(scope="module")
def sampled(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Telltale, Path]:
    telltale = Telltale(binary, python, tmp_path_factory.mktemp("sampled"))
    checks = json.loads(telltale("doctor", "--json").stdout)["checks"]
    stacks = next(check for check in checks if check["name"] == "stacks")
    if stacks["finding"] == "limited":
        pytest.skip(f"no process may be read here: {stacks['found']}")
    run = telltale.tmp / "run"
    stop = telltale.tmp / "stop"
    # Without a budget: on a busy machine some samples a second would be left.
    options = ["--quiet", "--overhead", "100%", "-o", str(run), "--stacks"]
    training = subprocess.Popen(
        [binary, "run", *options, "--", python, TRAINING, stop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def seen() -> bool:
        """Whether enough was sampled to judge it; that comes in pieces of many seconds."""
        done = telltale("export", "collapsed", run, "--phase", "forward")
        if done.returncode != 0:
            return False
        forward = [line for line in done.stdout.splitlines() if line.startswith("main thread;")]
        return sum(int(line.rpartition(" ")[2]) for line in forward) > 2e9

    try:
        wait_until("two seconds of forward passes", seen, training, look_s=0.5)
    finally:
        stop.touch()
        out, err = training.communicate(timeout=PATIENCE_S)
    assert (training.returncode, out) == (0, "trained\n"), err
    await_helpers(run)
    assert not [row for row in events(telltale, run) if row["kind"] == "stacks.refused"]
    return telltale, run


def test_the_hot_function_dominates_its_phase(sampled: tuple[Telltale, Path]) -> None:
    telltale, run = sampled
    forward = {
        stack: value
        for stack, value in collapsed(telltale, run, "--phase", "forward").items()
        if stack[0] == "main thread"
    }
    assert all(stack[1] == "forward" for stack in forward)
    assert sum(forward.values()) > 1e9, "a second of forward passes was seen"
    # Known to some milliseconds: a little of the neighbouring phases may be in it.
    assert share(forward, "hot_function") > 0.6


def test_workers_are_sampled_under_the_phase_of_their_trainer(sampled: tuple[Telltale, Path]) -> None:
    telltale, run = sampled
    worker = {s: v for s, v in collapsed(telltale, run).items() if s[0] == "worker: main thread"}
    assert any(stack[-2].endswith(": load_item") for stack in worker if len(stack) > 2)
    assert "forward" in {stack[1] for stack in worker if len(stack) > 1}


def test_every_face_shows_them(sampled: tuple[Telltale, Path]) -> None:
    telltale, run = sampled
    done = telltale("profile", run, "--view", "code", "--sum", "--max_depth", "50")
    assert done.returncode == 0 and "train_hot.py(" in done.stdout and ": hot_function" in done.stdout
    page = telltale.tmp / "flames.html"
    done = telltale("export", "flamegraph", run, "-o", page, "--phase", "forward", "--rank", "0")
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert any(name.endswith(": hot_function") for name in data["names"])
    assert data["tree"][1] > 1e9
    speedscope = telltale.tmp / "run.speedscope.json"
    assert telltale("export", "speedscope", run, "-o", speedscope).returncode == 0
    assert '"name":"hot_function"' in speedscope.read_text()
    done = telltale("export", "collapsed", run, "--phase", "sideways")
    assert done.returncode == 2 and "forward" in done.stderr and len(done.stderr.splitlines()) == 1


def test_one_step_gives_its_own_stacks(sampled: tuple[Telltale, Path]) -> None:
    telltale, run = sampled
    # py-spy attaches while the first steps pass, and pauses between two pieces: not every step holds a sample.
    hot = "step >= 0 and kind = 'py-spy' and name like '%: hot_function'"
    seen = {row["step"] for row in telltale.rows(run, "slices", "--where", hot)}
    steps = telltale.rows(run, "steps")
    longest = max((step for step in steps if step["step"] in seen), key=lambda step: step["duration_ns"])
    stacks = collapsed(telltale, run, "--step", str(longest["step"]))
    main = {stack: value for stack, value in stacks.items() if stack[0] == "main thread"}
    assert any(frame.endswith(": hot_function") for stack in main for frame in stack)
    whole = sum(value for stack, value in collapsed(telltale, run).items() if stack[0] == "main thread")
    assert 0 < sum(main.values()) < whole
    none = telltale("export", "collapsed", run, "--step", str(1 + max(step["step"] for step in steps)))
    assert none.returncode == 2 and "steps with slices in them" in none.stderr


def test_what_it_took_is_counted_and_nothing_was_lost(sampled: tuple[Telltale, Path]) -> None:
    telltale, run = sampled
    counts = ledger(telltale, run)
    assert counts["stacks.samples"] > 50 and counts["stacks.slices"] > 50 and counts["stacks.cpu_ns"] > 0
    assert (
        counts["stacks.pieces_lost"]
        == counts["stacks.slices_dropped"]
        == counts["stacks.damaged_events"]
        == 0
    )
    assert telltale("verify", run).returncode == 0
    assert not list((run / "logs").glob("stacks/piece-*"))


@pytest.mark.parametrize(
    "words", ["", "Error: Permission Denied: Try running again with elevated permissions by going 'sudo !!'"]
)
def test_where_it_cannot_that_is_said_once_and_the_training_goes_on(telltale: Telltale, words: str) -> None:
    program = telltale.tmp / "py-spy"
    if words:
        program.write_text(f'#!/bin/sh\necho "{words}" >&2\nexit 1\n')
        program.chmod(0o755)
    run = telltale.tmp / "run"
    done = telltale(
        "run",
        "--no-serve",
        "-o",
        run,
        "--stacks",
        "50",
        "--",
        telltale.python,
        "-c",
        "import time; time.sleep(0.5); print('done')",
        env={"TELLTALE_PY_SPY": str(program)},
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert ("pip install py-spy" in done.stderr) == (not words)
    said = events(telltale, run)
    assert [row["kind"] for row in said] == ["stacks.refused"]
    assert ("pip install py-spy" if not words else "CAP_SYS_PTRACE") in said[0]["message"]
    assert not telltale.rows(run, "slices")


def test_a_rate_that_is_none_starts_nothing(telltale: Telltale) -> None:
    for wrong in ("0", "101", "often"):
        done = telltale("run", "--stacks", wrong, "--", "true")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert not (telltale.tmp / "telltale-runs").exists()
