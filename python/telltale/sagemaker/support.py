# SPDX-License-Identifier: Apache-2.0
"""What of the vocabulary this Telltale can do. What it cannot is refused before the training starts, since a
rule that silently looks for nothing is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UnsupportedError
from . import actions
from .profiler import DataloaderProfilingConfig, FrameworkProfile, ProfilerConfig
from .rules import RuleBase

REPORT = "ProfilerReport"
# Milliseconds between samples of the machine where the profiler is switched off: as seldom as can be.
_SELDOM_MS = 60000


def check_rules(rules: Iterable[RuleBase], available: Mapping[str, Mapping[str, Any]]) -> None:
    """Whether Telltale looks for what these rules look for.

    Args:
        rules: as the estimator got them.
        available: rule name -> the rule as `telltale rules list --json` tells it.

    Raises:
        UnsupportedError: which rule, parameter or action there is not.
    """
    for rule in rules:
        if rule.custom_source:
            raise UnsupportedError(
                f"Rule.custom('{rule.name}')",
                "rules of your own do not run beside the training yet",
                "leave it out, and run it over the finished run with smdebug.rules.invoke_rule",
            )
        acts = actions.of(rule.actions)
        if acts:
            names = ", ".join(type(action).__name__ for action in acts)
            raise UnsupportedError(
                f"actions of the rule {rule.name}: {names}",
                "a finding sets nothing off yet",
                "leave actions out, and act on rule_job_summary(), or on `telltale check RUN --fail-on high`",
            )
        if rule.rule != REPORT and rule.rule not in available:
            raise UnsupportedError(
                f"the rule {rule.rule}",
                "this Telltale does not look for that yet",
                f"leave it out; there are {', '.join(sorted(available))}, and {REPORT}",
            )
        _check_parameters(rule, available.get(rule.rule, {}))


def _check_parameters(rule: RuleBase, description: Mapping[str, Any]) -> None:
    defaults = {each["name"]: each["default"] for each in description.get("parameters", ())}
    for name, value in rule.given_parameters.items():
        try:
            same = name in defaults and float(value) == float(defaults[name])
        except (TypeError, ValueError):
            same = str(value).lower() == "true" and defaults[name] == 1
        if same:
            continue
        is_there = f"is {defaults[name]} and cannot be changed yet" if name in defaults else "is not there"
        raise UnsupportedError(
            f"the parameter {name}={value!r} of the rule {rule.rule}",
            f"in Telltale's rule it {is_there}",
            f"leave it out; `telltale rules show {rule.rule}` says what the rule computes"
            if rule.rule != REPORT
            else "leave it out; the report is of the rules that there are",
        )


def sampling_interval_ms(config: ProfilerConfig | None) -> int | None:
    """Milliseconds between two samples of the machine, None: Telltale's own.

    Raises:
        UnsupportedError: a profile of the framework that there is not.
    """
    if config is None:
        return None
    if config.disable_profiler:
        return _SELDOM_MS
    if config.framework_profile_params is not None:
        _check_profile(config.framework_profile_params)
    return config.system_monitor_interval_millis


def _check_profile(profile: FrameworkProfile) -> None:
    missing = [
        config for config in profile.metrics_configs if not isinstance(config, DataloaderProfilingConfig)
    ]
    if missing:
        names = ", ".join(config.name for config in missing)
        raise UnsupportedError(
            f"FrameworkProfile: {names}",
            "operators, Python functions and collective libraries are not profiled yet",
            "leave framework_profile_params out, or give it a dataloader_profiling_config alone: steps, "
            "their phases and data loading are recorded at every step anyway",
        )
