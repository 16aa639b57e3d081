# SPDX-License-Identifier: Apache-2.0
"""PutMetricData against moto's server: what arrives, and that its signature is one."""

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PYTHON, Receiver, Say
from waiting import PATIENCE_S, wait_until

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    importlib.import_module("moto.server")
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=out, stderr=out
        )
    try:
        address = re.compile(r"http://127\.0\.0\.1:(\d+)")
        yield wait_until("moto's address", lambda: address.search(log.read_text()), server).group(0)
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE_S)


def test_cloudwatch_has_the_metrics(telltale: Say, sample: Path, moto: str) -> None:
    done = telltale(
        "export", "cloudwatch", sample, "--endpoint", moto, "--namespace", "Lab/Runs", "--json", env=KEYS
    )
    assert done.returncode == 0, done.stderr
    boto3 = importlib.import_module("boto3")
    client = boto3.client(
        "cloudwatch",
        region_name="eu-central-1",
        endpoint_url=moto,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
    )
    found: list[dict[str, object]] = []
    token: dict[str, str] = {}
    while True:
        page = client.list_metrics(Namespace="Lab/Runs", **token)
        found += page["Metrics"]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert len(found) == json.loads(done.stdout)["points"]
    by_name: dict[str, list[dict[str, str]]] = {}
    for metric in found:
        dimensions = {d["Name"]: d["Value"] for d in metric["Dimensions"]}  # type: ignore[attr-defined]
        by_name.setdefault(str(metric["MetricName"]), []).append(dimensions)
    assert {"run": "late", "mode": "TRAIN", "rank": "0"} in by_name["telltale_step_seconds"]
    assert {d["status"] for d in by_name["telltale_rule_state"]} >= {"IssuesFound"}
    # Scalars and counters would cost more than they say.
    assert "telltale_scalar" not in by_name
    assert not any(name.endswith("_total") for name in by_name)


def test_each_request_is_signed_for_the_region(telltale: Say, sample: Path, receiver: Receiver) -> None:
    env = {**KEYS, "AWS_SESSION_TOKEN": "session"}
    done = telltale(
        "export", "cloudwatch", sample, "--endpoint", receiver.url, "--region", "us-east-2", env=env
    )
    assert done.returncode == 0, done.stderr
    for path, headers, body in receiver.posts:
        assert path == "/"
        assert re.match(
            r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/us-east-2/monitoring/aws4_request, "
            r"SignedHeaders=[a-z0-9;-]*host[a-z0-9;-]*, Signature=[0-9a-f]{64}$",
            headers["authorization"],
        ), headers["authorization"]
        assert headers["x-amz-security-token"] == "session"
        assert body.startswith(
            b"Action=PutMetricData&Version=2010-08-01&Namespace=Telltale&MetricData.member.1."
        )
        assert b"secret" not in body


def test_the_signature_is_botocores(telltale: Say, sample: Path, receiver: Receiver) -> None:
    """The same request, signed by AWS's own library at the same second, has the same signature."""
    auth = importlib.import_module("botocore.auth")
    awsrequest = importlib.import_module("botocore.awsrequest")
    credentials = importlib.import_module("botocore.credentials")
    assert telltale("export", "cloudwatch", sample, "--endpoint", receiver.url, env=KEYS).returncode == 0
    (path, headers, body) = receiver.posts[0]
    signed = re.search(r"SignedHeaders=([^,]*)", headers["authorization"])
    assert signed is not None
    request = awsrequest.AWSRequest("POST", receiver.url + path, data=body)
    for name in signed.group(1).split(";"):
        if name != "x-amz-date":
            request.headers[name] = headers[name]
    signer = auth.SigV4Auth(credentials.Credentials("AKIDEXAMPLE", "secret"), "monitoring", "eu-central-1")
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.context["timestamp"] = headers["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["authorization"].endswith(signer.signature(text, request))


def test_throttling_is_waited_out(telltale: Say, sample: Path, receiver: Receiver) -> None:
    error = b"<ErrorResponse><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
    receiver.answers = [(400, {}, error), (200, {}, b"")]
    done = telltale("export", "cloudwatch", sample, "--endpoint", receiver.url, "--json", env=KEYS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failures"] == 1


def test_without_credentials_or_region_it_says_what_to_do(
    telltale: Say, sample: Path, tmp_path: Path
) -> None:
    nobody = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    done = telltale("export", "cloudwatch", sample, "--region", "eu-central-1", env=nobody)
    assert done.returncode == 6
    assert "AWS_ACCESS_KEY_ID" in done.stderr
    done = telltale("export", "cloudwatch", sample, env=nobody)
    assert done.returncode == 2
    assert "--region" in done.stderr
    done = telltale("export", "cloudwatch", sample, "--namespace", "AWS/EC2", env=KEYS)
    assert done.returncode == 2
