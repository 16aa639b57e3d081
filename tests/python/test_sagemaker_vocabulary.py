# SPDX-License-Identifier: Apache-2.0
"""telltale.sagemaker: SageMaker's words become a plan, a run, a summary; what there is not is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD
from waiting import wait_until

PACKAGE = Path(__file__).parents[2] / "python"
sys.path.insert(0, str(PACKAGE))
sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

from smdebug_lab import Lab as SmdebugLab  # noqa: E402
from telltale import TelltaleError  # noqa: E402
from telltale.errors import ConfigError, TrainingError, UnsupportedError  # noqa: E402
from telltale.sagemaker import LocalEstimator, rule_configs, support  # noqa: E402
from telltale.sagemaker.debugger import (  # noqa: E402
    CollectionConfig,
    DataloaderProfilingConfig,
    DebuggerHookConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    HorovodProfilingConfig,
    ProfilerConfig,
    ProfilerRule,
    PythonProfilingConfig,
    Rule,
    TensorBoardOutputConfig,
    get_default_profiler_rule,
)
from telltale.sagemaker.debugger import rule_configs as exported_rule_configs  # noqa: E402
from telltale.sagemaker.environment import environment_of, gpu_count  # noqa: E402
from telltale.sagemaker.plan import plan_of, to_toml  # noqa: E402
from telltale.sagemaker.rule_configs import SMS, ActionList, Email, StopTraining  # noqa: E402
from telltale.sagemaker.rule_set import rule_set_of  # noqa: E402
from torch_lab import Lab  # noqa: E402

MODEL_RULES = {
    "vanishing_gradient": "VanishingGradient",
    "exploding_tensor": "ExplodingTensor",
    "dead_relu": "DeadRelu",
    "saturated_activation": "SaturatedActivation",
    "poor_weight_initialization": "PoorWeightInitialization",
    "weight_update_ratio": "WeightUpdateRatio",
    "all_zero": "AllZero",
    "class_imbalance": "ClassImbalance",
    "loss_not_decreasing": "LossNotDecreasing",
    "overfit": "Overfit",
    "overtraining": "Overtraining",
    "similar_across_runs": "SimilarAcrossRuns",
    "stalled_training_rule": "StalledTrainingRule",
    "tensor_variance": "TensorVariance",
    "unchanged_tensor": "UnchangedTensor",
    "check_input_images": "CheckInputImages",
    "nlp_sequence_ratio": "NLPSequenceRatio",
    "confusion": "Confusion",
    "feature_importance_overweight": "FeatureImportanceOverweight",
    "tree_depth": "TreeDepth",
    "create_xgboost_report": "CreateXgboostReport",
}
PROFILER_RULES = [
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "ProfilerReport",
    "StepOutlier",
]
EVERY_500 = {mode: {"interval": 500} for mode in ("train", "eval", "predict", "global")}


def collections_of(*configs: CollectionConfig, **options) -> dict:
    hook = DebuggerHookConfig(collection_configs=configs, hook_parameters=options.pop("hook", None))
    plan = plan_of(hook, **options)
    assert plan["level"] == "custom"
    return plan["collections"]


def when(parameters: dict, hook: dict | None = None, mode: str = "train") -> dict:
    return collections_of(CollectionConfig("gradients", parameters), hook=hook)["gradients"][mode]


# ---- the vocabulary ----


def test_every_rule_of_sagemaker_has_its_name():
    assert len(MODEL_RULES) + len(PROFILER_RULES) == 33
    for function, name in MODEL_RULES.items():
        rule = Rule.sagemaker(getattr(rule_configs, function)())
        assert (rule.name, rule.rule) == (name, name)
    for name in PROFILER_RULES:
        rule = ProfilerRule.sagemaker(getattr(rule_configs, name)())
        assert (rule.name, rule.rule, rule.given_parameters) == (name, name, {})
    assert exported_rule_configs is rule_configs
    assert get_default_profiler_rule().rule == "ProfilerReport"


def test_where_a_rule_would_run_is_taken_and_not_used():
    place = {"instance_type": "ml.t3.medium", "volume_size_in_gb": 10}
    rule = ProfilerRule.sagemaker(rule_configs.CPUBottleneck(), **place)
    assert rule.rule == "CPUBottleneck" and rule.given_parameters == {}
    for made in (Rule.custom("mine", "image", **place), ProfilerRule.custom("mine", "image", **place)):
        assert made.name == "mine" and made.given_parameters == {}


def test_a_rule_takes_a_name_parameters_collections_and_actions():
    rule = Rule.sagemaker(
        rule_configs.loss_not_decreasing(),
        name="mine",
        rule_parameters={"num_steps": "20"},
        collections_to_save=[CollectionConfig("losses", {"save_interval": "5"})],
        actions=ActionList(StopTraining("job"), Email("a.b+c@Example.org"), SMS("+15551234567")),
    )
    assert rule.name == "mine" and rule.rule == "LossNotDecreasing"
    assert rule.given_parameters == {"num_steps": "20"}
    assert rule.collection_configs == [CollectionConfig("losses", {"save_interval": "5"})]
    assert [json.loads(rule.actions.serialize())[i]["name"] for i in range(3)] == [
        "stoptraining",
        "email",
        "sms",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Rule.sagemaker("vanishing_gradient"),
        lambda: Rule.sagemaker(rule_configs.BatchSize()),
        lambda: Rule.sagemaker(rule_configs.overfit(), rule_parameters={"rule_to_invoke": "x"}),
        lambda: Rule.sagemaker(rule_configs.overfit(), actions="stop"),
        lambda: Rule.custom("mine", source="rule.py"),
        lambda: ProfilerRule.sagemaker(rule_configs.overfit()),
        lambda: rule_configs.StepOutlier(sigma=3),
        lambda: rule_configs.ProfilerReport(CPUBottleneck_sigma=3),
        lambda: ActionList("stop"),
        lambda: Email("nobody"),
        lambda: SMS("0555"),
        lambda: StopTraining("a b"),
        lambda: CollectionConfig(""),
        lambda: CollectionConfig("weights", ["save_interval"]),
        lambda: DebuggerHookConfig(collection_configs=["weights"]),
        lambda: ProfilerConfig(system_monitor_interval_millis=300),
        lambda: ProfilerConfig(framework_profile_params=DetailedProfilingConfig()),
        lambda: FrameworkProfile(start_step=1, start_unix_time=1),
        lambda: DetailedProfilingConfig(num_steps=0),
        lambda: DataloaderProfilingConfig(metrics_regex="("),
        lambda: PythonProfilingConfig(python_profiler="cProfile"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_the_one_hierarchy(wrong):
    with pytest.raises(ConfigError) as raised:
        wrong()
    assert isinstance(raised.value, TelltaleError)
    assert not isinstance(raised.value, UnsupportedError)


# ---- the plan ----


def test_nothing_said_is_telltales_own_plan_and_false_is_no_tensors():
    assert plan_of(None) is None
    assert plan_of(None, [Rule.sagemaker(rule_configs.vanishing_gradient())]) is None
    assert plan_of(False, [Rule.sagemaker(rule_configs.vanishing_gradient())]) == {
        "level": "custom",
        "collections": {},
    }
    assert collections_of(CollectionConfig("gradients"), hook={"dry_run": "true"}) == {}


def test_a_collection_without_reductions_saves_values_every_500_steps():
    assert collections_of(CollectionConfig("gradients")) == {"gradients": {"take": ["values"], **EVERY_500}}
    assert list(collections_of(CollectionConfig("tensorflow_summaries"))) == ["tensorflow_summaries"]
    assert collections_of(CollectionConfig("trees"), framework="xgboost")["trees"]["train"] == {
        "interval": 10
    }


def test_save_configurations_mean_what_they_meant():
    assert when({"save_interval": "100", "start_step": "150"}) == {"interval": 100, "start": 150}
    assert when({"save_interval": 7, "end_step": "10000"}) == {"interval": 7, "end": 10000}
    assert when({"end_step": "None"}) == {"interval": 500}
    # The steps come to the interval, they do not take its place.
    assert when({"save_steps": "1,2, 30"}) == {"interval": 500, "steps": [1, 2, 30]}
    assert when({"save_steps": [3, 1]}) == {"interval": 500, "steps": [1, 3]}
    # A collection is switched off by an end before its begin.
    assert when({"end_step": 0}) == {"interval": 0, "steps": []}


def test_a_mode_goes_before_all_modes_and_a_collection_before_the_hook():
    hook = {"save_interval": "40", "eval.start_step": "5"}
    parameters = {"train.save_interval": "50"}
    assert when(parameters, hook, "train") == {"interval": 50}
    assert when(parameters, hook, "eval") == {"interval": 40, "start": 5}
    assert when({"save_interval": "9"}, {"train.save_interval": "3"}, "train") == {"interval": 9}
    assert when({"train.save_interval": "100", "eval.save_interval": "10"}, None, "eval") == {"interval": 10}
    assert when({"train.save_interval": "100"}, None, "predict") == {"interval": 500}
    # To SageMaker's hook all steps were GLOBAL where the script did not say more.
    assert when({"global.save_interval": "8"}, None, "train") == {"interval": 8}


def test_reductions_are_taken_in_place_of_values():
    wanted = {"reductions": "min,abs_max,l2_norm,abs_l1_norm"}
    found = collections_of(CollectionConfig("weights", wanted))["weights"]
    assert found["take"] == [] and found["reductions"] == ["min", "abs_max", "l2_norm", "abs_l1_norm"]
    more = {**wanted, "save_raw_tensor": "true", "save_shape": True}
    assert collections_of(CollectionConfig("weights", more))["weights"]["take"] == ["values", "shape"]
    of_hook = collections_of(CollectionConfig("weights"), hook={"reductions": ["mean"]})["weights"]
    assert of_hook["reductions"] == ["mean"] and of_hook["take"] == []
    # Losses and the like are numbers: they stay what they are.
    assert collections_of(CollectionConfig("losses", wanted))["losses"]["take"] == ["values"]
    assert "reductions" not in collections_of(CollectionConfig("losses", wanted))["losses"]


def test_histograms_where_asked_for_or_for_tensorboard():
    asked = {"save_histogram": "true"}
    assert collections_of(CollectionConfig("weights", asked))["weights"]["take"] == ["values", "histogram"]
    board = collections_of(
        CollectionConfig("weights"), CollectionConfig("biases", {"save_histogram": False}), histograms=True
    )
    assert board["weights"]["take"] == ["values", "histogram"] and board["biases"]["take"] == ["values"]
    # TensorBoard without a word about tensors.
    alone = plan_of(None, histograms=True)["collections"]
    assert list(alone) == ["weights", "biases", "gradients"]
    assert all("histogram" in collection["take"] for collection in alone.values())


def test_patterns_of_custom_collections():
    def patterns(text: str) -> tuple[list[str], list[str]]:
        found = collections_of(CollectionConfig("mine", {"include_regex": text}))["mine"]
        return found["include"], found.get("exclude", [])

    assert patterns("relu,conv") == (["relu", "conv"], [])
    assert patterns("fc[1,2],a{1,3}b") == (["fc[1,2]", "a{1,3}b"], [])
    # A module's outputs and inputs under Telltale's names too.
    assert patterns(".*relu_output") == ([".*relu_output", r".*relu\.output"], [])
    assert patterns("conv1_output_0")[0][1] == r"conv1\.output"
    assert patterns("conv1_output_1")[0][1] == r"conv1\.output\.1"
    assert patterns("embedding0_input_0")[0][1] == r"embedding0\.input\.0"
    # RE2 does not look ahead; what this says is there all the same.
    assert patterns("^(?!gradient).*weight") == ([".*weight"], ["^gradient"])
    for wrong in ("(", "a(?=b)", "(?<!x)y", r"(a)\1", r"(?P<n>a)(?P=n)", "(a)?(?(1)b|c)"):
        with pytest.raises(ConfigError):
            patterns(wrong)


def test_biases_are_no_weights_to_sagemaker(tmp_path):
    """Nor to Telltale: nothing is excluded, for which names would wait for their answers."""
    configs = [CollectionConfig("weights", {"save_interval": 1, "reductions": "mean"})]
    plan = plan_of(DebuggerHookConfig(collection_configs=configs))
    assert "exclude" not in plan["collections"]["weights"]
    captured = Lab(tmp_path, sys.executable).run(
        """
        import torch, torch.nn as nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias_net, self.lstm = nn.Linear(3, 4), nn.LSTM(4, 2)
            def forward(self, x): return self.lstm(self.bias_net(x))[0].sum()
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad(); net(torch.ones(5, 3)).backward(); opt.step()
        """,
        plan=to_toml(plan),
    )
    weights = {"bias_net.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"}
    assert {(name, step) for name, _, step in captured.statistics()} == {
        (name, step) for name in weights for step in range(3)
    }
    assert captured.losses() == {}


@pytest.mark.parametrize(
    "config",
    [
        CollectionConfig("mine"),
        CollectionConfig("weights", {"save_intervall": "5"}),
        CollectionConfig("weights", {"test.save_interval": "5"}),
        CollectionConfig("weights", {"save_interval": "often"}),
        CollectionConfig("weights", {"save_interval": 0}),
        CollectionConfig("weights", {"save_steps": "1,x"}),
        CollectionConfig("weights", {"reductions": "median"}),
        CollectionConfig("weights", {"save_shape": "perhaps"}),
    ],
)
def test_a_wrong_collection_says_what_to_write(config):
    with pytest.raises(ConfigError, match=r"write|true"):
        collections_of(config)


def test_hook_wide_settings():
    found = collections_of(hook={"save_all": "True", "include_regex": "relu", "include_workers": "all"})
    assert found["all"] == {"take": ["values"], **EVERY_500}
    assert found["default"] == {"include": ["relu"], "take": ["values"], **EVERY_500}
    with pytest.raises(ConfigError, match="save_everything"):
        collections_of(hook={"save_everything": "true"})


def test_a_plan_file():
    plan = {"level": "custom", "collections": {'a "b"': {"include": ["x\\.y\x7f"], "train": {"interval": 3}}}}
    assert to_toml(plan) == (
        'level = "custom"\n[collections]\n\n[collections."a \\"b\\""]\ninclude = ["x\\\\.y\\u007f"]\n'
        "train = {interval = 3}\n"
    )


def test_rules_bring_their_collections():
    own = Rule.sagemaker(
        rule_configs.exploding_tensor(),
        collections_to_save=[CollectionConfig("weights", {"save_interval": 3})],
    )
    found = plan_of(DebuggerHookConfig(collection_configs=[CollectionConfig("gradients")]), [own])
    assert list(found["collections"]) == ["gradients", "weights"]
    assert found["collections"]["weights"]["train"] == {"interval": 3}


# ---- what there is not ----

AVAILABLE = {
    "LossNotDecreasing": {
        "parameters": [{"name": "num_steps", "default": 10}, {"name": "mode", "default": ""}]
    },
    "SimilarAcrossRuns": {"parameters": [{"name": "other_trials", "default": ""}]},
    "CPUBottleneck": {"parameters": [{"name": "threshold", "default": 50}]},
    "StepOutlier": {"parameters": []},
    "ProfilerReport": {"parameters": []},
}


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (Rule.sagemaker(rule_configs.dead_relu()), "DeadRelu"),
        (Rule.sagemaker(rule_configs.loss_not_decreasing(), rule_parameters={"beat": "EVAL"}), "beat"),
        (Rule.custom("mine", source="s3://bucket/rule.py", rule_to_invoke="Mine"), "mine"),
        (ProfilerRule.sagemaker(rule_configs.BatchSize()), "BatchSize"),
        (ProfilerRule.sagemaker(rule_configs.StepOutlier(stddev=3)), "stddev"),
        (
            ProfilerRule.sagemaker(rule_configs.ProfilerReport(IOBottleneck_threshold=60)),
            "IOBottleneck_threshold",
        ),
    ],
)
def test_rules_and_parameters_that_are_not_there_are_refused(rule, named):
    with pytest.raises(UnsupportedError, match=named) as raised:
        rule_set_of([rule], AVAILABLE)
    assert named in raised.value.setting


def test_rules_become_a_rules_file():
    code = Path(__file__)
    found = rule_set_of(
        [
            Rule.sagemaker(
                rule_configs.loss_not_decreasing(),
                name="falls",
                rule_parameters={"num_steps": "20", "mode": "EVAL"},
                actions=ActionList(StopTraining(), Email("a@example.org"), SMS("+15551234567")),
            ),
            Rule.sagemaker(
                rule_configs.similar_across_runs(), other_trials_s3_input_paths=["runs/a", "runs/b"]
            ),
            Rule.custom("mine", source=str(code), rule_to_invoke="Mine", rule_parameters={"limit": 3}),
            ProfilerRule.sagemaker(rule_configs.StepOutlier(scan_interval_us=1000)),
            ProfilerRule.sagemaker(
                rule_configs.ProfilerReport(CPUBottleneck_threshold=60, StepOutlier_scan_interval_us=7),
                name="report",
            ),
        ],
        AVAILABLE,
        capture=False,
    )
    act = {"from": "low", "dry_run": False}
    assert found == {
        "capture": False,
        "off": ["LossNotDecreasing", "ProfilerReport"],
        "rules": {
            "falls": {
                "rule": "LossNotDecreasing",
                "parameters": {"num_steps": "20", "mode": "EVAL"},
                "actions": [
                    {"kind": "stop", **act},
                    {"kind": "email", **act, "to": "a@example.org"},
                    {"kind": "sms", **act, "to": "+15551234567"},
                ],
            },
            "SimilarAcrossRuns": {
                "rule": "SimilarAcrossRuns",
                "parameters": {"other_trials": "runs/a,runs/b"},
            },
            "mine": {
                "python": f"{code}:Mine",
                "parameters": {"host_python": sys.executable, "limit": "3"},
            },
            "StepOutlier": {"rule": "StepOutlier"},
            "report": {"rule": "ProfilerReport"},
            "CPUBottleneck": {"rule": "CPUBottleneck", "parameters": {"threshold": "60"}},
        },
    }


def test_what_rules_cannot_mean_is_refused():
    falls = rule_configs.loss_not_decreasing()
    with pytest.raises(ConfigError, match="num_steps"):
        rule_set_of([Rule.sagemaker(falls, rule_parameters={"num_steps": "many"})], AVAILABLE)
    with pytest.raises(ConfigError, match="two are called"):
        rule_set_of(
            [Rule.sagemaker(falls), Rule.sagemaker(falls, rule_parameters={"num_steps": "3"})], AVAILABLE
        )
    with pytest.raises(ConfigError, match="no file"):
        rule_set_of([Rule.custom("mine", source="nowhere.py", rule_to_invoke="Mine")], AVAILABLE)
    stops = Rule.sagemaker(falls, actions=StopTraining("other"))
    assert rule_set_of([stops], AVAILABLE)["rules"]["LossNotDecreasing"]["actions"][0]["kind"] == "stop"
    with pytest.raises(UnsupportedError, match="is called mine-1"):
        rule_set_of([stops], AVAILABLE, job="mine-1")


def test_profiles():
    assert support.sampling_interval_ms(None) is None
    assert support.sampling_interval_ms(ProfilerConfig(system_monitor_interval_millis=1000)) == 1000
    assert support.sampling_interval_ms(ProfilerConfig(disable_profiler=True)) == 60000
    loaders = FrameworkProfile(dataloader_profiling_config=DataloaderProfilingConfig())
    assert support.sampling_interval_ms(ProfilerConfig(framework_profile_params=loaders)) is None
    for profile in (
        FrameworkProfile(),
        FrameworkProfile(local_path="/opt/ml/output/profiler/", start_step=5, num_steps=2),
        FrameworkProfile(python_profiling_config=PythonProfilingConfig()),
    ):
        assert support.sampling_interval_ms(ProfilerConfig(framework_profile_params=profile)) is None
    horovod = FrameworkProfile(horovod_profiling_config=HorovodProfilingConfig())
    with pytest.raises(UnsupportedError, match="HorovodProfilingConfig"):
        support.sampling_interval_ms(ProfilerConfig(framework_profile_params=horovod))
    kinds = FrameworkProfile(start_step=5, num_steps=2).metrics_configs
    assert [kind.start_step for kind in kinds] == [5] * 5 and [kind.num_steps for kind in kinds] == [2] * 5
    python = {"ProfilerName": "cprofile", "cProfileTimer": "total_time"}
    assert FrameworkProfile().metrics_configs[2].to_request() == {"StartStep": 9, "NumSteps": 3, **python}
    parts = FrameworkProfile().to_request()["ProfilingParameters"]
    assert json.loads(parts["DetailedProfilingConfig"]) == {"StartStep": 5, "NumSteps": 1}
    timed = DetailedProfilingConfig(start_unix_time=1_600_000_000, duration=30)
    assert timed.to_request() == {"StartTimeInSecSinceEpoch": 1_600_000_000, "DurationInSeconds": 30}


# ---- the estimator ----

TRAIN = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("-n", type=int)
parser.add_argument("--code", type=int, default=0)
arguments = parser.parse_args()
seen = {key: value for key, value in os.environ.items() if key.startswith(("SM_", "SMDEBUG", "OWN", "TRAINING_"))}
with open(os.environ["SM_MODEL_DIR"] + "/seen.json", "w") as file:
    json.dump({"lr": arguments.lr, "n": arguments.n, "cwd": os.getcwd(), "variables": seen}, file)
sys.exit(arguments.code)
"""


