# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the corpora: small whole files of each format, made here or taken from the project's own.

usage: make_corpus.py        from anywhere; what was found by fuzzing (found-*) stays. Needs the program
                             fuzz_rows_corpus of the release build.
"""

from __future__ import annotations

import cProfile
import gzip
import json
import re
import sqlite3
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
GOLDEN = TESTS / "golden" / "v1" / "run"
SMDEBUG = TESTS / "data" / "smdebug" / "recording"
RECORDS = TESTS.parent / "src" / "format" / "records.toml"
ROWS_CORPUS = TESTS.parent / "build" / "release" / "tests" / "fuzz_rows_corpus"
# Seeds of rows: larger ones cost the fuzzer more than they show.
MOST_ROWS_BYTES = 6 << 10
START_NS = 1_700_000_000_000_000_000


def put(target: str, name: str, content: bytes | str) -> None:
    path = HERE / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


# Protocol buffers.


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def entry(key: int | str, value: bytes | str) -> bytes:
    return field(1, key) + field(2, value)


# Chrome's JSON and what is like it.


def kineto(steps: int = 2) -> dict[str, object]:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "ts": 0, "args": {"name": "main \u00e9"}},
        {"ph": "C", "name": "memory", "pid": 7, "ts": 1, "args": {"allocated": 4096, "reserved": 8192.5}},
        {"ph": "b", "cat": "x", "name": "async", "id": "0x1f", "pid": 7, "tid": 7, "ts": 2, "args": {}},
        {"ph": "e", "cat": "x", "name": "async", "id": "0x1f", "pid": 7, "tid": 7, "ts": 40},
        {"ph": "B", "name": "outer", "pid": 7, "tid": 8, "ts": 3},
        {"ph": "E", "name": "outer", "pid": 7, "tid": 8, "ts": 30, "args": {"more": [1, {"a": "b"}]}},
        {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 7, "tid": 7, "ts": 4, "s": "t"},
    ]
    for step in range(steps):
        begin = 100 + 1000 * step
        on_host = {"ph": "X", "pid": 7, "tid": 7}
        on_device = {"ph": "X", "pid": 0, "tid": 7}
        where = {"correlation": step + 1, "External id": step + 1}
        events += [
            {**on_host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 990},
            {
                **on_host,
                "cat": "cpu_op",
                "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "ts": begin + 1,
                "dur": 100.125,
            },
            {
                **on_host,
                "cat": "cpu_op",
                "name": "aten::mm",
                "ts": begin + 200,
                "dur": 50,
                "args": {"External id": step + 1, "Input Dims": [[8, 4], [4, 2]], "flops": 128},
            },
            {
                **on_host,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": begin + 210,
                "dur": 5,
                "args": where,
            },
            {
                "ph": "s",
                "id": step + 1,
                "pid": 7,
                "tid": 7,
                "ts": begin + 200,
                "cat": "fwdbwd",
                "name": "fwdbwd",
            },
            {"ph": "f", "id": step + 1, "pid": 7, "tid": 7, "ts": begin + 400, "cat": "fwdbwd", "bp": "e"},
            {
                **on_device,
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_f32",
                "ts": begin + 230,
                "dur": 90,
                "args": {**where, "device": 0, "stream": 7, "grid": [1, 2, 3]},
            },
            {
                **on_device,
                "cat": "gpu_memcpy",
                "name": "Memcpy HtoD",
                "ts": begin + 120,
                "dur": 2,
                "args": {"device": 0, "stream": 7, "bytes": 4096, "memory bandwidth (GB/s)": 1.5},
            },
        ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100", "computeMajor": 9}],
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
        "baseTimeNanoseconds": START_NS,
        "traceEvents": events,
        "displayTimeUnit": "ms",
    }


TIMELINE = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1700000000000000}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
{"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "gpu_functions-dev:2"}},
{"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "DataLoaderIter"}},
{"name": "Step:ModeKeys.TRAIN", "pid": 1, "ph": "X", "ts": 1000, "dur": 500, "args": {"pid": 97, "step_num": "3"}},
{"name": "Memcpy HtoD", "pid": 2, "ph": "X", "ts": 1100.5, "dur": 20, "args": {"pid": 97, "tid": 5, "device": "2"}},
{"name": "DataLoaderIter::GetNext", "pid": 3, "ph": "X", "ts": 1600, "dur": 3, "args": {"bytes_fetched": 77}}
]
"""
HOROVOD = """[
{"ph": "i", "name": "CYCLE_START", "ts": 77567277433, "s": "g"},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/dense_1"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 77575718041, "pid": 1},
{"ph": "X", "name": "4", "ts": 77575718043, "pid": 1, "dur": 0},
{"ph": "E", "ts": 77575718058, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 77575718099, "pid": 1},
{"ph": "E", "ts": 77575718150, "pid": 1, "args": {"dtype": "float32", "shape": "[4]"}},
"""
METRICS = "".join(
    json.dumps(
        {
            "Type": kind,
            "Name": name,
            "Dimension": dimension,
            "Value": value,
            "NodeId": "algo-1",
            "Timestamp": 1700000040.25 + second,
        }
    )
    + "\n"
    for second in range(2)
    for kind, name, dimension, value in [
        ("cpu", "cpu0", "CPUUtilization", 80.0),
        ("cpu", "cpu1", "I/OWaitPercentage", 5),
        ("gpu", "gpu0", "GPUUtilization", 55),
        ("network", "Algorithm", "ReceiveBytesPerSecond", 1e6),
        ("odd", "x", "Thing", 3),
    ]
)


