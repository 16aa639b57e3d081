# SPDX-License-Identifier: Apache-2.0
"""`telltale watch RUN`: the rules over a run that nobody has watched, as on another machine."""

import shutil
from pathlib import Path

from conftest import REPO, Telltale


def test_a_run_that_nobody_watched_is_judged_afterwards(telltale: Telltale, tmp_path: Path) -> None:
    run = tmp_path / "run"
    telltale.run(run, telltale.python, REPO / "examples/planted/exploding_tensor.py")
    live = telltale.check(run)["findings"]
    assert live
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)
    shutil.rmtree(elsewhere / "watch")
    (elsewhere / "report.html").unlink(missing_ok=True)
    assert telltale.rows(elsewhere, "findings") == []
    done = telltale("watch", elsewhere)
    assert done.returncode == 0, done.stderr
    written = {row["incident"] for row in telltale.rows(elsewhere, "findings")}
    assert written == {finding["id"] for finding in live}
    assert (elsewhere / "report.html").exists()
    # A second one says nothing twice.
    before = telltale.rows(elsewhere, "findings")
    assert telltale("watch", elsewhere).returncode == 0
    assert telltale.rows(elsewhere, "findings") == before
