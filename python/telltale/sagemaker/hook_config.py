# SPDX-License-Identifier: Apache-2.0
"""What to save: CollectionConfig, DebuggerHookConfig, TensorBoardOutputConfig.

Parameters are those of SageMaker Debugger, texts or what they stand for: {"train.save_interval": "50"} or
{"train.save_interval": 50}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError


class CollectionConfig:
    """A collection of tensors and what is saved of it.

    Args:
        name: a built-in collection ("weights", "gradients", "losses", ...), or a new one, whose tensors
            `include_regex` then has to name.
        parameters: include_regex, reductions, save_raw_tensor, save_shape, save_histogram, and
            save_interval, start_step, end_step, save_steps, each also for one mode ("train.save_interval").

    Raises:
        ConfigError: the name is no text, or the parameters are no mapping.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"CollectionConfig: {name!r} is no name of a collection: write a text")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigError(
                f"CollectionConfig('{name}'): parameters {parameters!r} are no mapping: write for example "
                '{"save_interval": "100"}'
            )
        self.name = name
        self.parameters = parameters

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CollectionConfig):
            return NotImplemented
        return self.name == other.name and (self.parameters or {}) == (other.parameters or {})

    def __hash__(self) -> int:
        return hash(
            (self.name, tuple(sorted((key, str(value)) for key, value in (self.parameters or {}).items())))
        )

    def __repr__(self) -> str:
        return f"CollectionConfig(name={self.name!r}, parameters={self.parameters!r})"

    def to_request(self) -> dict[str, Any]:
        """As one of CollectionConfigurations of SageMaker's JSON: all leaves are texts."""
        request: dict[str, Any] = {"CollectionName": self.name}
        if self.parameters is not None:
            request["CollectionParameters"] = {key: text_of(value) for key, value in self.parameters.items()}
        return request


class DebuggerHookConfig:
    """What is saved of the tensors of a training.

    Args:
        s3_output_path, container_local_output_path: kept, and not used: a run's records are in its
            directory.
        hook_parameters: save_all, dry_run, include_regex, reductions and the rest of what a
            CollectionConfig takes; holds for every collection that does not say otherwise.
        collection_configs: CollectionConfig objects.

    Raises:
        ConfigError: a list with something else in it.
    """

    def __init__(
        self,
        s3_output_path: str | None = None,
        container_local_output_path: str | None = None,
        hook_parameters: Mapping[str, Any] | None = None,
        collection_configs: Iterable[CollectionConfig] | None = None,
    ) -> None:
        configs = None if collection_configs is None else list(collection_configs)
        for config in configs or ():
            if not isinstance(config, CollectionConfig):
                raise ConfigError(
                    f"DebuggerHookConfig: {config!r} in collection_configs is no CollectionConfig: write "
                    'CollectionConfig(name="weights")'
                )
        self.s3_output_path = s3_output_path
        self.container_local_output_path = container_local_output_path
        self.hook_parameters = hook_parameters
        self.collection_configs = configs

    def to_request(self) -> dict[str, Any]:
        """As SageMaker's debughookconfig.json, which a hook in the script reads."""
        request: dict[str, Any] = {}
        if self.s3_output_path is not None:
            request["S3OutputPath"] = self.s3_output_path
        if self.container_local_output_path is not None:
            request["LocalPath"] = self.container_local_output_path
        if self.hook_parameters is not None:
            request["HookParameters"] = {key: text_of(value) for key, value in self.hook_parameters.items()}
        if self.collection_configs is not None:
            request["CollectionConfigurations"] = [config.to_request() for config in self.collection_configs]
        return request


class TensorBoardOutputConfig:
    """That TensorBoard is to show the run: histograms are recorded too.

    Args:
        s3_output_path: kept, and not used.
        container_local_output_path: kept, and not used.
    """

    def __init__(
        self, s3_output_path: str | None = None, container_local_output_path: str | None = None
    ) -> None:
        self.s3_output_path = s3_output_path
        self.container_local_output_path = container_local_output_path

    def to_request(self) -> dict[str, Any]:
        """As SageMaker's tensorboardoutputconfig.json."""
        request: dict[str, Any] = {}
        if self.s3_output_path is not None:
            request["S3OutputPath"] = self.s3_output_path
        if self.container_local_output_path is not None:
            request["LocalPath"] = self.container_local_output_path
        return request


def text_of(value: Any) -> str:
    """A parameter as SageMaker's JSON has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return ",".join(text_of(item) for item in value)
    return str(value)
