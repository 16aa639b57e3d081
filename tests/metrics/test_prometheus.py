# SPDX-License-Identifier: Apache-2.0
"""/metrics as prometheus_client's parsers and promtool read it; alert rules and dashboard."""

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BINARY, PYTHON, REPO, Say
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE_S, wait_until

TOOLS = f"{Path(PYTHON).parent}{os.pathsep}{os.environ.get('PATH', '')}"
PROMTOOL = shutil.which("promtool", path=TOOLS)
PROMETHEUS = shutil.which("prometheus", path=TOOLS)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool: `tools/setup test` takes it from Debian's package prometheus"
)
OPEN = "application/openmetrics-text;version=1.0.0"


class Server:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(BINARY), "serve", "--print-metrics-token", str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split("/#")[0]
        self.token = self.process.stdout.readline().strip()

    def scrape(self, accept: str = "") -> str:
        headers = {"Authorization": f"Bearer {self.token}", **({"Accept": accept} if accept else {})}
        request = urllib.request.Request(f"{self.address}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
        return text

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str], telltale: Say) -> Iterator[Server]:
    """A real training that has just ended, with names that need escapes."""
    done = telltale(
        "run", "--no-serve", "-o", tmp_path / "runs" / "try-1", "--", PYTHON,
        REPO / "tests/e2e/train_tiny.py", 200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs" / "try-1" / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "name": 'a "name"\n\\ of\tmine'}))
    one = Server(tmp_path / "runs", environment)
    try:
        yield one
    finally:
        one.close()


def test_the_text_format_is_prometheus(server: Server) -> None:
    families = {family.name: family for family in text_string_to_metric_families(server.scrape())}
    (steps,) = (s for s in families["telltale_steps"].samples if s.labels["mode"] == "TRAIN")
    assert (steps.name, steps.value) == ("telltale_steps_total", 200)
    assert steps.labels == {"run": "try-1", "mode": "TRAIN", "rank": "0"}
    (info,) = families["telltale_run_info"].samples
    assert info.labels["name"] == 'a "name"\n\\ of\tmine'
    states = {s.labels["state"]: s.value for s in families["telltale_run_state"].samples}
    assert states == {"running": 0, "finished": 1, "failed": 0, "killed": 0, "lost": 0}
    rules = families["telltale_rule_state"].samples
    names = {s.labels["rule"] for s in rules}
    assert "LossNotDecreasing" in names
    for name in names:
        assert sum(s.value for s in rules if s.labels["rule"] == name) == 1
    assert any(name.startswith("telltale_system_") for name in families)
    phases = families["telltale_step_phase_time_seconds"].samples
    (total,) = families["telltale_step_time_seconds"].samples
    assert sum(s.value for s in phases) == pytest.approx(total.value)
    series = [(s.name, tuple(sorted(s.labels.items()))) for f in families.values() for s in f.samples]
    assert len(series) == len(set(series))


def test_openmetrics_is_openmetrics(server: Server) -> None:
    # The strict parser: it refuses whatever the specification does.
    families = {f.name: f for f in openmetrics.text_string_to_metric_families(server.scrape(OPEN))}
    assert families["telltale_steps"].type == "counter"
    plain = {f.name for f in text_string_to_metric_families(server.scrape())}
    assert set(families) == plain


@needs_promtool
def test_promtool_takes_the_answer(server: Server) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=server.scrape(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: matters of taste alone.
    assert "error" not in done.stderr, done.stderr


def test_a_run_that_goes_on_is_followed(tmp_path: Path, environment: dict[str, str], telltale: Say) -> None:
    (tmp_path / "runs").mkdir()
    server = Server(tmp_path / "runs", environment)
    stop = tmp_path / "stop"
    training = subprocess.Popen(
        [str(BINARY), "run", "--no-serve", "-o", str(tmp_path / "runs/live"), "--", PYTHON,
         str(REPO / "tests/web/train_live.py"), str(stop)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        seen = [0.0]

        def more() -> bool:
            families = text_string_to_metric_families(server.scrape())
            steps = sum(s.value for f in families if f.name == "telltale_steps" for s in f.samples)
            if steps > seen[-1]:
                seen.append(steps)
            return len(seen) == 4

        wait_until("a third number of steps", more, training)
    finally:
        stop.touch()
        try:
            training.wait(timeout=PATIENCE_S)
        finally:
            server.close()


@pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus: `tools/setup test` takes it from Debian's package"
)
def test_prometheus_scrapes_it_and_evaluates_the_alert_rules(
    server: Server, telltale: Say, tmp_path: Path
) -> None:
    """The guide's configuration, in Prometheus itself."""
    assert PROMETHEUS is not None
    assert telltale("export", "prometheus-rules", "-o", tmp_path / "alerts.yml").returncode == 0
    (tmp_path / "token").write_text(server.token)
    config = {
        "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "telltale",
                "authorization": {"credentials_file": "token"},
                "static_configs": [{"targets": [urllib.parse.urlsplit(server.address).netloc]}],
            }
        ],
        "rule_files": ["alerts.yml"],
    }
    # JSON is YAML.
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = (tmp_path / "prometheus.log").open("w")
    process = subprocess.Popen(
        [PROMETHEUS, "--config.file=prometheus.yml", f"--web.listen-address={address}",
         f"--storage.tsdb.path={tmp_path / 'tsdb'}"],
        cwd=tmp_path, stdout=log, stderr=log,
    )  # fmt: skip

    def ask(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=PATIENCE_S) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def until(path: str, good: Callable[[dict[str, Any]], bool]) -> None:
        def there() -> bool:
            try:
                data = ask(path)
            except (urllib.error.URLError, ConnectionError):
                return False  # It begins.
            return bool(data) and good(data)

        wait_until(f"{path}, see {tmp_path}/prometheus.log,", there, process)

    try:
        steps = urllib.parse.quote('telltale_steps_total{run="try-1",mode="TRAIN",rank="0"}')
        until(f"query?query={steps}", lambda data: [r["value"][1] for r in data["result"]] == ["200"])
        until("query?query=up", lambda data: [r["value"][1] for r in data["result"]] == ["1"])

        def evaluated(data: dict[str, Any]) -> bool:
            rules = [rule for group in data["groups"] for rule in group["rules"]]
            assert not [rule for rule in rules if rule["health"] == "err"]
            return len(rules) > 50 and all(rule["health"] == "ok" for rule in rules)

        until("rules", evaluated)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        log.close()


@needs_promtool
def test_promtool_takes_the_alert_rules(telltale: Say, tmp_path: Path) -> None:
    assert PROMTOOL is not None
    done = telltale("export", "prometheus-rules", "-o", tmp_path / "alerts.yml")
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", str(tmp_path / "alerts.yml")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_an_alert_fires_and_no_other(telltale: Say, tmp_path: Path) -> None:
    """promtool's own unit tests of rules: series in, alerts out."""
    assert PROMTOOL is not None
    assert telltale("export", "prometheus-rules", "-o", tmp_path / "alerts.yml").returncode == 0
    age = 'telltale_last_step_age_seconds{{run="{}",mode="{}",rank="0"}}'
    labels = 'run="r",rule="InputBound",kind="InputBound",subject="rank 0",wrong_result="false"'
    case = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": f'telltale_finding{{{labels},severity="medium"}}', "values": "0 0 1 1 1 0 0"},
                    {
                        "series": 'telltale_loss{run="r",mode="TRAIN",rank="0"}',
                        "values": "1 1 NaN NaN NaN 1 1",
                    },
                    {"series": 'telltale_run_state{run="r",state="failed"}', "values": "0x6"},
                    # One hangs, one evaluates for long.
                    {"series": age.format("hangs", "TRAIN"), "values": "1000x8"},
                    {"series": age.format("evaluates", "TRAIN"), "values": "1000x8"},
                    {"series": age.format("evaluates", "EVAL"), "values": "5x8"},
                    {"series": 'telltale_run_state{run="hangs",state="running"}', "values": "1x8"},
                    {"series": 'telltale_run_state{run="evaluates",state="running"}', "values": "1x8"},
                ],
                "alert_rule_test": [
                    {"eval_time": "15s", "alertname": "TelltaleInputBound"},
                    {"eval_time": "45s", "alertname": "TelltaleCustomRule"},
                    {"eval_time": "45s", "alertname": "TelltaleRunFailed"},
                    {"eval_time": "90s", "alertname": "TelltaleInputBound"},
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (run) (ALERTS{alertname="TelltaleNoSteps"})',
                        "eval_time": "90s",
                        "exp_samples": [{"labels": '{run="hangs"}', "value": 1}],
                    },
                    {
                        "expr": 'count(ALERTS{alertname="TelltaleInputBound",alertstate="firing",severity="medium"})',
                        "eval_time": "45s",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                    {
                        "expr": 'count(ALERTS{alertname="TelltaleLossNotFinite",alertstate="firing"})',
                        "eval_time": "45s",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        ],
    }
    # JSON is YAML.
    (tmp_path / "case.yml").write_text(json.dumps(case))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "case.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_printed(telltale: Say) -> None:
    done = telltale("export", "grafana")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["title"] == "Telltale"


def test_files_of_no_run_take_none(telltale: Say) -> None:
    done = telltale("export", "grafana", "runs/one")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
