# SPDX-License-Identifier: Apache-2.0
"""One command watches a real training: what it leaves behind, and what it must not change."""

import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S

TINY = REPO / "tests/e2e/train_tiny.py"


def test_records_steps_losses_statistics_and_metrics(telltale: Telltale, finished_run: Path) -> None:
    steps = telltale.rows(finished_run, "steps")
    train = [s for s in steps if s["mode"] == "TRAIN"]
    assert [s["step"] for s in train] == list(range(60))
    for s in train:
        phases = ("data_wait", "forward", "backward", "optimizer", "comm_wait", "other")
        assert sum(s[f"{p}_ns"] for p in phases) == s["duration_ns"]
        assert s["batch_size"] == 32
        assert s["micro_steps"] == 1
    losses = telltale.rows(finished_run, "scalars", "--where", "name = 'loss'")
    assert len(losses) == 60
    assert 1.5 < losses[0]["value"] < 3.5
    names = {s["name"] for s in telltale.rows(finished_run, "statistics")}
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= {n.split("/")[-1] for n in names}
    metrics = {m["name"] for m in telltale.rows(finished_run, "metrics")}
    assert {"cpu.user", "mem.available", "proc.rss"} <= metrics
    kinds = {e["kind"] for e in telltale.rows(finished_run, "events")}
    assert {"process.start", "framework", "dataloader", "run.first_forward"} <= kinds


def test_run_state_and_list(telltale: Telltale, finished_run: Path) -> None:
    listed = json.loads(telltale("ls", finished_run.parent, "--json").stdout)
    [run] = listed["runs"]
    assert run["state"] == "finished"
    assert run["attempts"] == 1
    assert run["steps"] == 60
    assert telltale("verify", finished_run).returncode == 0


