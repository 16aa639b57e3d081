# SPDX-License-Identifier: Apache-2.0
"""`telltale import` of PyTorch's traces, and commands straight on them, against the JSON itself."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
TELLTALE = Path(os.environ.get("TELLTALE_BIN", ROOT / "build" / "release" / "bin" / "telltale"))


def shared() -> Path:
    """The folder of real inputs beside the repository; a worktree's is beside the main one."""
    common = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--path-format=absolute", "--git-common-dir"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    places = [ROOT.parent / "shared", *([Path(common).parent.parent / "shared"] if common else [])]
    return next((place / "data" for place in places if (place / "data").is_dir()), ROOT / "no-data")


DATA = shared()
KINETO = sorted((DATA / "kineto").glob("*.gz"))
TRACES = KINETO + sorted((DATA / "hta").glob("*.gz"))
needs_data = pytest.mark.skipif(not KINETO, reason="the folder of real inputs is not there")


def telltale(*arguments: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(TELLTALE), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )
    assert done.returncode == code, done.stderr
    return done


def rows(run: Path, table: str, *more: object) -> list[dict[str, Any]]:
    return list(json.loads(telltale("query", run, table, "--format", "json", *more).stdout))


def events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        return list(json.load(file)["traceEvents"])


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


@needs_data
@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.split(".")[0])
def test_every_event_of_real_traces_arrives(trace: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = json.loads(telltale("import", trace, "-o", run, "--json").stdout)
    original = [event for event in events(trace) if event["ph"] in ("X", "i")]
    assert summary["slices"] == len(original)
    assert not [counter for counter in summary["counters"] if counter["loss"]]
    found = rows(run, "slices", "--columns", "name,kind,duration_ns,correlation,device,stream,bytes")
    assert [row["name"] for row in found] == [event["name"] for event in original]
    assert [row["kind"] for row in found] == [event.get("cat", "") for event in original]
    assert [row["duration_ns"] for row in found] == [round(event.get("dur", 0) * 1000) for event in original]
    arguments = [event.get("args", {}) for event in original]
    assert [row["correlation"] for row in found] == [one.get("correlation", 0) for one in arguments]
    assert [row["bytes"] for row in found] == [one.get("bytes", 0) for one in arguments]
    for row, one in zip(found, arguments, strict=True):
        if row["device"] >= 0 and "device" in one:
            assert (row["device"], row["stream"]) == (one["device"], one["stream"])
    marks = {
        int(event["name"].split("#")[1])
        for event in original
        if event["name"].startswith("ProfilerStep#") and event["cat"] != "gpu_user_annotation"
    }
    steps = rows(run, "steps")
    assert {row["step"] for row in steps} == marks
    for row in steps:
        phases = ("data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns", "comm_wait_ns", "other_ns")
        assert sum(row[phase] for phase in phases) == row["duration_ns"]
        assert all(row[phase] >= 0 for phase in phases)
    telltale("verify", run)


def share_of_data(trace: Path) -> float:
    """Time in the DataLoader over the time of the trace's own step marks."""
    original = events(trace)
    steps = sum(event["dur"] for event in original if event["name"].startswith("ProfilerStep#"))
    data = sum(event["dur"] for event in original if event["name"].startswith("enumerate(DataLoader)#"))
    return float(data / steps)


@needs_data
@pytest.mark.parametrize(("workers", "bound"), [(0, True), (4, False)])
def test_input_bound_agrees_with_the_step_marks(workers: int, bound: bool) -> None:
    trace = DATA / "kineto" / f"resnet50_num_workers_{workers}.pt.trace.json.gz"
    share = share_of_data(trace)
    checked = json.loads(telltale("check", trace, "--json").stdout)
    found = [finding for finding in checked["findings"] if finding["rule"] == "InputBound"]
    assert bool(found) == bound
    state = next(rule for rule in checked["rules"] if rule["name"] == "InputBound")
    assert state["status"] == ("IssuesFound" if bound else "NoIssuesFound")
    if bound:
        assert abs(found[0]["evidence"]["share"] - share) < 0.02
        assert found[0]["severity"] == "high"
        assert found[0]["evidence"]["steps"] == 6
        assert "num_workers=0" in found[0]["cause"]
    steps = json.loads(telltale("query", trace, "steps", "--format", "json").stdout)
    ours = sum(row["data_wait_ns"] for row in steps) / sum(row["duration_ns"] for row in steps)
    assert abs(ours - share) < 0.02


@needs_data
@pytest.mark.parametrize("trace", KINETO, ids=lambda path: path.name.split(".")[0])
def test_work_without_a_launch_was_launched_before_the_window(trace: Path, tmp_path: Path) -> None:
    original = [event for event in events(trace) if event["ph"] == "X"]
    calls = {event["args"]["correlation"] for event in original if event["cat"] == "Runtime"}
    work = [event for event in original if event["cat"] in ("Kernel", "Memcpy", "Memset")]
    alone = [event for event in work if event["args"]["correlation"] not in calls]
    assert len(alone) > 700
    assert max(event["args"]["correlation"] for event in alone) < min(calls)
    telltale("import", trace, "-o", tmp_path / "run")
    view = ("--view", "op", "--sum", "--max_depth", 100_000, "--json")
    said = json.loads(telltale("profile", tmp_path / "run", *view).stdout)
    nodes = {node["name"]: node for node in said["root"]["children"]}
    found = nodes["(launch not recorded)"]["accelerator_exec_micros"]
    assert found == pytest.approx(sum(event["dur"] for event in alone), rel=1e-6)


@needs_data
def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    ranks = sorted((DATA / "hta").glob("sampled_rank-*.gz"))
    summary = json.loads(telltale("import", *ranks, "-o", tmp_path / "run", "--json").stdout)
    assert summary["ranks"] == [0, 1]
    sources = rows(tmp_path / "run", "events", "--where", "kind = 'trace.source'")
    assert [row["rank"] for row in sources] == [0, 1]
    clock = json.loads(sources[1]["data"])["clock"]
    assert "uncertainty_ns" in clock or clock["matched"] < 3
    assert {row["rank"] for row in rows(tmp_path / "run", "steps")} == {0, 1}


@needs_data
def test_what_a_cut_leaves_is_used(tmp_path: Path) -> None:
    whole = KINETO[0].read_bytes()
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    done = telltale("import", cut, "-o", tmp_path / "run", "--json", code=7)
    summary = json.loads(done.stdout)
    original = [event for event in events(KINETO[0]) if event["ph"] in ("X", "i")]
    assert len(original) / 4 < summary["slices"] < len(original)
    names = [row["name"] for row in rows(tmp_path / "run", "slices", "--columns", "name")]
    assert names == [event["name"] for event in original][: len(names)]
    assert {counter["name"] for counter in summary["counters"]} >= {
        "import.streams_damaged",
        "import.pieces_damaged",
    }
    # Several members are one text.
    text = gzip.decompress(whole)
    members = tmp_path / "members.json.gz"
    members.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]))
    summary = json.loads(telltale("import", members, "-o", tmp_path / "members", "--json").stdout)
    assert summary["slices"] == len(original)


