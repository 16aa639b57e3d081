# SPDX-License-Identifier: Apache-2.0
"""Actions against real servers on loopback, and stops of real trainings."""

from __future__ import annotations

import contextlib
import datetime
import email
import email.policy
import importlib
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S, children, wait_until

# Told to end, it does so when the test says so: a second SIGTERM would come until then, or soon after.
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
open(out + "/told", "w").close()
while not os.path.exists(out + "/release"):
    time.sleep(0.01)
time.sleep(0.5)
open(out + "/terms", "w").write(str(len(term)))
"""


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


def begin(telltale: Telltale, tmp: Path, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    script = tmp / "train.py"
    script.write_text(FOR_EVER)
    run = tmp / "run"
    process = subprocess.Popen(
        [str(telltale.binary), "run", "--quiet", "-o", str(run), *options,
         "--", telltale.python, str(script), str(tmp)]
    )  # fmt: skip
    wait_until("the training", (tmp / "begun").exists, process)
    return process, run


def helper(process: subprocess.Popen[bytes], kind: str, but: int = 0) -> int:
    """Pid of the run's agent or watcher, or of the next one `but` the one that was killed."""

    def there() -> list[int]:
        return [pid for pid, words in children(process.pid).items() if words[1:2] == [kind] and pid != but]

    return wait_until(f"its {kind}", there, process)[0]


def facts(telltale: Telltale, run: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row["data"]) for row in telltale.rows(run, "events") if row["kind"] == kind]


def test_a_stop_saves_then_ends_and_the_run_says_who_and_why(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "release").touch()
    process, run = begin(telltale, tmp_path)
    ask(run, "one", why="loss is NaN", rule="Divergence")
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "saved").read_text() == "loss is NaN\n"
    assert (tmp_path / "terms").read_text() == "1"
    (end,) = facts(telltale, run, "run.attempt_end")
    assert end["stopped"]["why"] == "loss is NaN" and end["stopped"]["rule"] == "Divergence"


def test_an_agent_that_is_killed_after_it_has_noted_its_signals_repeats_none(
    telltale: Telltale, tmp_path: Path
) -> None:
    process, run = begin(telltale, tmp_path)
    agent = helper(process, "agent")
    ask(run, "one", why="x")
    wait_until("the stop", (tmp_path / "told").exists, process)
    wait_until("its note", lambda: facts(telltale, run, "stop.signal"), process)
    os.kill(agent, signal.SIGKILL)

    def agents() -> set[int]:
        return {row["pid"] for row in telltale.rows(run, "events") if row["kind"] == "agent.start"}

    # The next one has taken the run up, and read what was asked of it.
    wait_until("another agent", lambda: agents() - {agent}, process)
    (tmp_path / "release").touch()
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "terms").read_text() == "1"
    assert len(facts(telltale, run, "stop.signal")) == 1


def test_a_watcher_that_is_killed_between_decision_and_action_stops_once(
    telltale: Telltale, tmp_path: Path
) -> None:
    """It waits for others to tell of together, and is killed meanwhile: the next one goes on from there."""
    (tmp_path / "rules.toml").write_text(
        'defaults = false\n[rules.above]\nexpression = "scalar:loss > 0.5"\nseverity = "high"\n'
        '[[rules.above.actions]]\nkind = "stop"\ndry_run = false\ngroup_wait = 20\n'
    )
    (tmp_path / "release").touch()
    process, run = begin(telltale, tmp_path, "--rules", str(tmp_path / "rules.toml"))
    watcher = helper(process, "watch")
    wait_until("a decision", lambda: facts(telltale, run, "action.decided"), process)
    os.kill(watcher, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "terms").read_text() == "1"
    assert (tmp_path / "saved").read_text().count("\n") == 1
    asked = [json.loads(file.read_text())["kind"] for file in (run / "requests" / "watch").glob("*.json")]
    assert asked.count("stop") == 1
    assert len(facts(telltale, run, "action.decided")) == len(facts(telltale, run, "stop.begun")) == 1
    watchers = {row["pid"] for row in telltale.rows(run, "ledger") if row["name"] == "watch.records_read"}
    assert len(watchers) == 2


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
    try:
        yield server.server_address[1], got
    finally:
        server.shutdown()
        server.server_close()


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


@contextlib.contextmanager
def mail_server(**options: Any) -> Iterator[tuple[int, list[tuple[Any, bool]]]]:
    """An SMTP server: its port, and the envelopes that it took, with whether they came through TLS."""
    controller = importlib.import_module("aiosmtpd.controller")
    got: list[tuple[Any, bool]] = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            got.append((envelope, session.ssl is not None))
            return "250 OK"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = controller.Controller(Handler(), hostname="127.0.0.1", port=port, **options)
    server.start()
    try:
        yield port, got
    finally:
        server.stop()


