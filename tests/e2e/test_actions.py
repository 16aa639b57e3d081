# SPDX-License-Identifier: Apache-2.0
"""Actions against real servers on loopback, and stops of real trainings."""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale

LIMIT_S = 120

FOR_EVER = """
import os, signal, sys, time
import telltale

out = sys.argv[1]
term = []
signal.signal(signal.SIGTERM, lambda *_: term.append(1))
telltale.on_stop(lambda stop: open(out + "/saved", "a").write(stop.why + "\\n"))
open(out + "/begun", "w").close()
while not term:
    time.sleep(0.01)
    telltale.log(loss=1.0)
    telltale.step()
time.sleep(0.5)  # A second SIGTERM would come now.
open(out + "/terms", "w").write(str(len(term)))
"""


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, f"{path} does not come"
        time.sleep(0.05)


def ask(run: Path, name: str, **body: Any) -> None:
    """A request as docs/formats/requests.md has it."""
    now = time.time_ns()
    number = f"{now:016x}" + name.encode().hex().ljust(16, "0")[:16]
    folder = run / "requests" / "test"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(
        {"version": 1, "id": number, "who": "test", "time_ns": now, "kind": "stop", "body": body}
    )
    (folder / "x.tmp").write_text(text)
    os.rename(folder / "x.tmp", folder / f"{number}.json")


def begin(telltale: Telltale, tmp: Path) -> tuple[subprocess.Popen[bytes], Path]:
    script = tmp / "train.py"
    script.write_text(FOR_EVER)
    run = tmp / "run"
    process = subprocess.Popen(
        [str(telltale.binary), "run", "--quiet", "-o", str(run), "--", telltale.python, str(script), str(tmp)]
    )
    wait_for(tmp / "begun", process)
    return process, run


def facts(telltale: Telltale, run: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row["data"]) for row in telltale.rows(run, "events") if row["kind"] == kind]


def test_a_stop_saves_then_ends_and_the_run_says_who_and_why(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path)
    ask(run, "one", why="loss is NaN", rule="Divergence")
    assert process.wait(LIMIT_S) == 0
    assert (tmp_path / "saved").read_text() == "loss is NaN\n"
    assert (tmp_path / "terms").read_text() == "1"
    (end,) = facts(telltale, run, "run.attempt_end")
    assert end["stopped"]["why"] == "loss is NaN" and end["stopped"]["rule"] == "Divergence"


def test_an_agent_that_is_killed_repeats_no_stop(telltale: Telltale, tmp_path: Path) -> None:
    process, run = begin(telltale, tmp_path)
    ask(run, "one", why="x")
    (agent,) = {row["pid"] for row in telltale.rows(run, "events") if row["kind"] == "agent.start"}
    os.kill(agent, signal.SIGKILL)
    assert process.wait(LIMIT_S) == 0
    assert (tmp_path / "terms").read_text() == "1"


@pytest.fixture
def posts() -> Iterator[tuple[int, list[tuple[dict[str, str], bytes]]]]:
    """A web server that is busy at the first try, and what it got."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((dict(self.headers), body))
            self.send_response(503 if len(got) == 1 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], got
    server.shutdown()


def planted(telltale: Telltale, tmp: Path, action: str, **env: str) -> Path:
    """A training that fires a rule, whose findings set the action off."""
    (tmp / "rules.toml").write_text(f'[[actions]]\nfrom = "info"\ndry_run = false\n{action}\n')
    run = tmp / "run"
    script = REPO / "examples/planted/exploding_tensor.py"
    done = telltale("run", "--rules", tmp / "rules.toml", "-o", run, "--", telltale.python, script, env=env)
    assert facts(telltale, run, "action.decided"), done.stderr
    return run


def test_a_webhook_is_posted_again_under_its_key(
    telltale: Telltale, tmp_path: Path, posts: tuple[int, list[tuple[dict[str, str], bytes]]]
) -> None:
    port, got = posts
    run = planted(
        telltale,
        tmp_path,
        'kind = "webhook"\nurl_env = "HOOK"\nallow_private = true',
        HOOK=f"http://127.0.0.1:{port}/secret-path",
    )
    assert got[0][0]["Idempotency-Key"] == got[1][0]["Idempotency-Key"]
    assert json.loads(got[1][1])["findings"]
    assert all(each["outcome"] == "done" for each in facts(telltale, run, "action.done"))
    for path in run.rglob("*"):
        assert path.is_dir() or b"secret-path" not in path.read_bytes(), path


def test_a_private_address_is_refused(
    telltale: Telltale, tmp_path: Path, posts: tuple[int, list[tuple[dict[str, str], bytes]]]
) -> None:
    port, got = posts
    run = planted(telltale, tmp_path, f'kind = "webhook"\nurl = "http://127.0.0.1:{port}/"')
    assert got == []
    assert {each["outcome"] for each in facts(telltale, run, "action.done")} == {"failed"}


def test_a_mail_arrives(telltale: Telltale, tmp_path: Path) -> None:
    controller = pytest.importorskip("aiosmtpd.controller")
    got: list[Any] = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            got.append(envelope)
            return "250 OK"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = controller.Controller(Handler(), hostname="127.0.0.1", port=port)
    server.start()
    try:
        planted(
            telltale,
            tmp_path,
            f'kind = "email"\nto = "a@example.org"\nsender = "t@example.org"\nhost = "127.0.0.1"\n'
            f'port = {port}\ntls = "none"',
        )
    finally:
        server.stop()
    message = email.message_from_bytes(got[0].content, policy=email.policy.default)
    assert got[0].rcpt_tos == ["a@example.org"]
    assert "ExplodingTensor" in str(message["subject"])
    assert "folder:" in message.get_content()


def test_a_text_message_goes_through_sns(telltale: Telltale, tmp_path: Path) -> None:
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        _, port = server.get_host_and_port()
        run = planted(
            telltale,
            tmp_path,
            f'kind = "sms"\nto = "+15551234567"\nregion = "us-east-1"\nallow_private = true\n'
            f'endpoint = "http://127.0.0.1:{port}/"',
            AWS_ACCESS_KEY_ID="id",
            AWS_SECRET_ACCESS_KEY="key",
        )
    finally:
        server.stop()
    assert {each["outcome"] for each in facts(telltale, run, "action.done")} == {"done"}
