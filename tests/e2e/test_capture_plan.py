# SPDX-License-Identifier: Apache-2.0
"""Capture plans on a real training: at its start, from outside while it goes on, from inside."""

import json
import subprocess
from pathlib import Path
from typing import Any, Callable

from conftest import REPO, Telltale
from waiting import PATIENCE_S, wait_until

SCRIPT = REPO / "tests/e2e/train_steps.py"


class Live:
    """A training under `telltale run` that ends when asked."""

    def __init__(
        self, telltale: Telltale, *options: str, overhead: str = "100%", script_args: tuple[str, ...] = ()
    ) -> None:
        self.telltale = telltale
        self.run = telltale.tmp / "run"
        self.stop = telltale.tmp / "stop"
        self.process = subprocess.Popen(
            [
                str(telltale.binary),
                "run",
                "-o",
                str(self.run),
                "--quiet",
                "--overhead",
                overhead,
                *options,
                "--",
                telltale.python,
                str(SCRIPT),
                str(self.stop),
                *script_args,
            ],
            cwd=telltale.tmp,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.touch()
        try:
            err = self.process.communicate(timeout=PATIENCE_S)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert self.process.returncode == 0, err

    def wait_for(self, what: Callable[[], Any]) -> Any:
        return wait_until("it", lambda: (self.run / "run.json").exists() and what(), self.process, look_s=0.3)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.telltale.rows(self.run, "events") if row["kind"] == kind]

    def plans_taken_up(self) -> list[dict[str, Any]]:
        """What was said of each plan asked for; an outlier of the steps asks too, for a window, by itself."""
        done = [json.loads(row["data"]) for row in self.events("request.done")]
        return [data for data in done if data["who"] != "watch"]

    def statistics_from(self, step: int) -> bool:
        done = self.telltale(
            "query", self.run, "statistics", "--format", "json", "--limit", "1", "--where", f"step >= {step}"
        )
        return done.returncode in (0, 7) and '"step"' in done.stdout


def steps_of(telltale: Telltale, run: Path, collection: str) -> set[int]:
    rows = telltale.rows(run, "statistics", "--limit", "1000000")
    return {row["step"] for row in rows if row["collection"] == collection and row["mode"] == "TRAIN"}


def test_a_plan_at_the_start_is_what_is_recorded(telltale: Telltale) -> None:
    with Live(
        telltale,
        "--collect",
        "gradients:train.interval=20,train.start=10,train.end=70,train.steps=3",
        "--collect",
        "weights:interval=0",
        "--collect",
        "biases:interval=0",
    ) as live:
        live.wait_for(
            lambda: telltale(
                "query", live.run, "steps", "--where", "step = 100", "--format", "json", "--limit", "1"
            ).stdout.count('"step"')
        )
    assert steps_of(telltale, live.run, "gradients") == {3, 20, 40, 60}
    assert steps_of(telltale, live.run, "weights") == set()


def test_biases_that_are_switched_off_stay_off(telltale: Telltale) -> None:
    with Live(telltale, "--collect", "weights:interval=1", "--collect", "biases:interval=0") as live:
        live.wait_for(lambda: live.statistics_from(20))
    assert len(steps_of(telltale, live.run, "weights")) > 10
    assert steps_of(telltale, live.run, "biases") == set()
    names = {row["name"] for row in telltale.rows(live.run, "statistics", "--limit", "1000000")}
    assert any(name.startswith("gradient/") and name.endswith("bias") for name in names)


