# SPDX-License-Identifier: Apache-2.0
"""The C++ examples, built out of an installation, on real runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from conftest import sh
from waiting import PATIENCE_S, wait_until


def parse(text: str) -> tuple[list[int], list[int], dict, list]:
    lines = text.splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    losses = [int(line.split()[3].rstrip(":")) for line in lines if line.startswith("loss at")]
    [info] = [json.loads(line[4:]) for line in lines if line.startswith("run ")]
    [findings] = [json.loads(line[9:]) for line in lines if line.startswith("findings ")]
    return steps, losses, info, findings


def test_plain_cpp_training_is_recorded(prefix: Path, finished_run: Path) -> None:
    telltale = prefix / "bin" / "telltale"
    query = sh(telltale, "query", finished_run, "steps", "--format", "json").stdout
    steps = [json.loads(line) for line in query.splitlines()] if query[0] == "{" else json.loads(query)
    assert [step["step"] for step in steps] == list(range(300))
    for step in steps:
        assert step["batch_size"] == 256
        assert min(step[f"{phase}_ns"] for phase in ("data_wait", "forward", "backward")) > 0


def test_training_runs_without_telltale(examples: Path) -> None:
    assert sh(examples / "train", "5").stdout == "trained 5 steps\n"


def test_follow_reads_a_finished_run(prefix: Path, examples: Path, finished_run: Path) -> None:
    steps, losses, info, findings = parse(sh(examples / "follow", finished_run).stdout)
    assert steps == list(range(300))
    assert losses == list(range(300))
    assert info["state"] == "finished"
    check = json.loads(sh(prefix / "bin" / "telltale", "check", finished_run, "--json").stdout)
    assert findings == check["findings"]


def test_follow_reads_a_live_run(prefix: Path, examples: Path, tmp_path: Path) -> None:
    run = tmp_path / "live"
    training = subprocess.Popen(
        [prefix / "bin" / "telltale", "run", "-o", run, "--", examples / "train", "300", "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_until("run.json", lambda: (run / "run.json").exists(), training)
        follower = subprocess.Popen([examples / "follow", run], stdout=subprocess.PIPE, text=True)
        try:
            assert training.stdin is not None
            assert follower.stdout is not None
            early = []
            for line in follower.stdout:
                early.append(line)
                if line.startswith("loss at step 99:"):
                    break
            # The training waits for us: what we read came while it lives.
            assert training.poll() is None
            assert not any(line.startswith("step 100 ") for line in early)
            training.stdin.write("\n")
            training.stdin.close()
            steps, losses, info, _ = parse("".join(early) + follower.stdout.read())
            assert follower.wait(PATIENCE_S) == 0
        finally:
            follower.kill()
            follower.wait()
        assert training.wait(PATIENCE_S) == 0
    finally:
        training.kill()
        training.wait()
    assert steps == list(range(300))
    assert losses == list(range(300))
    assert info["state"] == "finished"
    # This training, unlike the short one, is not over before the supervisor has said what is wanted.
    names = sh(prefix / "bin" / "telltale", "query", run, "statistics", "--columns", "name").stdout.split()
    assert {"weights", "gradient"} <= set(names)


def test_follow_says_what_is_wrong(examples: Path, tmp_path: Path) -> None:
    done = subprocess.run([examples / "follow", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1