@pytest.fixture
def estimator(tmp_path, monkeypatch):
    """Makes a LocalEstimator of TRAIN that uses the binary under test."""
    monkeypatch.setenv("TELLTALE_PREFIX", str(BUILD))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train_it.py").write_text(TRAIN)

    def make(**options) -> LocalEstimator:
        options.setdefault("run_options", ("--quiet",))
        return LocalEstimator("train_it.py", source_dir=source, output_path=tmp_path / "runs", **options)

    return make


def test_a_job_runs_with_its_hyperparameters_and_sagemakers_environment(estimator, tmp_path):
    hook = DebuggerHookConfig(
        hook_parameters={"save_interval": 20}, collection_configs=[CollectionConfig("weights")]
    )
    data = tmp_path / "data"
    data.mkdir()
    made = estimator(
        hyperparameters={"lr": 0.5, "n": 3},
        rules=[
            Rule.sagemaker(rule_configs.loss_not_decreasing(), name="falls"),
            ProfilerRule.sagemaker(rule_configs.ProfilerReport()),
        ],
        debugger_hook_config=hook,
        profiler_config=ProfilerConfig(system_monitor_interval_millis=200),
        tensorboard_output_config=TensorBoardOutputConfig("s3://bucket/board"),
        environment={"OWN": "1"},
        role="arn:aws:iam::0:role/x",
        instance_type="ml.m5.xlarge",
    )
    made.fit({"training": data}, logs=False)
    job = made.latest_training_job
    assert job.name.startswith("train-it-20") and job.status() == "Completed"
    run = Path(made.latest_job_debugger_artifacts_path())
    assert run == tmp_path / "runs" / job.name == Path(made.latest_job_profiler_artifacts_path())
    assert json.loads((run / "run.json").read_text())["name"]
    model = Path(job.describe()["ModelArtifacts"]["S3ModelArtifacts"])
    seen = json.loads((model / "seen.json").read_text())
    assert (seen["lr"], seen["n"], seen["cwd"]) == (0.5, 3, str(tmp_path / "source"))
    variables = seen["variables"]
    assert variables["SM_CHANNEL_TRAINING"] == str(data) and variables["SM_HP_LR"] == "0.5"
    assert json.loads(variables["SM_HPS"]) == {"lr": 0.5, "n": 3} and variables["OWN"] == "1"
    assert json.loads(variables["SM_USER_ARGS"]) == ["--lr", "0.5", "-n", "3"]
    assert int(variables["SM_NUM_GPUS"]) >= 0 and Path(variables["SM_INPUT_CONFIG_DIR"]).is_dir()
    request = json.loads(Path(variables["SMDEBUG_CONFIG_FILE_PATH"]).read_text())
    assert request["HookParameters"] == {"save_interval": "20"}
    of_rule = {"CollectionName": "losses", "CollectionParameters": {"save_interval": "500"}}
    assert request["CollectionConfigurations"] == [{"CollectionName": "weights"}, of_rule]
    summary = made.rule_job_summary()
    assert [each["RuleConfigurationName"] for each in summary] == ["falls", "ProfilerReport"]
    assert [each["RuleEvaluationStatus"] for each in summary] == ["NoData", "NoIssuesFound"]
    assert job.rule_job_summary()[0]["StatusDetails"] == "no loss was recorded"
    assert list(summary[0]) == [
        *("RuleConfigurationName", "RuleEvaluationJobArn", "RuleEvaluationStatus", "StatusDetails"),
        "LastModifiedTime",
    ]
    board = Path(made.latest_job_tensorboard_artifacts_path())
    assert board.is_dir() and made.latest_job_tensorboard_artifacts_path() == str(board)


