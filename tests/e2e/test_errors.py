# SPDX-License-Identifier: Apache-2.0
"""What a user meets when something is wrong: one line, the table's exit code, no stack trace."""

import json
import re
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import Telltale
from test_cli_page import REFERENCE, arguments, help_of, section
from waiting import PATIENCE_S

READERS = ["check", "report", "verify", "query", "rules status"]


def reader_args(command: str, run: Path) -> list[str]:
    args = [*command.split(), str(run)]
    return [*args, "steps"] if command == "query" else args


def assert_one_line(stderr: str, *needles: str) -> None:
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("telltale"), stderr
    for trace in ("terminate called", "what():", "Traceback", "#0 ", "[json.exception"):
        assert trace not in stderr
    for needle in needles:
        assert needle in stderr, f"{needle!r} is not in {stderr!r}"


# What takes a run, by the page of the command line, which has every command: test_cli_page.py.
RUN_ARGUMENTS = {"RUN", "A", "B", "PATH"}
TAKE_RUNS = [
    *(
        name
        for name, (names, _, _) in REFERENCE.items()
        if RUN_ARGUMENTS & set(re.findall(r"`(\w+)`", names))
    ),
    "import --windows",
]
LOOK_BELOW = {"ls", "serve"}  # A folder that is no run may hold some.
OF_NO_RUN = {"prometheus-rules", "grafana"}


def calls(telltale: Telltale, command: str, run: Path, good: Path, out: Path) -> list[list[object]]:
    """All ways to name the run to the command. A command with another argument fails here: say what it is."""
    words = command.split()
    if command == "import --windows":
        return [[*words, run]]
    text = help_of(telltale, command)
    names = arguments(text)
    if names == ["A", "B"]:
        return [[*words, run, good], [*words, good, run]]
    formats = re.search(r"FORMAT TEXT:\{([^}]*)\}", text)
    choices: dict[str, list[object]] = {
        "RUN": [run],
        "PATH": [run],
        "TABLE": ["steps"],
        "ANALYSIS": [line.split()[0] for line in section(text, "Analyses")],
        "FORMAT": [one for one in formats.group(1).split(",") if one not in OF_NO_RUN] if formats else [],
    }
    found = [[*words, *one] for one in product(*(choices[name] for name in names))]
    if command == "analyze":
        found.append([*words, good, "diff", "--against", run])
    if command == "export":
        options = ["-o", out, "--table", "steps", "--endpoint", "http://127.0.0.1:9", "--region", "x"]
        found = [[*call, *options] for call in found]
    assert found
    return found


def assert_refused(telltale: Telltale, command: str, run: Path, good: Path, code: int, *needles: str) -> None:
    """Each call of the command ends so, with one line that names the run, and changes nothing."""
    out = run.parent / "out"
    [codes] = [codes for name, (_, _, codes) in REFERENCE.items() if name == command.split(" --")[0]]
    assert str(code) in codes.split()
    before = sorted((p, p.stat().st_size) for p in run.rglob("*"))
    for call in calls(telltale, command, run, good, out):
        done = telltale(*call, env={"XDG_STATE_HOME": str(run.parent / "state")}, timeout=PATIENCE_S)
        assert done.returncode == code, (call, done.stderr)
        assert_one_line(done.stderr, str(run), *needles)
        assert done.stdout == "", call
        assert not out.exists(), call
    assert sorted((p, p.stat().st_size) for p in run.rglob("*")) == before


@pytest.mark.parametrize("command", TAKE_RUNS)
def test_missing_run(telltale: Telltale, tmp_path: Path, finished_run: Path, command: str) -> None:
    assert_refused(telltale, command, tmp_path / "no-such-run", finished_run, 3)


@pytest.mark.parametrize("command", [name for name in TAKE_RUNS if name not in LOOK_BELOW])
def test_folder_that_is_no_run(telltale: Telltale, tmp_path: Path, finished_run: Path, command: str) -> None:
    (tmp_path / "plain").mkdir()
    assert_refused(telltale, command, tmp_path / "plain", finished_run, 3, "run.json")


@pytest.mark.parametrize("command", TAKE_RUNS)
def test_future_version(telltale: Telltale, copy_of_run: Path, finished_run: Path, command: str) -> None:
    info = json.loads((copy_of_run / "run.json").read_text())
    info["format"]["major"] = 99
    (copy_of_run / "run.json").write_text(json.dumps(info))
    assert_refused(telltale, command, copy_of_run, finished_run, 8, "99", "newer telltale")


@pytest.mark.parametrize("command", [name for name in TAKE_RUNS if name != "verify"])
def test_damaged_run_json(telltale: Telltale, copy_of_run: Path, finished_run: Path, command: str) -> None:
    (copy_of_run / "run.json").write_text("{ not json")
    assert_refused(
        telltale, command, copy_of_run, finished_run, 3, "run.json", "line 1", "restore it from a copy"
    )


def test_damaged_run_json_is_a_problem_that_verify_lists(telltale: Telltale, copy_of_run: Path) -> None:
    (copy_of_run / "run.json").write_text("{ not json")
    done = telltale("verify", copy_of_run)
    assert (done.returncode, done.stderr) == (7, "")
    [problem] = [line for line in done.stdout.splitlines() if line.startswith("run.json:")]
    assert "line 1" in problem and "json.exception" not in problem


def test_future_version_in_the_list(telltale: Telltale, copy_of_run: Path) -> None:
    path = copy_of_run / "run.json"
    info = json.loads(path.read_text())
    info["format"]["major"] = 99
    path.write_text(json.dumps(info))
    done = telltale("ls", copy_of_run.parent)
    assert done.returncode == 7, done.stderr
    assert_one_line(done.stderr, "99")
    listed = telltale("ls", copy_of_run.parent, "--json")
    assert listed.returncode == 7
    document = json.loads(listed.stdout)
    assert document["runs"] == []
    [reason] = document["unreadable"]
    assert "99" in reason


