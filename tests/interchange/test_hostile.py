# SPDX-License-Identifier: Apache-2.0
"""Broken, cut, huge and hostile files: T58 to T66 of tests/fuzz/README.md, by the real binary."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_kineto import TELLTALE, mini, rows, telltale, write
from waiting import PATIENCE_S

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
MIB = 1 << 20


def counters(path: Path, run: Path, code: int, *more: object) -> dict[str, int]:
    done = telltale("import", path, "-o", run, "--json", *more, code=code)
    return {one["name"]: one["value"] for one in json.loads(done.stdout)["counters"]}


def refused(path: Path | str, run: Path, code: int, *more: object) -> str:
    """One line, and nothing is left."""
    done = telltale("import", path, "-o", run, *more, code=code)
    assert done.stderr.startswith("telltale import: ")
    assert done.stderr.count("\n") == 1
    assert "signal" not in done.stderr
    assert not list(run.parent.glob(run.name)) + list(run.parent.glob("." + run.name + "*"))
    return done.stderr


def resident_mib(*arguments: object) -> int:
    """The most memory of the command or the child that reads for it."""
    command = subprocess.Popen([str(TELLTALE), *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    assert command.returncode == 0
    return usage.ru_maxrss // 1024


def test_t58_a_large_trace_streams(tmp_path: Path) -> None:
    # Larger than what is kept of it between its two readings: bench/import_bench.py does 5 GB.
    event = json.dumps(
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 1,
            "ts": 5,
            "dur": 1,
            "args": {"Input Dims": [[1024, 1024]] * 40},
        }
    )
    trace = tmp_path / "large.json"
    piece = (event + ",\n") * 2000
    pieces = 300 * MIB // len(piece)
    with trace.open("w") as file:
        file.write('{"traceEvents": [\n')
        for _ in range(pieces):
            file.write(piece)
        file.write(event + "]}")
    assert trace.stat().st_size > 290 * MIB
    assert resident_mib("import", trace, "-o", tmp_path / "run") <= 512
    assert len(rows(tmp_path / "run", "slices", "--columns", "step", "--limit", "5")) == 5


@pytest.mark.parametrize("where", ["argument", "event", "device", "top"])
def test_t59_deep_nesting_is_no_stack_overflow(where: str, tmp_path: Path) -> None:
    deep = "[" * 200_000
    shut = "]" * 200_000
    event = '{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}'
    text = {
        "argument": f'[{event},{{"ph": "X", "name": "b", "ts": 1, "args": {{"x": {deep}{shut}}}}},{event}]',
        "event": '[{"ph": "X", "a": ' + deep,
        "device": f'{{"schemaVersion": 1, "deviceProperties": {deep}{shut}, "traceEvents": [{event}]}}',
        "top": deep + '"ph"' + shut,
    }[where]
    trace = tmp_path / "deep.json"
    trace.write_text(text)
    if where in ("event", "top"):
        said = refused(trace, tmp_path / "run", 3)
        assert where == "top" or "from byte " in said
    else:
        assert counters(trace, tmp_path / "run", 7)
        assert rows(tmp_path / "run", "slices", "--columns", "name")


def test_t60_numbers_that_are_none(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text(
        '[{"ph": "X", "name": "a", "ts": 1, "dur": 2, "args": {"n": NaN, "i": Infinity, "m": -inf, "h": 1e999,'
        ' "l": [1, NaN, -Infinity, "NaN"], "o": {"x": inf}, "correlation": 99999999999999999999}},'
        '{"ph": "X", "name": "b", "ts": 1e999, "dur": 1}, {"ph": "X", "name": "c", "ts": 3, "dur": NaN},'
        '{"ph": "X", "name": "d", "ts": 99999999999999999999, "dur": 1},'
        '{"ph": "C", "name": "e", "ts": 4, "args": {"v": NaN, "w": 5}}]'
    )
    assert counters(trace, tmp_path / "run", 7) == {"import.values_not_finite": 8, "import.events_damaged": 3}
    (found,) = rows(tmp_path / "run", "slices", "--columns", "name,args,correlation")
    assert found["correlation"] == 0
    assert json.loads(found["args"]) == {
        "n": "NaN",
        "i": "Infinity",
        "m": "-inf",
        "h": "1e999",
        "l": [1, "NaN", "-Infinity", "NaN"],
        "o": {"x": "inf"},
        "correlation": 99999999999999999999,
    }
    assert [row["value"] for row in rows(tmp_path / "run", "metrics")] == [5]


def test_t61_of_two_keys_the_last_counts(tmp_path: Path) -> None:
    event = '{"ph": "X", "name": "a", "name": "b", "ts": 1, "dur": 1, "pid": 1, "tid": 1}'
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"baseTimeNanoseconds": 5, "traceEvents": ['
        + event
        + '], "baseTimeNanoseconds": 7000, "traceEvents": []}'
    )
    assert counters(trace, tmp_path / "run", 7) == {"import.keys_duplicate": 3}
    (found,) = rows(tmp_path / "run", "slices", "--columns", "name,time_ns")
    assert (found["name"], found["time_ns"]) == ("b", 8000)


def test_t62_odd_times_are_placed_or_counted(tmp_path: Path) -> None:
    base = {"ph": "X", "pid": 1, "tid": 1}
    trace = write(
        tmp_path / "t.json",
        [
            {**base, "name": "negative", "ts": 10, "dur": -5},
            {**base, "name": "zero", "ts": 10, "dur": 0},
            {**base, "name": "over", "ts": 10, "dur": 8},
            {**base, "name": "lapping", "ts": 14, "dur": 8},
            {**base, "name": "text", "ts": "20.5", "dur": "1"},
            {**base, "name": "word", "ts": "soon", "dur": 1},
            {"ph": "E", "pid": 1, "tid": 1, "ts": 9},
            {"ph": "B", "pid": 1, "tid": 1, "ts": 30, "name": "open"},
        ],
    )
    assert counters(trace, tmp_path / "run", 7) == {
        "import.durations_negative": 1,
        "import.events_damaged": 1,
        "import.ends_without_begin": 1,
        "import.begins_without_end": 1,
    }
    found = rows(tmp_path / "run", "slices", "--columns", "name,time_ns,duration_ns")
    assert sorted((row["name"], row["time_ns"], row["duration_ns"]) for row in found) == [
        ("lapping", 14000, 8000),
        ("negative", 10000, 0),
        ("open", 30000, 0),
        ("over", 10000, 8000),
        ("text", 20500, 1000),
        ("zero", 10000, 0),
    ]


def test_t63_a_bomb_ends_before_it_is_large(tmp_path: Path) -> None:
    zeros = gzip.compress(bytes(64 * MIB))
    bomb = tmp_path / "bomb.json.gz"
    # 5 GB out of 5 MB. Spaces would be JSON's own, zeros are damage: both end by the ratio.
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "') + zeros * 80)
    assert bomb.stat().st_size < 6 * MIB
    assert "200 times" in refused(bomb, tmp_path / "run", 4)
    bomb.write_bytes(gzip.compress(b"\n\x0a\x12\x09/host:CPU") + zeros * 80)
    refused(bomb, tmp_path / "run", 4, "--format", "xspace")
    bomb.write_bytes(zeros)
    assert "no format" in refused(bomb, tmp_path / "run", 3)
    bomb.write_bytes(gzip.compress(zeros))
    assert "gzip inside gzip" in refused(bomb, tmp_path / "run", 4)


def test_t64_gzip_cut_and_damaged(tmp_path: Path) -> None:
    trace = json.dumps(mini(400)).encode()
    whole = gzip.compress(trace)
    path = tmp_path / "t.json.gz"

    def slices(content: bytes, name: str, code: int) -> tuple[int, dict[str, int], str]:
        path.write_bytes(content)
        done = telltale("import", path, "-o", tmp_path / name, "--json", code=code)
        said: dict[str, Any] = json.loads(done.stdout)
        return (
            said["slices"],
            {one["name"]: one["value"] for one in said["counters"]},
            " ".join(said["notes"]),
        )

    assert slices(whole, "whole", 0)[0] == 1200
    few, counted, _ = slices(whole[: len(whole) // 2], "cut", 7)
    assert 100 < few < 1200
    assert counted["import.streams_damaged"] == 1
    checksum = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    some, counted, note = slices(checksum, "checksum", 7)
    assert some == 1200
    assert counted == {"import.streams_damaged": 1}
    assert "checksum" in note
    some, counted, note = slices(whole + b"rubbish", "trailing", 0)
    assert some == 1200
    assert counted == {"import.bytes_trailing": 1}
    assert "no gzip" in note
    assert slices(gzip.compress(trace[:999]) + gzip.compress(trace[999:]), "members", 0)[0] == 1200
    assert slices(whole + bytes(512), "padded", 0)[1] == {}


def test_t65_other_encodings(tmp_path: Path) -> None:
    trace = mini()
    path = tmp_path / "t.json"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes(json.dumps(trace).encode(encoding))
        assert "UTF-16" in refused(path, tmp_path / "run", 3)
    path.write_bytes(json.dumps(trace).encode("utf-8-sig"))
    telltale("import", path, "-o", tmp_path / "bom")
    path.write_bytes(json.dumps(trace).replace("aten::mm", "a\u00e9").encode("latin-1"))
    assert counters(path, tmp_path / "latin", 7) == {"import.bytes_replaced": 4}
    names = {row["name"] for row in rows(tmp_path / "latin", "slices", "--columns", "name")}
    assert "a\ufffd" in names


def drop_rights() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setuid(65534)


def test_t66_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    said = []
    for content in (b"", b"[", b"{}"):
        path.write_bytes(content)
        said.append(refused(path, tmp_path / "run", 3))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for odd in (tmp_path / "pipe", tmp_path / "folder", "/dev/zero"):
        said.append(refused(odd, tmp_path / "run", 2))
    said.append(refused(tmp_path / "missing", tmp_path / "run", 3))
    assert len(set(said)) == len(said) - 1, "each has words of its own; both brackets are of no format"
    path.write_text(json.dumps(mini()))
    path.chmod(0)
    command = [str(TELLTALE), "import", str(path), "-o", str(tmp_path / "run")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, preexec_fn=drop_rights
        )
    except PermissionError:
        pytest.skip("who has no rights may not start the program here either")
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("\n") == 1
    assert "ermission denied" in done.stderr


@pytest.mark.parametrize(
    ("seed", "form"),
    [
        ("xspace/space.xplane.pb", "xspace"),
        ("tfprof/profile.pb", "tfprof"),
        ("run_metadata/run_metadata.pb", "run-metadata"),
        ("perfetto/trace.pftrace", "perfetto"),
        ("cprofile/stats.pstats", "cprofile"),
        ("timeline/horovod.json", "horovod"),
        ("smdebug_metrics/system.json", "smdebug-profile"),
    ],
)
def test_each_importer_bears_cut_damaged_and_huge_files(seed: str, form: str, tmp_path: Path) -> None:
    whole = (CORPUS / seed).read_bytes()
    path = tmp_path / "input"
    for number, content in enumerate(
        (whole[: len(whole) // 2], whole[:-3] + b"\xff\xff\xff", whole + b"\x07rubbish")
    ):
        path.write_bytes(content)
        done = subprocess.run(
            [str(TELLTALE), "import", str(path), "-o", str(tmp_path / f"run{number}"), "--format", form],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode in (0, 3, 7), done.stderr
        assert "signal" not in done.stderr
    path.write_bytes(whole)
    os.truncate(path, 300 * MIB)
    assert "MiB" in refused(path, tmp_path / "run", 4, "--format", form, "--max-memory", 256)
