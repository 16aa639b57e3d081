# SPDX-License-Identifier: Apache-2.0
"""What a script written for SageMaker finds around it: its command line, the variables SM_*, and the
configuration files of Debugger.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, UnsupportedError
from .hook_config import TensorBoardOutputConfig
from .profiler import FrameworkProfile

_DEVICE = re.compile(r"nvidia\d+")


def argument_list(hyperparameters: Mapping[str, Any]) -> list[str]:
    """The hyper-parameters as a command line, as SageMaker's containers write it."""
    out = []
    for name, value in hyperparameters.items():
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={value[key]}" for key in sorted(value))
        out += [f"-{name}" if len(name) == 1 else f"--{name}", "" if value is None else str(value)]
    return out


def _folder(channel: str, place: Any) -> str:
    try:
        path = os.fspath(place)
    except TypeError:
        raise ConfigError(
            f"fit: inputs: {channel}: {place!r} is no path: write for example '/data/train'"
        ) from None
    if path.startswith("file://"):
        path = path[len("file://") :]
    if "://" in path:
        raise UnsupportedError(
            f"fit: inputs: {channel}: {path}",
            "data is taken from this machine alone",
            "give a folder that is here",
        )
    if not os.path.exists(path):
        raise ConfigError(f"fit: inputs: {channel}: no file or folder {path}")
    return os.path.abspath(path)


def channels_of(inputs: Any) -> dict[str, str]:
    """Channel -> absolute path.

    Raises:
        ConfigError: a path that is none.
        UnsupportedError: one in a cloud.
    """
    if inputs is None:
        return {}
    named = inputs if isinstance(inputs, Mapping) else {"training": inputs}
    return {str(channel): _folder(str(channel), place) for channel, place in named.items()}


def environment_of(
    job: str,
    files: Path,
    hyperparameters: Mapping[str, Any],
    inputs: Any,
    hook_request: Mapping[str, Any] | None,
    tensorboard: TensorBoardOutputConfig | None,
    profile: FrameworkProfile | None,
    more: Mapping[str, str],
    python_path: Sequence[str],
) -> dict[str, str]:
    """The environment of a training, ours with SageMaker's variables; makes the folder `files` and in it what
    they point to.

    Raises:
        ConfigError: as channels_of, or the folder cannot be made.
    """
    channels = channels_of(inputs)
    try:
        for name in ("model", "input/config", "output/data", "output/intermediate"):
            (files / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"fit: output_path: {error}") from error
    host = socket.gethostname() or "algo-1"
    variables = {
        "TRAINING_JOB_NAME": job,
        "SM_TRAINING_ENV": _json({"job_name": job, "hyperparameters": dict(hyperparameters)}),
        "SM_MODEL_DIR": str(files / "model"),
        "SM_INPUT_DIR": str(files / "input"),
        "SM_INPUT_CONFIG_DIR": str(files / "input" / "config"),
        "SM_OUTPUT_DIR": str(files / "output"),
        "SM_OUTPUT_DATA_DIR": str(files / "output" / "data"),
        "SM_OUTPUT_INTERMEDIATE_DIR": str(files / "output" / "intermediate"),
        "SM_USER_ARGS": json.dumps(argument_list(hyperparameters)),
        "SM_LOG_LEVEL": "20",
        "SM_HPS": _json(dict(hyperparameters)),
        "SM_CHANNELS": json.dumps(sorted(channels)),
        "SM_HOSTS": json.dumps([host]),
        "SM_CURRENT_HOST": host,
        "SM_RESOURCE_CONFIG": json.dumps({"current_host": host, "hosts": [host]}),
        "SM_NUM_CPUS": str(len(os.sched_getaffinity(0))),
        "SM_NUM_GPUS": str(gpu_count()),
        **{f"SM_CHANNEL_{channel.upper()}": path for channel, path in channels.items()},
        **{f"SM_HP_{name.upper()}": _variable(value) for name, value in hyperparameters.items()},
    }
    if hook_request is not None:
        # For a hook that the script itself makes by create_from_json_file.
        request = {**hook_request, "LocalPath": str(files / "tensors")}
        variables["SMDEBUG_CONFIG_FILE_PATH"] = _write(files / "debughookconfig.json", request)
    if tensorboard is not None:
        request = {**tensorboard.to_request(), "LocalPath": str(files / "tensorboard-of-the-script")}
        variables["TENSORBOARD_CONFIG_FILE_PATH"] = _write(files / "tensorboardoutputconfig.json", request)
    if profile is not None:
        # Read by Telltale's agent, and again when it changes.
        variables["SMPROFILER_CONFIG_PATH"] = _write(files / "profilerconfig.json", profile.to_request())
    environment = {**os.environ, **variables, **{name: str(value) for name, value in more.items()}}
    if python_path:
        there = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
        environment["PYTHONPATH"] = os.pathsep.join([*python_path, *there])
    return environment


def gpu_count(devices: str = "/dev") -> int:
    """NVIDIA devices that a training may use: of this machine, or those that CUDA_VISIBLE_DEVICES leaves."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # As CUDA reads it: what comes after one that is none does not count.
        names = [name.strip() for name in visible.split(",")]
        return next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
    try:
        return sum(bool(_DEVICE.fullmatch(name)) for name in os.listdir(devices))
    except OSError:
        return 0


def _variable(value: Any) -> str:
    """A hyper-parameter as SageMaker's containers write it into a variable."""
    if isinstance(value, (bool, int, float, list, tuple, Mapping)):
        return json.dumps(value, default=str, sort_keys=True, separators=(",", ":"))
    return "" if value is None else str(value)


def _json(value: Any) -> str:
    """What JSON has no word for is a text in it."""
    return json.dumps(value, default=str)


def _write(path: Path, content: Mapping[str, Any]) -> str:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return str(path)