def mail_to(port: int, more: str) -> str:
    return (
        f'kind = "email"\nto = "a@example.org"\nsender = "t@example.org"\nhost = "127.0.0.1"\n'
        f"port = {port}\n{more}"
    )


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody but a reader of its file trusts."""
    importlib.import_module("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "server.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    return tmp_path / "server.pem", context


def test_a_mail_arrives(telltale: Telltale, tmp_path: Path) -> None:
    with mail_server() as (port, got):
        planted(telltale, tmp_path, mail_to(port, 'tls = "none"'))
    envelope, _ = got[0]
    message = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert envelope.rcpt_tos == ["a@example.org"]
    assert "ExplodingTensor" in str(message["subject"])
    assert "folder:" in message.get_content()


def test_a_mail_goes_through_tls_and_signs_in_there(
    telltale: Telltale, tmp_path: Path, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    smtp = importlib.import_module("aiosmtpd.smtp")
    path, context = certificate
    signed_in: list[tuple[bytes, bytes]] = []

    def authenticator(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        signed_in.append((data.login, data.password))
        return smtp.AuthResult(success=True)

    options = {"tls_context": context, "require_starttls": True, "authenticator": authenticator}
    with mail_server(**options) as (port, got):
        run = planted(
            telltale,
            tmp_path,
            mail_to(port, f'user = "me"\nca_file = "{path}"'),
            TELLTALE_SMTP_PASSWORD="hush-hush",
        )
    assert got and all(tls for _, tls in got)
    assert set(signed_in) == {(b"me", b"hush-hush")}
    assert {each["outcome"] for each in facts(telltale, run, "action.done")} == {"done"}
    for file in run.rglob("*"):
        assert file.is_dir() or b"hush-hush" not in file.read_bytes(), file


def test_no_mail_goes_in_the_clear_where_a_server_has_no_tls(telltale: Telltale, tmp_path: Path) -> None:
    with mail_server() as (port, got):
        run = planted(telltale, tmp_path, mail_to(port, ""))
    assert got == []
    assert {each["outcome"] for each in facts(telltale, run, "action.done")} == {"failed"}


def test_no_mail_goes_to_a_server_that_nobody_vouches_for(
    telltale: Telltale, tmp_path: Path, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    with mail_server(tls_context=certificate[1]) as (port, got):
        run = planted(telltale, tmp_path, mail_to(port, ""))
    assert got == []
    assert {each["outcome"] for each in facts(telltale, run, "action.done")} == {"failed"}


def test_a_text_message_goes_through_sns(telltale: Telltale, tmp_path: Path) -> None:
    moto = importlib.import_module("moto.server")
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


def test_the_signature_of_a_text_message_is_botocores(
    telltale: Telltale, tmp_path: Path, posts: tuple[int, list[tuple[dict[str, str], bytes]]]
) -> None:
    """moto judges no signature: the same request, signed by AWS's own library, has the same one."""
    auth = importlib.import_module("botocore.auth")
    awsrequest = importlib.import_module("botocore.awsrequest")
    credentials = importlib.import_module("botocore.credentials")
    port, got = posts
    planted(
        telltale,
        tmp_path,
        f'kind = "sms"\nto = "+15551234567"\nregion = "eu-central-1"\nallow_private = true\n'
        f'endpoint = "http://127.0.0.1:{port}/"',
        AWS_ACCESS_KEY_ID="AKIDEXAMPLE",
        AWS_SECRET_ACCESS_KEY="hush-hush",
        AWS_SESSION_TOKEN="session",
    )
    headers = {name.lower(): value for name, value in got[0][0].items()}
    body = got[0][1]
    assert b"Action=Publish" in body and b"PhoneNumber=%2B15551234567" in body
    signed = re.search(r"SignedHeaders=([^,]*)", headers["authorization"])
    assert signed is not None
    request = awsrequest.AWSRequest("POST", f"http://127.0.0.1:{port}/", data=body)
    for name in signed.group(1).split(";"):
        if name != "x-amz-date":
            request.headers[name] = headers[name]  # What is signed is sent too.
    signer = auth.SigV4Auth(
        credentials.Credentials("AKIDEXAMPLE", "hush-hush", "session"), "sns", "eu-central-1"
    )
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.context["timestamp"] = headers["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["authorization"].endswith(signer.signature(text, request))
    assert headers["x-amz-security-token"] == "session"