def test_hyperparameters_are_what_sagemakers_containers_make_of_them(tmp_path):
    given = {"layers": [64, 32], "more": {"b": 1, "a": [True]}, "warm": True, "none": None, "data": tmp_path}
    variables = environment_of("job", tmp_path / "job", given, None, None, None, None, {}, ())
    of_json = {**given, "data": str(tmp_path)}
    assert json.loads(variables["SM_HPS"]) == of_json
    assert json.loads(variables["SM_TRAINING_ENV"]) == {"job_name": "job", "hyperparameters": of_json}
    assert variables["SM_HP_LAYERS"] == "[64,32]" and variables["SM_HP_MORE"] == '{"a":[true],"b":1}'
    assert variables["SM_HP_WARM"] == "true" and variables["SM_HP_NONE"] == ""
    assert variables["SM_HP_DATA"] == str(tmp_path)
    assert json.loads(variables["SM_USER_ARGS"]) == [
        *("--layers", "[64, 32]", "--more", "a=[True],b=1", "--warm", "True", "--none", ""),
        *("--data", str(tmp_path)),
    ]


def test_gpus_are_counted_as_cuda_sees_them(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_count(str(tmp_path)) == 2 and gpu_count(str(tmp_path / "nowhere")) == 0
    for visible, count in (("", 0), ("-1", 0), ("0", 1), ("0, 1,3", 3), ("0,-1,1", 1), ("GPU-8f,MIG-1", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu_count(str(tmp_path)) == count, visible


def test_a_job_that_fails_says_so_and_one_that_is_not_waited_for_is_in_progress(estimator):
    made = estimator(hyperparameters={"code": 3})
    with pytest.raises(TrainingError, match="code 3") as raised:
        made.fit(logs=False)
    assert raised.value.code == 3 and raised.value.run == str(made.latest_training_job.run)
    assert made.latest_training_job.status() == "Failed"
    made.fit(wait=False, logs=False, job_name="second")
    second = made.latest_training_job
    assert second.name == "second" and second is made.jobs[1]
    with pytest.raises(TrainingError):
        second.wait()
    # It would become the next attempt of that run.
    with pytest.raises(ConfigError, match="second"):
        made.fit(logs=False, job_name="second")
    assert len(made.jobs) == 2


def test_a_job_can_be_stopped(estimator, tmp_path):
    (tmp_path / "source" / "train_it.py").write_text(
        "import os, time\nopen(os.environ['SM_MODEL_DIR'] + '/up', 'w').close()\nwhile True: time.sleep(1)\n"
    )
    made = estimator()
    made.fit(wait=False, logs=False)
    job = made.latest_training_job
    up = Path(job.describe()["ModelArtifacts"]["S3ModelArtifacts"]) / "up"
    wait_until("the training", lambda: job.status() != "InProgress" or up.exists())
    assert job.status() == "InProgress"
    job.stop()
    assert job.status() == "Stopped"
    job.wait()


# Its loss stays as it is; it goes on until it is stopped, but not for ever.
STUCK = """
import time
import telltale
for _ in range(20_000):
    time.sleep(0.005)
    telltale.log(loss=1.0)
    telltale.step()
"""


def test_a_rule_of_ones_own_runs_in_the_interpreter_of_the_training_and_says_why_it_does_not(
    estimator, tmp_path, monkeypatch
):
    monkeypatch.delenv("TELLTALE_PYTHON", raising=False)
    (tmp_path / "rule.py").write_text(
        "import sys\nimport telltale\nclass Mine(telltale.Rule):\n"
        "    def __init__(self): raise RuntimeError(f'not in {sys.executable}')\n"
    )
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    made = estimator(
        rules=[Rule.custom("mine", source=str(tmp_path / "rule.py"), rule_to_invoke="Mine")],
        python=str(python),
    )
    made.fit(logs=False)
    (summary,) = made.rule_job_summary()
    assert summary["RuleEvaluationStatus"] == "Error"
    assert f"not in {python}" in summary["StatusDetails"]


def test_the_report_has_no_issues_where_another_rule_has_one(estimator, monkeypatch):
    made = estimator(rules=[Rule.sagemaker(rule_configs.overfit()), get_default_profiler_rule()])
    made.fit(logs=False)
    overfit, report = (rule.name for rule in made.rules)
    finding = {"rule": overfit, "message": "It overfits", "cause": "Too large.", "advice": "Stop earlier."}
    said = {
        "run": {"state": "finished"},
        "rules": [{"name": overfit, "status": "IssuesFound"}, {"name": report, "status": "NoIssuesFound"}],
        "findings": [finding],
    }
    monkeypatch.setattr("telltale.sagemaker._command.ask", lambda *_: said)
    assert [(each["RuleEvaluationStatus"], each["StatusDetails"]) for each in made.rule_job_summary()] == [
        ("IssuesFound", "RuleEvaluationConditionMet: It overfits. Too large. Stop earlier."),
        ("NoIssuesFound", ""),
    ]


def test_a_job_that_a_rule_stops_is_stopped_and_not_failed(estimator, tmp_path):
    (tmp_path / "source" / "train_it.py").write_text(STUCK)
    stuck = Rule.sagemaker(
        rule_configs.loss_not_decreasing(),
        name="stuck",
        rule_parameters={"num_steps": 2, "patience_steps": 8},
        actions=ActionList(StopTraining()),
    )
    made = estimator(rules=[stuck])
    with pytest.warns(UserWarning, match="stopped by the rule stuck: "):
        made.fit(logs=False)
    job = made.latest_training_job
    assert job.status() == job.describe()["TrainingJobStatus"] == "Stopped"
    assert [each["RuleEvaluationStatus"] for each in made.rule_job_summary()] == ["IssuesFound"]


def test_a_stop_that_comes_too_late_leaves_the_job_as_it_ended(estimator):
    made = estimator()
    made.fit(logs=False)
    made.latest_training_job.stop()
    assert made.latest_training_job.status() == "Completed"


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [Rule.sagemaker(rule_configs.vanishing_gradient(), rule_parameters={"treshold": "0.001"})]},
        {"rules": [Rule.custom("mine", source="s3://bucket/rule.py", rule_to_invoke="Mine")]},
        {
            "profiler_config": ProfilerConfig(
                framework_profile_params=FrameworkProfile(horovod_profiling_config=HorovodProfilingConfig())
            )
        },
        {"instance_count": 2},
        {"train_instance_count": 2},
        {"distribution": {"torch_distributed": {"enabled": True}}},
        {"distributions": {"mpi": {"enabled": True}}},
        {"instance_groups": ["group"]},
    ],
)
def test_the_estimator_refuses_before_anything_runs(estimator, tmp_path, options):
    with pytest.raises(UnsupportedError):
        estimator(**options)
    assert not (tmp_path / "runs").exists()


