# SPDX-License-Identifier: Apache-2.0
"""What a training does when it is asked to stop: between two steps, on its own thread, and only then."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "python"
sys.path.insert(0, str(PACKAGE))

from telltale import _stop  # noqa: E402
from telltale.errors import TrialStopped  # noqa: E402


class Probe:
    """Takes what the process says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.answers: list[tuple[str, str]] = []  # (kind, last digit of the request's id).

    def event(self, kind: str, severity: int, subject: str, message: str, data: str) -> None:
        self.said.append(kind)
        self.answers.append((kind, json.loads(data).get("request", "")[-1:]))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    there = Probe()
    monkeypatch.setattr(_stop, "probe", there)
    monkeypatch.setattr(_stop, "_state", _stop._State())
    monkeypatch.delenv("TELLTALE_RUN", raising=False)
    return there


def numbered(number: int, **body: Any) -> Any:
    return _stop.Stop({**request(**body), "id": f"{number:032x}"})


def request(**body: Any) -> dict[str, Any]:
    return {"version": 1, "id": "0" * 32, "who": "watch", "time_ns": 10, "kind": "stop", "body": body}


def write(run: Path, name: str, content: Any) -> None:
    folder = run / "requests" / "watch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_request_of_this_attempt_is_found_once(tmp_path: Path) -> None:
    requests = _stop.Requests(tmp_path, since_ns=5)
    assert requests.look() is None
    write(tmp_path, "a.json", request(why="loss"))
    found = requests.look()
    assert found is not None and found.why == "loss" and found.checkpoint
    assert requests.look() is None


def test_others_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "a.json", {**request(), "time_ns": 4})
    write(tmp_path, "b.json", {**request(), "kind": "plan"})
    write(tmp_path, "c.json", {**request(), "version": 2})
    write(tmp_path, "d.json", "no JSON")
    write(tmp_path, "e.json", "[1]")
    write(tmp_path, "f.tmp", request())
    assert _stop.Requests(tmp_path, since_ns=5).look() is None


def test_whose_attempt_it_is_no_clock_decides(tmp_path: Path) -> None:
    requests = _stop.Requests(tmp_path, since_ns=1000, attempt=2)
    # The clock was set back since the attempt began; and it was ahead in the one before.
    write(tmp_path, "a.json", {**request(why="now"), "time_ns": 4, "attempt": 2})
    write(tmp_path, "b.json", {**request(why="before"), "time_ns": 2000, "attempt": 1})
    found = requests.look()
    assert found is not None and found.why == "now"
    assert requests.look() is None
    # What names no attempt, or no number, goes by the clock.
    write(tmp_path, "c.json", {**request(why="old"), "time_ns": 999, "attempt": "2"})
    assert requests.look() is None
    write(tmp_path, "d.json", {**request(why="new"), "time_ns": 1000, "attempt": True})
    assert requests.look() is not None


def test_the_attempt_is_read_from_the_run(tmp_path: Path) -> None:
    attempts = [{"number": 1, "start_ns": 5}, {"number": 2, "start_ns": 3}]
    (tmp_path / "run.json").write_text(json.dumps({"attempts": attempts}))
    assert _stop._attempt(tmp_path) == (3, 2)
    (tmp_path / "run.json").write_text("{}")
    assert _stop._attempt(tmp_path)[1] == 0


def test_no_link_is_followed_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "outside", "a.json", request())
    folder = tmp_path / "run/requests/watch"
    folder.mkdir(parents=True)
    outside = tmp_path / "outside/requests/watch"
    (folder / "a.json").symlink_to(outside / "a.json")
    os.mkfifo(folder / "b.json")
    (folder.parent / "linked").symlink_to(outside)
    assert _stop.Requests(tmp_path / "run", since_ns=5).look() is None
    # What is none of these is found among them.
    write(tmp_path / "run", "c.json", request())
    assert _stop.Requests(tmp_path / "run", since_ns=5).look() is not None
    # The run folder itself may be reached through a link.
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert _stop.Requests(tmp_path / "latest", since_ns=5).look() is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_requests_count_from_the_owner_of_the_run_and_from_root_alone(tmp_path: Path) -> None:
    os.chown(tmp_path, 4001, 4001)
    write(tmp_path, "a.json", request())
    folder = tmp_path / "requests/watch"
    for file, of_file, of_folder, counts in (
        ("a.json", 4002, 4002, False),
        ("b.json", 4002, 0, False),
        ("c.json", 0, 4002, False),
        ("d.json", 4001, 4001, True),
        ("e.json", 0, 0, True),
    ):
        (folder / "a.json").unlink(missing_ok=True)
        write(tmp_path, file, request())
        os.chown(folder / file, of_file, of_file)
        os.chown(folder, of_folder, of_folder)
        assert (_stop.Requests(tmp_path, since_ns=5).look() is not None) == counts, file
        (folder / file).unlink()


def test_the_callback_is_called_once_between_two_steps(probe: Probe) -> None:
    called: list[str] = []
    _stop.on_stop(lambda stop: called.append(stop.why))
    _stop.check()
    assert called == [] and probe.said == ["stop.ready"]
    _stop.arrived(_stop.Stop(request(why="loss")))
    assert called == []
    _stop.check()
    _stop.check()
    assert called == ["loss"] and probe.said == ["stop.ready", "stop.saved"]


