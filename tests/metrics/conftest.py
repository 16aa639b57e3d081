# SPDX-License-Identifier: Apache-2.0
"""Metrics out: the real binary against real receivers on loopback."""

import gzip
import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S, await_helpers

REPO = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("TELLTALE_BIN", REPO / "build/release/bin/telltale"))
PYTHON = os.environ.get("TELLTALE_PYTHON", str(REPO / ".venv/bin/python"))
SAMPLE_RUN = os.environ.get("TELLTALE_SAMPLE_RUN", str(REPO / "build/release/tests/make_sample_run"))

Say = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Ours, with a state folder of the test's and nothing that configures an exporter."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "AWS_"))}
    return {**env, "XDG_STATE_HOME": str(tmp_path / "state"), "no_proxy": "127.0.0.1"}


@pytest.fixture
def telltale(environment: dict[str, str], tmp_path: Path) -> Say:
    def say(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BINARY), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
            cwd=tmp_path,
            env={**environment, **(env or {})},
        )
        if args[0] == "run" and "-o" in args:
            await_helpers(Path(str(args[args.index("-o") + 1])))
        return done

    return say


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A finished run of 1,000 steps, with findings, that nobody watched."""
    subprocess.run([SAMPLE_RUN, str(tmp_path / "late"), "late"], check=True)
    return tmp_path / "late"


class Receiver:
    """Takes what is posted and answers as it is told to, the last answer again and again."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.came = threading.Condition()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                with receiver.came:
                    headers = {k.lower(): v for k, v in self.headers.items()}
                    receiver.posts.append((self.path, headers, body))
                    answers = receiver.answers
                    if len(answers) > 1:
                        code, headers, text = answers.pop(0)
                    else:
                        code, headers, text = answers[0] if answers else (200, {}, b"")
                    receiver.came.notify_all()
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    try:
        yield one
    finally:
        one.close()
