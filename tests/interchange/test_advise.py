# SPDX-License-Identifier: Apache-2.0
"""`telltale advise` on real traces of PyTorch's, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_kineto import DATA, ROOT, needs_data, share_of_data, telltale, write


def advice(trace: Path, *more: object, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(telltale("advise", trace, "--format", "json", *more, code=code).stdout))


def of(document: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["rule"] == rule]


def trace_of(workers: int) -> Path:
    return DATA / "kineto" / f"resnet50_num_workers_{workers}.pt.trace.json.gz"


@needs_data
def test_a_training_that_waits_for_its_data() -> None:
    document = advice(trace_of(0))
    assert document["steps"] == 6
    found = of(document, "InputBound")[0]
    # The engine's rule says it; what the check knows more is its evidence.
    assert not of(document, "InputPipeline")
    assert found["severity"] == "high"
    trace = found["evidence"]["trace"]
    assert trace["check"] == "InputPipeline"
    # Kernels of the step before still run in some of the wait, which is then none of the device's.
    assert 0.2 < trace["share"] <= share_of_data(trace_of(0)) + 0.02
    # A network in float32.
    assert of(document, "MixedPrecision")[0]["evidence"]["tensor_core_share"] < 0.1
    assert all(finding["cost_seconds"] <= document["wall_seconds"] for finding in document["findings"])


@needs_data
def test_the_same_training_with_workers() -> None:
    document = advice(trace_of(4))
    assert not of(document, "InputBound")
    assert not of(document, "InputPipeline")
    assert not of(document, "AcceleratorUtilization")
    # Images from pageable memory.
    assert of(document, "DataTransfer")[0]["evidence"]["pageable_seconds"] > 0
    # What costs nothing is info.
    top = next(one for one in of(document, "ExpensiveOperation") if one["subject"] == "rank 0, operators")
    assert top["severity"] == "info"
    assert top["evidence"]["top"][0]["device_seconds"] > 0


@needs_data
def test_checks_can_be_chosen_and_gate() -> None:
    document = advice(trace_of(0), "--check", "InputPipeline,HostBound")
    assert [check["name"] for check in document["checks"]] == ["HostBound", "InputPipeline"]
    # No rule has said it before.
    assert of(document, "InputPipeline")[0]["severity"] == "high"
    telltale("advise", trace_of(0), "--check", "InputPipeline", "--fail-on", "high", code=10)
    telltale("advise", trace_of(4), "--check", "InputPipeline", "--fail-on", "low")
    text = telltale("advise", trace_of(0)).stdout
    assert "InputBound" in text and "→" in text and "assumes that" in text


def test_what_cannot_be_advised_on(tmp_path: Path) -> None:
    empty = write(tmp_path / "trace.json", {"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]})
    assert "is no check" in telltale("advise", empty, "--check", "Nothing", code=2).stderr
    assert "no trace of rank 7" in telltale("advise", empty, "--rank", "7", code=2).stderr
    document = advice(empty)
    assert not document["findings"]
    telltale("advise", code=2)


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs" / "guide" / "advise.md").read_text(encoding="utf-8")
    named = [
        line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5
    ]
    listed = json.loads(telltale("advise", "--list", "--json").stdout)["checks"]
    assert named == [check["name"] for check in listed]
    for check in listed:
        line = next(one for one in page.splitlines() if one.startswith(f"| `{check['name']}`"))
        assert check["peers"] in line
        assert not check["rule"] or f"rules/{check['rule']}.md" in line
