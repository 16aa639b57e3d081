# SPDX-License-Identifier: Apache-2.0
"""What `telltale run` says where the actions that its user asks for cannot be kept for later, and what a training
sees of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Telltale

NO_HOME = "/proc/none"
NOT_CARRIED_OUT = "actions are carried out only with TELLTALE_ACTIONS=on"
# As text these are more than an environment may hold.
TOO_MANY = 1000


def rules(folder: Path, count: int) -> Path:
    """So many actions that would act, of a rule that never finds anything."""
    path = folder / "rules.toml"
    actions = [
        f'[[actions]]\nkind = "webhook"\nurl = "https://example.org/a-hook-of-this-team/{i}"\ndry_run = false\n'
        for i in range(count)
    ]
    rule = '[rules.never]\nexpression = "step:duration > 1000000"\n'
    path.write_text("defaults = false\n" + "".join(actions) + rule)
    return path


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_actions_that_can_neither_be_kept_nor_handed_over_are_named(
    telltale: Telltale, tmp_path: Path, quiet: tuple[str, ...]
) -> None:
    state = tmp_path / "state"
    for home, count, said in ((NO_HOME, TOO_MANY, 1), (NO_HOME, 1, 0), (str(state), TOO_MANY, 0)):
        command = ("--", "/bin/sh", "-c", "exit 17")
        run = tmp_path / f"run-{len(home)}-{count}"
        options = (*quiet, "--no-serve", "--rules", rules(tmp_path, count), "-o", run)
        done = telltale("run", *options, *command, env={"XDG_STATE_HOME": home})
        assert done.returncode == 17, done.stderr
        lines = [line for line in done.stderr.splitlines() if NOT_CARRIED_OUT in line]
        assert len(lines) == said, done.stderr
        assert all(f"{NO_HOME}/telltale/actions" in line for line in lines)
    assert (state / "telltale/actions").read_text().count("example.org") == TOO_MANY


@pytest.mark.parametrize("recorded", [True, False])
def test_a_training_does_not_see_what_its_user_has_agreed_to(
    telltale: Telltale, tmp_path: Path, recorded: bool
) -> None:
    # Where a run cannot be recorded the training takes the place of `telltale run`.
    run = tmp_path / "run" if recorded else Path("/proc/none/run")
    script = 'exit ${TELLTALE_ACTIONS_AGREED+3}"7"'
    options = ("--no-serve", "--rules", rules(tmp_path, 1), "-o", run)
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = telltale("run", *options, "--", "/bin/sh", "-c", script, env=env)
    assert ("NOT RECORDED" in done.stderr) == (not recorded), done.stderr
    assert done.returncode == 7, done.stderr
