# SPDX-License-Identifier: Apache-2.0
"""`telltale export` to formats of traces, stacks and tables, read by the tools that they are for.

The run of slices is that of tests/support/make_slice_run.cc: each step is 1000 us.
"""

from __future__ import annotations

import collections
import csv
import gzip
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
TELLTALE = Path(os.environ.get("TELLTALE_BIN", BUILD / "bin" / "telltale"))
MAKE_SLICE_RUN = Path(os.environ.get("TELLTALE_MAKE_SLICE_RUN", BUILD / "tests" / "make_slice_run"))
MAKE_SAMPLE_RUN = Path(os.environ.get("TELLTALE_MAKE_SAMPLE_RUN", BUILD / "tests" / "make_sample_run"))
SPEEDSCOPE_SCHEMA = ROOT / "tests" / "data" / "speedscope" / "file-format-schema.json"
STEPS = 3
HOST_US = 1280  # of a step: the training's thread and the backward's
DEVICE_US = 440


def telltale(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TELLTALE), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def export(*arguments: object) -> dict[str, Any]:
    done = telltale("export", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("traced") / "run"
    subprocess.run([str(MAKE_SLICE_RUN), str(run), str(STEPS)], check=True, timeout=PATIENCE_S)
    return run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as the agent records it: spans, steps, metrics, scalars, no slices."""
    run = tmp_path_factory.mktemp("recorded") / "run"
    subprocess.run([str(MAKE_SAMPLE_RUN), str(run), "healthy"], check=True, timeout=PATIENCE_S)
    return run


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    done = telltale("query", run, table, "--format", "json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


# Chrome


def test_chrome_has_every_slice_at_its_time(traced: Path, tmp_path: Path) -> None:
    report = export("chrome", traced, "-o", tmp_path / "run.json.gz")
    with gzip.open(tmp_path / "run.json.gz", "rt") as file:
        trace = json.load(file)
    slices = rows(traced, "slices")
    assert report["slices"] == len(slices)
    base = trace["baseTimeNanoseconds"]

    def shape(name: str, begin: float, duration: float) -> tuple[str, int, int]:
        return name, round(begin), round(duration)

    written = collections.Counter(
        shape(e["name"], base + e["ts"] * 1000, e["dur"] * 1000)
        for e in trace["traceEvents"]
        if e["ph"] == "X"
    )
    stored = collections.Counter(
        shape(s["name"], s["time_ns"], s["duration_ns"]) for s in slices if s["category"] != "memory"
    )
    assert written == stored
    arrows = collections.Counter((e["ph"], e["cat"]) for e in trace["traceEvents"] if e["ph"] in "sf")
    assert set(arrows.values()) == {arrows["s", "ac2g"], arrows["s", "fwdbwd"]}
    assert arrows["s", "ac2g"] == arrows["f", "ac2g"] == 4 * STEPS
    assert arrows["s", "fwdbwd"] == arrows["f", "fwdbwd"] == 2 * STEPS


def test_chrome_to_stdout_is_the_same(traced: Path, tmp_path: Path) -> None:
    done = telltale("export", "chrome", traced)
    assert done.returncode == 0
    export("chrome", traced, "-o", tmp_path / "run.json")
    assert done.stdout == (tmp_path / "run.json").read_text()


def test_chrome_of_a_live_recording(recorded: Path) -> None:
    done = telltale("export", "chrome", recorded)
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout)["traceEvents"]
    names = {e["name"] for e in events if e["ph"] == "X"}
    assert any(name.startswith("TRAIN step") for name in names)
    assert len([e for e in events if e["ph"] == "X"]) == len(rows(recorded, "steps")) + len(
        rows(recorded, "spans")
    )
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert any(name.startswith("loss") for name in counters)
    assert any(name.startswith("cpu.") for name in counters)


# Perfetto


def perfetto_packets(path: Path) -> Any:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace.packet


def perfetto_slices(path: Path) -> list[tuple[str, int, int]]:
    """Name, begin and duration as a reader of the format finds them."""
    names: dict[int, str] = {}
    open_slices: dict[int, list[tuple[str, int]]] = collections.defaultdict(list)
    out = []
    events = []
    for packet in perfetto_packets(path):
        if packet.sequence_flags & 1:
            names.clear()
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        if packet.HasField("track_event"):
            event = packet.track_event
            events.append((packet.timestamp, event.type, event.track_uuid, names.get(event.name_iid, "")))
    for time, kind, track, name in sorted(events, key=lambda e: e[0]):  # stable, as the tools sort
        if kind == 1:
            open_slices[track].append((name, time))
        elif kind == 2:
            began = open_slices[track].pop()
            out.append((began[0], began[1], time - began[1]))
    assert not any(open_slices.values()), "every slice ends"
    return out


def test_perfetto_has_every_slice_at_its_time(traced: Path, tmp_path: Path) -> None:
    export("perfetto", traced, "-o", tmp_path / "run.pftrace")
    stored = [
        (s["name"], s["time_ns"], s["duration_ns"])
        for s in rows(traced, "slices")
        if s["category"] != "memory"
    ]
    assert sorted(perfetto_slices(tmp_path / "run.pftrace")) == sorted(stored)


def test_perfetto_names_processes_threads_and_streams(traced: Path, tmp_path: Path) -> None:
    export("perfetto", traced, "-o", tmp_path / "run.pftrace")
    packets = perfetto_packets(tmp_path / "run.pftrace")
    tracks = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    assert {(t.thread.pid, t.thread.tid, t.thread.thread_name) for t in tracks if t.HasField("thread")} == {
        (100, 1, "thread 1 (python)"),
        (100, 2, "thread 2 (pt_autograd_0)"),
    }
    assert "stream 7" in {t.name for t in tracks}
    by_id = {t.uuid: t for t in tracks}
    assert all(t.parent_uuid in by_id for t in tracks if t.parent_uuid)
    flows = collections.Counter(f for p in packets for f in p.track_event.flow_ids)
    assert set(flows.values()) == {2}, "both ends of each arrow"
    assert len(flows) == 6 * STEPS


def test_perfetto_counters_of_a_live_recording(recorded: Path, tmp_path: Path) -> None:
    export("perfetto", recorded, "-o", tmp_path / "run.pftrace")
    packets = perfetto_packets(tmp_path / "run.pftrace")
    names = {
        p.track_descriptor.uuid: p.track_descriptor.name for p in packets if p.HasField("track_descriptor")
    }
    loss = [
        p.track_event.double_counter_value
        for p in packets
        if p.track_event.type == 4 and names[p.track_event.track_uuid] == "loss (TRAIN)"
    ]
    assert loss == [s["value"] for s in rows(recorded, "scalars") if s["name"] == "loss"]


def test_perfetto_opens_in_trace_processor(traced: Path, tmp_path: Path) -> None:
    shell = os.environ.get("TRACE_PROCESSOR_SHELL") or shutil.which("trace_processor_shell")
    if shell is None:
        pytest.skip("no trace_processor_shell: set TRACE_PROCESSOR_SHELL to Perfetto's binary")
    api = pytest.importorskip("perfetto.trace_processor")
    export("perfetto", traced, "-o", tmp_path / "run.pftrace")
    config = api.TraceProcessorConfig(bin_path=shell)
    with api.TraceProcessor(trace=str(tmp_path / "run.pftrace"), config=config) as processor:
        found = [
            (r.name, r.ts, r.dur) for r in processor.query("select name, ts, dur from slice where dur > 0")
        ]
    stored = [(s["name"], s["time_ns"], s["duration_ns"]) for s in rows(traced, "slices") if s["duration_ns"]]
    assert sorted(found) == sorted(stored)


# Stacks


def pprof_binary() -> str:
    found = (
        os.environ.get("TELLTALE_PPROF")
        or shutil.which("pprof")
        or shutil.which("pprof", path=str(Path.home() / "go" / "bin"))
    )
    if not found:
        pytest.skip("no pprof: go install github.com/google/pprof@latest, or set TELLTALE_PPROF")
    return found


def test_pprof_opens_in_pprof(traced: Path, tmp_path: Path) -> None:
    pprof = pprof_binary()
    export("pprof", traced, "-o", tmp_path / "run.pb.gz")

    def top(sample: str) -> dict[str, tuple[str, str]]:
        done = subprocess.run(
            [pprof, "-top", "-unit=us", f"-sample_index={sample}", str(tmp_path / "run.pb.gz")],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
            env={**os.environ, "PPROF_TMPDIR": str(tmp_path)},
        )
        lines = [line.split(None, 5) for line in done.stdout.splitlines() if re.match(r"^ *[0-9]", line)]
        # A name is followed by its file where pprof shows it.
        return {line[5].split()[0]: (line[0], line[3]) for line in lines}

    time = top("time")
    assert time["train_step"] == (f"{350 * STEPS}us", f"{1000 * STEPS}us"), "own and with callees"
    assert time["AddmmBackward0"] == (f"{280 * STEPS}us", f"{280 * STEPS}us")
    device = top("device")
    assert device["sgemm_128x64"][0] == f"{240 * STEPS}us"
    assert device["train_step"] == ("0", f"{240 * STEPS}us")
    assert top("bytes")  # 4096 bytes an operator


def pprof_profile(path: Path) -> Any:
    """The fields of pprof's profile.proto that are needed, as its own parsers see them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="pprof", syntax="proto3")

    def message(title: str, /, **fields: tuple[int, str, bool]) -> None:
        out = file.message_type.add(name=title)
        for field, (number, kind, repeated) in fields.items():
            one = out.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind[0].isupper():
                one.type, one.type_name = 11, f".pprof.{kind}"
            else:
                one.type = {"int64": 3, "uint64": 4, "string": 9, "bool": 8}[kind]

    message("ValueType", type=(1, "int64", False), unit=(2, "int64", False))
    message("Sample", location_id=(1, "uint64", True), value=(2, "int64", True))
    message("Line", function_id=(1, "uint64", False), line=(2, "int64", False))
    message("Location", id=(1, "uint64", False), mapping_id=(2, "uint64", False), line=(4, "Line", True))
    message("Function", id=(1, "uint64", False), name=(2, "int64", False), filename=(4, "int64", False))
    message(
        "Profile",
        sample_type=(1, "ValueType", True),
        sample=(2, "Sample", True),
        location=(4, "Location", True),
        function=(5, "Function", True),
        string_table=(6, "string", True),
        default_sample_type=(14, "int64", False),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = message_factory.GetMessageClass(pool.FindMessageTypeByName("pprof.Profile"))()
    with gzip.open(path) as compressed:
        profile.ParseFromString(compressed.read())
    return profile


def test_pprof_sums_are_those_of_the_run(traced: Path, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    report = export("pprof", traced, "-o", tmp_path / "run.pb.gz")
    profile = pprof_profile(tmp_path / "run.pb.gz")
    texts = profile.string_table
    assert texts[0] == ""
    types = [(texts[t.type], texts[t.unit]) for t in profile.sample_type]
    assert types == [
        ("time", "nanoseconds"),
        ("device", "nanoseconds"),
        ("count", "count"),
        ("bytes", "bytes"),
    ]
    assert len(profile.sample) == report["stacks"]
    sums = [sum(s.value[i] for s in profile.sample) for i in range(4)]
    assert sums[0] == HOST_US * 1000 * STEPS
    assert sums[1] == DEVICE_US * 1000 * STEPS
    assert sums[3] == 2 * 4096 * STEPS
    locations = {location.id for location in profile.location}
    assert all(i in locations for sample in profile.sample for i in sample.location_id)


def test_collapsed_stacks_add_up(traced: Path) -> None:
    done = telltale("export", "collapsed", traced)
    assert done.returncode == 0, done.stderr
    values = {}
    for line in done.stdout.splitlines():
        stack, value = line.rsplit(" ", 1)
        values[stack] = int(value)
    assert sum(values.values()) == HOST_US * 1000 * STEPS
    deep = "train.py(12): train_step;model.py(30): forward;nn.Module: Linear_0;aten::linear"
    assert values[deep] == 180_000 * STEPS
    done = telltale("export", "collapsed", traced, "--sample-type", "device", "--step", 1)
    assert f"{deep};sgemm_128x64 120000\n" in done.stdout


# Sampled stacks beside a profiler's slices


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sampled") / "run"
    subprocess.run([str(MAKE_SLICE_RUN), str(run), str(STEPS), "stacks"], check=True, timeout=PATIENCE_S)
    return run


def stacks_of(*arguments: object) -> dict[str, int]:
    done = telltale("export", "collapsed", *arguments)
    assert done.returncode == 0, done.stderr
    return {
        stack: int(value) for stack, _, value in (line.rpartition(" ") for line in done.stdout.splitlines())
    }


def test_both_kinds_of_stacks_are_there_apart(sampled: Path, traced: Path, tmp_path: Path) -> None:
    of_sampled = stacks_of(sampled, "--source", "sampled")
    of_trace = stacks_of(sampled, "--source", "trace")
    assert of_sampled == {
        "main thread;other": 600_000 * STEPS,
        "main thread;forward;model.py(30): forward": 400_000 * STEPS,
    }
    assert of_trace == stacks_of(traced), "as if nothing had been sampled"
    both = stacks_of(sampled)
    assert both == {f"sampled stacks;{stack}": ns for stack, ns in of_sampled.items()} | {
        f"windows of detail;{stack}": ns for stack, ns in of_trace.items()
    }
    assert stacks_of(sampled, "--source", "both") == both
    assert stacks_of(sampled, "--phase", "forward") == {
        "main thread;forward;model.py(30): forward": 400_000 * STEPS
    }
    assert sum(stacks_of(sampled, "--step", "1").values()) == sum(both.values()) // STEPS
    assert export("pprof", sampled, "-o", tmp_path / "run.pb.gz")["stacks"] > len(of_trace)
    assert b"sampled stacks" in gzip.decompress((tmp_path / "run.pb.gz").read_bytes())
    export("flamegraph", sampled, "-o", tmp_path / "run.html")
    assert '"windows of detail"' in (tmp_path / "run.html").read_text()
    # The kernels are the trace's.
    assert all(
        stack.startswith("windows of detail;") for stack in stacks_of(sampled, "--sample-type", "device")
    )


def test_the_report_has_a_graph_of_each(sampled: Path, tmp_path: Path) -> None:
    done = telltale("report", sampled, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="fg"') == 2
    assert ">forward · model.py:30</a>" in page and "<script" not in page


# speedscope


@pytest.mark.parametrize("kind", ["traced", "recorded"])
def test_speedscope_passes_its_schema(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    run = request.getfixturevalue(kind)
    export("speedscope", run, "-o", tmp_path / "run.speedscope.json")
    page = json.loads((tmp_path / "run.speedscope.json").read_text())
    jsonschema.validate(page, json.loads(SPEEDSCOPE_SCHEMA.read_text()))
    for profile in page["profiles"]:
        at = [event["at"] for event in profile["events"]]
        assert at == sorted(at)
    begun = sum(e["type"] == "O" for p in page["profiles"] for e in p["events"])
    stored = rows(run, "slices") if kind == "traced" else rows(run, "spans") + rows(run, "steps")
    assert begun == sum(s.get("category") != "memory" for s in stored)


# Tables


def test_parquet_opens_in_duckdb_and_pandas(traced: Path, recorded: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    for run, table in ((traced, "slices"), (recorded, "steps"), (recorded, "metrics")):
        file = tmp_path / f"{table}.parquet"
        assert export("parquet", run, "--table", table, "-o", file)["rows"] == len(rows(run, table))
        relation = duckdb.sql(f"select * from '{file}'")
        stored = rows(run, table)
        assert relation.columns == list(stored[0])
        found = [dict(zip(relation.columns, row)) for row in relation.fetchall()]
        assert found == stored
        frame = pandas.read_parquet(file)
        assert len(frame) == len(stored)
        assert list(frame["seq"]) == [row["seq"] for row in stored]


def test_csv_is_what_query_prints(recorded: Path, tmp_path: Path) -> None:
    export("csv", recorded, "--table", "steps", "-o", tmp_path / "steps.csv")
    done = telltale("query", recorded, "steps")
    with open(tmp_path / "steps.csv", newline="") as file:
        written = file.read()
    assert list(csv.reader(io.StringIO(written))) == list(csv.reader(io.StringIO(done.stdout)))


# Timelines


def test_a_timeline_for_each_step(traced: Path, tmp_path: Path) -> None:
    report = export("timeline", traced, "-o", tmp_path / "timelines")
    assert [Path(f).name for f in report["files"]] == [f"timeline-{s}.json" for s in range(STEPS)]
    assert report["outside"] == 0
    for file in report["files"]:
        events = json.loads(Path(file).read_text())["traceEvents"]
        groups = [e["args"]["name"] for e in events if e["ph"] == "M"]
        assert groups[0] == "Allocators"
        assert {g.rsplit(" ", 1)[1] for g in groups[1:]} == {"Compute", "Tensors"}
        computed = collections.Counter(e["name"] for e in events if e["ph"] == "X")
        assert computed["aten::linear"] == 2
        assert computed["sgemm_128x64"] == 2
        rows_of = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                rows_of[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        for row in rows_of.values():
            assert all(a[1] <= b[0] for a, b in zip(sorted(row), sorted(row)[1:])), "one at a time"
        assert collections.Counter(e["ph"] for e in events)["N"] == 2


def test_a_timeline_of_one_step_alone(traced: Path, tmp_path: Path) -> None:
    report = export("timeline", traced, "-o", tmp_path / "timelines", "--step", 1)
    assert [Path(f).name for f in report["files"]] == ["timeline-1.json"]
    done = telltale("export", "timeline", traced, "-o", tmp_path / "timelines", "--step", 99)
    assert done.returncode == 2
    assert "no step 99" in done.stderr


def test_a_timeline_of_a_live_recording(recorded: Path, tmp_path: Path) -> None:
    report = export("timeline", recorded, "-o", tmp_path / "timelines", "--step", 2)
    events = json.loads(Path(report["files"][0]).read_text())["traceEvents"]
    assert len([e for e in events if e["ph"] == "X"]) == len(
        [s for s in rows(recorded, "spans") if s["step"] == 2]
    )


# Usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parquet", "RUN", "-o", "x"], "--table"),
        (["csv", "RUN", "--table", "nosuch"], "no table 'nosuch'"),
        (["perfetto", "RUN"], "-o FILE"),
        (["timeline", "RUN"], "-o DIR"),
        (["chrome", "RUN", "--json"], "-o FILE"),
        (["collapsed", "RUN", "--source", "sampled"], "telltale run --stacks"),
        (["collapsed", "RUN", "--source", "trace", "--phase", "forward"], "--source trace"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], words: str, traced: Path) -> None:
    done = telltale("export", *[traced if a == "RUN" else a for a in arguments])
    assert done.returncode == 2
    assert words in done.stderr


def test_a_folder_that_is_not_there_is_an_error_of_storage(traced: Path, tmp_path: Path) -> None:
    done = telltale("export", "chrome", traced, "-o", tmp_path / "no" / "such" / "run.json")
    assert done.returncode == 5
    assert "run.json" in done.stderr
