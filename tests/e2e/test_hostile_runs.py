# SPDX-License-Identifier: Apache-2.0
"""A run folder of a stranger: a link, a pipe, a socket, a device, a file of a tebibyte in the place of each file and
folder of a real run, and a run.json that wants to act. Whatever is done with such a folder, nothing outside of it is
read into an answer or written, nothing is posted, and nothing waits for more than 5 s.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_WITH_ITS_PLAN, Telltale
from waiting import PATIENCE_S, await_helpers, wait_until
from waits import Waits

# No command, and no answer of the server, may wait for longer. Computing is no waiting (waits.py).
WAIT_S = 5.0
# What a command may end with: docs/cli.md.
ENDS = {0, 2, 3, 4, 5, 7, 8, 9, 10}
CANARY = "hf_CANARY_of_a_secret"
# Whoever reads the run.json that lies outside says this name.
OUTSIDE_NAME = "name-of-the-run-outside"
HUGE_BYTES = 1 << 40


@dataclass
class Trap:
    """A folder of runs with a hostile one in it, and what lies outside."""

    parent: Path
    run: Path
    outside: Path
    state: Path
    environment: dict[str, str]
    posts: list[tuple[str, str, bytes]] = field(default_factory=list)
    port: int = 0

    def place(self, name: str) -> Path:
        """A file or folder of the run by its kind."""
        [agent] = self.run.glob("agent-*")
        found = {
            "agent": agent,
            "agent/lock": agent / "lock",
            "agent/journal": next(iter(sorted(agent.glob("journal-*.ttj"))), None),
            "agent/segment": next(iter(sorted(agent.glob("steps-*.parquet"))), None),
            "agent/tensors": agent / "tensors",
            "agent/tensor": next(iter(sorted(agent.glob("tensors/*.safetensors"))), None),
            "watch/journal": next(iter(sorted(self.run.glob("watch/journal-*.ttj"))), None),
            "requests/who": self.run / "requests/test",
            "request": next(iter(sorted(self.run.glob("requests/test/*.json"))), None),
            "windows/one": self.run / "windows/one",
            "window": self.run / "windows/one/rank0-step5-77.pt.trace.json",
        }.get(name, self.run / name)
        assert found is not None and found.exists(), name
        return found

    def put_away(self, path: Path) -> Path:
        """Makes room for something else of this name; what was there lies outside, at the same place."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        return self.outside / "run" / path.relative_to(self.run)


FILES = (
    "run.json",
    "report.html",
    "logs/watch.log",
    "logs/agent.log",
    "agent/lock",
    "agent/journal",
    "agent/segment",
    "agent/tensor",
    "watch/lock",
    "watch/journal",
    "request",
    "window",
)
FOLDERS = ("agent", "agent/tensors", "watch", "logs", "requests", "requests/who", "windows", "windows/one")


def link_outside(trap: Trap, path: Path) -> None:
    path.symlink_to(trap.put_away(path))