def chrome() -> None:
    trace = json.dumps(kineto())
    put("chrome", "kineto.json", trace)
    put("chrome", "array.json", json.dumps(kineto(1)["traceEvents"], indent=1))
    put("chrome", "cut.json", trace[: len(trace) * 2 // 3])
    put(
        "chrome",
        "odd.json",
        '\ufeff{"a":[[]],"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":-5,"pid":1,"tid":1,"args":{"x":NaN,'
        '"y":-Infinity,"z":1e999}},{"ph":"X","name":"b","name":"c\\u00e9","ts":"2.5","dur":1,"pid":"p","tid":"t"},'
        '{"ph":"X","ts":99999999999999999999,"dur":1e18,"args":{"correlation":123456789012345678901}},'
        '{"ph":"E","ts":9},{"ph":"X","name":"no time"},],"traceEvents":[],"schemaVersion":1}',
    )
    put("timeline", "smdebug.json", TIMELINE)
    put("timeline", "horovod.json", HOROVOD)
    put("smdebug_metrics", "system.json", METRICS)
    put("json_scan", "system.json", METRICS)
    put("json_scan", "escapes.json", '{"a\\n": "\\u00e9\\ud83d\\ude00", "b": [1, {"c": -1.5e3}], "d": true}')


# Formats of protocol buffers.


def xspace() -> bytes:
    def named(number: int, key: int, name: str) -> bytes:
        return field(number, entry(key, field(1, key) + field(2, name)))

    def event(name: int, offset_ps: int, duration_ps: int, *stats: bytes) -> bytes:
        return field(
            4,
            field(1, name)
            + field(2, offset_ps)
            + field(3, duration_ps)
            + b"".join(field(4, stat) for stat in stats),
        )

    def line(number: int, name: str, *events: bytes) -> bytes:
        return field(3, field(1, number) + field(2, name) + field(3, 1000) + b"".join(events))

    host = (
        field(2, "/host:CPU")
        + line(
            47,
            "python",
            event(1, 0, 10_000_000, field(1, 1) + field(4, 7)),
            event(2, 4_000_000, 1_000_000),
            event(3, 5_000_000, 500_000, field(1, 2) + field(4, 99)),
        )
        + named(4, 1, "train")
        + named(4, 2, "dense/MatMul:MatMul")
        + named(4, 3, "cuLaunchKernel")
        + named(5, 1, "step_num")
        + named(5, 2, "correlation_id")
    )
    device = (
        field(2, "/device:GPU:1")
        + line(
            7,
            "Stream #7(Compute)",
            event(1, 6_000_000, 3_000_000, field(1, 1) + field(4, 99)),
            event(2, 2_000_000, 1_000_000, field(1, 2) + field(5, "kind_src:pageable size:4096 async:0")),
        )
        + named(4, 1, "void gemm(...)")
        + named(4, 2, "MemcpyH2D")
        + named(5, 1, "correlation_id")
        + named(5, 2, "memcpy_details")
    )
    task = (
        field(2, "Task Environment")
        + named(5, 1, "profile_start_time")
        + field(6, field(1, 1) + field(4, START_NS))
    )
    return field(1, host) + field(1, device) + field(1, task) + field(4, "worker-0")


def step_stats() -> bytes:
    def node(name: str, label: str, start_us: int, *more: bytes) -> bytes:
        return field(
            2,
            field(1, name)
            + field(2, start_us)
            + field(3, 5)
            + field(4, 25)
            + field(5, 26)
            + field(8, label)
            + field(9, start_us - 2)
            + field(10, 33)
            + b"".join(more),
        )

    memory = field(
        6,
        field(1, "GPU_0_bfc")
        + field(2, 4096)
        + field(3, 8192)
        + field(6, field(1, 1_000_020) + field(2, -512)),
    )
    return (
        field(
            1,
            field(1, "/job:localhost/replica:0/task:0/device:CPU:0")
            + node("conv1", "conv1 = Conv2D(x, w)", 1_000_000, memory)
            + node("x/_2", "[CPU] x/_2 = _Recv()", 1_000_100),
        )
        + field(1, field(1, "/device:GPU:0/stream:7") + node("conv1:Conv2D", "", 1_000_010))
        + field(1, field(1, "/device:GPU:0/memcpy") + node("copy", "", 1_000_005))
    )


def tfprof() -> bytes:
    def packed(*values: int) -> bytes:
        return field(1, field(1, b"".join(varint(value) for value in values)))

    run = (
        field(1, 2)
        + field(2, 1_000_000)
        + field(3, 1_000_100)
        + field(4, entry("/device:GPU:0/stream:all", packed(1_000_005, 20)))
        + field(5, entry("/job:localhost/replica:0/task:0/device:GPU:0", packed(1_000_001, 3)))
        + field(7, field(6, 1000) + field(9, 64))
    )
    code = field(1, field(2, 12) + field(6, 1) + field(7, 2)) + field(
        1, field(2, 30) + field(6, 1) + field(7, 3)
    )
    node = (
        field(1, "layer/MatMul")
        + field(8, 2_000_000)
        + field(9, "MatMul")
        + field(10, code)
        + field(12, entry(3, run))
        + field(16, entry(1, field(1, varint(8) + varint(4))))
    )
    texts = b"".join(
        field(4, entry(number, text)) for number, text in enumerate(("train.py", "main", "build"), 1)
    )
    return field(1, entry(0, node)) + texts


def perfetto() -> bytes:
    def packet(*parts: bytes) -> bytes:
        return field(1, b"".join(parts))

    def track_event(time_ns: int, *parts: bytes) -> bytes:
        return packet(field(8, time_ns), field(10, 1), field(11, b"".join(parts)))

    def interned(number: int, key: int, text: str) -> bytes:
        return field(number, field(1, key) + field(2, text))

    clocks = field(1, field(1, 1) + field(2, START_NS)) + field(1, field(1, 6) + field(2, 5_000))
    return (
        packet(field(10, 1), field(6, clocks))
        + packet(
            field(10, 1),
            field(13, 1),
            field(59, field(11, field(11, 0x1234))),
            field(12, interned(1, 1, "cpu_op") + interned(2, 1, "forward") + interned(3, 1, "rows")),
        )
        + packet(
            field(10, 1),
            field(60, field(1, 0x1234) + field(4, field(1, 77) + field(2, 78) + field(5, "main"))),
        )
        + packet(
            field(10, 1),
            field(60, field(1, 0x5678) + field(2, "batch bytes") + field(8, field(3, 3) + field(4, 1024))),
        )
        + track_event(6_000, field(9, 1), field(22, "step"), field(23, "ProfilerStep#4"))
        + track_event(6_100, field(3, 1), field(9, 1), field(10, 1), field(4, field(1, 1) + field(4, 32)))
        + track_event(6_400, field(9, 2))
        + track_event(7_000, field(9, 2))
        + track_event(6_700, field(9, 4), field(11, 0x5678), field(30, 3))
        + track_event(6_800, field(23, "old"), field(6, field(2, ord("X")) + field(3, 2)))
    )


def protocol_buffers() -> None:
    space = xspace()
    put("xspace", "space.xplane.pb", space)
    put("xspace", "as-text.xplane.pb", space.decode("utf-8", "replace"))
    put("run_metadata", "step_stats.pb", step_stats())
    put("run_metadata", "run_metadata.pb", field(1, step_stats()))
    put("tfprof", "profile.pb", tfprof())
    put("perfetto", "trace.pftrace", perfetto())


# Databases, Python, gzip.


def nsys() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.sqlite"
        database = sqlite3.connect(path)
        database.executescript(f"""
            PRAGMA page_size = 512;
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm');
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({START_NS}, '');
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER,
              globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1200, 0, 1291845710, 5, 1, 0);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
              deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              demangledName INTEGER, shortName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1500, 3000, 0, 7, 5, 0, 2, 2);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
              globalTid INTEGER, textId INTEGER, domainId INTEGER);
            INSERT INTO NVTX_EVENTS VALUES (900, 3500, 59, 'step 12', 1291845710, NULL, 0);
        """)
        database.close()
        return path.read_bytes()


def cprofile() -> bytes:
    code = "def leaf(n): return sum(range(n))\ndef outer(n): return leaf(n) + (outer(n - 1) if n else 0)\n"
    names: dict[str, Any] = {}
    exec(compile(code, "train.py", "exec"), names)  # So that no path of this machine is in it.
    profile = cProfile.Profile()
    profile.runcall(names["outer"], 5)
    with tempfile.TemporaryDirectory() as folder:
        profile.dump_stats(Path(folder) / "stats")
        return (Path(folder) / "stats").read_bytes()


def files() -> None:
    database, profile, trace = nsys(), cprofile(), json.dumps(kineto(1)).encode()
    put("nsys", "report.sqlite", database)
    put("cprofile", "stats.pstats", profile)
    zipped = gzip.compress(trace, mtime=0)
    put("gzip_input", "one.gz", zipped)
    put(
        "gzip_input",
        "two.gz",
        gzip.compress(trace[:100], mtime=0) + gzip.compress(trace[100:], mtime=0) + bytes(20),
    )
    put("gzip_input", "stored.gz", gzip.compress(trace[:300], 0, mtime=0))
    for name, content in [
        ("report.sqlite", database),
        ("stats.pstats", profile),
        ("trace.json.gz", zipped),
        ("space.xplane.pb", xspace()),
        ("profile.pb", tfprof()),
        ("stats.pb", step_stats()),
        ("trace.pftrace", perfetto()),
        ("horovod.json", HOROVOD.encode()),
        ("metrics.json", METRICS.encode()),
        ("trace.json", trace),
    ]:
        put("import_any", name, content)


# What SageMaker Debugger and Telltale itself write.


def smdebug() -> None:
    index = (SMDEBUG / "index/000000000/000000000003_worker_0.json").read_bytes()
    events = (SMDEBUG / "events/000000000003/000000000003_worker_0.tfevents").read_bytes()
    put("smdebug_index", "index.json", index)
    collections = json.loads((SMDEBUG / "collections/000000000/worker_0_collections.json").read_text())
    kept = dict(list(collections["collections"].items())[:2])
    put("smdebug_index", "collections.json", json.dumps({**collections, "collections": kept}))
    put("smdebug_tensors", "step", struct.pack("<H", len(index)) + index + events)
    put("tf_events", "file.tfevents", events)
    at = 0
    while at + 16 <= len(events):
        length = struct.unpack_from("<Q", events, at)[0]
        put("tf_events", f"event-{at}", events[at + 12 : at + 12 + length])
        at += length + 16


def journal_records(journal: bytes) -> Iterator[bytes]:
    at = 0
    while at + 7 <= len(journal):
        length = struct.unpack_from("<H", journal, at + 4)[0]
        if length == 0:
            return
        yield journal[at + 7 : at + 7 + length]
        at += 7 + length


def own() -> None:
    for path in sorted(GOLDEN.glob("agent-n1/*")):
        if path.suffix == ".parquet":
            put("segment", path.name, path.read_bytes())
        if path.suffix == ".ttj":
            put("journal", path.name, path.read_bytes())
            for number, record in enumerate(journal_records(path.read_bytes())):
                put("journal_records", f"{path.stem}-{number}", record)
    put("run_info", "run.json", (GOLDEN / "run.json").read_bytes())
    put(
        "requests",
        "stop.json",
        json.dumps(
            {
                "version": 1,
                "id": "0" * 32,
                "who": "ada",
                "time_ns": START_NS,
                "kind": "stop",
                "body": {"why": "late", "grace_seconds": 5},
            }
        ),
    )
    put(
        "python_report",
        "report.json",
        '{"report": {"subject": "loss", "severity": "high", "message": "m", '
        '"first_step": 1, "last_step": 9, "cost_seconds": 1.5, "evidence": {"a": [1, {"b": null}]}}}',
    )
    put("python_report", "ready.json", '{"ready": {"summary": "s", "tables": ["steps", "scalars"]}}')
    put(
        "profiler_config",
        "config.json",
        json.dumps(
            {
                "DisableProfiler": False,
                "ProfilingIntervalInMillis": "500",
                "ProfilingParameters": {
                    "DetailedProfilingConfig": '{"StartStep": 5, "NumSteps": 3}',
                    "PythonProfilingConfig": "{'StartStep': '9', 'NumSteps': 6, 'cProfileTimer': 'default'}",
                },
            }
        ),
    )
    put(
        "plan",
        "plan.toml",
        """level = "tensors"
[collections.heads]
include = ["head.*weight$"]
exclude = ["bias"]
take = ["statistics", "histogram"]
interval = 50
eval = { interval = 1, end = 100 }
[windows.first]
steps = ["5-10", 100]
detail = ["ops", "kernels"]
""",
    )
    put(
        "plan",
        "plan.json",
        '{"collections": {"all": {"include": [".*"], "take": ["values"], "steps": [1, 2]}}}',
    )
    put("plan", "collect", "losses:values,interval=1,eval.interval=2")
    put("plan", "window", "first:steps=5-10,detail=ops+kernels")
    put(
        "rules",
        "rules.toml",
        """off = ["StepOutlier"]
price_per_hour = 32.77
[[actions]]
kind = "webhook"
url = "https://example.com/hook"
from = "high"
[rules.VanishingGradient]
parameters = { threshold = 1e-6 }
[rules.idle]
expression = "p95(gpu.utilization[*], 5m) < 50 for 10m"
severity = "high"
""",
    )
    put("rules", "rules.json", '{"rules": {"InputBound": {"parameters": {"min_steps": "3"}}}}')
    put("rules", "rule", 'InputBound:min_steps=3,threshold="0.5"')
    put(
        "rules",
        "prices.toml",
        'currency = "USD"\n[machines."p4d"]\nprice_per_hour = 32.77\ngpus = 8\ncores = 96\n',
    )
    put("expression", "idle", "p95(gpu.utilization[*], 5m) < 50 for 10m")
    put(
        "expression",
        "loss",
        "not (loss > 1e3 and delta(loss, 100 steps) >= -0.5) or count(step.duration) = 3",
    )
    put("where", "plain", "step > -3 and (mode = 'TRAIN' or mode like 'EV%') and not skipped")
    put(
        "where",
        "in",
        "writer in ('agent-a', 'it''s') or duration_ns <= 2.5e2 and seq <> 18446744073709551615",
    )
    put(
        "http_target",
        "series",
        "/api/runs/20261120-150412-train/series?name=loss&from=0&to=1e9&width=500&rank=0",
    )
    put("http_target", "many", "/api/run/series?q0=name%3Dloss%26width%3D9&q1=name%3Dacc&from=1&to=2")
    put("http_target", "heat", "/api/run/heatmap?metric=cpu.busy&columns=100&node=n1")
    put("http_target", "host", "[::1]:7117")
    put("http_target", "cookie", "a=b; telltale=0123; c")
    put("tensor_rows", "row", struct.pack("<QQ", 8, 24) + b"F32\n[2,3]")
    put("tensor_rows", "product", struct.pack("<QQ", 0, 16) + b"F64\n[4294967296,4294967296,2]")
    put("tensor_rows", "beyond", struct.pack("<QQ", 2**64 - 8, 16) + b"U8\n[16]")


# Batches of rows, docs/formats/journal.md.

ScalarValue = int | float | str | bool
Row = dict[str, ScalarValue]


def batch(tables: dict[str, list[Row]]) -> bytes:
    """A journal's batch of these rows; what a row does not say is the type's zero."""
    schema = tomllib.loads(RECORDS.read_text())
    codes = {
        "i32": (1, "i"),
        "i64": (2, "q"),
        "u32": (3, "I"),
        "u64": (4, "Q"),
        "f64": (5, "d"),
        "bool": (6, "B"),
    }
    texts: dict[str, int] = {}
    groups = []
    for table in schema["table"]:
        rows = tables.get(table["name"])
        if not rows:
            continue
        columns = [column for column in schema["common"] + table["columns"] if column["name"] != "seq"]
        unknown = {name for row in rows for name in row} - {column["name"] for column in columns}
        assert not unknown, unknown
        group = struct.pack("<BQIB", table["id"], 1, len(rows), len(columns))
        for column in columns:
            if column["type"] == "str":
                group += struct.pack("<BB", column["id"], 7)
                for row in rows:
                    group += struct.pack("<I", texts.setdefault(str(row.get(column["name"], "")), len(texts)))
                continue
            code, letter = codes[column["type"]]
            group += struct.pack("<BB", column["id"], code)
            group += struct.pack(f"<{len(rows)}{letter}", *(row.get(column["name"], 0) for row in rows))
        groups.append(group)
    said = [text.encode() for text in texts]
    head = struct.pack("<BqHI", 2, START_NS, 0, len(said))
    return (
        head
        + b"".join(struct.pack("<I", len(text)) + text for text in said)
        + bytes([len(groups)])
        + b"".join(groups)
    )


LONGEST_NS = 1 << 57  # The longest that a slice may last, src/format/records.toml.


def a_slice(name: str, category: str, begin_us: float, duration_us: float, **more: ScalarValue) -> Row:
    time_ns = START_NS + int(begin_us * 1000)
    row: Row = {
        "name": name,
        "category": category,
        "kind": category,
        "time_ns": time_ns,
        "ord_ns": time_ns,
        "duration_ns": int(duration_us * 1000),
        "step": -1,
        "device": -1,
        "stream": -1,
        "pid": 100,
        "tid": 1,
        "attempt": 1,
    }
    return row | more


def trace_of_a_training(ranks: int = 2, steps: int = 3) -> list[Row]:
    rows = []
    for rank in range(ranks):
        for step in range(steps):
            at = step * 1000.0
            on_device: dict[str, ScalarValue] = {
                "device": 0,
                "stream": 7,
                "pid": 0,
                "tid": 0,
                "lane": "stream 7",
            }
            rows += [
                row | {"rank": rank}
                for row in (
                    a_slice(f"ProfilerStep#{step}", "step", at, 990, kind="user_annotation"),
                    a_slice("enumerate(DataLoader)", "data", at + 1, 100),
                    a_slice("train: forward", "annotation", at + 110, 300),
                    a_slice("aten::mm", "op", at + 120, 50, external=step + 1, flops=1e9),
                    a_slice("aten::copy_", "op", at + 180, 40, args='{"Input Dims": [[8, 4], [4, 2]]}'),
                    a_slice("cudaMemcpyAsync", "runtime", at + 190, 20, correlation=3 * step + 1),
                    a_slice(
                        "Memcpy HtoD (Pageable -> Device)",
                        "memcpy",
                        at + 195,
                        30,
                        correlation=3 * step + 1,
                        bytes=4096,
                        **on_device,
                    ),
                    a_slice(
                        "cudaLaunchKernel",
                        "runtime",
                        at + 130,
                        5,
                        correlation=3 * step + 2,
                        external=step + 1,
                    ),
                    a_slice(
                        "sm90_gemm_f32",
                        "kernel",
                        at + 240,
                        200,
                        correlation=3 * step + 2,
                        args='{"blocks per SM": 1.5, "est. achieved occupancy %": 40}',
                        **on_device,
                    ),
                    a_slice("cudaLaunchKernel", "runtime", at + 420, 5, correlation=3 * step + 3),
                    a_slice(
                        "ncclDevKernel_AllReduce_Sum_f32",
                        "kernel",
                        at + 450,
                        90 + 40 * rank,
                        correlation=3 * step + 3,
                        **on_device | {"stream": 20, "lane": "stream 20"},
                    ),
                    a_slice("nccl:all_reduce", "comm", at + 415, 20),
                    a_slice("train: forward", "device_annotation", at + 240, 300, **on_device),
                    a_slice("cudaDeviceSynchronize", "runtime", at + 600, 300),
                    a_slice("Context Sync", "sync", at + 600, 290, device=0),
                    a_slice("Memset (Device)", "memset", at + 950, 2, bytes=1 << 20, **on_device),
                    a_slice("train.py(12): step", "python", at + 2, 900),
                    a_slice("gc", "gc", at + 920, 10),
                )
            ]
    return rows


def hostile_slices() -> dict[str, list[Row]]:
    """Numbers within the bounds whose sums are not."""
    on_device: dict[str, ScalarValue] = {"device": 0, "stream": 7, "lane": "stream 7"}
    longest = {"duration_ns": LONGEST_NS}
    begins = {"time_ns": 0, "ord_ns": 0}
    return {
        "long-kernels": [a_slice("gemm", "kernel", 0, 0, **on_device | longest) for _ in range(70)],
        "long-kernels-in-line": [
            a_slice("gemm", "kernel", 0, 0, **on_device | longest | {"time_ns": n * LONGEST_NS})
            for n in range(-16, 32)
        ],
        "long-calls": [
            a_slice(f"f{n}", "op", 0, 0, **longest | begins | {"time_ns": n, "correlation": n})
            for n in range(70)
        ]
        + [a_slice("ProfilerStep#1", "step", 0, 0, **longest | begins)],
        "long-annotations": [
            a_slice("part", category, 0, 0, **longest, rank=n % 4)
            for n in range(40)
            for category in ("annotation", "device_annotation")
        ],
        "long-communication": [
            a_slice("ncclDevKernel_AllReduce_Sum_f32", "kernel", 0, 0, **on_device | longest, rank=n % 8)
            for n in range(70)
        ],
        "large-copies": [
            a_slice(
                "Memcpy HtoD (Pageable -> Device)", "memcpy", n, 1, bytes=1 << 53, correlation=n, **on_device
            )
            for n in range(70)
        ],
        "far-apart": [
            a_slice("gemm", "kernel", 0, 1, **on_device | {"time_ns": time_ns, "correlation": 1})
            for time_ns in (-(1 << 61), 0, 1 << 62)
        ],
        "odd-numbers": [
            a_slice(
                "x",
                category,
                0,
                1,
                flops=flops,
                bytes=-(1 << 53),
                correlation=-(1 << 63),
                external=(1 << 63) - 1,
                pid=-(1 << 63),
                tid=(1 << 63) - 1,
                stream=-(1 << 63),
                device=device,
                rank=-1,
                args='{"blocks per SM": 1e999, "est. achieved occupancy %": -1e300, "stream": -1}',
            )
            for category in ("op", "kernel", "sync", "memory", "runtime")
            for flops in (float("nan"), float("inf"), -1e308)
            for device in (-1, 1 << 20)
        ],
    }


def traces() -> None:
    scenes = {"training": trace_of_a_training()} | hostile_slices()
    for name, rows in scenes.items():
        for asked in (0, 0b0010_1111) if name == "training" else (0b0011_1111,):
            put("trace_analyses", f"{name}-{asked}", bytes([asked]) + batch({"slices": rows}))
    training = trace_of_a_training(1, 2)
    put("trace_analyses", "whole-1", bytes([1]) + batch({"slices": training}))
    # A run and the one that it is compared with (targets/trace_analyses.cc).
    other = [
        row | {"duration_ns": 2 * int(row["duration_ns"])}
        for number, row in enumerate(training)
        if number % 5 != 0 or row["category"] == "step"
    ]
    other += [a_slice("aten::mm", "op", 130, 5), a_slice("at::native<float>(int)", "op", 140, 5)]
    pairs = {
        "training-other-0": (training, other),
        "other-training-47": (other, training),
        "other-training-128": (other, training),
        "long-calls-training-0": (scenes["long-calls"], training),
        "training-long-calls-8": (training, scenes["long-calls"]),
        "long-kernels-communication-128": (scenes["long-kernels"], scenes["long-communication"]),
    }
    for name, (run, against) in pairs.items():
        asked = int(name.rpartition("-")[2])
        content = batch({"slices": run}) + b"\n--against--\n" + batch({"slices": against})
        put("trace_analyses", name, bytes([asked]) + content)


def exports() -> None:
    """An export each (targets/exports.cc) of rows of every kind."""
    when: Row = {"time_ns": START_NS, "ord_ns": START_NS, "attempt": 1}
    at = when | {"mode": "TRAIN"}
    tensor: Row = at | {"name": "fc.weight", "collection": "weights", "count": 4, "step": 3}
    histogram: Row = tensor | {"taken": 4, "max": 2.5, "bins": "[1,0,3]", "quantiles": "[0,1,2]"}
    batches = {
        "tensors": batch(
            {
                "scalars": [
                    at | {"name": "loss", "value": value, "step": 3} for value in (0.5, float("nan"))
                ],
                "statistics": [tensor | {"mean": 1e300, "std": float("inf")}],
                "histograms": [
                    histogram,
                    histogram | {"bins": "[1e308,1e308]", "min": -1e308, "max": 1e308, "rank": -1},
                    histogram | {"bins": "[", "mode": "../../..", "rank": 1 << 20},
                    histogram | {"min": float("nan")},
                ],
            }
        ),
        "trace": batch(
            {
                "slices": trace_of_a_training(1, 1)
                + hostile_slices()["far-apart"]
                + hostile_slices()["odd-numbers"][:4],
                "scalars": [at | {"name": 'a"b,c\n', "value": -1e308, "step": 1 << 53}],
                "steps": [at | {"step": 1, "duration_ns": LONGEST_NS}],
                "events": [when | {"kind": "checkpoint", "data": '{"path": "\u0000"}'}],
            }
        ),
    }
    sampled = [
        a_slice(name, "python", 10 + inset, 500 - 2 * inset, window="stacks (py-spy)", step=1)
        for inset, name in enumerate(("MainThread", "forward", "f;\n (train.py:3)", "</script>", ""))
    ]
    traced = [row | {"window": "few", "step": 1} for row in trace_of_a_training(1, 1)]
    batches["stacks"] = batch({"slices": sampled + traced})
    small = [
        path
        for path in sorted((HERE / "corpus" / "stored_rows").glob("*"))
        if not path.name.startswith("found-")
    ]
    for path in small[::5]:
        batches[path.name] = path.read_bytes()
    of_rows = ("csv", "chrome", "tensorboard", "perfetto", "speedscope")
    of_slices = ("pprof", "collapsed", "flamegraph", "timeline", "parquet")
    tables = {"tensors": 9, "trace": 10, "stacks": 10}  # For csv and parquet, by its place in records.toml.
    for name, content in batches.items():
        for number, export in enumerate(of_rows + of_slices):
            if export in of_slices and name not in ("trace", "stacks"):
                continue
            how = tables.get(name, 3) if export in ("csv", "parquet") else 1 if export == "tensorboard" else 0
            put("exports", f"{name}-{export}", bytes([number, how]) + content)
    # What is asked of stacks: device time, counts, bytes; sampled ones, traced ones, a step, a rank, a phase.
    for name, how in [
        ("device", 1),
        ("count-sampled", 2 | 4),
        ("bytes-traced", 3 | 8),
        ("step", 16),
        ("rank", 32),
        ("phase", 64),
    ]:
        for number, export in [(5, "pprof"), (6, "collapsed"), (7, "flamegraph")]:
            if number == 6 or name in ("device", "phase"):
                put("exports", f"stacks-{export}-{name}", bytes([number, how]) + batches["stacks"])


# Layouts of src/format/channel_layout.h and src/channel/registration.h.


def channel() -> None:
    def record(kind: int, name: int, body: bytes, flags: int = 0) -> bytes:
        body += bytes(-len(body) % 8)
        return struct.pack("<BBHI", kind, flags, 8 + len(body), name) + body

    statistics = struct.pack("<QqII4Q6d", 1000, 5, 1, 3, 100, 0, 0, 1, *[0.5] * 6)
    records = {
        "span": record(1, 2, struct.pack("<QQq", 1000, 500, 5)),
        "step": record(2, 0, struct.pack("<QQq5QIIqQ", 1000, 500, 5, 10, 20, 30, 40, 50, 1, 1, 32, 7)),
        "scalar": record(3, 1, struct.pack("<Qqd", 1000, 5, 0.25)),
        "statistics": record(4, 3, statistics),
        "event": record(5, 1, struct.pack("<QqIHH", 1000, 5, 0, 4, 2) + b"said{}"),
        "more": record(6, 3, statistics + struct.pack("<3d", 0.1, 0.2, 0.3)),
        "histogram": record(
            7,
            3,
            struct.pack(
                "<QqQQII2d9d64Q",
                1000,
                5,
                100,
                10,
                3,
                0,
                -1,
                2.5,
                *[rank / 4 for rank in range(9)],
                7,
                *[0] * 62,
                3,
            ),
            1,
        ),
        "shape": record(8, 3, struct.pack("<QqQIBBHqq", 1000, 5, 24, 0, 3, 2, 0, 2, 3), 4),
        "inline": record(8, 3, struct.pack("<QqQIBBHq", 1000, 5, 8, 0, 3, 1, 0, 2) + bytes(8), 8),
    }
    for name, content in records.items():
        put("channel_records", name, content)
    put("channel_records", "all", b"".join(records.values()))
    uuid = bytes(range(16))
    put(
        "registration",
        "hello",
        struct.pack("<IHHHHIIIQQQiI", 0x47525454, 1, 88, 1, 0, 4096, 64, 1000, 1 << 24, 0, 99, 77, 1)
        + uuid
        + uuid,
    )
    put("registration", "attempt_end", struct.pack("<IHHIiiI", 0x47525454, 13, 24, 1, -1, 9, 0))
    put("registration", "undo", struct.pack("<IHHI", 0x47525454, 17, 64, 4) + b"\x1b[0m" + bytes(48))


# Events whose numbers are looked at, of which no script has one.
KINDS_OF_NO_SCRIPT = [
    (kind, json.dumps(data))
    for begin, end in [
        (START_NS, START_NS + 2_000_000_000),
        (START_NS, 0),
        (-(1 << 63), (1 << 63) - 1),
        ((1 << 63) - 1, -(1 << 63)),
        (-1, (1 << 64) - 1),
        (1e300, -1e300),
    ]
    for kind, data in [
        ("gap", {"from_ns": begin, "to_ns": end, "cause": "agent"}),
        ("recording.lost", {"writer": "agent-n1", "since_ns": begin, "ended_ns": end}),
        ("recording.lost", {"since_ns": begin}),
        ("clock.anchor", {"monotonic_ns": begin, "realtime_ns": end, "run_ns": begin, "step_ns": end}),
    ]
] + [("gap", '{"from_ns": "1", "to_ns": null}'), ("recording.lost", "[]"), ("clock.anchor", "{")]


def scripts() -> None:
    """Rows and events of the rule scripts: what each rule looks at."""
    for target in ("rows", "stored_rows", "event_data"):
        for path in (HERE / "corpus" / target).glob("*"):
            if not path.name.startswith("found-"):
                path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROWS_CORPUS, folder, *sorted((TESTS / "rules").glob("*.test"))], check=True)
        # The smallest of each script: of two that differ in numbers alone the fuzzer makes one of the other.
        smallest: dict[str, Path] = {}
        for path in sorted(Path(folder).iterdir()):
            script = path.name.rpartition("-")[0]
            if script not in smallest or path.stat().st_size < smallest[script].stat().st_size:
                smallest[script] = path
        small = {script: path for script, path in smallest.items() if path.stat().st_size <= MOST_ROWS_BYTES}
        for number, (script, path) in enumerate(small.items()):
            put("rows", script, path.read_bytes())
            if number % 5 == 0:
                put("stored_rows", script, path.read_bytes())
    kinds: dict[str, dict[str, None]] = {}
    for path in sorted((TESTS / "rules").glob("*.test")):
        for line in path.read_text().splitlines():
            found = re.match(r"load event (\S+)[^:]*: (\{.*)", line)
            if found:
                kinds.setdefault(found[1], {})[found[2].rstrip("\\ ")] = None
    for kind, data in KINDS_OF_NO_SCRIPT:
        kinds.setdefault(kind, {})[data] = None
    for kind, datas in kinds.items():
        most = list(datas)[:12]
        put("event_data", kind, "".join(f"{kind}\t{data}\n" for data in most))


