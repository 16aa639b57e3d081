# SPDX-License-Identifier: Apache-2.0
"""What Telltale adds to the memory of the training's own process, with everything asked for at every step."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import REPO, Telltale

MEBI = 1 << 20
LIMIT = 64 * MEBI
SLAB = 128 * MEBI
STEPS = 40
# A block of the training is mapped by itself. Where glibc puts those of 16 MiB among what it has freed is luck: on a full
# machine 17 to 64 MiB were added at the peak of the same program, by whole blocks of its own, and 32 or 33 with this.
EACH_BY_ITSELF = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4194304"}

STATISTICS = """
[collections.weights]
take = ["statistics", "more", "histogram"]
interval = 1
[collections.gradients]
take = ["statistics", "more", "histogram"]
interval = 1
[collections.outputs]
take = ["statistics", "more", "histogram"]
interval = 1
"""
RAW = f"slab_bytes = {SLAB}\n" + STATISTICS.replace(
    '["statistics", "more", "histogram"]', '["statistics", "raw"]'
)


def memory(text: str) -> dict[str, int]:
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.parametrize(("plan", "table", "pool"), [(STATISTICS, "histograms", 0), (RAW, "tensors", SLAB)])
def test_added_memory_is_bounded(
    telltale: Telltale, tmp_path: Path, plan: str, table: str, pool: int
) -> None:
    command = [telltale.python, str(REPO / "tests/e2e/train_mlp.py"), str(STEPS)]
    environment = os.environ | EACH_BY_ITSELF
    plain = memory(
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    )
    (tmp_path / "plan.toml").write_text(plan)
    run = tmp_path / "run"
    done = telltale(
        "run", "--plan", tmp_path / "plan.toml", "--overhead", "100%", "--quiet", "-o", run, "--", *command,
        env=EACH_BY_ITSELF,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    watched = memory(done.stdout)
    assert telltale.rows(run, table), "the plan took nothing"
    for when, kinds in (("at its end", ("RssAnon", "RssShmem", "RssFile")), ("at its peak", ("VmHWM",))):
        added = sum(watched[kind] - plain[kind] for kind in kinds)
        assert added <= LIMIT + pool, f"{added / MEBI:.0f} MiB more {when}: {plain} -> {watched}"
    # The two kinds apart: what is the process's own does not hide in the slab's allowance.
    assert watched["RssAnon"] - plain["RssAnon"] <= LIMIT