def test_what_a_job_is_spread_over_is_refused_by_its_name(estimator):
    with pytest.raises(UnsupportedError, match=r"instance_count=2: .*: leave it out"):
        estimator(train_instance_count=2)
    with pytest.raises(UnsupportedError, match=r"distribution=\{'mpi': .*: leave it out"):
        estimator(distribution={"mpi": {"enabled": True}})


def test_where_in_the_cloud_a_job_runs_is_taken_by_the_names_of_both_versions(estimator):
    renamed = {"instance_count": 1, "instance_type": "ml.m5.xlarge", "volume_size": 30, "volume_kms_key": "x"}
    renamed |= {"max_run": 60, "max_wait": 60, "use_spot_instances": True}
    estimator(role="x", image_uri="x", distribution=None, **renamed)
    old = {f"train_{name}": value for name, value in renamed.items()}
    estimator(role="x", image_name="x", distributions=None, enable_cloudwatch_metrics=True, **old)


def test_wrong_arguments_of_the_estimator(estimator, tmp_path):
    for wrong, error in (
        ({"rules": ["loss"]}, ConfigError),
        ({"base_job_name": "a job"}, ConfigError),
        ({"debugger_hook_config": {"collection_configs": []}}, ConfigError),
        ({"instances": 2}, TypeError),
    ):
        with pytest.raises(error):
            estimator(**wrong)
    made = estimator()
    with pytest.raises(ConfigError, match="fit"):
        made.rule_job_summary()
    with pytest.raises(UnsupportedError, match="s3://"):
        made.fit("s3://bucket/data")
    with pytest.raises(ConfigError, match="no file or folder"):
        made.fit(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="job_name"):
        made.fit(job_name="a/b")
    with pytest.raises(UnsupportedError):
        made.disable_profiling()
    with pytest.raises(ConfigError, match="no file"):
        LocalEstimator("nothing.py").fit()
    with pytest.raises(UnsupportedError, match="output_path"):
        LocalEstimator("nothing.py", output_path="s3://bucket/runs")
    assert LocalEstimator("nothing.py", output_path=f"file://{tmp_path}").output_path == str(tmp_path)


