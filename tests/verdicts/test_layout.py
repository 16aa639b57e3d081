# SPDX-License-Identifier: Apache-2.0
"""Every file that describes an input is well-formed, README.md lists the troubles as they are, and nothing that is
sealed becomes an input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import layout
import prepare
import pytest
import records
import running
import table

HERE = layout.HERE
BEGIN, END = "<!-- run.py --list -->\n", "<!-- end -->\n"


def folders(part: str) -> list[Path]:
    return sorted(path.parent for path in (HERE / part).glob("*/train.py"))


@pytest.mark.parametrize("folder", folders("troubles") + folders("sealed"), ids=lambda folder: folder.name)
def test_a_trouble_is_well_formed(folder: Path) -> None:
    ill, cured = layout.read_trouble(folder)
    assert ill.command == ("train.py",)
    assert cured.command == ("train.py", "cured")
    text = (folder / "train.py").read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "telltale" not in text.lower(), "a program knows nothing of what watches it"


@pytest.mark.parametrize("path", sorted((HERE / "cases").glob("*.toml")), ids=lambda path: path.stem)
def test_a_case_is_well_formed(path: Path) -> None:
    for one in layout.read_case(path, Path("cases")):
        assert one.prepare in ("", *prepare.PREPARE)
        assert one.python in layout.PYTHONS


@pytest.mark.parametrize("folder", folders("programs"), ids=lambda folder: folder.name)
def test_a_program_is_well_formed(folder: Path) -> None:
    one = layout.read_program(folder)
    assert records.unsaid(one) == []
    assert "telltale" not in (folder / "train.py").read_text(encoding="utf-8").lower()


def test_names_are_there_once() -> None:
    names = [folder.name for part in ("troubles", "sealed", "programs") for folder in folders(part)]
    assert sorted(names) == sorted(set(names))


def test_readme_lists_the_troubles() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    listed = text.partition(BEGIN)[2].partition(END)[0]
    assert listed == table.list_of(layout.troubles()), (
        "tests/verdicts/README.md: put `run.py --list` between its marks"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[[run]]\ncommand = ["train.py"]\n[run.expect]\ncause = [["("]]\n', "no regular expression"),
        ('[[run]]\ncommand = ["train.py"]\n[run.expect]\ncause = [[]]\n', "empty group"),
        ('[[run]]\ncommand = ["train.py"]\n[run.expect]\n', "expects nothing"),
        ('[[run]]\ncommand = ["train.py"]\n[run.expect]\nqiet = true\n', "unknown qiet"),
    ],
)
def test_a_file_that_is_not_well_formed_says_so(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'title = "x"\ninput = "x"\nright = "x"\n{text}', encoding="utf-8")
    with pytest.raises(layout.LayoutError, match=what):
        layout.read_case(path, tmp_path)


def sealed_program() -> Path:
    return next(iter(folders("sealed")), layout.SEALED / "any")


@pytest.mark.parametrize("way", ["sealed", "sealed/any", "troubles/../sealed/any"])
def test_sealed_paths_are_refused(way: str) -> None:
    with pytest.raises(layout.SealedError):
        layout.refuse_sealed(HERE / way)
    layout.refuse_sealed(HERE / "troubles")


def test_a_link_into_sealed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to(sealed_program())
    with pytest.raises(layout.SealedError):
        layout.refuse_sealed(tmp_path / "innocent")


def test_the_runner_refuses_a_sealed_program_before_anything_starts(tmp_path: Path) -> None:
    telltale = tmp_path / "telltale"
    telltale.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n", encoding="utf-8")
    telltale.chmod(0o755)
    one = layout.Input(name="x", part="troubles", folder=sealed_program(), command=("train.py",))
    with pytest.raises(layout.SealedError):
        running.Runner(telltale, tmp_path / "kept").run(one)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "words", [["--match", "sealed"], ["--match", "sealed/any"], ["--match", "../verdicts/sealed"]]
)
def test_the_command_refuses_what_is_sealed(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--telltale", sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TELLTALE_CASES": str(tmp_path / "none")},
    )
    assert done.returncode == 2
    assert "sealed programs are not run before issue M" in done.stderr
    assert done.stdout == ""


def test_no_input_lies_in_sealed() -> None:
    inputs = [one for pair in layout.troubles() for one in pair] + layout.programs()
    assert not [one for one in inputs if one.folder.resolve().is_relative_to(layout.SEALED)]
