# SPDX-License-Identifier: Apache-2.0
"""The documents that `--json` prints, of real trainings: programs read them, so each key is here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Telltale

RUN = ["id", "name", "state", "attempts", "steps", "exit_code"]
FINDING: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "rule": str,
    "severity": str,
    "state": str,
    "until_end": bool,
    "subject": str,
    "first_step": int,
    "last_step": int,
    "start_ns": int,
    "end_ns": int,
    "message": str,
    "evidence": dict,
    "cause": str,
    "cost_seconds": (int, float),
    "advice": str,
    "confidence": (int, float),
    "revision": int,
}
GROUP = [
    "findings",
    "severity",
    "cause",
    "cause_found",
    "difference",
    "lost_seconds",
    "gain_seconds",
    "assumption",
    "money",
    "comparison",
]
SALVAGE = [
    "damaged_blocks",
    "torn_tails",
    "unreadable_files",
    "missing_rows",
    "impossible_rows",
    "foreign_files",
    "notes",
]

# Waits longer for a batch than it computes, and its loss is no number from step 50 on.
ILL = """
import time, torch
torch.set_num_threads(1)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 70
    def __getitem__(self, index):
        time.sleep(0.06)
        return torch.ones(4)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.0)
for i, x in enumerate(torch.utils.data.DataLoader(Slow())):
    loss = net(x).square().sum() * (float("nan") if i >= 50 else 1.0)
    opt.zero_grad(); loss.backward(); opt.step()