def link_to_itself(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    path.symlink_to(path.name)


def link_to_nothing(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    path.symlink_to(trap.outside / f"new-{path.name}")


def link_to_a_pipe(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    path.symlink_to(trap.outside / "pipe")


def pipe(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    os.mkfifo(path)


def listening(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    # An address has room for 107 bytes.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def device(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero has no end.
    except PermissionError:
        pytest.skip("devices are made by root alone")


def huge(trap: Trap, path: Path) -> None:
    os.truncate(path, HUGE_BYTES)


def huge_and_empty(trap: Trap, path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, HUGE_BYTES)


def second_name(trap: Trap, path: Path) -> None:
    target = trap.put_away(path)
    os.link(target, path)


def folder(trap: Trap, path: Path) -> None:
    trap.put_away(path)
    path.mkdir()


def edit(trap: Trap, change: Callable[[dict[str, Any]], None]) -> None:
    info = json.loads((trap.run / "run.json").read_text())
    change(info)
    (trap.run / "run.json").write_text(json.dumps(info))


def webhook(trap: Trap) -> dict[str, Any]:
    return {
        "kind": "webhook",
        "url": f"http://127.0.0.1:{trap.port}/hook",
        "token_file": str(trap.outside / "token"),
        "allow_private": True,
        "retries": 0,
        "from": "info",
        "dry_run": False,
    }


def fires(trap: Trap, *actions: dict[str, Any]) -> None:
    """A rule that finds something in any run, and what it is to set off."""
    rule = {"expression": "step:duration > 0", "severity": "high", "actions": list(actions)}
    edit(trap, lambda info: info.update(rules={"defaults": False, "rules": {"fires": rule}}))
    # Nobody has judged it yet.
    shutil.rmtree(trap.run / "watch")


def actions(trap: Trap) -> None:
    token = str(trap.outside / "token")
    others: list[dict[str, Any]] = [
        {"kind": "program", "program": "/bin/touch", "arguments": str(trap.outside / "touched")},
        {
            "kind": "email",
            "to": "x@example.org",
            "host": "127.0.0.1",
            "port": trap.port,
            "password_file": token,
        },
        {"kind": "sms", "to": "+15551234567", "gateway": webhook(trap)["url"], "token_file": token},
        {"kind": "stop", "kill": True},
    ]
    fires(trap, webhook(trap), *({**each, "from": "info", "dry_run": False} for each in others))
    trap.environment["TELLTALE_PROGRAMS"] = "/bin/touch"


def python_rules(trap: Trap) -> None:
    code = trap.run / "rule.py"
    code.write_text(f"open({str(trap.outside / 'touched')!r}, 'w')\n")
    edit(trap, lambda info: info.update(rules={"rules": {"evil": {"python": f"{code}:Evil"}}}))


def others_may_write(trap: Trap) -> None:
    trap.run.chmod(0o777)


def planted_temporaries(trap: Trap) -> None:
    """Links under the names that processes of the next numbers write first."""
    target = trap.outside / "run/report.html"
    newest = max(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in range(newest, newest + 2000):
        for name in ("report.html", "run.json"):
            (trap.run / f"{name}.{pid}.tmp").symlink_to(target)
    for writer in (trap.place("agent"), trap.run / "watch"):
        for number in range(1, 30):
            with contextlib.suppress(FileExistsError):
                (writer / f"journal-{number:06}.ttj.tmp").symlink_to(target)


def everywhere(how: Callable[[Trap, Path], None], places: tuple[str, ...]) -> Callable[[Trap], None]:
    def spring(trap: Trap) -> None:
        for path in [trap.place(name) for name in places]:
            # A folder above it may be away by now.
            if os.path.lexists(path) and not any(up.is_symlink() for up in path.parents):
                how(trap, path)

    return spring


def at(how: Callable[[Trap, Path], None], name: str) -> Callable[[Trap], None]:
    return lambda trap: how(trap, trap.place(name))


CASES: dict[str, Callable[[Trap], None]] = {
    **{f"link-outside:{name}": at(link_outside, name) for name in (*FILES, *FOLDERS)},
    **{f"pipe:{name}": at(pipe, name) for name in FILES},
    **{
        f"huge:{name}": at(huge, name)
        for name in ("run.json", "agent/journal", "agent/segment", "agent/tensor")
    },
    "link-to-a-pipe:run.json": at(link_to_a_pipe, "run.json"),
    "link-to-a-pipe:agent/segment": at(link_to_a_pipe, "agent/segment"),
    "link-to-itself:run.json": at(link_to_itself, "run.json"),
    "link-to-nothing:logs": at(link_to_nothing, "logs"),
    "folder:run.json": at(folder, "run.json"),
    "all-files:link-to-itself": everywhere(link_to_itself, FILES[1:]),
    "all-files:link-to-nothing": everywhere(link_to_nothing, FILES[1:]),
    "all-files:socket": everywhere(listening, FILES[1:]),
    "all-files:device": everywhere(device, FILES[1:]),
    "all-files:huge-and-empty": everywhere(huge_and_empty, FILES[1:]),
    "all-files:second-name": everywhere(second_name, FILES[1:]),
    "all-folders:link-outside": everywhere(link_outside, ("agent", "watch", "logs", "requests", "windows")),
    "all-folders:pipe": everywhere(pipe, ("watch", "logs", "requests", "windows")),
    "actions": actions,
    "python-rules": python_rules,
    "others-may-write": others_may_write,
    "planted-temporaries": planted_temporaries,
}


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """All of a tree that a write would change."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([root, *root.rglob("*")]):
        about = path.lstat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else ""
        found[str(path.relative_to(root))] = (
            about.st_mode,
            about.st_uid,
            about.st_ino,
            about.st_mtime_ns,
            text,
        )
    return found


@pytest.fixture(scope="module")
def recorded(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with all kinds of files."""
    run = tmp_path_factory.mktemp("recorded") / "run"
    telltale = Telltale(binary, python, run.parent)
    options = ("--level", "tensors", "--collect", "losses:values,interval=1")
    done = telltale("run", *options, "-o", run, "--", python, *TINY_WITH_ITS_PLAN, "60")
    assert done.returncode == 0, done.stderr
    ask(run, "test", {"why": "a request that was answered long ago"})
    (run / "windows/one").mkdir(parents=True)
    (run / "windows/one/rank0-step5-77.pt.trace.json").write_text('{"traceEvents": []}')
    (run / "logs/agent.log").touch()
    (run / "logs/watch.log").touch()
    return run


def ask(run: Path, who: str, body: dict[str, Any]) -> Path:
    """A request to stop."""
    now = time.time_ns()
    number = f"{now:016x}{'0' * 16}"
    path = run / f"requests/{who}/{number}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = {"version": 1, "id": number, "who": who, "time_ns": now, "kind": "stop", "body": body}
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
def trap(recorded: Path, tmp_path: Path) -> Iterator[Trap]:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.copytree(recorded, outside / "run")
    info = json.loads((outside / "run/run.json").read_text())
    info["name"] = info["id"] = OUTSIDE_NAME
    (outside / "run/run.json").write_text(json.dumps(info))
    (outside / "token").write_text(CANARY)
    os.mkfifo(outside / "pipe")
    parent = tmp_path / "runs"
    parent.mkdir()
    shutil.copytree(recorded, parent / "hostile")
    shutil.copytree(recorded, parent / "good")
    info["name"] = info["id"] = "good"
    (parent / "good/run.json").write_text(json.dumps(info))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "NO_PROXY": "127.0.0.1"}
    environment.pop("TELLTALE_ACTIONS", None)
    made = Trap(parent, parent / "hostile", outside, tmp_path / "state", environment)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.posts.append((self.path, self.headers.get("Authorization", ""), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        # Nobody may have a file of a tebibyte copied.
        shutil.rmtree(parent, ignore_errors=True)


@contextlib.contextmanager
def not_waiting(pid: int, what: str) -> Iterator[None]:
    """What of ours works while the context lasts does not wait for anything for long."""
    with Waits(pid, WAIT_S) as waits:
        try:
            yield
        except Exception:
            # What fails because it was ended.
            if not waits.too_long:
                raise
    if waits.too_long:
        pytest.fail(f"{what} waits for more than {WAIT_S:g} s: {waits.who}")


class Commands:
    """The binary on one trap; each command ends by itself, waits for nothing for long, and has a word of ours."""

    def __init__(self, telltale: Telltale, trap: Trap) -> None:
        self.binary = telltale.binary
        self.trap = trap

    def __call__(self, *args: object, more: int | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(self.binary), *map(str, args)]
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self.trap.parent.parent,
            env=self.trap.environment,
            stdin=subprocess.DEVNULL,
        )
        try:
            with not_waiting(process.pid, f"telltale {' '.join(words[1:])}"):
                out, told = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        done = subprocess.CompletedProcess(words, process.returncode, out, told)
        assert done.returncode in ENDS | {more}, (words[1:], done.returncode, done.stderr[-2000:])
        said = done.stdout + done.stderr
        assert OUTSIDE_NAME not in said, words[1:]
        assert CANARY not in said, words[1:]
        assert "terminate called" not in done.stderr and "Sanitizer" not in done.stderr, done.stderr[-2000:]
        if done.returncode != 0 and more is None:
            assert said.strip(), words[1:]
        return done

    def serve(self) -> None:
        """Starts the page of the run, asks it what it knows, and ends it."""
        process = subprocess.Popen(
            [self.binary, "serve", self.trap.parent, "--port", "0"],
            env=self.trap.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # One that computes without an end.
        late = threading.Timer(PATIENCE_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            with not_waiting(process.pid, "the start of telltale serve"):
                link = process.stdout.readline().strip()
            assert link.startswith("http://127.0.0.1:"), "the server does not come"
            address, _, code = link.partition("#code=")
            cookie = self._fetch(process.pid, address + "api/session", code=code)[1]
            listed = json.loads(self._fetch(process.pid, address + "api/runs", cookie=cookie)[0])["runs"]
            assert any(each["id"] == "good" for each in listed), "one bad run takes the others along"
            for each in listed:
                with contextlib.suppress(urllib.error.HTTPError):
                    overview = f"{address}api/runs/{each['id']}/overview"
                    assert OUTSIDE_NAME not in self._fetch(process.pid, overview, cookie=cookie)[0]
            process.send_signal(signal.SIGTERM)
            with not_waiting(process.pid, "the end of telltale serve"):
                process.communicate(timeout=PATIENCE_S)
            assert process.returncode in (0, -signal.SIGTERM), process.returncode
        finally:
            late.cancel()
            process.kill()
            process.wait()

    @staticmethod
    def _fetch(server: int, url: str, code: str = "", cookie: str = "") -> tuple[str, str]:
        headers = {"Content-Type": "application/json", **({"Cookie": cookie} if cookie else {})}
        data = json.dumps({"code": code}).encode() if code else None
        request = urllib.request.Request(url, data=data, headers=headers)
        text, given = "", ""
        asked = not_waiting(server, f"the answer to {url}")
        with asked, urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text, given = answer.read().decode(), (answer.headers["Set-Cookie"] or "").split(";")[0]
        return text, given


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_run_is_only_data(telltale: Telltale, trap: Trap, case: str) -> None:
    CASES[case](trap)
    before = snapshot(trap.outside)
    say = Commands(telltale, trap)
    out = trap.parent.parent / "out.csv"
    say("ls", trap.run)
    assert "good" in say("ls", trap.parent).stdout
    checked = say("check", trap.run)
    if case == "link-outside:agent":
        # Not as a run in which nothing happened.
        assert checked.returncode == 7, checked.stdout
    say("verify", trap.run)
    say("query", trap.run, "steps", "--limit", "3")
    say("query", trap.run, "tensors", "--limit", "3")
    say("export", "csv", trap.run, "--table", "steps", "-o", out)
    say.serve()
    say("report", trap.run)
    watched = say("watch", trap.run)
    if case == "actions":
        assert watched.stderr.count("you have not agreed to it") == 5, watched.stderr
    done = say("run", "-o", trap.run, "--no-serve", "--", "/bin/sh", "-c", "exit 17", more=17)
    await_helpers(trap.run)
    if "link" in case and case.partition(":")[2] in FOLDERS:
        # The training's libraries write by path: into such a folder nothing is recorded.
        assert done.returncode == 5, done.stderr
        assert len(done.stderr.splitlines()) == 1 and "link" in done.stderr
    assert snapshot(trap.outside) == before
    assert trap.posts == []
    for path in trap.run.rglob("*"):
        # What was written now, as all that lies in a run.
        if path.name in ("report.html", "run.json") and path.is_file() and not path.is_symlink():
            assert path.stat().st_nlink > 1 or path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("place", ["root", "file", "nothing", "itself", "folder-of-others"])
def test_a_link_in_the_place_of_a_run_is_refused(telltale: Telltale, trap: Trap, place: str) -> None:
    """reliability.md, T44: exit code 5, and the training does not start."""
    link = trap.parent / "link"
    link.symlink_to(
        {
            "root": Path("/"),
            "file": trap.outside / "token",
            "nothing": trap.outside / "nothing",
            "itself": link,
            "folder-of-others": trap.outside,
        }[place]
    )
    before = snapshot(trap.outside)
    say = Commands(telltale, trap)
    for path in (link, f"{link}/"):
        started = trap.parent / "started"
        done = say("run", "-o", path, "--no-serve", "--", "/usr/bin/touch", started)
        assert done.returncode == 5, done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith("telltale run: ") and str(link) in line and "a link to" in line
        assert not started.exists()
    assert snapshot(trap.outside) == before


@pytest.mark.parametrize("place", ["run", "empty"])
def test_a_link_to_a_run_or_to_an_empty_folder_may_be_named(
    telltale: Telltale, trap: Trap, place: str
) -> None:
    folder = trap.parent / "good" if place == "run" else trap.parent / "empty"
    folder.mkdir(exist_ok=True)
    link = trap.parent / "link"
    link.symlink_to(folder)
    done = Commands(telltale, trap)(
        "run", "-o", link, "--no-serve", "--", "/bin/sh", "-c", "exit 17", more=17
    )
    await_helpers(link)
    assert done.returncode == 17, done.stderr
    assert json.loads((folder / "run.json").read_text())["attempts"][-1]["exit_code"] == 17


def test_more_than_thirty_hostile_runs_are_tried() -> None:
    assert len(CASES) >= 30


def test_an_action_is_carried_out_once_its_user_agrees(telltale: Telltale, trap: Trap) -> None:
    """What test_a_hostile_run_is_only_data does not find it would find."""
    fires(trap, webhook(trap))
    say = Commands(telltale, trap)
    done = say("watch", trap.run)
    assert trap.posts == []
    lines = [line for line in done.stderr.splitlines() if "not agreed to" in line]
    assert len(lines) == 1, done.stderr
    for words in ("webhook", f"127.0.0.1:{trap.port}/hook", str(trap.outside / "token"), "--actions"):
        assert words in lines[0]
    rows = say("query", trap.run, "events", "--format", "json", "--where", "kind = 'action.decided'").stdout
    assert "not agreed to" in rows

    shutil.rmtree(trap.run / "watch")
    say("watch", trap.run, "--actions")
    assert [(path, token) for path, token, _ in trap.posts] == [("/hook", f"Bearer {CANARY}")]


def test_the_actions_of_a_run_of_ones_own_are_agreed_to(telltale: Telltale, trap: Trap) -> None:
    rules = trap.parent.parent / "rules.toml"
    action = {key: value for key, value in webhook(trap).items() if key != "token_file"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in action.items()]
    rules.write_text(
        "defaults = false\n[[actions]]\n"
        + "\n".join(lines)
        + '\n[rules.fires]\nexpression = "step:duration > 0"\n'
    )
    own = trap.parent / "own"
    # Where nothing can be kept the run's own watcher knows all the same.
    for state, again in ((trap.state, 1), (Path("/proc/none"), 0)):
        trap.environment["XDG_STATE_HOME"] = str(state)
        trap.posts.clear()
        shutil.rmtree(own, ignore_errors=True)
        say = Commands(telltale, trap)
        training = (telltale.python, *TINY_WITH_ITS_PLAN, "60")
        done = say("run", "--rules", rules, "-o", own, "--no-serve", "--", *training)
        await_helpers(own)
        assert done.returncode == 0, done.stderr
        assert len(trap.posts) == 1, done.stderr
        # Of a copy too, as long as it is the same action.
        shutil.rmtree(own / "watch")
        say("watch", own)
        assert len(trap.posts) == 1 + again
        shutil.rmtree(own / "watch")
        info = json.loads((own / "run.json").read_text())
        info["rules"]["actions"][0]["url"] += "/elsewhere"
        (own / "run.json").write_text(json.dumps(info))
        say("watch", own)
        assert len(trap.posts) == 1 + again


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_request_of_another_user_stops_nothing_and_is_named(telltale: Telltale, trap: Trap) -> None:
    run = trap.parent / "shared"
    run.mkdir(mode=0o777)
    run.chmod(0o777)
    process = subprocess.Popen(
        [telltale.binary, "run", "-o", run, "--no-serve", "--", "/bin/sh", "-c", "read x; exit 17"],
        env=trap.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        say = Commands(telltale, trap)
        wait_until("the agent's journal", lambda: list(run.glob("agent-*/journal-*.ttj")), process)
        request = ask(run, "mallory", {"why": "mallory stops the training", "kill": True})
        for path in (request, request.parent):
            os.chown(path, 4002, 4002)

        def refused() -> str:
            return say(
                "query", run, "events", "--format", "json", "--where", "kind = 'request.refused'"
            ).stdout

        wait_until("the refusal", lambda: "of user 4002" in refused(), process)
        _, told = process.communicate("go on\n", timeout=PATIENCE_S)
    finally:
        process.kill()
    await_helpers(run)
    assert process.returncode == 17, told
    [line] = [line for line in told.splitlines() if "0777" in line]
    assert "may be written to by others" in line
    assert refused().count('"kind":"request.refused"') == 1


def test_a_report_and_an_export_in_a_run_are_for_its_owner_alone(telltale: Telltale, trap: Trap) -> None:
    say = Commands(telltale, trap)
    say("report", trap.run)
    say("export", "csv", trap.run, "--table", "steps", "-o", trap.run / "steps.csv")
    say("export", "parquet", trap.run, "--table", "steps", "-o", trap.run / "steps.parquet")
    for name in ("report.html", "steps.csv", "steps.parquet"):
        assert (trap.run / name).stat().st_mode & 0o777 == 0o600, name
    say("report", trap.run, "-o", trap.parent / "report.html")
    assert (trap.parent / "report.html").stat().st_mode & 0o400
