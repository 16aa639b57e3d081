# SPDX-License-Identifier: Apache-2.0
"""The page in Chromium, against the real server and real runs.

TELLTALE_BIN names the binary, TELLTALE_PYTHON the interpreter with torch, TELLTALE_CHROMIUM the
browser; ctest sets all three.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright
from waiting import PATIENCE_S, await_helpers, children, wait_until

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path.append(str(REPO / "tests/e2e"))
from hostile import NAME  # noqa: E402

PYTHON = os.environ.get("TELLTALE_PYTHON", str(REPO / ".venv/bin/python"))
PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def binary() -> Path:
    path = Path(os.environ.get("TELLTALE_BIN", REPO / "build/release/bin/telltale"))
    if not path.exists():
        pytest.fail(f"no binary at {path}: build first, or set TELLTALE_BIN")
    return path


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose user has no state of telltale yet."""
    home = tmp_path_factory.mktemp("home")
    return {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}


class Runs:
    """A folder of runs, and the trainings that make them."""

    def __init__(self, binary: Path, folder: Path, env: dict[str, str]) -> None:
        self.binary = binary
        self.folder = folder
        self.env = env

    def command(self, name: str, *training: object, options: tuple[str, ...] = ()) -> list[str]:
        out = str(self.folder / name)
        command = ["run", "--no-serve", "-o", out, *options, "--", PYTHON, *training]
        return [str(self.binary), *map(str, command)]

    def train(self, name: str, *training: object, options: tuple[str, ...] = ()) -> Path:
        command = self.command(name, *training, options=options)
        subprocess.run(command, env=self.env, check=True, timeout=2 * PATIENCE_S, capture_output=True)
        await_helpers(self.folder / name)
        return self.folder / name


@pytest.fixture(scope="session")
def runs(binary: Path, state: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(binary, tmp_path_factory.mktemp("runs"), state)


@pytest.fixture(scope="session")
def finished(runs: Runs) -> Path:
    return runs.train("finished", REPO / "tests/e2e/train_tiny.py", 200)


@pytest.fixture(scope="session")
def late(runs: Runs) -> Path:
    """1,000 steps that wait for data from step 400 on; steps 0 and 500 take many times as long."""
    program = os.environ.get("TELLTALE_SAMPLE_RUN", str(REPO / "build/release/tests/make_sample_run"))
    subprocess.run([program, runs.folder / "late", "late"], check=True)
    return runs.folder / "late"


@pytest.fixture(scope="session")
def hostile(runs: Runs) -> Path:
    """All names of the training are hostile.NAME, and that of the run."""
    # On a busy machine the governor would leave the one step out that shows the NaN.
    run = runs.train("hostile", REPO / "tests/e2e/train_hostile.py", options=("--overhead", "100%"))
    path = run / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "name": NAME, "host": NAME, "command": ["python", NAME]}))
    return run


@pytest.fixture(scope="session")
def damaged(runs: Runs, finished: Path) -> Path:
    """The finished run, with the middle of its largest segment but that of the steps overwritten."""
    target = runs.folder / "damaged"
    shutil.copytree(finished, target)
    files = [p for p in target.glob("agent-*/*") if p.suffix in (".parquet", ".ttj")]
    files = [p for p in files if not p.name.startswith("steps-")]
    victim = max(files, key=lambda p: p.stat().st_size)
    with victim.open("r+b") as file:
        file.seek(victim.stat().st_size // 2)
        file.write(os.urandom(512))
    return target


class Live:
    """A training that runs until it is told to stop."""

    def __init__(self, runs: Runs, name: str, options: tuple[str, ...] = ()) -> None:
        self.name = name
        self.folder = runs.folder / name
        self.stop_file = runs.folder / f"stop-{name}"
        self.process = subprocess.Popen(
            runs.command(name, HERE / "train_live.py", self.stop_file, options=options),
            env=runs.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self.stop_file.touch()
        assert self.process.wait(timeout=PATIENCE_S) == 0
        await_helpers(self.folder)

    def agent(self) -> int:
        """The agent's process id: a child of the supervisor."""

        def agents() -> list[int]:
            return [pid for pid, words in children(self.process.pid).items() if words[1:2] == ["agent"]]

        return wait_until("the run's agent", agents, self.process)[0]


@pytest.fixture
def live(runs: Runs, request: pytest.FixtureRequest) -> Iterator[Live]:
    # No budget: where the machine is full the governor may leave minutes between statistics, and their chart still.
    live = Live(runs, f"live-{request.node.name.split('[')[0]}", ("--overhead", "100%"))
    try:
        yield live
    finally:
        if live.process.poll() is None:
            live.stop()


class Server:
    """`telltale serve` over the folder of runs; its links sign in once each."""

    def __init__(self, binary: Path, folder: Path, env: dict[str, str]) -> None:
        self.command = [str(binary), "serve", "--port", "0", str(folder)]
        self.env = env
        self.process: subprocess.Popen[str] | None = None
        self.link = ""

    @property
    def origin(self) -> str:
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.link))

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert "#code=" in self.link, f"no link from {self.command}: {self.link!r}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=PATIENCE_S)
            self.process = None


@pytest.fixture
def server(runs: Runs, finished: Path, binary: Path, state: dict[str, str]) -> Iterator[Server]:
    server = Server(binary, runs.folder, state)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = os.environ.get("TELLTALE_CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        # Without the sandbox of user namespaces, which containers and root do not have.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        made = browser.new_context

        def patient(**options: Any) -> BrowserContext:
            context = made(**options)
            context.set_default_timeout(PATIENCE_MS)
            return context

        browser.new_context = patient  # type: ignore[method-assign]
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page that keeps what must not happen: console errors and requests elsewhere."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("request", self._on_request)

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(self.server.origin + "/"):
            self.foreign.append(request.url)

    def sign_in(self) -> None:
        self.page.goto(self.server.link)
        self.page.wait_for_selector("table.runs tbody tr[data-run]")

    def open(self, name: str) -> None:
        """The run in the folder `name`."""
        self.page.click(f"tr[data-run='{name}'] a")
        self.page.wait_for_selector("#verdict")


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    try:
        yield context
    finally:
        context.close()


@pytest.fixture
def watched(context: BrowserContext, server: Server) -> Iterator[Watched]:
    """Fails the test on any console error or any request that leaves the machine."""
    watched = Watched(context.new_page(), server)
    yield watched
    assert watched.requests
    assert watched.foreign == []
    assert watched.errors == []


# Each chart has its lines, or says that there is nothing to draw.
DRAWN = """() => {
  const charts = [...document.querySelectorAll(".chart")];
  return charts.length > 0 && charts.every((c) => c.querySelector("canvas") || c.textContent.trim());
}"""


def drawn(page: Page) -> None:
    """Waits until all is there: what is out of view is asked for later."""
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)


def overview_of(page: Page, run: str) -> dict[str, Any]:
    """What the server says of a run, once all of it is read."""
    read: dict[str, Any] = page.evaluate(
        """async (run) => {
          let overview;
          do {
            overview = await (await fetch(`/api/runs/${run}/overview`)).json();
          } while (overview.loading);
          return overview;
        }""",
        run,
    )
    return read