def test_a_rule_that_judges_biases_asks_for_them(telltale: Telltale) -> None:
    """And weights alone are weights alone."""

    def asked(*options: str) -> list[str]:
        done = telltale("run", "--level", "system", *options, "--explain-plan", "--json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout)["collections"])

    assert sorted(asked("--rule", "UnusedParameters")) == ["biases", "gradients", "weights"]
    assert asked("--collect", "weights:interval=1") == ["weights"]


def test_an_edit_holds_from_the_step_that_it_says(telltale: Telltale) -> None:
    with Live(telltale, "--level", "system") as live:
        live.wait_for(lambda: live.telltale.rows(live.run, "steps", "--limit", "1"))
        done = telltale("capture", live.run, "--collect", "gradients:train.interval=1", "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        live.wait_for(lambda: live.statistics_from(answer["step"] + 20))
        refused = telltale("capture", live.run, "--collect", "x:include=((")
        assert refused.returncode == 2
    first = answer["step"]
    steps = steps_of(telltale, live.run, "gradients")
    # The step that was open when it was published may have taken it up as well: none is left out after.
    assert min(steps) in (first - 1, first)
    assert set(range(first, max(steps) + 1)) <= steps
    plans = live.events("plan")
    assert [json.loads(row["data"])["epoch"] for row in plans] == [1, 2]
    (taken_up,) = live.plans_taken_up()
    assert (taken_up["epoch"], taken_up["step"]) == (2, first)
    shown = json.loads(telltale("capture", live.run, "--show", "--json").stdout)
    assert list(shown["plan"]["collections"]) == ["gradients"]


def test_what_a_rule_needs_can_be_asked_for(telltale: Telltale) -> None:
    with Live(telltale, "--level", "system") as live:
        live.wait_for(lambda: live.telltale.rows(live.run, "steps", "--limit", "1"))
        done = telltale("capture", live.run, "--rule", "VanishingGradient", "--json")
        assert done.returncode == 0, done.stderr
        asked = json.loads(done.stdout)["plan"]["collections"]
        assert asked == {"gradients": {"take": ["statistics"], "asked": True, "train": {"interval": 100}}}
        assert telltale("capture", live.run, "--rule", "NoSuchRule").returncode == 2
        live.wait_for(lambda: live.statistics_from(0))
    assert {step % 100 for step in steps_of(telltale, live.run, "gradients")} == {0}


def test_the_training_asks_itself(telltale: Telltale) -> None:
    with Live(
        telltale, "--level", "system", script_args=("[collections.weights]\ninterval = 1\n", "20")
    ) as live:
        live.wait_for(lambda: live.statistics_from(0))
    (taken_up,) = live.plans_taken_up()
    steps = steps_of(telltale, live.run, "weights")
    assert min(steps) > 20
    assert "telltale.capture" in taken_up["who"]


def test_what_is_asked_for_by_name_comes_whatever_the_budget(telltale: Telltale) -> None:
    with Live(telltale, "--collect", "gradients:histogram,interval=5", overhead="0.001%") as live:
        live.wait_for(lambda: live.statistics_from(150))
        live.wait_for(lambda: telltale.rows(live.run, "steps", "--where", "step = 200", "--limit", "1"))
    steps = steps_of(telltale, live.run, "gradients")
    assert set(range(0, 100, 5)) <= steps, "the first 20 at their interval"
    assert len([step for step in steps if 100 <= step < 200]) >= 9, (
        "and half as many up to the double of that"
    )


def stretches(live: Live) -> list[int]:
    """By how much the governor has stretched what it still takes of `all`, decision by decision."""
    found = [json.loads(row["data"]) for row in live.events("governor")]
    return [data["stretch"] for data in found if data["stretch"] > 1 and len(data["shed"]) < 4]


def test_too_much_is_thinned_and_said(telltale: Telltale) -> None:
    with Live(telltale, "--level", "all", overhead="1%") as live:
        live.wait_for(lambda: stretches(live))
    *_, stretch = stretches(live)  # Of the changes the report keeps the newest.
    words = (
        "the budget is 1.00 %: "
        f"tensors are taken {stretch} times less often than planned (all each {stretch} steps instead of 1)"
    )
    # Its lines are as wide as the terminal.
    said = " ".join(telltale("check", live.run).stdout.split())
    *_, last = (row for row in telltale.rows(live.run, "events") if row["kind"] == "governor")
    assert "Capture: Telltale acted on its budget" in said and last["message"] in said
    page = (live.run / "report.html").read_text()
    section = page[page.index("<h2>Capture: what was thinned</h2>") :].partition("</section>")[0]
    assert "Nothing was thinned" not in section and words in section