def mini(steps: int = 4) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for step in range(steps):
        begin = 1_700_000_000_000_000 + step * 100_000
        base = {"ph": "X", "pid": 1, "tid": 1}
        out += [
            {**base, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 99_990},
            {**base, "cat": "cpu_op", "name": "enumerate(DataLoader)#x.__next__", "ts": begin, "dur": 50_000},
            {**base, "cat": "cpu_op", "name": "aten::mm", "ts": begin + 60_000, "dur": 10_000},
        ]
    return {"schemaVersion": 1, "traceEvents": out}


def temporary_runs(folder: Path) -> list[Path]:
    return list(folder.glob("telltale-*"))


def test_commands_take_traces(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", mini())
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    checked = json.loads(telltale("check", trace, "--json", env=environment).stdout)
    assert any(finding["rule"] == "InputBound" for finding in checked["findings"])
    assert telltale("query", trace, "steps", "--columns", "step", env=environment).stdout.split() == [
        "step",
        *"0123",
    ]
    telltale("report", trace, env=environment, cwd=tmp_path)
    page = (tmp_path / "t.json.report.html").read_text(encoding="utf-8")
    assert f"telltale report {trace}</code>" in page and str(temporary) not in page
    verdict = telltale("check", trace, env=environment).stdout
    for told in ("report", "serve"):  # What it says to do next can be done.
        assert f"telltale {told} {trace}\n" in verdict
    assert str(temporary) not in verdict
    refused = subprocess.run(
        [TELLTALE, "analyze", str(trace), "gpu", "--rank", "9"], capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert refused.returncode != 0 and str(trace) in refused.stderr and str(temporary) not in refused.stderr
    telltale("export", "pprof", trace, "-o", tmp_path / "t.pb.gz", env=environment)
    profile = gzip.decompress((tmp_path / "t.pb.gz").read_bytes())
    assert f"telltale export pprof {trace}".encode() in profile
    assert temporary_runs(temporary) == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_temporary_run_goes_with_the_command(tmp_path: Path, ending: signal.Signals) -> None:
    trace = write(tmp_path / "t.json", mini())
    with tempfile.TemporaryDirectory() as temporary:
        server = subprocess.Popen(
            [str(TELLTALE), "serve", str(trace)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": temporary},
        )
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http")
        assert len(temporary_runs(Path(temporary))) == 1
        server.send_signal(ending)
        server.wait(timeout=PATIENCE_S)
        wait_until("the end of the temporary run", lambda: temporary_runs(Path(temporary)) == [])


def test_odd_files_say_what_they_are(tmp_path: Path) -> None:
    def refused(content: bytes, code: int) -> str:
        path = tmp_path / "odd.json"
        path.write_bytes(content)
        done = telltale("import", path, "-o", tmp_path / "run", code=code)
        assert not (tmp_path / "run").exists()
        assert done.stderr.startswith("telltale import: ") and done.stderr.count("\n") == 1
        return done.stderr

    assert "empty" in refused(b"", 3)
    refused(b"[", 3)
    refused(b"{}", 3)
    refused(b'{"traceEvents": []}', 3)
    refused(b'[{"ph": "X", "a": ' + b"[" * 200_000, 3)
    telltale("import", tmp_path, "-o", tmp_path / "run", code=2)
    telltale("import", "/dev/zero", "-o", tmp_path / "run", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.json"]


def test_odd_values_are_counted(tmp_path: Path) -> None:
    text = (
        '[{"ph": "X", "name": "a", "ts": 1, "dur": -5, "pid": 1, "tid": 1, "args": {"x": NaN}},'
        '{"ph": "X", "name": "b", "name": "c", "ts": "2.5", "dur": 1, "pid": 1, "tid": 1},'
        '{"ph": "E", "ts": 9, "pid": 1, "tid": 1}, {"ph": "X", "name": "no time"}]'
    )
    trace = tmp_path / "t.json"
    trace.write_text(text)
    done = telltale("import", trace, "-o", tmp_path / "run", "--json", code=7)
    counters = {one["name"]: one["value"] for one in json.loads(done.stdout)["counters"]}
    assert counters == {
        "import.durations_negative": 1,
        "import.values_not_finite": 1,
        "import.keys_duplicate": 1,
        "import.ends_without_begin": 1,
        "import.events_damaged": 1,
    }
    found = rows(tmp_path / "run", "slices", "--columns", "name,time_ns,duration_ns,args")
    assert [(row["name"], row["time_ns"], row["duration_ns"]) for row in found] == [
        ("a", 1000, 0),
        ("c", 2500, 1000),
    ]
    assert json.loads(found[0]["args"]) == {"x": "NaN"}
    ledger = rows(tmp_path / "run", "ledger")
    assert {row["name"]: row["value"] for row in ledger} == counters


def test_a_bomb_ends_at_a_limit(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [{"ph": "X", "name": "')
        for _ in range(600):
            file.write(b"a" * (1 << 20))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    telltale("import", bomb, "-o", tmp_path / "run", code=3)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120, "seconds of a core"
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.json.gz"]


@needs_data
def test_rules_and_compare_take_traces(tmp_path: Path) -> None:
    waits, works = (trace for trace in KINETO)
    status = json.loads(telltale("rules", "status", waits, "--json").stdout)
    found = {rule["name"]: rule["status"] for rule in status["rules"]}
    assert found["InputBound"] == "IssuesFound"
    run = tmp_path / "run"
    telltale("import", waits, "-o", run)
    of_run = json.loads(telltale("rules", "status", run, "--json").stdout)
    assert {rule["name"]: rule["status"] for rule in of_run["rules"]} == found
    # Six steps each: what there is is shown, and that it judges nothing is said.
    compared = json.loads(telltale("compare", waits, works, "--json").stdout)
    assert [compared[side]["steps"] for side in "ab"] == [6, 6]
    assert {measure["name"] for measure in compared["measures"]} >= {"step time"}
    assert json.loads(telltale("compare", run, works, "--json").stdout)["measures"] == compared["measures"]
    telltale("compare", waits, works, "--fail-on", "regression", code=3)
    for command in (("rules", "status"), ("compare", waits)):
        done = telltale(*command, tmp_path / "none", code=3)
        assert len(done.stderr.splitlines()) == 1