@pytest.mark.parametrize(
    "args",
    [
        ["run"],
        ["run", "--interval", "5", "--", "true"],
        ["run", "--overhead", "lots", "--", "true"],
        ["run", "--no-such-flag", "--", "true"],
        ["check"],
        ["check", "x", "--fail-on", "sometimes"],
        ["query", "x"],
        ["rules", "show", "NoSuchRule"],
        ["frobnicate"],
    ],
    ids=" ".join,
)
def test_wrong_usage(telltale: Telltale, args: list[str]) -> None:
    done = telltale(*args)
    assert done.returncode == 2, done.stderr
    assert_one_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "needles"),
    [
        (["frobnicate"], ["no command 'frobnicate'", "capture", "telltale --help"]),
        (["--frobnicate"], ["no option '--frobnicate'", "capture", "telltale --help"]),
        (["rules"], ["no command", "list, show, status, test", "telltale rules --help"]),
        (["rules", "nope"], ["no command 'nope'", "list, show, status, test", "telltale rules --help"]),
        (["rules", "--nope"], ["no option '--nope'", "list, show, status, test"]),
        (["rules", "show", "--nope"], ["no option '--nope'", "telltale rules --help"]),
        (["check", "--nope"], ["no option '--nope'", "telltale check --help"]),
        (["check", "x", "--nope"], ["--nope", "telltale check --help"]),
        (["check"], ["RUN is required", "telltale check --help"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_the_wrong_word_is_named_and_others_are_suggested(
    telltale: Telltale, args: list[str], needles: list[str]
) -> None:
    done = telltale(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_line(done.stderr, *needles)
    for hidden in ("agent", "stacks"):
        assert hidden not in done.stderr


def test_unknown_table_names_the_known_ones(telltale: Telltale, finished_run: Path) -> None:
    done = telltale("query", finished_run, "stepz")
    assert done.returncode == 2
    assert_one_line(done.stderr, "stepz", "steps")


def test_bad_where_names_the_position(telltale: Telltale, finished_run: Path) -> None:
    done = telltale("query", finished_run, "steps", "--where", "step >> 3")
    assert done.returncode == 2
    assert_one_line(done.stderr)


@pytest.mark.parametrize("args", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", [*READERS, "ls", "doctor"])
def test_output_that_cannot_be_written(
    telltale: Telltale, copy_of_run: Path, command: str, args: list[str]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [telltale.binary, *reader_args(command, copy_of_run), *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 5, done.stderr
    assert_one_line(done.stderr, f"telltale {command.split()[0]}: cannot write the output: ")


def flip_a_bit_of_a_page(segment: Path) -> None:
    group = pyarrow.parquet.ParquetFile(segment).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    [column] = [c for c in columns if c.path_in_schema == "duration_ns"]
    begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    bytes_ = bytearray(segment.read_bytes())
    bytes_[begin + column.total_compressed_size - 1] ^= 0x10
    segment.write_bytes(bytes_)


def cut_the_end_off(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [flip_a_bit_of_a_page, cut_the_end_off])
def test_damaged_run_is_served_and_named(
    telltale: Telltale, finished_run: Path, copy_of_run: Path, damage: Callable[[Path], None]
) -> None:
    segment = max(copy_of_run.glob("agent-*/steps-*.parquet"))
    damage(segment)
    verified = telltale("verify", copy_of_run)
    assert verified.returncode == 7
    assert segment.name in verified.stdout + verified.stderr

    checked = telltale("check", copy_of_run, "--json")
    assert checked.returncode == 7
    assert_one_line(checked.stderr, "damaged", str(copy_of_run))
    salvage = json.loads(checked.stdout)["salvage"]
    assert salvage["unreadable_files"] + salvage["missing_rows"] > 0

    reported = telltale("report", copy_of_run, "-o", copy_of_run / "r.html")
    assert reported.returncode == 7
    assert_one_line(reported.stderr, "damaged", str(copy_of_run))
    assert (copy_of_run / "r.html").stat().st_size > 1000

    # The table that was hit, and another, of which everything is there.
    assert telltale("query", copy_of_run, "steps").returncode == 7
    whole = telltale("query", finished_run, "scalars").stdout
    assert len(whole.splitlines()) > 60
    assert telltale("query", copy_of_run, "scalars").stdout == whole

    status = telltale("rules", "status", copy_of_run)
    assert status.returncode == 7
    assert_one_line(status.stderr, "damaged", str(copy_of_run))
    assert "InputBound" in status.stdout

    listed = telltale("ls", copy_of_run.parent, "--json")
    assert listed.returncode == 7
    [run] = json.loads(listed.stdout)["runs"]
    assert run["id"] == "run" and str(copy_of_run) in run["damaged"]


def test_a_run_that_is_running_refuses_a_second_writer(telltale: Telltale, tmp_path: Path) -> None:
    run = tmp_path / "run"
    inner = f"{telltale.binary} run -o {run} -- true"
    done = telltale.run(run, "sh", "-c", f"{inner}; exit $?")
    assert done.returncode == 9, done.stderr


def test_run_into_a_foreign_folder_is_refused(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    done = telltale.run(tmp_path / "mine", "true")
    assert done.returncode == 2
    assert_one_line(done.stderr, "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("command", ["run", "check", "report", "ls", "verify", "query", "rules"])
def test_help_has_examples(telltale: Telltale, command: str) -> None:
    done = telltale(command, "--help")
    assert done.returncode == 0
    assert "xample" in done.stdout