def plan_in(made: LocalEstimator) -> dict:
    made.fit(logs=False)
    return json.loads((made.latest_training_job.run / "run.json").read_text())["plan"]["collections"]


def test_what_the_rules_need_is_captured_unless_nothing_is(estimator):
    rules = [
        Rule.sagemaker(rule_configs.vanishing_gradient()),
        ProfilerRule.sagemaker(rule_configs.ProfilerReport()),
        ProfilerRule.sagemaker(rule_configs.StepOutlier()),
    ]
    losses = DebuggerHookConfig(collection_configs=[CollectionConfig("losses")])
    plan = plan_in(estimator(rules=rules, debugger_hook_config=losses))
    assert set(plan) == {"losses", "gradients"}
    assert plan["gradients"] == {"take": ["statistics"], "train": {"interval": 100}, "asked": True}
    # How often a collection of the user's is saved stays the user's word.
    gradients = DebuggerHookConfig(collection_configs=[CollectionConfig("gradients", {"save_interval": "7"})])
    plan = plan_in(estimator(rules=rules, debugger_hook_config=gradients))
    assert plan["gradients"] == {"take": ["statistics", "values"], "interval": 7, "asked": True}
    for nothing in (False, DebuggerHookConfig(hook_parameters={"dry_run": "true"})):
        assert plan_in(estimator(rules=rules, debugger_hook_config=nothing)) == {}
    # True is what nothing said is: Telltale's own plan; for TensorBoard with histograms, else the same.
    own = plan_in(estimator())
    assert plan_in(estimator(debugger_hook_config=True)) == own != {}
    board = plan_in(estimator(tensorboard_output_config=TensorBoardOutputConfig("s3://bucket/board")))
    histograms = {"take": ["statistics", "histogram"], "asked": True}
    assert board == {name: {**what, **histograms} for name, what in own.items()}