def test_another_thread_does_not_save(probe: Probe) -> None:
    called: list[int] = []
    _stop.on_stop(lambda stop: called.append(threading.get_ident()))
    _stop.arrived(_stop.Stop(request()))
    other = threading.Thread(target=_stop.check)
    other.start()
    other.join()
    assert called == []
    _stop.check()
    assert called == [threading.get_ident()]


def test_a_callback_that_fails_is_said_and_never_raised(probe: Probe) -> None:
    def fail(stop: Any) -> None:
        raise OSError("disk full")

    _stop.on_stop(fail)
    _stop.arrived(_stop.Stop(request()))
    _stop.check()
    assert probe.said == ["stop.ready", "stop.failed"]


def test_without_a_checkpoint_nothing_is_called(probe: Probe) -> None:
    called: list[int] = []
    _stop.on_stop(lambda stop: called.append(1))
    _stop.arrived(_stop.Stop(request(checkpoint=False)))
    _stop.check()
    assert called == []


def test_a_trial_is_given_up_and_its_process_goes_on(probe: Probe) -> None:
    with _stop.Trial() as trial:
        _stop.arrived(_stop.Stop(request(why="loss")))
        _stop.check()
        raise AssertionError("not reached")
    assert trial.stopped and probe.said == ["stop.ready", "stop.kept"]
    with _stop.Trial() as second:
        _stop.check()
    assert not second.stopped


def test_what_else_is_raised_in_a_trial_goes_through(probe: Probe) -> None:
    with pytest.raises(KeyError), _stop.Trial():
        raise KeyError("mine")
    with pytest.raises(TrialStopped), _stop.Trial():
        raise TrialStopped("not ours")


def test_a_loop_of_torch_answers_in_zero_grad_and_is_as_before_afterwards(probe: Probe) -> None:
    torch = pytest.importorskip("torch")
    before = torch.optim.Optimizer.__dict__["zero_grad"]
    called: list[int] = []
    _stop.on_stop(lambda stop: called.append(1))
    assert torch.optim.Optimizer.__dict__["zero_grad"] is before
    _stop.arrived(_stop.Stop(request()))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.zero_grad()
    optimizer.zero_grad()
    assert called == [1]
    assert torch.optim.Optimizer.__dict__["zero_grad"] is before


def test_outside_telltale_run_nothing_happens() -> None:
    _stop.on_stop(lambda stop: None)
    assert _stop.requested() is None
    with pytest.raises(TypeError):
        _stop.on_stop(3)


def test_a_frameworks_callback_is_not_answered_for_before_it_has_saved(probe: Probe) -> None:
    """An answer at zero_grad would let the agent end the process before the checkpoint is written."""
    torch = pytest.importorskip("torch")
    from telltale import stopping

    asked = stopping._Asked(1)
    asked.register()
    _stop.arrived(_stop.Stop(request()))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.zero_grad()
    _stop.check()
    assert probe.said == ["stop.ready"] and asked.now()
    asked.save(lambda: probe.said.append("written"))
    assert probe.said == ["stop.ready", "written", "stop.saved"]


def test_a_checkpoint_that_cannot_be_written_is_said_and_never_raised(probe: Probe) -> None:
    from telltale import stopping

    def fail() -> None:
        raise OSError("disk full")

    asked = stopping._Asked(1)
    asked.register()
    _stop.arrived(_stop.Stop(request()))
    asked.save(fail)
    assert probe.said == ["stop.ready", "stop.failed"]


def test_once_the_framework_has_ended_a_step_answers_again(probe: Probe) -> None:
    from telltale import stopping

    asked = stopping._Asked(1)
    asked.register()
    asked.ended()
    _stop.arrived(_stop.Stop(request()))
    _stop.check()
    assert probe.said == ["stop.ready", "stop.saved"]


def test_a_trial_that_ends_before_it_looks_leaves_its_process_alone(probe: Probe) -> None:
    with _stop.Trial() as trial:
        _stop.arrived(_stop.Stop(request()))
    assert not trial.stopped and probe.said == ["stop.ready", "stop.kept"]
    with _stop.Trial() as second:
        _stop.check()
    assert not second.stopped


def test_a_trial_whose_loop_catches_everything_still_leaves_its_process_alone(probe: Probe) -> None:
    with _stop.Trial() as trial:
        _stop.arrived(_stop.Stop(request()))
        try:
            _stop.check()
        except Exception:
            pass
    assert trial.stopped and probe.said == ["stop.ready", "stop.kept"]


def test_a_second_request_leaves_no_hook_behind(probe: Probe) -> None:
    torch = pytest.importorskip("torch")
    before = torch.optim.Optimizer.__dict__["zero_grad"]
    _stop.on_stop(lambda stop: None)
    _stop.arrived(_stop.Stop(request(why="first")))
    _stop.arrived(_stop.Stop(request(why="second")))
    asked = _stop.requested()
    assert asked is not None and asked.why == "first"
    _stop.check()
    assert torch.optim.Optimizer.__dict__["zero_grad"] is before


