# SPDX-License-Identifier: Apache-2.0
"""Files of the run directory, as src/base/run_files.h opens them. A run that is gone on with may be a stranger's: beneath
it no link is followed, nothing is opened that is no plain file, nothing waits for a pipe, and nothing is written to a file
that has a second name elsewhere. The run directory itself may be reached through links. tools/check_python_opens forbids
every other way.

What cannot be done raises OSError. Thread safety: none.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# No link, no wait for who writes to a pipe, no terminal that becomes ours.
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_RUN_JSON_BYTES = 16 << 20
# A folder in a folder in ... of ours is at most this deep.
_DEEPEST = 32


def _error(number: int, why: str, path: str) -> OSError:
    return OSError(number, why, path)


class Folder:
    """An open folder. What is done in it reaches nothing outside of it."""

    def __init__(self, fd: int, where: str) -> None:
        self.fd = fd
        self._where = where

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """One that somebody has named: it may be reached through links."""
        where = os.fspath(path)
        return cls(os.open(where, _FOLDER), where)

    @classmethod
    def of_run(cls) -> Folder:
        """The run directory of this process."""
        return cls.at(os.environ["TELLTALE_RUN"])

    def folder(self, name: str, make: bool = False) -> Folder:
        """One in it; `make`: where there is none it is made, for its owner alone."""
        path = self.path(name)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)
        try:
            return Folder(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd), path)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                about = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
                if stat.S_ISLNK(about.st_mode):
                    raise _error(errno.ELOOP, "links in a run folder are not followed", path) from None
            raise

    def fresh(self, name: str) -> Folder:
        """A new, empty one; whatever was there is removed before."""
        self.remove(name)
        os.mkdir(name, 0o700, dir_fd=self.fd)
        return self.folder(name)

    def names(self) -> list[str]:
        """Of all that is in it."""
        return sorted(os.listdir(self.fd))

    def open(self, name: str) -> BinaryIO:
        """A plain file, to read."""
        return self._plain(os.O_RDONLY, name)

    def read(self, name: str, most_bytes: int) -> bytes:
        """A plain file of at most so many bytes."""
        with self.open(name) as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise _error(errno.EFBIG, f"it has more than {most_bytes:,} bytes", self.path(name))
        return data

    def create(self, name: str, mode: int = 0o600) -> BinaryIO:
        """A new file, to write; FileExistsError where anything of this name is there."""
        return self._plain(os.O_WRONLY | os.O_CREAT | os.O_EXCL, name, mode)

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """A file of these bytes, in the place of what was there; none where that fails."""
        part = f"{name}.{os.getpid()}.part"
        self.remove(part)
        try:
            with self.create(part, mode) as file:
                file.write(data)
            self.move(part, self, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(part)
            raise

    def move(self, name: str, to: Folder, new_name: str) -> None:
        """Gives a file of it a name there, in the place of what had it."""
        _check_name(name)
        _check_name(new_name)
        os.replace(name, new_name, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def size(self, name: str) -> int:
        """In bytes, of what lies there itself: of a link, of the link."""
        _check_name(name)
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size

    def remove(self, name: str) -> None:
        """Whatever it is, with all beneath it; nothing where there is none."""
        _check_name(name)
        _remove(self.fd, name, _DEEPEST)

    def path(self, name: str) -> str:
        """For a library that opens files by their path: to be used in a fresh folder alone, which holds no link.

        Raises:
            OSError: it is no name of something in a folder.
        """
        _check_name(name)
        return os.path.join(self._where, name)

    def close(self) -> None:
        """No more is done in it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _plain(self, how: int, name: str, mode: int = 0) -> BinaryIO:
        path = self.path(name)
        if not how & os.O_EXCL:
            # Of a device the mere opening may begin something.
            _check_plain(os.stat(name, dir_fd=self.fd, follow_symlinks=False), path)
        fd = os.open(name, how | _PLAIN, mode, dir_fd=self.fd)
        try:
            # Another may have come in its place.
            _check_plain(os.fstat(fd), path)
            return os.fdopen(fd, "rb" if how & os.O_ACCMODE == os.O_RDONLY else "wb")
        except BaseException:
            os.close(fd)
            raise


def _check_name(name: str) -> None:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise _error(errno.EINVAL, "no name of a file", name)


def _check_plain(about: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise _error(errno.ELOOP, "links in a run folder are not followed", path)
    if not stat.S_ISREG(about.st_mode):
        raise _error(errno.EINVAL, "it is no plain file", path)


def _remove(folder: int, name: str, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if depth == 0:
            raise
    fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for inner in os.listdir(fd):
            _remove(fd, inner, depth - 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)


@contextlib.contextmanager
def window_folder(name: str) -> Iterator[Folder]:
    """The folder of a window of detail in this process's run."""
    with Folder.of_run() as run, run.folder("windows", make=True) as windows:
        with windows.folder(name, make=True) as folder:
            yield folder


def run_json(run: Folder) -> Any:
    """What run.json says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON.
    """
    return json.loads(run.read("run.json", _MOST_RUN_JSON_BYTES))
