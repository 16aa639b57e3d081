# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP: what arrives is what opentelemetry-proto reads; what happens where nobody takes it."""

import json
from pathlib import Path
from typing import Any

from conftest import PYTHON, REPO, Receiver, Say
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE


def parsed(body: bytes) -> Any:
    request = ExportMetricsServiceRequest()
    request.ParseFromString(body)
    return request


def attributes(of: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in of}


def metrics(body: bytes) -> dict[str, Any]:
    (resource,) = parsed(body).resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "telltale"
    assert len({metric.name for metric in scope.metrics}) == len(scope.metrics)
    return {metric.name: metric for metric in scope.metrics}


def test_a_run_is_pushed_once(telltale: Say, sample: Path, receiver: Receiver) -> None:
    endpoint = ("--endpoint", receiver.url, "--header", "X-Scope: lab")
    done = telltale("export", "otlp", sample, *endpoint, "--json")
    assert done.returncode == 0, done.stderr
    ((path, headers, body),) = receiver.posts
    assert path == "/v1/metrics"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["x-scope"] == "lab"
    (resource,) = parsed(body).resource_metrics
    described = attributes(resource.resource.attributes)
    assert described["service.name"] == "telltale"
    assert described["service.instance.id"] == "late"
    by_name = metrics(body)
    steps = by_name["telltale_steps"]
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = steps.sum.data_points
    assert point.as_double == 1000
    assert attributes(point.attributes) == {"run": "late", "mode": "TRAIN", "rank": "0"}
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    # Of a run that is over: its own end, not now.
    info = json.loads((sample / "run.json").read_text())
    assert point.start_time_unix_nano == info["attempts"][0]["start_ns"]
    states = by_name["telltale_rule_state"].gauge.data_points
    firing = {
        attributes(p.attributes)["rule"]
        for p in states
        if p.as_double == 1 and attributes(p.attributes)["status"] == "IssuesFound"
    }
    check = json.loads(telltale("check", sample, "--json").stdout)
    assert firing == {rule["name"] for rule in check["rules"] if rule["status"] == "IssuesFound"}
    assert firing
    assert by_name["telltale_step_seconds"].unit == "s"
    points = sum(len(m.sum.data_points) + len(m.gauge.data_points) for m in by_name.values())
    assert json.loads(done.stdout) == {"pushes": 1, "failures": 0, "points": points, "note": ""}


def test_a_receiver_that_is_busy_is_asked_again(telltale: Say, sample: Path, receiver: Receiver) -> None:
    receiver.answers = [(503, {"Retry-After": "1"}, b""), (429, {}, b""), (200, {}, b"")]
    done = telltale("export", "otlp", sample, "--endpoint", receiver.url, "--json")
    assert done.returncode == 0, done.stderr
    assert len(receiver.posts) == 3
    assert json.loads(done.stdout)["failures"] == 2


def test_what_is_refused_for_good_is_not_sent_again(telltale: Say, sample: Path, receiver: Receiver) -> None:
    for code, exit_code in ((400, 5), (401, 6), (403, 6), (404, 5)):
        receiver.posts.clear()
        receiver.answers = [(code, {}, b"secret of the receiver")]
        done = telltale("export", "otlp", sample, "--endpoint", receiver.url)
        assert (done.returncode, len(receiver.posts)) == (exit_code, 1)
        assert done.stderr.count("\n") == 1
        assert str(code) in done.stderr


def test_a_redirect_is_no_success(telltale: Say, sample: Path, receiver: Receiver) -> None:
    receiver.answers = [(302, {"Location": receiver.url + "/elsewhere"}, b"")]
    done = telltale("export", "otlp", sample, "--endpoint", receiver.url)
    assert (done.returncode, len(receiver.posts)) == (5, 1)


def test_points_that_were_refused_are_said(telltale: Say, sample: Path, receiver: Receiver) -> None:
    partial = ExportMetricsPartialSuccess(rejected_data_points=3, error_message="too old")
    answer = ExportMetricsServiceResponse(partial_success=partial)
    receiver.answers = [(200, {}, answer.SerializeToString())]
    done = telltale("export", "otlp", sample, "--endpoint", receiver.url, "--json")
    assert done.returncode == 0
    assert "3 of " in done.stderr and "too old" in done.stderr
    assert "too old" in json.loads(done.stdout)["note"]


def test_nobody_there_is_one_line(telltale: Say, sample: Path) -> None:
    done = telltale("export", "otlp", sample, "--endpoint", "http://user:secret@127.0.0.1:9/secret")
    assert done.returncode == 5
    assert "secret" not in done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_wrong_usage(telltale: Say, sample: Path, tmp_path: Path) -> None:
    for args, code in (
        (("otlp", sample), 2),
        (("otlp", sample, "--endpoint", "ftp://x"), 2),
        (("otlp", tmp_path / "none", "--endpoint", "http://127.0.0.1:9"), 3),
        (("otlp",), 2),
        (("otlp", sample, "--endpoint", "http://127.0.0.1:9", "--interval", "0"), 2),
    ):
        done = telltale("export", *args)
        assert done.returncode == code, args
    assert telltale("run", "--otlp", "nowhere", "--", "true").returncode == 2


def test_the_variables_of_the_specification(telltale: Say, sample: Path, receiver: Receiver) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b,x-other=c"}
    assert telltale("export", "otlp", sample, env=env).returncode == 0
    env = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.url + "/whole"}
    assert telltale("export", "otlp", sample, env=env).returncode == 0
    (first, second) = receiver.posts
    assert (first[0], first[1]["x-key"], first[1]["x-other"]) == ("/v1/metrics", "a b", "c")
    assert second[0] == "/whole"


def test_a_training_is_pushed_while_it_goes_on_and_at_its_end(
    telltale: Say, receiver: Receiver, tmp_path: Path
) -> None:
    run = tmp_path / "live"
    done = telltale(
        "run", "--no-serve", "-o", run, "--otlp", receiver.url, "--", PYTHON,
        REPO / "tests/e2e/train_tiny.py", 300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The watcher waits for a last push; were it killed before, none would come.
    by_name = metrics(receiver.posts[-1][2])
    state = {
        attributes(p.attributes)["state"]: p.as_double
        for p in by_name["telltale_run_state"].gauge.data_points
    }
    assert state.get("finished") == 1, (len(receiver.posts), state)
    (steps,) = (
        p for p in by_name["telltale_steps"].sum.data_points if attributes(p.attributes)["mode"] == "TRAIN"
    )
    assert steps.as_double == 300
    assert by_name["telltale_rule_state"].gauge.data_points


def test_a_receiver_that_is_gone_harms_no_training(telltale: Say, tmp_path: Path) -> None:
    run = tmp_path / "alone"
    done = telltale(
        "run", "--no-serve", "-o", run, "--otlp", "http://127.0.0.1:9", "--", PYTHON,
        REPO / "tests/e2e/train_tiny.py", 100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trained 100" in done.stdout
    check = json.loads(telltale("check", run, "--json").stdout)
    assert check["run"]["state"] == "finished"
    assert check["run"]["steps"] == 100
