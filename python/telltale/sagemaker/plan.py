# SPDX-License-Identifier: Apache-2.0
"""From the vocabulary of SageMaker Debugger to a capture plan (docs/formats/plan.md), with its meaning of
save_interval, start_step, end_step, save_steps and the modes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from .hook_config import CollectionConfig, DebuggerHookConfig
from .rules import RuleBase

MODES = ("train", "eval", "predict", "global")
# SageMaker Debugger's; its hook for XGBoost saves more often.
DEFAULT_INTERVAL = 500
DEFAULT_INTERVALS = {"xgboost": 10}
REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod")
NORMS = ("l1_norm", "l2_norm")
# Saved as they are, whatever reductions are asked for.
SCALAR_COLLECTIONS = frozenset({"losses", "metrics", "feature_importance", "average_shap", "sm_metrics"})
# Of what Telltale takes where nothing is said, with the histograms that TensorBoard is to show.
_OWN = ("weights", "biases", "gradients")
_OWN_WITH_HISTOGRAMS = {"take": ["statistics", "histogram"], "train": {"interval": 100}}
# What needs no include_regex.
BUILT_IN = frozenset(
    """
    all default weights biases gradients losses metrics inputs outputs layers activations labels predictions
    optimizer_state optimizer_variables sm_metrics tensorflow_summaries hyperparameters feature_importance
    average_shap full_shap trees
    """.split()
)

_SAVE_KEYS = ("save_interval", "start_step", "end_step", "save_steps")
_REDUCTION_KEYS = ("reductions", "save_raw_tensor", "save_shape")
_HOOK_KEYS = frozenset(
    {
        *_REDUCTION_KEYS,
        "include_regex",
        "save_all",
        "dry_run",
        # Taken, and of no effect: every rank is recorded; the run is exported when it is wanted.
        "include_workers",
        "export_tensorboard",
        "tensorboard_dir",
    }
)
_COLLECTION_KEYS = frozenset({*_REDUCTION_KEYS, "include_regex", "save_histogram"})
# SageMaker's names of a module's inputs and outputs, in Telltale's.
_PORT = re.compile(r"_(input|output)(?:_(\d+))?")
_LOOK_AHEAD = re.compile(r"\^?\(\?!([^()]*)\)(.*)", re.S)
_NOT_RE2 = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9]")


def hook_config_of(given: Any) -> DebuggerHookConfig | bool | None:
    """The argument debugger_hook_config of an estimator; True is what nothing said is, as in SageMaker's.

    Raises:
        ConfigError: it is something else.
    """
    if given is None or given is True:
        return None
    if given is False or isinstance(given, DebuggerHookConfig):
        return given
    raise ConfigError(
        f"LocalEstimator: debugger_hook_config {given!r} is neither a DebuggerHookConfig nor False: write for "
        'example DebuggerHookConfig(collection_configs=[CollectionConfig("weights")])'
    )


def saves_nothing(hook_config: DebuggerHookConfig | bool | None) -> bool:
    """Whether no tensors are wanted, not even for rules: debugger_hook_config=False, or dry_run."""
    if not isinstance(hook_config, DebuggerHookConfig):
        return hook_config is False
    return flag("dry_run", (hook_config.hook_parameters or {}).get("dry_run", False))


def hook_request_of(
    hook_config: DebuggerHookConfig | bool | None, rules: Iterable[RuleBase]
) -> dict[str, Any] | None:
    """SageMaker's debughookconfig.json, with the collections of the rules that it does not name itself; None where
    no hook is wanted.
    """
    if hook_config is False:
        return None
    given = hook_config if isinstance(hook_config, DebuggerHookConfig) else DebuggerHookConfig()
    of_rules = [
        config for rule in rules for config in (*rule.collection_configs, *rule.default_collection_configs)
    ]
    collections: dict[str, CollectionConfig] = {}
    for config in (*(given.collection_configs or ()), *of_rules):
        collections.setdefault(config.name, config)
    return DebuggerHookConfig(
        given.s3_output_path,
        given.container_local_output_path,
        given.hook_parameters,
        list(collections.values()) or given.collection_configs,
    ).to_request()


def plan_of(
    hook_config: DebuggerHookConfig | bool | None,
    rules: Iterable[RuleBase] = (),
    framework: str | None = None,
    histograms: bool = False,
) -> dict[str, Any] | None:
    """The capture plan as `telltale run --plan` takes it, or None: Telltale's own default.

    Args:
        hook_config: what to save; False: no tensors; None: nothing was said.
        rules: whose collections_to_save are added. What Telltale's rules of their names need, `telltale run
            --rules` adds.
        framework: "xgboost", "pytorch" or "tensorflow": decides the default of save_interval.
        histograms: of what is saved, as for TensorBoard; where nothing is said, of what Telltale takes by itself.

    Raises:
        ConfigError: a parameter that there is not, or a value that makes no sense.
    """
    if saves_nothing(hook_config):
        return _plan({})
    of_rules = [config for rule in rules for config in rule.collection_configs]
    if hook_config is None and not of_rules:
        return _plan({name: dict(_OWN_WITH_HISTOGRAMS) for name in _OWN}) if histograms else None
    collections: dict[str, dict[str, Any]] = {}
    if isinstance(hook_config, DebuggerHookConfig):
        hook = dict(hook_config.hook_parameters or {})
        _check_keys("DebuggerHookConfig: hook_parameters", hook, _HOOK_KEYS)
        configs = [*(hook_config.collection_configs or ()), *of_rules]
    else:
        hook = {}
        configs = of_rules
    default = DEFAULT_INTERVALS.get((framework or "").lower(), DEFAULT_INTERVAL)
    for config in configs:
        if config.name not in collections:  # The hook's goes before a rule's.
            collections[config.name] = _collection(config, hook, default, histograms)
    for name, wanted in (
        ("all", flag("save_all", hook.get("save_all", False))),
        ("default", "include_regex" in hook),
    ):
        if wanted and name not in collections:
            of_hook = {"include_regex": hook["include_regex"]} if name == "default" else {}
            collections[name] = _collection(CollectionConfig(name, of_hook), hook, default, histograms)
    return _plan(collections)


def to_toml(plan: Mapping[str, Any]) -> str:
    """The plan as a plan file."""

    def value_of(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{key} = {value_of(item)}" for key, item in value.items()) + "}"
        # What is left are texts, whole numbers and lists of them, in which JSON is TOML, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    lines = [f"level = {value_of(plan['level'])}", "[collections]"]
    for name, collection in plan["collections"].items():
        lines += ["", f"[collections.{value_of(name)}]"]
        lines += [f"{key} = {value_of(value)}" for key, value in collection.items()]
    return "\n".join(lines) + "\n"


def _plan(collections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"level": "custom", "collections": collections}


def _collection(
    config: CollectionConfig, hook: Mapping[str, Any], default_interval: int, histograms: bool
) -> dict[str, Any]:
    where = f"CollectionConfig('{config.name}')"
    parameters = dict(config.parameters or {})
    _check_keys(where, parameters, _COLLECTION_KEYS)
    out: dict[str, Any] = {}
    patterns = texts(f"{where}: include_regex", parameters.get("include_regex", []))
    if not patterns and config.name not in BUILT_IN:
        raise ConfigError(
            f"{where}: a collection of this name is not built in: write which tensors it has as "
            'parameters={"include_regex": "..."}'
        )
    include, exclude = patterns_of(where, patterns)
    if include:
        out["include"] = include
    if exclude:
        out["exclude"] = exclude
    # Reductions of the collection, where there are any, go before the hook's.
    reducing = parameters if "reductions" in parameters else {**hook, **parameters}
    out.update(_take(where, config.name, reducing))
    if flag(f"{where}: save_histogram", parameters.get("save_histogram", histograms)):
        out["take"].append("histogram")
    out.update(_when(where, parameters, hook, default_interval))
    return out


def _take(where: str, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """take and reductions: without a reduction the values themselves are saved."""
    reductions = (
        [] if name in SCALAR_COLLECTIONS else texts(f"{where}: reductions", parameters.get("reductions", []))
    )
    for reduction in reductions:
        plain = reduction[4:] if reduction.startswith("abs_") else reduction
        if plain not in (*REDUCTIONS, *NORMS):
            known = ", ".join((*REDUCTIONS, *NORMS))
            raise ConfigError(
                f"{where}: reductions: knows no '{reduction}': write any of {known}, each also with abs_ "
                "before it"
            )
    take = []
    if flag(f"{where}: save_raw_tensor", parameters.get("save_raw_tensor", False)) or not reductions:
        take.append("values")
    if flag(f"{where}: save_shape", parameters.get("save_shape", False)):
        take.append("shape")
    return {"take": take, "reductions": reductions} if reductions else {"take": take}


def _when(
    where: str, parameters: Mapping[str, Any], hook: Mapping[str, Any], interval: int
) -> dict[str, Any]:
    """The plan's When for each mode. A field of the collection goes before one of the hook, and of each a
    field of the mode before one for all modes. Without a word about a mode, what is said of GLOBAL holds for
    it: to SageMaker's hook for PyTorch all steps were GLOBAL unless the script said more.
    """
    said = {
        mode: {
            key: value
            for source in (hook, parameters)
            for prefix in ("", f"{mode}.")
            for key in _SAVE_KEYS
            for value in [source.get(prefix + key)]
            if value is not None
        }
        for mode in MODES
    }
    return {mode: _one_when(f"{where}: {mode}", said[mode] or said["global"], interval) for mode in MODES}


def _one_when(where: str, said: Mapping[str, Any], interval: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "interval": number(f"{where}.save_interval", said.get("save_interval", interval), 1)
    }
    start = number(f"{where}.start_step", said.get("start_step", 0), 0)
    if start:
        out["start"] = start
    end = said.get("end_step")
    if end is not None and str(end) != "None":
        out["end"] = number(f"{where}.end_step", end, 0)
        if out["end"] <= start:
            # Nothing of the interval is left: this is how SageMaker Debugger's users switch a collection off.
            del out["end"]
            out.pop("start", None)
            out["interval"] = 0
    steps = texts(f"{where}.save_steps", said.get("save_steps", []))
    if steps or out["interval"] == 0:
        out["steps"] = sorted({number(f"{where}.save_steps", step, 0) for step in steps})
    return out


def patterns_of(where: str, patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """(include, exclude) of a plan, which are RE2, of SageMaker's patterns; a pattern that names a module's
    inputs or outputs is there in Telltale's names too.

    Raises:
        ConfigError: a pattern that does not compile, or that RE2 has no word for.
    """
    include: list[str] = []
    exclude: list[str] = []
    patterns = list(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: include_regex: '{pattern}' is no pattern: {error}") from error
        look_ahead = _LOOK_AHEAD.fullmatch(pattern)
        if look_ahead and len(patterns) == 1:
            exclude.append("^" + look_ahead[1])
            pattern = look_ahead[2] or ".*"
        if _NOT_RE2.search(pattern):
            raise ConfigError(
                f"{where}: include_regex: '{pattern}' looks ahead or back, or refers to a group, which "
                "Telltale's patterns (RE2) cannot: write what is to be there, in several patterns if need be"
            )
        include.append(pattern)
        in_our_names = _PORT.sub(_port, pattern)
        if in_our_names != pattern:
            include.append(in_our_names)
    return include, exclude


def _port(match: re.Match[str]) -> str:
    kind, number_ = match[1], match[2]
    if kind == "input":
        return rf"\.input\.{number_}" if number_ else r"\.input"
    return rf"\.output\.{number_}" if number_ and number_ != "0" else r"\.output"


def _check_keys(where: str, parameters: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in parameters:
        mode, _, field = str(key).rpartition(".")
        if key in known or (field in _SAVE_KEYS and mode in ("", *MODES)):
            continue
        names = ", ".join((*sorted(known), *_SAVE_KEYS))
        raise ConfigError(
            f"{where}: no parameter '{key}': write any of {names}, the last four also for one mode, as "
            "train.save_interval"
        )


def texts(where: str, value: Any) -> list[str]:
    """A list, or a text with commas outside of brackets between its items."""
    if isinstance(value, str):
        return [item for item in _split(value) if item]
    if isinstance(value, Iterable):
        return [str(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    raise ConfigError(f"{where}: {value!r} is neither a list nor a text with commas in it")


def _split(text: str) -> list[str]:
    items, depth, begin, escaped = [], 0, 0, False
    for at, character in enumerate(text):
        if escaped or character == "\\":
            escaped = not escaped
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            items.append(text[begin:at].strip())
            begin = at + 1
    return [*items, text[begin:].strip()]


def flag(where: str, value: Any) -> bool:
    """True, False, or a text that says so."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ConfigError(f"{where}: {value!r} is neither true nor false")


def number(where: str, value: Any, least: int) -> int:
    """A whole number, or a text of one."""
    try:
        found = int(str(value)) if not isinstance(value, bool) else least - 1
    except ValueError:
        found = least - 1
    if found < least:
        raise ConfigError(
            f"{where}: {value!r} is no whole number from {least}: write for example {least + 100}"
        )
    return found
