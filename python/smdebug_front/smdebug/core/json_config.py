# SPDX-License-Identifier: Apache-2.0
"""Hooks from the JSON file that SageMaker writes, all of whose leaves may be texts."""

import json
import os

from ..exceptions import SMDebugValueError
from .logger import get_logger
from .modes import ModeKeys
from .reduction_config import ReductionConfig
from .save_config import SaveConfig, SaveConfigMode
from .utils import parse_bool, split

CONFIG_FILE_PATH_ENV_STR = "SMDEBUG_CONFIG_FILE_PATH"
DEFAULT_CONFIG_FILE_PATH = "/opt/ml/input/config/debughookconfig.json"
DEFAULT_SAGEMAKER_OUTDIR = "/opt/ml/output/tensors"
TENSORBOARD_CONFIG_FILE_PATH_ENV_STR = "TENSORBOARD_CONFIG_FILE_PATH"
DEFAULT_SAGEMAKER_TENSORBOARD_PATH = "/opt/ml/input/config/tensorboardoutputconfig.json"


def _load(json_file_path):
    path = json_file_path or os.environ.get(CONFIG_FILE_PATH_ENV_STR) or DEFAULT_CONFIG_FILE_PATH
    with open(path, encoding="utf-8") as file:
        try:
            config = json.load(file)
        except ValueError as error:
            raise SMDebugValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise SMDebugValueError(f"{path} must hold a JSON object")
    get_logger().info("creating a hook from %s", path)
    return config


def _tensorboard_dir():
    path = os.environ.get(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR) or DEFAULT_SAGEMAKER_TENSORBOARD_PATH
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file).get("LocalPath")
    except (OSError, ValueError, AttributeError):
        return None


def _save_fields(params, prefix):
    fields = {}
    for name in ("save_interval", "start_step", "end_step", "save_steps"):
        value = params.get(prefix + name)
        if value is None:
            continue
        if name == "save_steps" and not isinstance(value, list):
            value = [step for step in split(value) if step]
        fields[name] = value
    return fields


def save_config_of(params, base=None):
    """{mode: fields of SaveConfigMode} of flat parameters: "train.save_interval" goes before
    "save_interval", and both before `base`.
    """
    common = _save_fields(params, "")
    return {
        mode: {
            **(base[mode] if base else {}),
            **common,
            **_save_fields(params, f"{mode.name.lower()}."),
        }
        for mode in ModeKeys
    }


def _add_collections(manager, configurations, base):
    for configuration in configurations:
        collection = manager.get(configuration["CollectionName"])
        params = configuration.get("CollectionParameters") or {}
        collection.save_config = SaveConfig(
            {mode: SaveConfigMode.from_dict(fields) for mode, fields in save_config_of(params, base).items()}
        )
        if "reductions" in params:
            collection.reduction_config = ReductionConfig.from_dict(params)
        if params.get("include_regex"):
            collection.include([pattern for pattern in split(params["include_regex"]) if pattern])
        if "save_histogram" in params:
            collection.save_histogram = parse_bool(params["save_histogram"], True)


def create_hook_from_json_config(hook_class, json_file_path=None, default_values=None):
    """A hook as a JSON file configures it: the file named, else that of SMDEBUG_CONFIG_FILE_PATH, else
    SageMaker's.

    Raises:
        FileNotFoundError: there is none.
        SMDebugValueError: what is in it makes no sense.
    """
    config = _load(json_file_path)
    params = config.get("HookParameters") or {}
    configurations = config.get("CollectionConfigurations")
    for configuration in configurations or ():
        if not isinstance(configuration, dict) or "CollectionName" not in configuration:
            raise SMDebugValueError("each of CollectionConfigurations needs a CollectionName")
    base = {mode: {**(default_values or {}), **fields} for mode, fields in save_config_of(params).items()}
    tensorboard_dir = params.get("tensorboard_dir")
    export_tensorboard = parse_bool(params.get("export_tensorboard"), False)
    if "TRAINING_JOB_NAME" in os.environ:  # In a job of SageMaker a file of its own decides.
        tensorboard_dir = _tensorboard_dir()
        export_tensorboard = tensorboard_dir is not None
    include_regex = params.get("include_regex")
    hook = hook_class(
        out_dir=config.get("LocalPath") or DEFAULT_SAGEMAKER_OUTDIR,
        export_tensorboard=export_tensorboard,
        tensorboard_dir=tensorboard_dir,
        dry_run=parse_bool(params.get("dry_run"), False),
        reduction_config=ReductionConfig.from_dict(params) if "reductions" in params else None,
        save_config=SaveConfig.from_dict(base),
        include_regex=[p for p in split(include_regex) if p] if include_regex else None,
        include_collections=(
            None if configurations is None else [each["CollectionName"] for each in configurations]
        ),
        save_all=parse_bool(params.get("save_all"), False),
        include_workers=params.get("include_workers", "one"),
    )
    _add_collections(hook.collection_manager, configurations or (), base)
    return hook
