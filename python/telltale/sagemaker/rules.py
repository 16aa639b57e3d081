# SPDX-License-Identifier: Apache-2.0
"""What to look for: Rule (about the model) and ProfilerRule (about the machine and the time)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from . import actions as actions_
from . import rule_configs
from .hook_config import CollectionConfig

# Parameters of SageMaker's machinery, which say nothing about what is looked for.
_MACHINERY = ("rule_to_invoke", "source_s3_uri", "scan_interval_us", "opt_out_telemetry")


class RuleBase:
    """What rules have in common. `custom` says that the rule is the user's own code."""

    def __init__(
        self,
        name: str,
        rule_parameters: Mapping[str, Any],
        collections_to_save: Iterable[CollectionConfig] = (),
        actions: actions_.Action | actions_.ActionList | None = None,
        custom: bool = False,
        default_collections: Iterable[CollectionConfig] = (),
    ) -> None:
        self.name = name
        self.rule_parameters = dict(rule_parameters)
        self.collection_configs = list(collections_to_save)
        self.default_collection_configs = list(default_collections)
        self.actions = actions
        self.custom_source = custom
        actions_.of(actions)

    @property
    def rule(self) -> str:
        """The rule's own name, whatever the user calls it."""
        return str(self.rule_parameters.get("rule_to_invoke", self.name))

    @property
    def given_parameters(self) -> dict[str, Any]:
        """What was said about the rule itself."""
        return {key: value for key, value in self.rule_parameters.items() if key not in _MACHINERY}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, rule_parameters={self.rule_parameters!r})"


def _custom_parameters(
    source: str | None, rule_to_invoke: str | None, rule_parameters: Any
) -> dict[str, Any]:
    if bool(source) != bool(rule_to_invoke):
        raise ConfigError("custom rule: source and rule_to_invoke go together: give both or neither")
    named = {"source_s3_uri": source, "rule_to_invoke": rule_to_invoke} if source else {}
    return {**named, **(rule_parameters or {})}


def _other_trials(paths: Iterable[str] | None) -> dict[str, str]:
    """As SageMaker passes them to a rule: numbered parameters."""
    return {f"other_trial_{i}": path for i, path in enumerate(paths or ())}


class Rule(RuleBase):
    """A rule about the model; made by Rule.sagemaker or Rule.custom.

    Both take `name`, what to call it in summaries; `other_trials_s3_input_paths`, runs to compare with;
    `collections_to_save`, in place of those that the rule has by itself; `actions`, what it sets off when it fires.
    Where in a cloud it would run and write (image_uri, instance_type, volume_size_in_gb,
    container_local_output_path, s3_output_path) is taken, and not used.
    """

    @classmethod
    def sagemaker(
        cls,
        base_config: Mapping[str, Any],
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        other_trials_s3_input_paths: Iterable[str] | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
        collections_to_save: Iterable[CollectionConfig] | None = None,
        actions: actions_.Action | actions_.ActionList | None = None,
    ) -> Rule:
        """A rule of SageMaker's.

        Args (the others as of the class):
            base_config: of rule_configs, for example rule_configs.vanishing_gradient().
            rule_parameters: in place of the rule's own.

        Raises:
            ConfigError: base_config is none, or a parameter that is not the user's to give.
        """
        try:
            base = base_config["DebugRuleConfiguration"]
        except (TypeError, KeyError):
            raise ConfigError(
                f"Rule.sagemaker: {base_config!r} is none of rule_configs: write for example "
                "rule_configs.loss_not_decreasing(); what is about the machine is a ProfilerRule.sagemaker"
            ) from None
        if rule_parameters and "rule_to_invoke" in rule_parameters:
            raise ConfigError(
                "Rule.sagemaker: rule_to_invoke is the rule's own: leave it out, or take Rule.custom"
            )
        others = _other_trials(other_trials_s3_input_paths)
        defaults = [
            CollectionConfig(each["CollectionName"], each.get("CollectionParameters"))
            for each in base_config.get("CollectionConfigurations", ())
        ]
        return cls(
            name or base["RuleConfigurationName"],
            {**others, **base.get("RuleParameters", {}), **(rule_parameters or {})},
            collections_to_save or (),
            actions,
            default_collections=() if collections_to_save else defaults,
        )

    @classmethod
    def custom(
        cls,
        name: str,
        image_uri: str | None = None,
        instance_type: str | None = None,
        volume_size_in_gb: int | None = None,
        source: str | None = None,
        rule_to_invoke: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        other_trials_s3_input_paths: Iterable[str] | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
        collections_to_save: Iterable[CollectionConfig] | None = None,
        actions: actions_.Action | actions_.ActionList | None = None,
    ) -> Rule:
        """A rule of the user's own: a subclass of smdebug.rules.Rule.

        Args (the others as of the class):
            source: the file that holds the class; rule_to_invoke: the class.
            rule_parameters: of its constructor.

        Raises:
            ConfigError: one of source and rule_to_invoke without the other.
        """
        others = _other_trials(other_trials_s3_input_paths)
        parameters = {**others, **_custom_parameters(source, rule_to_invoke, rule_parameters)}
        return cls(name, parameters, collections_to_save or (), actions, custom=True)


class ProfilerRule(RuleBase):
    """A rule about the machine and the time; made by ProfilerRule.sagemaker or ProfilerRule.custom."""

    @classmethod
    def sagemaker(
        cls,
        base_config: rule_configs.ProfilerRuleBase,
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        instance_type: str | None = None,
        volume_size_in_gb: int | None = None,
    ) -> ProfilerRule:
        """A rule of SageMaker's.

        Args (the others as of Rule):
            base_config: of rule_configs, for example rule_configs.CPUBottleneck().

        Raises:
            ConfigError: base_config is none.
        """
        if not isinstance(base_config, rule_configs.ProfilerRuleBase):
            raise ConfigError(
                f"ProfilerRule.sagemaker: {base_config!r} is none of rule_configs' profiler rules: write for "
                "example rule_configs.ProfilerReport(); for what is about the model take Rule.sagemaker"
            )
        return cls(name or base_config.rule_name, base_config.rule_parameters)

    @classmethod
    def custom(
        cls,
        name: str,
        image_uri: str | None = None,
        instance_type: str | None = None,
        volume_size_in_gb: int | None = None,
        source: str | None = None,
        rule_to_invoke: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
    ) -> ProfilerRule:
        """A rule of the user's own; arguments and errors as of Rule.custom."""
        return cls(name, _custom_parameters(source, rule_to_invoke, rule_parameters), custom=True)


def get_default_profiler_rule() -> ProfilerRule:
    """The report, under a name of its own."""
    return ProfilerRule.sagemaker(rule_configs.ProfilerReport(), name=f"ProfilerReport-{int(time.time())}")