"""


def document(telltale: Telltale, *args: object, code: int = 0) -> dict[str, Any]:
    done = telltale(*args, "--json")
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def ledger(telltale: Telltale, run: Path, attempt: int) -> dict[str, int]:
    """Totals by name, of the newest row of each subject."""
    newest: dict[tuple, int] = {}
    for row in telltale.rows(run, "ledger", "--where", f"attempt = {attempt}"):
        newest[row["name"], row["subject"], row["pid"]] = row["value"]
    totals: dict[str, int] = {}
    for (name, *_), value in newest.items():
        totals[name] = totals.get(name, 0) + value
    return totals


@pytest.fixture(scope="module")
def ill_run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with a high finding of each kind; run with --json."""
    tmp = tmp_path_factory.mktemp("ill")
    (tmp / "train.py").write_text(ILL)
    telltale = Telltale(binary, python, tmp)
    done = telltale("run", "--json", "-o", tmp / "ill", "--", python, tmp / "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "standard output is the training's"
    assert f"telltale: verdict in {Path('ill') / 'verdict.json'}\n" in done.stderr
    return tmp / "ill"


def test_run_writes_the_document_of_check(telltale: Telltale, ill_run: Path) -> None:
    written = json.loads((ill_run / "verdict.json").read_text())
    assert written == document(telltale, "check", ill_run)


def test_check(telltale: Telltale, ill_run: Path) -> None:
    out = document(telltale, "check", ill_run)
    assert list(out) == [
        "run", "verdict", "elapsed_seconds", "lost_seconds", "run_phases", "findings",
        "findings_left_out", "groups", "actions", "rules",
        "usage", "salvage", "losses"
    ]  # fmt: skip
    assert out["run"] == dict(zip(RUN, ["ill", "train", "finished", 1, 70, 0], strict=True))
    assert list(out["salvage"]) == SALVAGE
    assert out["salvage"] == {**dict.fromkeys(SALVAGE, 0), "notes": []}
    assert out["losses"] == {}
    cores = out["usage"]["cores"]["run"]
    assert cores["samples"] == sum(cores["histogram"]) > 0
    assert sum(out["usage"]["gpu_time"].values()) == out["usage"]["gpus"]["run"]["samples"]
    grouped = [id for group in out["groups"] for id in group["findings"]]
    assert sorted(grouped) == sorted(f["id"] for f in out["findings"])
    for group in out["groups"]:
        assert list(group) == GROUP
        assert group["money"] is None
        assert (group["gain_seconds"] > 0) == (group["assumption"] != "")
    # A busy machine may add what is true of it.
    planted = [f for f in out["findings"] if f["rule"] in ("InputBound", "LossNotDecreasing")]
    assert {f["rule"] for f in planted} == {"InputBound", "LossNotDecreasing"}
    for finding in planted:
        assert list(finding) == list(FINDING)
        for key, kind in FINDING.items():
            assert isinstance(finding[key], kind), key
        assert finding["severity"] == "high"
        assert finding["state"] in ("open", "closed")
        assert 0 <= finding["first_step"] <= finding["last_step"] < 70
        assert 0 < finding["start_ns"] <= finding["end_ns"]
        assert 0 < finding["confidence"] <= 1
        assert finding["message"] and finding["advice"] and finding["evidence"]
    by_rule = {f["rule"]: f for f in out["findings"]}
    assert by_rule["LossNotDecreasing"]["first_step"] == 50
    assert by_rule["InputBound"]["cost_seconds"] > 1
    for rule in out["rules"]:
        assert list(rule)[:5] == ["name", "status", "incidents", "records", "rule"]
        assert rule["incidents"] >= (rule["name"] in by_rule)
        assert rule["records"] > 0 or rule["status"] in ("NoData", "NotApplicable")


def test_a_run_without_findings_has_empty_lists(telltale: Telltale, tmp_path: Path) -> None:
    assert telltale.run(tmp_path / "run", "sh", "-c", ":").returncode == 0
    out = document(telltale, "check", tmp_path / "run")
    assert out["findings"] == []
    assert out["run"] == {
        "id": "run",
        "name": "sh",
        "state": "finished",
        "attempts": 1,
        "steps": 0,
        "exit_code": 0,
    }
    [listed] = document(telltale, "ls", tmp_path)["runs"]
    assert (listed["findings"], listed["worst"], listed["state"]) == ([], None, "finished")


def test_how_a_run_was_killed_is_its_first_finding(telltale: Telltale, tmp_path: Path) -> None:
    assert telltale.run(tmp_path / "run", "sh", "-c", "kill -KILL $$").returncode == -9
    out = document(telltale, "check", tmp_path / "run")
    assert out["findings"][0]["rule"] == "RunEnd" and "SIGKILL" in out["findings"][0]["message"]
    assert (out["run"]["state"], out["run"]["signal"]) == ("killed", 9)


def test_report(telltale: Telltale, ill_run: Path, tmp_path: Path) -> None:
    out = document(telltale, "report", ill_run, "-o", tmp_path / "page.html")
    assert list(out) == ["report", "verdict", "findings"]
    assert out["report"] == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert out["findings"] == document(telltale, "check", ill_run)["findings"]
    assert isinstance(out["verdict"], str) and out["verdict"]


def test_ls(telltale: Telltale, ill_run: Path) -> None:
    out = document(telltale, "ls", ill_run.parent)
    assert list(out) == ["runs", "unreadable"]
    assert out["unreadable"] == []
    [run] = out["runs"]
    assert list(run) == [
        *["id", "name", "path", "state", "attempts", "steps", "created_ns", "duration_seconds"],
        *["not_recorded_since_ns", "findings", "worst", "damaged"],
    ]
    assert run["damaged"] is None
    checked = document(telltale, "check", ill_run)
    for key in ("id", "name", "state", "attempts", "steps"):
        assert run[key] == checked["run"][key]
    assert run["path"] == str(ill_run)
    assert run["duration_seconds"] > 3
    assert run["findings"] == checked["findings"]
    worst = run["findings"][0]
    assert run["worst"] == {key: worst[key] for key in ("rule", "severity", "message")}


def test_ls_names_what_it_cannot_read(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{ not json")
    out = document(telltale, "ls", tmp_path, code=7)
    assert out["runs"] == []
    [message] = out["unreadable"]
    assert str(tmp_path / "broken") in message


def test_verify(telltale: Telltale, copy_of_run: Path) -> None:
    out = document(telltale, "verify", copy_of_run)
    assert list(out) == [
        *["ok", "state", "writers", "journals", "segments", "tensor_files", "rows", "bytes"],
        *["unread_bytes", "problems", "notes"],
    ]
    assert (out["ok"], out["state"], out["problems"]) == (True, "finished", [])
    assert out["writers"] == 2 and out["rows"] > 60 and out["bytes"] > 0 and out["unread_bytes"] == 0
    segment = max(copy_of_run.glob("agent-*/steps-*.parquet"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0x10
    segment.write_bytes(content)
    out = document(telltale, "verify", copy_of_run, code=7)
    assert out["ok"] is False
    assert any(segment.name in problem["file"] for problem in out["problems"])
    assert all(list(problem) == ["file", "offset", "what"] for problem in out["problems"])


def test_rules_list_and_show(telltale: Telltale) -> None:
    rules = document(telltale, "rules", "list")
    assert list(rules) == ["rules"]
    pages = sorted(page.stem for page in (REPO / "docs/rules").glob("[A-Z]*.md") if page.stem != "README")
    assert [rule["name"] for rule in rules["rules"]] == pages
    index = (REPO / "docs/rules/README.md").read_text(encoding="utf-8")
    for rule in rules["rules"]:
        assert f"| [{rule['name']}]({rule['name']}.md) | {rule['summary']} |" in index
        assert list(rule) == [
            *("name", "family", "by_default", "wrong_result", "summary", "formula", "how_to_fix", "example"),
            *("parameters", "captures"),
        ]
        for parameter in rule["parameters"]:
            assert list(parameter) == ["name", "default", "source", "unit", "doc"]
        assert rule == document(telltale, "rules", "show", rule["name"])


def test_rules_status(telltale: Telltale, ill_run: Path) -> None:
    out = document(telltale, "rules", "status", ill_run)
    checked = document(telltale, "check", ill_run)
    assert out == {"run": checked["run"], "rules": checked["rules"]}


def test_version(telltale: Telltale) -> None:
    out = document(telltale, "version")
    assert list(out) == ["version", "run_format", "record_schema"]
    assert out["version"] == telltale("--version").stdout.strip()
    assert re.fullmatch(r"\d+\.\d+", out["run_format"])
    assert isinstance(out["record_schema"], int)


def test_the_ledger_balances(telltale: Telltale, finished_run: Path) -> None:
    totals = ledger(telltale, finished_run, 1)
    # A counter that never left zero has no row.
    for name in ("probe.records_produced", "agent.rows", "agent.journal_bytes", "agent.cpu_ns"):
        assert totals.get(name, 0) > 0, name
    assert totals["probe.records_produced"] >= 120  # A step and a loss at least, 60 times.
    assert totals.get("probe.records_dropped", 0) == totals.get("probe.malformed", 0) == 0
    # Its own last batch is written after it was counted.
    stored = sum(len(telltale.rows(finished_run, table)) for table in ("steps", "scalars", "spans"))
    assert totals["agent.rows"] >= stored >= 120
    losses = [row for row in telltale.rows(finished_run, "ledger") if row["loss"]]
    assert [row for row in losses if row["value"] > 0] == []


def test_attempts_add_up(telltale: Telltale, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny = REPO / "tests/e2e/train_tiny.py"
    for steps in (20, 30):
        assert telltale.run(run, telltale.python, tiny, steps).returncode == 0
    failed = telltale.run(run, "sh", "-c", "exit 3")
    assert failed.returncode == 3
    out = document(telltale, "check", run)
    assert out["run"] == dict(zip(RUN, ["run", "train_tiny", "failed", 3, 50, 3], strict=True))
    assert out["salvage"]["missing_rows"] == 0
    trained = telltale.rows(run, "steps", "--where", "mode = 'TRAIN'")
    assert [(row["attempt"], row["step"]) for row in trained] == [
        *((1, step) for step in range(20)),
        *((2, step) for step in range(30)),
    ]
    produced = [ledger(telltale, run, n).get("probe.records_produced", 0) for n in (1, 2, 3)]
    assert produced[0] >= 40 and produced[1] >= 60 and produced[2] == 0
    ends = telltale.rows(run, "events", "--where", "kind = 'run.attempt_end'")
    assert [json.loads(row["data"])["exit_code"] for row in ends] == [0, 0, 3]
    [listed] = document(telltale, "ls", tmp_path)["runs"]
    assert (listed["attempts"], listed["steps"], listed["state"]) == (3, 50, "failed")
    assert document(telltale, "verify", run)["ok"]
