# SPDX-License-Identifier: Apache-2.0
"""Configuration of the smdebug front: save rules, reductions, collections, the JSON file. Needs no framework."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "smdebug_front"))

from smdebug import CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes
from smdebug.core.collection import Collection
from smdebug.core.collection_manager import CollectionManager
from smdebug.core.hook import BaseHook
from smdebug.core.reductions import get_numpy_reduction, of_statistics
from smdebug.exceptions import SMDebugRuntimeError, SMDebugTypeError, SMDebugValueError
from smdebug.rules import Rule


class Hook(BaseHook):
    """A hook of no framework, outside `telltale run`."""

    framework = "none"
    default_collections = ("all", "default", "weights", "gradients", "losses")
    default_include_collections = ("losses",)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("TELLTALE_SOCKET", "TELLTALE_RUN", "TELLTALE_PYTHON_DIR", "SMDEBUG_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("config", "saved"),
    [
        (SaveConfigMode(), [0, 500, 1000]),
        (SaveConfigMode(save_interval=300), [0, 300, 600, 900]),
        (SaveConfigMode(save_interval=100, start_step=150, end_step=401), [200, 300, 400]),
        (SaveConfigMode(save_interval=100, end_step=200), [0, 100]),
        (SaveConfigMode(save_interval=600, save_steps=[3, 7, 999]), [0, 3, 7, 600, 999]),
        (SaveConfigMode(save_interval=400, start_step=500, save_steps=[3]), [3, 800]),
        (SaveConfigMode(save_interval="250", start_step="1", end_step="501"), [250, 500]),
    ],
)
def test_steps_that_are_saved(config, saved):
    assert [step for step in range(1001) if config.should_save_step(step)] == saved


def test_save_config_of_every_documented_form():
    one = SaveConfig(save_interval=7)
    assert all(one.get_save_config(mode).save_interval == 7 for mode in modes)
    by_mode = SaveConfig({modes.TRAIN: SaveConfigMode(save_interval=1)})
    by_mode.merge_default_save_config(one)
    assert by_mode.should_save_step(modes.TRAIN, 3)
    assert not by_mode.should_save_step(modes.EVAL, 3)
    assert by_mode.should_save_step(modes.EVAL, 14)
    parsed = SaveConfig.parse({"TRAIN": {"save_interval": 2}, "EVAL": {"save_steps": [1]}})
    assert parsed.should_save_step(modes.TRAIN, 4)
    assert SaveConfig.parse(SaveConfigMode(save_interval=3)) == SaveConfig(save_interval=3)
    assert SaveConfig.parse(None) == SaveConfig()
    assert SaveConfig.from_json(one.to_json()) == one
    for wrong in (3, "500", [1]):
        with pytest.raises(SMDebugTypeError):
            SaveConfig.parse(wrong)
    for wrong in ({"save_interval": "often"}, {"save_interval": 0}, {"save_steps": "1,2"}, {"save_steps": 3}):
        with pytest.raises(SMDebugValueError):
            SaveConfigMode(**wrong)
    with pytest.raises(SMDebugValueError):
        SaveConfig({"train": SaveConfigMode()})


def test_reduction_config_and_its_text():
    config = ReductionConfig(
        reductions=["min", "std"], abs_reductions=["mean"], norms=["l1"], abs_norms=["l2"], save_shape=True
    )
    assert config.to_json_dict()["reductions"] == "min,std,l1_norm,abs_mean,abs_l2_norm"
    assert ReductionConfig.from_dict(config.to_json_dict()) == config
    assert config.asked() == [("min", False), ("std", False), ("l1", False), ("mean", True), ("l2", True)]
    assert ReductionConfig.from_dict({"reductions": "max", "save_raw_tensor": "true"}).save_raw_tensor is True
    for wrong in ({"reductions": ["median"]}, {"norms": ["l3"]}, {"save_raw_tensor": "yes please"}):
        with pytest.raises(SMDebugValueError):
            ReductionConfig(**wrong)


def test_collections(tmp_path):
    hook = Hook(tmp_path / "out")
    hook.get_collection("relu").include(["relu", "^tanh"])
    hook.add_collection(Collection("one", tensor_names=["exactly"]))
    assert hook.get_collection("relu").matches("a_relu_b")
    assert not hook.get_collection("relu").matches("a_tanh")
    assert hook.get_collections()["one"].matches("exactly")
    restored = CollectionManager.from_json_dict(
        json.loads(json.dumps(hook.collection_manager.to_json_dict()))
    )
    assert restored == hook.collection_manager
    with pytest.raises(SMDebugTypeError):
        hook.add_collection("relu")
    with pytest.raises(SMDebugTypeError):
        hook.get_collection("relu").include(3)
    with pytest.raises(SMDebugTypeError):
        hook.get_collection("relu").save_config = 3


def test_constructor_errors_are_raised(tmp_path):
    with pytest.raises(RuntimeError):
        Hook()
    with pytest.raises(SMDebugTypeError):
        Hook(tmp_path / "out", save_config=3)
    with pytest.raises(SMDebugTypeError):
        Hook(tmp_path / "out", reduction_config="min")
    ended = tmp_path / "ended"
    ended.mkdir()
    Hook(ended)
    (ended / "training_job_end.ts").write_text("")
    with pytest.raises(SMDebugRuntimeError):
        Hook(ended)


def test_outside_telltale_run_a_hook_says_so_once_and_does_nothing(tmp_path, caplog, monkeypatch):
    from smdebug._telltale import recorder

    monkeypatch.setattr(recorder, "_said_inert", False)
    with caplog.at_level(logging.WARNING, "smdebug"):
        for _ in range(3):
            hook = Hook(tmp_path / "out")
            hook.set_mode(modes.TRAIN)
            hook.save_scalar("x", 1.0)
            hook.save_tensor("y", [1, 2])
            hook.record_tensor_value("z", 3)
            hook.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "telltale run" in said[0]
    assert not (tmp_path / "out").exists()


CONFIG = {
    "S3Path": "s3://bucket/prefix",
    "HookParameters": {
        "save_all": "false",
        "include_regex": "relu, conv",
        "reductions": "min,abs_max,l2_norm",
        "save_raw_tensor": "true",
        "save_interval": "100",
        "save_steps": "1,2",
        "end_step": "1000",
        "train.save_interval": "50",
        "eval.start_step": "10",
        "include_workers": "all",
    },
    "CollectionConfigurations": [
        {
            "CollectionName": "gradients",
            "CollectionParameters": {"save_interval": "20", "eval.save_interval": "5", "reductions": "mean"},
        },
        {
            "CollectionName": "mine",
            "CollectionParameters": {"include_regex": "a.*b", "save_histogram": "false"},
        },
        {"CollectionName": "weights", "CollectionParameters": None},
    ],
}


def test_json_configuration(tmp_path, monkeypatch):
    path = tmp_path / "hook.json"
    path.write_text(json.dumps({**CONFIG, "LocalPath": str(tmp_path / "out")}))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(path))
    hook = Hook.create_from_json_file()
    assert hook.out_dir == str(tmp_path / "out")
    assert hook.save_all_workers
    assert set(hook.include_collections) == {"losses", "default", "gradients", "mine", "weights"}
    assert hook.reduction_config.asked() == [("min", False), ("l2", False), ("max", True)]
    assert hook.reduction_config.save_raw_tensor
    train, evaluation = (hook.save_config.get_save_config(m) for m in (modes.TRAIN, modes.EVAL))
    assert (train.save_interval, train.start_step, train.end_step, train.save_steps) == (50, 0, 1000, [1, 2])
    assert (evaluation.save_interval, evaluation.start_step) == (100, 10)
    gradients = hook.get_collection("gradients")
    assert gradients.save_config.get_save_config(modes.TRAIN).save_interval == 20
    assert gradients.save_config.get_save_config(modes.EVAL).save_interval == 5
    assert gradients.save_config.get_save_config(modes.EVAL).start_step == 10
    assert gradients.reduction_config.asked() == [("mean", False)]
    mine = hook.get_collection("mine")
    assert (mine.include_regex, mine.save_histogram, mine.reduction_config) == (["a.*b"], False, None)
    assert hook.get_collection(CollectionKeys.DEFAULT).include_regex == ["relu", "conv"]
    # The example of the documentation has numbers and a comma too many as texts.
    again = Hook.create_from_json_file(str(path))
    assert again.save_config == hook.save_config
    assert Hook.hook_from_config(str(path)).save_config == hook.save_config


def test_json_configuration_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "nowhere.json"))
    with pytest.raises(FileNotFoundError):
        Hook.create_from_json_file()
    path = tmp_path / "hook.json"
    for text in (
        "{",
        "[]",
        '{"CollectionConfigurations": [{}]}',
        '{"HookParameters": {"save_interval": "x"}}',
    ):
        path.write_text(text)
        with pytest.raises(SMDebugValueError):
            Hook.create_from_json_file(str(path))


class Trial:
    """As much of a trial as the constructor of a rule looks at."""


def test_rule_takes_both_documented_forms(monkeypatch):
    from smdebug.rules import rule

    monkeypatch.setattr(rule, "Trial", Trial)

    class Mine(Rule):
        def invoke_at_step(self, step):
            return False

    base, other = Trial(), Trial()
    assert Mine(base).trials == [base]
    assert Mine(base, other_trials=None).other_trials is None
    assert Mine(base, [other]).trials == [base, other]
    assert Mine(base, other).trials == [base, other]
    assert Mine(base, "", [other]).trials == [base, other]
    assert Mine(base, None, '{"name": "stoptraining"}').other_trials is None
    assert Mine(base, [other], '{"name": "stoptraining"}').other_trials == [other]
    assert Mine(base, action_str='[{"name": "Email", "endpoint": "a@b.c"}]', other_trials=[other]).report == {
        "RuleTriggered": 0,
        "Violations": 0,
        "Details": {},
        "Datapoints": 0,
        "RuleParameters": "",
    }
    with pytest.raises(SMDebugValueError):
        Mine(base, "no json")


def _row(values, more=True):
    """The row of `statistics` that Telltale records for these values."""
    np = pytest.importorskip("numpy")
    finite = values[np.isfinite(values)]
    absolute = np.abs(finite)
    return {
        "count": values.size,
        "nan_count": int(np.isnan(values).sum()),
        "inf_count": int(np.isinf(values).sum()),
        "zero_count": int((values == 0).sum()),
        "min": finite.min(),
        "max": finite.max(),
        "mean": finite.mean(),
        "std": finite.std(),
        "l1": absolute.sum(),
        "l2": (finite**2).sum() ** 0.5,
        "more": more,
        "abs_min": absolute.min(),
        "abs_std": absolute.std(),
        "prod": finite.prod(),
    }


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2"])
def test_reductions_of_statistics_are_those_of_the_values(name, absolute):
    np = pytest.importorskip("numpy")
    values = np.random.default_rng(7).normal(0.2, 1.5, size=(6, 5))
    expected = get_numpy_reduction(name, values, absolute)
    assert of_statistics(name, _row(values), absolute) == pytest.approx(expected, rel=1e-12)
    if name in ("std", "variance"):
        data = np.abs(values) if absolute else values
        sample = data.std(ddof=1) if name == "std" else data.var(ddof=1)
        assert of_statistics(name, _row(values), absolute, of_sample=True) == pytest.approx(sample, rel=1e-12)
    # NaN anywhere makes all of them NaN, as it does in numpy and torch.
    values[1, 1] = np.nan
    assert np.isnan(of_statistics(name, _row(values), absolute))
    # Inf: what is told is right, what cannot be known is NaN.
    values[1, 1] = -np.inf
    told = of_statistics(name, _row(values), absolute)
    with np.errstate(invalid="ignore"):
        true = get_numpy_reduction(name, values, absolute)
    assert np.isnan(told) or told == true


def test_what_statistics_do_not_tell(tmp_path):
    np = pytest.importorskip("numpy")
    row = _row(np.array([1.0, -2.0, 3.0]), more=False)
    assert of_statistics("prod", row) is None
    assert of_statistics("min", row, abs=True) is None
    assert of_statistics("max", row, abs=True) == 3.0
    with pytest.raises(SMDebugValueError):
        of_statistics("median", row)
