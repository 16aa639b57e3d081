# SPDX-License-Identifier: Apache-2.0
"""A run that a training goes on with may be a stranger's: nothing that Python does in it reaches what lies outside, and
nothing waits for a pipe.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python"
sys.path[:0] = [str(PACKAGE), str(PACKAGE / "smdebug_front")]

from smdebug._telltale import recorder, saved  # noqa: E402
from smdebug.exceptions import IndexReaderException  # noqa: E402
from telltale import _native  # noqa: E402
from telltale._run_files import Folder, run_json, window_folder  # noqa: E402

SECRET = b"lies outside"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file that no test may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(SECRET)
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_bytes() == SECRET


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setenv("TELLTALE_RUN", str(run))
    return run


@pytest.fixture
def run(path: Path) -> Iterator[Folder]:
    with Folder.of_run() as folder:
        yield folder


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "file")


def link_to_a_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def link_to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


Plant = Callable[[Path, Path], None]
planted = pytest.mark.parametrize("plant", [link, link_to_a_folder, link_to_nothing, pipe])


@planted
def test_only_a_plain_file_is_read(path: Path, run: Folder, outside: Path, plant: Plant) -> None:
    plant(path / "run.json", outside)
    with pytest.raises(OSError, match=r"links in a run folder are not followed|no plain file"):
        run_json(run)
    (path / "run.json").unlink()
    (path / "run.json").write_text('{"id": "x"}')
    assert run_json(run) == {"id": "x"}
    with pytest.raises(OSError, match="more than 3 bytes"):
        run.read("run.json", 3)


@planted
def test_what_is_written_takes_the_place_of_what_is_there(
    path: Path, run: Folder, outside: Path, plant: Plant
) -> None:
    plant(path / "x", outside)
    plant(path / f"x.{os.getpid()}.part", outside)
    run.write("x", b"new")
    assert (path / "x").read_bytes() == b"new" and not (path / "x").is_symlink()
    assert (path / "x").stat().st_mode & 0o777 == 0o600
    assert run.names() == ["x"] and run.size("x") == 3


def test_a_second_name_of_a_file_outside_is_not_written_to(path: Path, run: Folder, outside: Path) -> None:
    os.link(outside / "file", path / "x")
    run.write("x", b"new")
    assert (path / "x").read_bytes() == b"new"


@planted
def test_a_new_file_is_new(path: Path, run: Folder, outside: Path, plant: Plant) -> None:
    plant(path / "x", outside)
    with pytest.raises(FileExistsError):
        run.create("x")


@planted
def test_only_a_folder_is_gone_into(path: Path, run: Folder, outside: Path, plant: Plant) -> None:
    plant(path / "windows", outside)
    why = "links in a run folder are not followed" if plant is not pipe else "Not a directory"
    with pytest.raises(OSError, match=why), window_folder("one"):
        pass
    with run.fresh("windows"), window_folder("one") as folder:
        folder.write("x", b"new")
    assert (path / "windows/one/x").read_bytes() == b"new"
    assert (path / "windows/one").stat().st_mode & 0o777 == 0o700


def test_what_is_removed_takes_nothing_of_another_place_along(path: Path, run: Folder, outside: Path) -> None:
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/folder").symlink_to(outside)
    (path / "a/file").symlink_to(outside / "file")
    os.mkfifo(path / "a/pipe")
    run.remove("a")
    run.remove("a")
    assert run.names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../outside/file", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_one_of_this_folder(run: Folder, outside: Path, name: str) -> None:
    for what in (run.open, run.create, run.folder, run.fresh, run.remove, run.size, run.path):
        with pytest.raises(OSError, match="no name of a file"):
            what(name)


def test_a_log_that_is_no_file_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(path / "log")
    reader = os.open(path / "log", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("TELLTALE_PROBE_LOG", str(path / "log"))
    _native.note("a line")
    assert os.read(reader, 100) == b""
    os.close(reader)


# ---- the front for smdebug ----


@planted
def test_a_pointer_file_is_read_and_written_as_a_plain_file(path: Path, outside: Path, plant: Plant) -> None:
    place = path / "smdebug/bucket/job"
    place.mkdir(parents=True)
    name = f"{recorder.POINTER_PREFIX}worker_0.json"
    plant(place / name, outside)
    assert recorder.pointers(str(place)) == []
    made = recorder.Recorder("pytorch", "s3://bucket/job")
    assert made.claim("worker_0", 1)
    made.point({}, [], ended=False)
    assert json.loads((place / name).read_text())["worker"] == "worker_0"
    assert not (place / name).is_symlink()
    [pointer] = recorder.pointers(str(place))
    assert pointer["run"] == str(path)


@planted
def test_a_folder_of_pointers_in_a_run_is_no_link(path: Path, outside: Path, plant: Plant) -> None:
    plant(path / "smdebug", outside)
    made = recorder.Recorder("pytorch", "s3://bucket/job")
    made.claim("worker_0", 1)
    made.point({}, [], ended=False)
    assert recorder.pointers(str(path / "smdebug/bucket/job")) == []


def test_a_folder_that_the_program_has_named_may_be_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    made = recorder.Recorder("pytorch", str(tmp_path / "out"))
    assert made.claim("worker_0", 1)
    made.point({}, [], ended=True)
    assert len(recorder.pointers(str(tmp_path / "real"))) == 1


@planted
def test_values_are_read_from_a_plain_file_of_the_writer(path: Path, outside: Path, plant: Plant) -> None:
    tensors = path / "agent-a/tensors"
    tensors.mkdir(parents=True)
    (tensors / "1.safetensors.part").write_bytes(b"values")
    (path / "agent-a/1.safetensors").write_bytes(b"elsewhere")
    assert bytes(saved._bytes_of(str(path), "agent-a", "tensors/1.safetensors", 1, 3)) == b"alu"
    plant(tensors / "2.safetensors", outside)
    for file in ("tensors/2.safetensors", "tensors/../1.safetensors", "1.safetensors", str(outside / "file")):
        with pytest.raises(IndexReaderException):
            saved._bytes_of(str(path), "agent-a", file, 0, 0)
    with pytest.raises(IndexReaderException, match="shorter"):
        saved._bytes_of(str(path), "agent-a", "tensors/1.safetensors", 0, 7)
