# SPDX-License-Identifier: Apache-2.0
"""Rule and ProfilerRule objects as a rules file of Telltale's (docs/formats/rules.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError, UnsupportedError
from . import actions
from .rules import RuleBase

REPORT = "ProfilerReport"
_TRIAL = "other_trial_"


def rule_set_of(
    rules: Iterable[RuleBase],
    available: Mapping[str, Mapping[str, Any]],
    capture: bool = True,
    job: str = "",
    python: str = sys.executable,
) -> dict[str, Any]:
    """The rules, beside those that run in any case.

    Args:
        rules: as the estimator got them.
        available: rule name -> the rule as `telltale rules list --json` tells it.
        capture: what the rules need of tensors is captured.
        job: name of the job that is to run; "": not known yet.
        python: interpreter of rules that are the user's own.

    Returns:
        The content of a rules file in JSON.

    Raises:
        ConfigError: a value that is none, two rules of one name.
        UnsupportedError: which rule, parameter or action there is not.
    """
    specs: dict[str, dict[str, Any]] = {}
    of_report: dict[str, dict[str, str]] = {}
    for rule in rules:
        if rule.custom_source:
            spec = _custom(rule, python)
        else:
            spec = {"rule": rule.rule}
            if rule.rule not in available and rule.rule != REPORT:
                raise UnsupportedError(
                    f"the rule {rule.rule}",
                    "this Telltale does not look for that",
                    f"leave it out; there are {', '.join(sorted(available))}",
                )
            if rule.rule == REPORT:
                parameters = _of_report(rule, available, of_report)
            else:
                parameters = _parameters(rule.rule, rule.given_parameters, available[rule.rule])
            if parameters:
                spec["parameters"] = parameters
        acts = [_action(rule.name, action, job) for action in actions.of(rule.actions)]
        if acts:
            spec["actions"] = acts
        if rule.rule == REPORT and REPORT not in available:
            continue  # The report is made in any case.
        if specs.setdefault(rule.name, spec) != spec:
            raise ConfigError(f"rules: two are called {rule.name!r}: give one of them another name=")
    for name, parameters in of_report.items():
        mine = specs.setdefault(name, {"rule": name})
        # What is said of the rule itself goes before what is said of it to the report.
        mine["parameters"] = {**parameters, **mine.get("parameters", {})}
    # Under the user's name alone, not beside the same rule under its own.
    off = sorted({str(spec["rule"]) for spec in specs.values() if "rule" in spec} - set(specs))
    return {"capture": capture, "off": off, "rules": specs}


def _custom(rule: RuleBase, python: str) -> dict[str, Any]:
    source = str(rule.rule_parameters.get("source_s3_uri", ""))
    if not source or "://" in source:
        raise UnsupportedError(
            f"the rule {rule.name}",
            "its code is not on this machine",
            "give source=, a Python file that is here, and rule_to_invoke=, the class in it",
        )
    if not os.path.isfile(source):
        raise ConfigError(f"the rule {rule.name}: source: no file {source}")
    given = {key: _text(value) for key, value in rule.given_parameters.items()}
    return {
        "python": f"{os.path.abspath(source)}:{rule.rule}",
        "parameters": {"host_python": python, **given},
    }


def _parameters(rule: str, given: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, str]:
    defaults = {each["name"]: each["default"] for each in description.get("parameters", ())}
    trials = [_text(given[key]) for key in sorted(given) if key.startswith(_TRIAL)]
    out: dict[str, str] = {}
    for name, value in given.items():
        if name.startswith(_TRIAL) and name not in defaults:
            known = next((each for each in ("other_trials", "other_trial") if each in defaults), None)
            if known is None:
                raise _no_parameter(rule, name, value)
            out[known] = ",".join(trials)
            continue
        if name not in defaults:
            raise _no_parameter(rule, name, value)
        text = _text(value)
        if not isinstance(defaults[name], str) and not _is_number(text):
            raise ConfigError(f"the rule {rule}: {name}={value!r} is no number")
        out[name] = text
    return out


def _no_parameter(rule: str, name: str, value: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the parameter {name}={value!r} of the rule {rule}",
        "Telltale's rule has none of this name",
        f"leave it out; `telltale rules show {rule}` says what the rule computes",
    )


def _of_report(
    rule: RuleBase, available: Mapping[str, Mapping[str, Any]], others: dict[str, dict[str, str]]
) -> dict[str, str]:
    """The report's own parameters; those of the rules in it, as CPUBottleneck_threshold, go to `others`."""
    own = {each["name"] for each in available.get(REPORT, {}).get("parameters", ())}
    out: dict[str, Any] = {}
    for name, value in rule.given_parameters.items():
        of, _, parameter = name.partition("_")
        if name in own:
            out[name] = value
        elif parameter == "scan_interval_us":
            continue  # How often SageMaker's machinery looked.
        elif of in available:
            others.setdefault(of, {}).update(_parameters(of, {parameter: value}, available[of]))
        else:
            raise _no_parameter(REPORT, name, value)
    return _parameters(REPORT, out, available.get(REPORT, {})) if out else {}


def _action(rule: str, action: actions.Action, job: str) -> dict[str, Any]:
    # Whoever writes it in SageMaker's words means it to act.
    out: dict[str, Any] = {"from": "low", "dry_run": False}
    if isinstance(action, actions.StopTraining):
        prefix = action.action_parameters.get("training_job_prefix")
        if prefix and job and not job.startswith(prefix):
            raise UnsupportedError(
                f"StopTraining({prefix!r}) of the rule {rule}",
                f"the training is called {job}, and a rule stops the one that it watches",
                "leave training_job_prefix out, or give fit a job_name that begins so",
            )
        return {"kind": "stop", **out}
    if isinstance(action, actions.Email):
        return {"kind": "email", **out, "to": action.action_parameters["endpoint"]}
    if isinstance(action, actions.SMS):
        return {"kind": "sms", **out, "to": action.action_parameters["endpoint"]}
    raise UnsupportedError(
        f"the action {type(action).__name__} of the rule {rule}",
        "Telltale knows no such action",
        "take StopTraining, Email or SMS",
    )


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(item) for item in value)
    return str(value)


def _is_number(text: str) -> bool:
    if text in ("True", "False", "true", "false"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