def patch(place: int, content: bytes) -> bytes:
    return struct.pack("<IB", place, len(content)) + content


def memory() -> None:
    put("arena", "none", b"")
    put("arena", "magic", patch(0, b"NOPE"))
    for place in range(0, 256, 8):
        put("arena", f"header-{place}", patch(place, b"\xff" * 8))
    put("arena", "directory", patch(4096, b"\xff" * 64))
    put("control_page", "none", b"")
    for place in range(0, 128, 8):
        put("control_page", f"header-{place}", b"p" + patch(place, b"\xff" * 8))
    put("control_page", "rules", b"p" + patch(4096, b"\x01" * 128))
    put("control_page", "slab", b"s" + patch(4096, b"\x02" * 64))
    put("post_body", "window.json", '{"steps": 5, "detail": "ops,kernels"}')
    put("post_body", "words.json", '{"steps": 9223372036854775807, "detail": "shapes;who=me"}')

    # targets/session.cc writes the code and the token in place of their words.
    put("session", "code.json", '{"code": "CODE"}')
    put("session", "token.json", '{"code": "TOKEN", "more": [1, {"code": "CODE"}]}')
    put("session", "wrong.json", json.dumps({"code": "0" * 32}))
    put("session", "empty.json", '{"code": ""}')
    put("session", "twice.json", '{"code": "", "code": "CODE"}')
    put("session", "list.json", '{"code": ["CODE"]}')
    put("session", "outside.json", '["CODE", {"code": "CODE"}]')
    put("session", "longer.json", '{"code": "CODE\\u0000"}')
    put("session", "behind.json", '{"code": "CODE"}\x00{"code": "TOKEN"}')


