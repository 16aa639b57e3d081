# SPDX-License-Identifier: Apache-2.0
"""Names of a training are text everywhere: none is markup in the report, none a command to a terminal,
and each comes out of an export as it went in. The page: tests/web/test_names.py."""

import csv
import io
import json
import os
import pty
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import REPO, Telltale
from hostile import NAME, SHOWN

# What a terminal obeys, line ends and tabs apart: C0, DEL, C1, and marks of direction.
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile_run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("hostile")
    run = tmp / "run"
    # With room in the budget: on a busy machine the governor would leave the one step out that shows the NaN.
    done = Telltale(binary, python, tmp)(
        "run", "-o", run, "--overhead", "100%", "--", python, REPO / "tests/e2e/train_hostile.py"
    )
    assert done.returncode == 0, done.stderr
    assert not OBEYED.search(done.stderr), "the verdict at the end"
    path = run / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "name": NAME, "host": NAME, "command": ["python", NAME]}))
    return run


def on_terminal(telltale: Telltale, *args: object) -> str:
    """What a terminal gets to see of a command, without colours."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [str(telltale.binary), *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=telltale.tmp,
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        out = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            out += piece
    os.close(ours)
    assert process.returncode == 0, out
    return out.decode()


@pytest.mark.parametrize(
    "command",
    [
        "check RUN",
        "check RUN --json",
        "ls FOLDER",
        "ls FOLDER --json",
        "report RUN --json",
        "rules status RUN",
        "verify RUN",
        "query RUN scalars --limit 200",
        "query RUN scalars --limit 200 --json",
        "query RUN statistics",
        "query RUN events --format json",
        "query RUN findings",
    ],
)
def test_a_terminal_obeys_nothing_of_it(telltale: Telltale, hostile_run: Path, command: str) -> None:
    words = {"RUN": hostile_run, "FOLDER": hostile_run.parent}
    shown = on_terminal(telltale, *(words.get(word, word) for word in command.split()))
    assert not OBEYED.search(shown), command
    if command not in ("verify RUN", "rules status RUN", "ls FOLDER"):
        assert "owned" in shown, f"{command} shows none of the names"


def test_exports_give_names_as_they_are(telltale: Telltale, hostile_run: Path) -> None:
    names = {row["name"] for row in telltale.rows(hostile_run, "scalars")}
    assert NAME in names
    done = telltale("query", hostile_run, "scalars", "--columns", "name,step")
    rows = list(csv.reader(io.StringIO(done.stdout, newline="")))
    assert [NAME, "7"] in rows
    checked = telltale.check(hostile_run)
    assert checked["run"]["name"] == NAME
    assert any(NAME in f["message"] for f in checked["findings"]), checked["findings"]


class Elements(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_in_the_report_they_are_text(telltale: Telltale, hostile_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert telltale("report", hostile_run, "-o", out).returncode == 0
    html = out.read_text()
    page = Elements()
    page.feed(html)
    assert not page.tags & {"img", "script", "link", "iframe", "object"}
    assert not {name for name in page.attributes if name.startswith("on")}
    # Title, heading of the finding, machine, command, classes of model and data.
    assert page.text.count(SHOWN) >= 6, page.text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", html)