def test_a_live_run_is_running_also_for_another_container(telltale: Telltale, tmp_path: Path) -> None:
    """Where its processes have other pids, or none."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespaces for us here")
    look = f"{shlex.join(inside)} {telltale.binary} ls {tmp_path} --json > {tmp_path}/seen"
    again = f"{shlex.join(inside)} {telltale.binary} run -o {tmp_path}/run -- true 2> {tmp_path}/refused"
    done = telltale.run(tmp_path / "run", "sh", "-c", f"{look}; {again}; echo $?")
    assert done.stdout == "9\n", done.stderr
    [run] = json.loads((tmp_path / "seen").read_text())["runs"]
    assert run["state"] == "running"
    [run] = json.loads(telltale("ls", tmp_path, "--json").stdout)["runs"]
    assert run["state"] == "finished"


def beside_a_log(
    telltale: Telltale, run: Path, variables: dict[str, str]
) -> tuple[subprocess.Popen[str], str]:
    """A run whose stderr is no terminal, up to its line about the live page; ends with its input."""
    process = subprocess.Popen(
        [str(telltale.binary), "run", "-o", str(run), "--", "cat"],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    return process, next(line for line in process.stderr if "live page" in line)


def test_a_log_gets_the_address_of_the_live_page_without_its_code(telltale: Telltale, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    process, line = beside_a_log(telltale, tmp_path / "run", state)
    address = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert address, line
    assert "code=" not in line
    # What the line tells to do signs in.
    assert "telltale serve --print-token" in line
    token = telltale("serve", "--print-token", env=state).stdout.strip()
    request = urllib.request.Request(
        address[0] + "api/session",
        data=json.dumps({"code": token}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        cookie = answer.headers["Set-Cookie"].split(";")[0]
    request = urllib.request.Request(address[0] + "api/runs", headers={"Cookie": cookie})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert [run["id"] for run in json.load(answer)["runs"]] == ["run"]
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, rest
    assert "code=" not in rest


def test_where_no_token_can_be_kept_the_log_gets_a_link_that_opens(
    telltale: Telltale, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    state = {"XDG_STATE_HOME": str(tmp_path / "file")}
    process, line = beside_a_log(telltale, tmp_path / "run", state)
    link = re.search(r"(http://127\.0\.0\.1:\d+/)#code=([0-9a-f]+)$", line.rstrip())
    assert link, line
    request = urllib.request.Request(
        link[1] + "api/session",
        data=json.dumps({"code": link[2]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 200
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, rest
    assert "good for this server alone" in (tmp_path / "run/logs/serve.log").read_text()


def test_parameters_are_bit_identical_after_200_steps(telltale: Telltale, tmp_path: Path) -> None:
    plain = tmp_path / "plain.pt"
    watched = tmp_path / "watched.pt"
    subprocess.run([telltale.python, TINY, "200", "--save", plain], check=True)
    done = telltale.run(tmp_path / "run", telltale.python, TINY, "200", "--save", watched)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 200\n"
    assert plain.read_bytes() == watched.read_bytes() or same_parameters(telltale.python, plain, watched)
    assert telltale.rows(tmp_path / "run", "steps")[-1]["step"] == 199


def same_parameters(python: str, a: Path, b: Path) -> bool:
    code = (
        "import sys,torch;a,b=map(torch.load,sys.argv[1:]);"
        "sys.exit(0 if all(x.numpy().tobytes()==y.numpy().tobytes() for x,y in zip(a,b)) else 1)"
    )
    return subprocess.run([python, "-c", code, a, b], check=False).returncode == 0


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_codes_come_through(telltale: Telltale, tmp_path: Path, code: int) -> None:
    assert telltale.run(tmp_path / "run", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGABRT"])
def test_signals_come_through(telltale: Telltale, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    done = telltale.run(run, "sh", "-c", f"kill -{name.removeprefix('SIG')} $$")
    assert done.returncode == -getattr(signal, name)
    [listed] = json.loads(telltale("ls", tmp_path, "--json").stdout)["runs"]
    assert listed["state"].startswith("killed")


def test_command_that_cannot_start(telltale: Telltale, tmp_path: Path) -> None:
    assert telltale.run(tmp_path / "a", tmp_path / "nothing-here").returncode == 127
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    assert telltale.run(tmp_path / "b", plain).returncode == 126


def test_output_of_the_training_is_untouched(telltale: Telltale, tmp_path: Path) -> None:
    done = telltale.run(tmp_path / "run", "sh", "-c", "printf 'a\\0b'; printf err >&2; cat", input="x")
    assert done.stdout == "a\0bx"
    assert "err" in done.stderr


def test_live_findings_equal_those_of_check(telltale: Telltale, tmp_path: Path) -> None:
    """The slow demo has findings; those that the watcher wrote live are those of the replay."""
    run = tmp_path / "run"
    slow = REPO / "examples/demo/train_slow.py"
    done = telltale.run(run, telltale.python, slow, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    live: dict[str, dict] = {}
    for row in telltale.rows(run, "findings"):
        if row["revision"] >= live.get(row["incident"], row)["revision"]:
            live[row["incident"]] = row
    keys = ("rule", "subject", "severity", "first_step", "last_step", "state", "cause")

    def essence(finding: dict) -> tuple:
        return (*(finding[k] for k in keys), round(finding["cost_seconds"], 6))

    checked = telltale.check(run)["findings"]
    fired, found = set(map(essence, live.values())), set(map(essence, checked))
    told = [e for e in telltale.rows(run, "events") if e["kind"].startswith(("order.", "rule"))]
    assert fired == found, {
        "only live": fired - found,
        "only in check": found - fired,
        "told by the watcher": [(e["kind"], e["data"]) for e in told],
        "said by run": done.stderr,
        "logs": {log.name: log.read_text() for log in (run / "logs").iterdir()},
    }
    assert len(live) == len(checked)
    assert {f["rule"] for f in checked} >= {"InputBound", "LossNotDecreasing"}


def test_environment_is_left_alone(telltale: Telltale, tmp_path: Path) -> None:
    code = "import os,sys,json;print(json.dumps([sorted(os.environ),sys.argv,sys.flags.isolated]))"
    plain = json.loads(subprocess.check_output([telltale.python, "-c", code, "x"], text=True))
    done = telltale.run(tmp_path / "run", telltale.python, "-c", code, "x")
    watched = json.loads(done.stdout)
    extra = set(watched[0]) - set(plain[0])
    assert all(name.startswith("TELLTALE_") or name == "PYTHONPATH" for name in extra), extra
    assert watched[1:] == plain[1:]
