# SPDX-License-Identifier: Apache-2.0
"""`telltale serve --bind` beyond this machine: with TLS, or where that was said in words, and it only reads."""

import contextlib
import datetime
import http.client
import ipaddress
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Telltale
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from waiting import PATIENCE_S

Server = subprocess.Popen[str]


@pytest.fixture
def run(telltale: Telltale, tmp_path: Path) -> Path:
    out = tmp_path / "runs" / "one"
    assert telltale("run", "--no-serve", "--quiet", "-o", out, "--", "true").returncode == 0
    return out


@contextlib.contextmanager
def serving(telltale: Telltale, *args: object) -> Iterator[tuple[Server, str]]:
    """The server and its link."""
    server = subprocess.Popen(
        [str(telltale.binary), "serve", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield server, server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate()


def port_of(link: str) -> int:
    return int(link.split("/#")[0].rpartition(":")[2])


def asks_for_a_window(telltale: Telltale, link: str, run: Path) -> int:
    """The status of the answer to the page's button."""
    token = telltale("serve", "--print-token").stdout.strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port_of(link)}/api/runs/{run.name}/window",
        data=json.dumps({"steps": 1}).encode(),
        headers={"Authorization": f"Bearer {token}"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:  # Of a run that is over nothing can be asked.
        urllib.request.urlopen(request)
    return refused.value.code


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_this_machine_it_wants_a_word_of_consent(telltale: Telltale, run: Path, bind: str) -> None:
    done = telltale("serve", "--bind", bind, run)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"telltale serve: --bind {bind}: others than this machine can reach it")
    assert "--plain-http" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_address_that_is_none_is_told_as_before(telltale: Telltale, run: Path) -> None:
    done = telltale("serve", "--bind", "lab", run)
    assert done.returncode == 2
    assert "is no address" in done.stderr


def test_the_first_line_says_that_there_is_no_tls_and_it_only_reads(telltale: Telltale, run: Path) -> None:
    with serving(telltale, "--bind", "0.0.0.0", "--plain-http", run) as (server, link):
        assert link.startswith("http://")
        assert "//0.0.0.0" not in link
        assert asks_for_a_window(telltale, link, run) == 405
        server.terminate()
        assert server.stderr is not None
        first = server.stderr.readline()
    assert "WITHOUT TLS" in first
    assert "--plain-http" in first
    assert "only reads" in first


def test_control_from_elsewhere_is_said_too(telltale: Telltale, run: Path) -> None:
    with serving(telltale, "--bind", "0.0.0.0", "--plain-http", "--allow-control", run) as (server, link):
        assert asks_for_a_window(telltale, link, run) == 409
        server.terminate()
        assert server.stderr is not None
        assert "--allow-control" in server.stderr.readline()


def test_on_loopback_nothing_is_asked_and_nothing_is_said(telltale: Telltale, run: Path) -> None:
    with serving(telltale, run) as (server, link):
        assert link.startswith("http://127.0.0.1:")
        assert asks_for_a_window(telltale, link, run) == 409
        server.terminate()
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_both_ways_of_control_are_a_contradiction(telltale: Telltale, run: Path) -> None:
    done = telltale("serve", "--read-only", "--allow-control", run)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that nobody but itself has signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
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
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls(
    telltale: Telltale, run: Path, certificate: tuple[Path, Path]
) -> Iterator[tuple[int, ssl.SSLContext, str]]:
    """Port of a server with TLS at all addresses, what trusts it, and its token."""
    cert, key = certificate
    with serving(telltale, "--bind", "0.0.0.0", "--tls-cert", cert, "--tls-key", key, run) as (_, link):
        assert link.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        yield port_of(link), trusting, telltale("serve", "--print-token").stdout.strip()


def connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(
        socket.create_connection(("127.0.0.1", port), PATIENCE_S), server_hostname="127.0.0.1"
    )


def ask(
    connection: ssl.SSLSocket, port: int, request: str, *headers: str, body: str = ""
) -> tuple[int, str, bytes]:
    """Status, head and body of the answer."""
    lines = [f"{request} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}", *headers]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, str(answer.headers), answer.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_over_tls_it_is_the_same_server(
    tls: tuple[int, ssl.SSLContext, str], version: ssl.TLSVersion
) -> None:
    port, context, token = tls
    context.minimum_version = context.maximum_version = version
    with connect(port, context) as connection:
        assert ask(connection, port, "GET /api/runs")[0] == 401
        status, head, _ = ask(connection, port, "POST /api/session", body=json.dumps({"code": token}))
        assert status == 200
        assert "HttpOnly; SameSite=Strict; Secure" in head
        status, _, body = ask(connection, port, "GET /api/runs", f"Authorization: Bearer {token}")
        assert status == 200
        assert [one["id"] for one in json.loads(body)["runs"]] == ["one"]
        status, _, body = ask(connection, port, "GET /api/runs/one/report", f"Authorization: Bearer {token}")
        assert status == 200
        assert b"</html>" in body
        # Beyond this machine it only reads, with TLS too.
        assert (
            ask(connection, port, "POST /api/runs/one/window", f"Authorization: Bearer {token}", body="{}")[0]
            == 405
        )


def test_a_stream_comes_through_tls(tls: tuple[int, ssl.SSLContext, str]) -> None:
    port, context, token = tls
    with connect(port, context) as connection:
        lines = [
            "GET /api/runs/one/stream HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Authorization: Bearer {token}",
        ]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        came = b""
        while came.count(b"event: tick") < 2:
            piece = connection.recv(1 << 16)
            assert piece, came
            came += piece
        assert b"event: overview" in came


def test_old_versions_and_http_without_tls_get_nothing(tls: tuple[int, ssl.SSLContext, str]) -> None:
    port, context, _ = tls
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(port, context)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain:
        plain.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        came = b""
        with contextlib.suppress(ConnectionError):
            while piece := plain.recv(4096):
                came += piece
        assert b"HTTP" not in came


def test_handshakes_that_are_never_finished_shut_nobody_out(tls: tuple[int, ssl.SSLContext, str]) -> None:
    port, context, token = tls
    half: list[socket.socket] = []
    try:
        with connect(port, context) as page:
            assert ask(page, port, "GET /api/runs", f"Authorization: Bearer {token}")[0] == 200
            for i in range(300):
                half.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
                half[-1].sendall(b"\x16\x03\x01\x02\x00"[: i % 6])
                if i % 100 == 99:
                    assert ask(page, port, "GET /api/runs", f"Authorization: Bearer {token}")[0] == 200
                    with connect(port, context) as other:
                        assert ask(other, port, "GET /api/runs", f"Authorization: Bearer {token}")[0] == 200
            # Each is ended, after ten seconds at the latest.
            for one in half:
                with contextlib.suppress(ConnectionError):
                    while one.recv(4096):
                        pass
    finally:
        for one in half:
            one.close()


def test_what_is_no_certificate_is_told(
    telltale: Telltale, run: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    for options in ((cert, run / "run.json"), (run / "run.json", key), (run / "none.pem", key)):
        done = telltale("serve", "--tls-cert", options[0], "--tls-key", options[1], run)
        assert done.returncode == 2
        assert done.stderr.startswith("telltale serve: --tls-cert ")
        assert done.stderr.count("\n") == 1
    for words in (("--tls-cert", cert), ("--tls-cert", cert, "--tls-key", key, "--plain-http")):
        assert telltale("serve", *words, run).returncode == 2
