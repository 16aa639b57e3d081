# SPDX-License-Identifier: Apache-2.0
"""A loop whose steps take microseconds: few things are said of it, and no record that was dropped is a fault of its."""

from pathlib import Path

import pytest
from conftest import Telltale

# The loss is noise that jumps now and then: what rules say of it opens and closes all the time.
LOOP = """
import random, telltale

random.seed(3)
for step in range(200_000):
    loss = random.gauss(0.5, 0.02)
    telltale.log(loss=loss * 40 if random.random() < 0.005 else loss)
    telltale.step()
"""
# Rules that may have something to say, each of one thing or two.
MOST_FINDINGS = 20


@pytest.fixture(scope="module")
def run(binary: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("fast")
    (tmp / "loop.py").write_text(LOOP)
    done = Telltale(binary, python, tmp).run(tmp / "run", python, tmp / "loop.py")
    assert done.returncode == 0, done.stderr
    return tmp / "run"


def test_few_findings_in_few_groups(telltale: Telltale, run: Path) -> None:
    document = telltale.check(run)
    assert document["run"]["steps"] > 10_000
    rules = [finding["rule"] for finding in document["findings"]]
    assert len(rules) <= MOST_FINDINGS, rules
    assert len(document["groups"]) <= len(rules)
    # A loop that has nothing between its steps stands still for nothing.
    assert "CallbackStall" not in rules, document["findings"]


def test_their_revisions_are_as_many_as_the_seconds(telltale: Telltale, run: Path) -> None:
    document = telltale.check(run)
    revisions = telltale.rows(run, "findings", "--columns", "incident,revision")
    # Some at once, then one a second and one each five seconds; closed and open again each 30 s.
    each = 8 + 1.5 * document["elapsed_seconds"]
    assert len(revisions) <= each * len(document["findings"])


def test_the_report_is_one_page_of_bounded_size(run: Path) -> None:
    assert 10_000 < (run / "report.html").stat().st_size < 1 << 20