def trees() -> None:
    """Who reads (targets/run_tree.cc), and what was done to which of the paths (healthy_run.cc)."""
    readers, paths = 6, 31
    report, requests, who, run_json, windows, window, trace = 9, 10, 11, 13, 22, 23, 24

    def tree(name: str, reader: int, *operations: tuple[int, int, int]) -> None:
        put("run_tree", name, bytes([reader % readers]) + b"".join(map(bytes, operations)))

    for reader in range(readers):
        tree(f"none-{reader}", reader)
    # What an operation does to a link, and to a folder with one in it.
    for number, (name, first, second) in enumerate(
        [
            ("append-to-links", (1, 0), (6, 5)),
            ("cut-links", (1, 0), (5, 5)),
            ("links-grow", (1, 0), (7, 20)),
            ("append-to-pipes", (2, 0), (6, 5)),
            ("copy-links", (1, 4), (4, 1)),
            ("copy-huge-files", (7, 41), (4, 1)),
        ]
    ):
        for begin in range(0, paths, 8):
            tree(
                f"{name}-{begin}",
                number + begin // 8,
                *((what, path, much) for path in range(begin, begin + 8) for what, much in (first, second)),
            )
    tree("copy-around-a-link", 0, (1, who, 4), (4, requests, 1), (4, 0, 1), (4, run_json, 1))
    for what in range(10):
        for begin in range(0, paths, 8):
            tree(
                f"each-{what}-{begin}",
                what + begin // 8,
                *((what, path, 3 + path) for path in range(begin, begin + 8)),
            )
    # Links in the way of who writes into the run.
    for path in (report, windows, window, trace):
        for end in (0, 4):
            tree(f"write-by-a-link-{path}-{end}", 5, (1, path, end))


def main() -> None:
    chrome()
    protocol_buffers()
    files()
    smdebug()
    own()
    channel()
    scripts()
    traces()
    exports()
    memory()
    trees()


if __name__ == "__main__":
    main()