def test_another_trial_does_not_withdraw_a_stop(probe: Probe) -> None:
    with _stop.Trial() as first:
        _stop.arrived(_stop.Stop(request()))
        other = threading.Thread(target=lambda: _stop.Trial().__enter__())
        other.start()
        other.join()
        _stop.check()
    assert first.stopped


def test_a_training_of_xgboost_saves_its_model_and_ends(probe: Probe, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    numpy = pytest.importorskip("numpy")
    from telltale import stopping

    base: Any = xgboost.callback.TrainingCallback

    class AsksIn3(base):
        # Not after it: XGBoost keeps callbacks in a set, so which of them comes first is chance.
        def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch == 2:
                _stop.arrived(_stop.Stop(request()))
            return False

    data = xgboost.DMatrix(numpy.arange(40.0).reshape(20, 2), label=numpy.arange(20) % 2)
    callbacks = [AsksIn3(), stopping.xgboost_callback(str(tmp_path / "last.json"))]
    model = xgboost.train({"max_depth": 2}, data, num_boost_round=50, callbacks=callbacks)
    assert model.num_boosted_rounds() == 3
    saved = xgboost.Booster(model_file=str(tmp_path / "last.json"))
    assert saved.num_boosted_rounds() == 3
    assert probe.said == ["stop.ready", "stop.saved"]


def test_a_stop_between_two_trials_leaves_the_search_alone(probe: Probe) -> None:
    with _stop.Trial():
        _stop.check()
    _stop.arrived(_stop.Stop(request()))
    assert probe.said == ["stop.ready", "stop.kept"]
    with _stop.Trial() as second:
        _stop.check()
    assert not second.stopped


def test_one_checkpoint_answers_all_that_ask_for_it(probe: Probe) -> None:
    """A stricter request comes before the first is answered: the agent may go on with either."""
    saved: list[str] = []
    _stop.on_stop(lambda stop: saved.append(stop.why))
    _stop.arrived(numbered(1, why="first"))
    _stop.arrived(numbered(2, why="second"))
    _stop.check()
    _stop.check()
    assert saved == ["first"]
    assert probe.answers[1:] == [("stop.saved", "1"), ("stop.saved", "2")]


def test_a_request_that_comes_while_the_checkpoint_is_written_has_it_too(probe: Probe) -> None:
    saved: list[str] = []

    def save(stop: Any) -> None:
        saved.append(stop.why)
        _stop.arrived(numbered(2, why="second"))

    _stop.on_stop(save)
    _stop.arrived(numbered(1, why="first"))
    _stop.check()
    _stop.check()
    assert saved == ["first"]
    assert probe.answers[1:] == [("stop.saved", "1"), ("stop.saved", "2")]


def test_a_request_that_comes_after_the_next_step_is_saved_for_again(probe: Probe) -> None:
    saved: list[str] = []
    _stop.on_stop(lambda stop: saved.append(stop.why))
    for number, why in ((1, "first"), (2, "second")):
        _stop.arrived(numbered(number, why=why))
        _stop.check()
    assert saved == ["first", "second"]
    assert probe.answers[1:] == [("stop.saved", "1"), ("stop.saved", "2")]


def test_a_failure_is_said_once_the_other_callbacks_are_through(probe: Probe) -> None:
    """The agent waits for nothing more then, and would end the process in the midst of a checkpoint."""

    def fail(stop: Any) -> None:
        raise OSError("disk full")

    _stop.on_stop(fail)
    _stop.on_stop(lambda stop: probe.said.append("written"))
    _stop.arrived(numbered(1))
    _stop.check()
    assert probe.said == ["stop.ready", "stop.ready", "written", "stop.failed"]


def test_a_callback_that_ends_the_process_leaves_nothing_half_answered(probe: Probe) -> None:
    def end(stop: Any) -> None:
        raise SystemExit(3)

    _stop.on_stop(end)
    _stop.arrived(numbered(1))
    with pytest.raises(SystemExit):
        _stop.check()
    assert probe.said == ["stop.ready"]
    # Somebody caught it, and trains on: the next request is a new one.
    with pytest.raises(SystemExit):
        _stop.arrived(numbered(2))
        _stop.check()


def test_a_trial_that_is_given_up_answers_all_that_asked(probe: Probe) -> None:
    with _stop.Trial():
        _stop.arrived(numbered(1))
        _stop.arrived(numbered(2, checkpoint=False))
        _stop.check()
    assert probe.answers[1:] == [("stop.kept", "1"), ("stop.kept", "2")]
    with _stop.Trial():
        _stop.arrived(numbered(3))
        _stop.arrived(numbered(4))
    assert probe.answers[4:] == [("stop.kept", "3"), ("stop.kept", "4")]


def test_a_request_that_comes_while_a_trial_is_given_up_is_answered(probe: Probe) -> None:
    with _stop.Trial():
        _stop.arrived(numbered(1))
        try:
            _stop.check()
        finally:
            _stop.arrived(numbered(2))
    assert sorted(probe.answers[1:]) == [("stop.kept", "1"), ("stop.kept", "2")]
