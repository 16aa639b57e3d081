# SPDX-License-Identifier: Apache-2.0
"""What Rule.sagemaker and ProfilerRule.sagemaker take: a function for each rule about the model, a class
for each about the machine, and the actions. Whether Telltale has a rule shows when it is to run.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .actions import SMS, Action, ActionList, Email, StopTraining

__all__ = [
    "SMS",
    "Action",
    "ActionList",
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "Email",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "ProfilerReport",
    "ProfilerRuleBase",
    "StepOutlier",
    "StopTraining",
    "all_zero",
    "check_input_images",
    "class_imbalance",
    "confusion",
    "create_xgboost_report",
    "dead_relu",
    "exploding_tensor",
    "feature_importance_overweight",
    "loss_not_decreasing",
    "nlp_sequence_ratio",
    "overfit",
    "overtraining",
    "poor_weight_initialization",
    "saturated_activation",
    "similar_across_runs",
    "stalled_training_rule",
    "tensor_variance",
    "tree_depth",
    "unchanged_tensor",
    "vanishing_gradient",
    "weight_update_ratio",
]


def _rule(
    name: str, collection: str = "", include_regex: str = "", save_interval: int = 500
) -> dict[str, Any]:
    """The base configuration of a rule, and the collection that SageMaker saves for it."""
    config: dict[str, Any] = {
        "DebugRuleConfiguration": {
            "RuleConfigurationName": name,
            "RuleParameters": {"rule_to_invoke": name},
        }
    }
    if collection:
        parameters = {"save_interval": str(save_interval)}
        if include_regex:
            parameters["include_regex"] = include_regex
        config["CollectionConfigurations"] = [
            {"CollectionName": collection, "CollectionParameters": parameters}
        ]
    return config


def vanishing_gradient() -> dict[str, Any]:
    return _rule("VanishingGradient", "gradients")


def exploding_tensor() -> dict[str, Any]:
    return _rule("ExplodingTensor")


def dead_relu() -> dict[str, Any]:
    return _rule("DeadRelu", "relu_output", ".*relu_output")


def saturated_activation() -> dict[str, Any]:
    return _rule("SaturatedActivation")


def poor_weight_initialization() -> dict[str, Any]:
    return _rule("PoorWeightInitialization", "relu_input", ".*relu_input")


def weight_update_ratio() -> dict[str, Any]:
    return _rule("WeightUpdateRatio", "weights")


def all_zero() -> dict[str, Any]:
    return _rule("AllZero")


def class_imbalance() -> dict[str, Any]:
    return _rule("ClassImbalance")


def loss_not_decreasing() -> dict[str, Any]:
    return _rule("LossNotDecreasing", "losses")


def overfit() -> dict[str, Any]:
    return _rule("Overfit")


def overtraining() -> dict[str, Any]:
    return _rule("Overtraining")


def similar_across_runs() -> dict[str, Any]:
    return _rule("SimilarAcrossRuns")


def stalled_training_rule() -> dict[str, Any]:
    return _rule("StalledTrainingRule")


def tensor_variance() -> dict[str, Any]:
    return _rule("TensorVariance")


def unchanged_tensor() -> dict[str, Any]:
    return _rule("UnchangedTensor")


def check_input_images() -> dict[str, Any]:
    return _rule("CheckInputImages", "input_image", ".*hybridsequential0_input_0")


def nlp_sequence_ratio() -> dict[str, Any]:
    return _rule("NLPSequenceRatio", "input_sequence", ".*embedding0_input_0")


def confusion() -> dict[str, Any]:
    return _rule("Confusion")


def feature_importance_overweight() -> dict[str, Any]:
    return _rule("FeatureImportanceOverweight", "feature_importance")


def tree_depth() -> dict[str, Any]:
    return _rule("TreeDepth")


def create_xgboost_report() -> dict[str, Any]:
    config = _rule("CreateXgboostReport")
    config["CollectionConfigurations"] = [
        {"CollectionName": name, "CollectionParameters": {"save_interval": "5"}}
        for name in ("metrics", "feature_importance", "predictions", "labels")
    ]
    config["CollectionConfigurations"].append({"CollectionName": "hyperparameters"})
    return config


class ProfilerRuleBase:
    """A rule about the machine and the time. `rule_parameters` are those that were given.

    Raises:
        ConfigError: the rule has no parameter of that name.
    """

    parameters: tuple[str, ...] = ()

    def __init__(self, **rule_parameters: Any) -> None:
        self.rule_name = type(self).__name__
        for name in rule_parameters:
            if name not in (*self.parameters, "scan_interval_us"):
                known = ", ".join((*self.parameters, "scan_interval_us"))
                raise ConfigError(f"{self.rule_name}: no parameter '{name}': write any of {known}")
        self.rule_parameters = {"rule_to_invoke": self.rule_name, **rule_parameters}

    def __repr__(self) -> str:
        return f"{self.rule_name}({self.rule_parameters})"


class BatchSize(ProfilerRuleBase):
    parameters = ("cpu_threshold_p95", "gpu_threshold_p95", "gpu_memory_threshold_p95", "patience", "window")


class CPUBottleneck(ProfilerRuleBase):
    parameters = ("threshold", "gpu_threshold", "cpu_threshold", "patience")


class Dataloader(ProfilerRuleBase):
    parameters = ("min_threshold", "max_threshold", "patience")


class GPUMemoryIncrease(ProfilerRuleBase):
    parameters = ("increase", "patience", "window")


class IOBottleneck(ProfilerRuleBase):
    parameters = ("threshold", "gpu_threshold", "io_threshold", "patience")


class LoadBalancing(ProfilerRuleBase):
    parameters = ("threshold", "patience")


class LowGPUUtilization(ProfilerRuleBase):
    parameters = ("threshold_p95", "threshold_p5", "window", "patience")


class MaxInitializationTime(ProfilerRuleBase):
    parameters = ("threshold",)


class OverallSystemUsage(ProfilerRuleBase):
    pass


class OverallFrameworkMetrics(ProfilerRuleBase):
    pass


class StepOutlier(ProfilerRuleBase):
    parameters = ("stddev", "mode", "n_outliers")


_REPORTED = (
    BatchSize,
    CPUBottleneck,
    Dataloader,
    GPUMemoryIncrease,
    IOBottleneck,
    LoadBalancing,
    LowGPUUtilization,
    MaxInitializationTime,
    OverallSystemUsage,
    OverallFrameworkMetrics,
    StepOutlier,
)


class ProfilerReport(ProfilerRuleBase):
    """The report. Its parameters are those of the rules in it: CPUBottleneck_threshold=60."""

    parameters = (
        "opt_out_telemetry",
        *(f"{rule.__name__}_{name}" for rule in _REPORTED for name in (*rule.parameters, "scan_interval_us")),
    )

    def __init__(self, **rule_parameters: Any) -> None:
        known = {name.lower(): name for name in self.parameters}
        super().__init__(**{known.get(name.lower(), name): value for name, value in rule_parameters.items()})