def test_a_rules_parameters_hold_in_the_run(estimator):
    small = {"threshold": 1e-3}
    made = estimator(
        rules=[Rule.sagemaker(rule_configs.vanishing_gradient(), name="small", rule_parameters=small)]
    )
    made.fit(logs=False)
    run = made.latest_training_job.run
    stored = json.loads((run / "run.json").read_text())["rules"]
    assert stored["off"] == ["VanishingGradient"]
    assert stored["rules"]["small"] == {"rule": "VanishingGradient", "parameters": {"threshold": "0.001"}}
    assert [each["RuleConfigurationName"] for each in made.rule_job_summary()] == ["small"]


def test_the_plan_is_one_that_telltale_takes(estimator):
    made = estimator(
        debugger_hook_config=DebuggerHookConfig(
            hook_parameters={"save_interval": "10", "include_regex": "relu", "reductions": "mean,abs_prod"},
            collection_configs=[
                CollectionConfig("weights", {"train.save_interval": "5", "eval.save_steps": "1,2"}),
                CollectionConfig("gradients", {"end_step": 0}),
                CollectionConfig("mine", {"include_regex": "^(?!gradient).*conv.*_output"}),
                CollectionConfig("losses", {"save_histogram": "true"}),
            ],
        ),
        rules=[Rule.sagemaker(rule_configs.vanishing_gradient())],
        hyperparameters={"lr": 1},
    )
    made.fit(logs=False)
    run = made.latest_training_job.run
    explained = subprocess.run(
        [str(BUILD / "bin" / "telltale"), "run", "--plan", str(run.parent / f"{run.name}.job" / "plan.toml"),
         "--explain-plan"],
        capture_output=True, text=True, env={**os.environ},
    )  # fmt: skip
    assert explained.returncode == 0, explained.stderr
    for name in ("weights", "mine", "losses", "default"):
        assert name in explained.stdout


