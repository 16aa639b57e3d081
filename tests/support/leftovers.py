# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest, loaded by tests/conftest.py: a test ends what it started. All that a test starts carries its mark
(marked.py). After each test what still runs of it is awaited for a generous while; what then is left is ended, and fails
the test. After a test, or a fixture's set-up, that failed, the rest is ended at once. A fixture wider than a function
owns its processes until the session is over. Where pytest itself is killed, a guard outside ends the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import marked
import pytest

# The agent, the watcher and the server end by themselves a little after the training.
PATIENCE_S = 120.0


class Leftovers:
    """Of one session, which has a mark; so has each test and each wider fixture."""

    def __init__(self) -> None:
        self.session = uuid.uuid4().hex
        # Of a test that runs pytest in turn.
        self.outer = os.environ.get(marked.VARIABLE, "")
        self.count = 0
        self.wide: list[tuple[str, str]] = []
        self.failed = False

    def _own(self) -> str:
        """What is started from now on has a new mark."""
        self.count += 1
        mark = f"{self.session}-{self.count}"
        os.environ[marked.VARIABLE] = " ".join((self.outer, self.session, mark)).strip()
        return mark

    def begin(self) -> None:
        # In a session of its own and without output: who ends pytest, and reads its output to the end, need not wait.
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", marked.__file__, self.session],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._own()
        self.begun = begun = subprocess.Popen.__init__

        def start(process: Any, *args: Any, **options: Any) -> None:
            # An environment that a wider fixture has made, or that has little of ours.
            if options.get("env") is not None:
                name = marked.VARIABLE
                options["env"] = {**options["env"], name: os.environ[name]}
            begun(process, *args, **options)

        subprocess.Popen.__init__ = start  # type: ignore[assignment, method-assign]

    def pytest_unconfigure(self) -> None:
        subprocess.Popen.__init__ = self.begun  # type: ignore[method-assign]
        marked.end(self.session)
        self.guard.communicate(b"done")
        del os.environ[marked.VARIABLE]
        if self.outer:
            os.environ[marked.VARIABLE] = self.outer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.mark = self._own()
        self.failed = False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        self.failed = self.failed or report.failed
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before = os.environ[marked.VARIABLE]
        mark = self._own()
        try:
            made = yield
        except BaseException:
            marked.end(mark)
            raise
        finally:
            os.environ[marked.VARIABLE] = before
        self.wide.append((f"the fixture {fixturedef.argname}", mark))
        return made

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: Any) -> Iterator[None]:
        owners = [("this test", self.mark)]
        if nextitem is None:
            owners += self.wide
        try:
            done = yield
        except BaseException:
            self.failed = True
            raise
        finally:
            if self.failed:
                for _, mark in owners:
                    marked.end(mark)
        left = [
            f"{owner}: {words}"
            for owner, mark in owners
            for words in marked.await_end(mark, PATIENCE_S).values()
        ]
        if left:
            raise pytest.fail.Exception(
                "left behind, and ended now:\n" + "\n".join(left),
                pytrace=False,
            )
        return done


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly:
        leftovers = Leftovers()
        leftovers.begin()
        config.pluginmanager.register(leftovers, "leftovers of tests")
