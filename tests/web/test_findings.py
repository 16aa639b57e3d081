# SPDX-License-Identifier: Apache-2.0
"""What the page says of rules: what a finding has set off, each rule's state, and why one gave up."""

from pathlib import Path

import pytest
from conftest import REPO, Runs, Watched
from playwright.sync_api import expect

MINE = """
import telltale

class Good(telltale.Rule):
    tables = ("steps",)
    def on_record(self, record):
        if record.step == 50:
            self.report("here", severity="high", message="Fifty steps", advice="Rest.")

class Raises(telltale.Rule):
    tables = ("steps",)
    def on_record(self, record):
        raise ValueError("there is <b>no such layer</b>")
"""
RULES = """
[rules.mine]
python = "mine.py:Good"
[[rules.mine.actions]]
kind = "stop"

[rules.raises]
python = "mine.py:Raises"
"""


@pytest.fixture
def ruled(runs: Runs, tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "rules.toml").write_text(RULES)
    options = ("--rules", str(tmp_path / "rules.toml"))
    return runs.train("ruled", REPO / "tests/e2e/train_tiny.py", 5000, options=options)


def test_actions_and_states_of_rules_are_on_the_page(ruled: Path, watched: Watched) -> None:
    page = watched.page
    watched.sign_in()
    watched.open("ruled")
    finding = page.locator("article.f", has_text="Fifty steps")
    expect(finding).to_contain_text("Would stop the training (dry run).")
    expect(page.locator(".lead")).to_contain_text("The rule raises is suspended: ")
    page.locator("#rules > summary").click()
    raises = page.locator("#rules tr[data-rule=raises]")
    expect(raises).to_be_visible()
    expect(raises).to_contain_text("suspended: ")
    # Text of a rule is text.
    expect(raises).to_contain_text("there is <b>no such layer</b>")
    expect(page.locator("#rules tr[data-rule=mine]")).to_contain_text("fired")
    # A built-in rule that had nothing to judge.
    expect(page.locator("#rules tr[data-rule=VanishingGradient]")).to_be_visible()