OWN_HOOK = """
import torch
import smdebug.pytorch as smd
hook = smd.Hook.create_from_json_file()
net = torch.nn.Linear(3, 1)
hook.register_module(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("said", "gradients", "weights"),
    [
        (None, [0], []),
        ([CollectionConfig("weights", {"save_interval": "2"})], [0], [0, 2]),
        ([CollectionConfig("gradients", {"save_steps": "1"})], [0, 1], []),
    ],
)
def test_a_hook_of_the_script_has_the_collections_of_the_rules(estimator, tmp_path, said, gradients, weights):
    (tmp_path / "source" / "train_it.py").write_text(OWN_HOOK)
    made = estimator(
        rules=[Rule.sagemaker(rule_configs.vanishing_gradient())],
        debugger_hook_config=said and DebuggerHookConfig(collection_configs=said),
    )
    made.fit(logs=False)
    saved = SmdebugLab(tmp_path)
    saved.out = Path(f"{made.latest_job_debugger_artifacts_path()}.job") / "tensors"
    of_trial = "tell({name: trial.tensor(name).steps() for name in trial.tensor_names()})"
    steps = saved.read(of_trial)
    assert steps["gradient/Linear_weight"] == gradients
    assert steps.get("Linear_weight", []) == weights
    told = [
        each["CollectionName"]
        for each in made.latest_training_job.describe()["DebugHookConfig"]["CollectionConfigurations"]
    ]
    assert told == list(dict.fromkeys([*(config.name for config in said or ()), "gradients"]))


def test_no_hook_configuration_is_there_where_none_is_wanted(estimator):
    made = estimator(debugger_hook_config=False)
    made.fit(logs=False)
    job = made.latest_training_job
    assert "DebugHookConfig" not in job.describe()
    model = Path(job.describe()["ModelArtifacts"]["S3ModelArtifacts"])
    assert "SMDEBUG_CONFIG_FILE_PATH" not in json.loads((model / "seen.json").read_text())["variables"]
