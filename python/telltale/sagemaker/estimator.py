# SPDX-License-Identifier: Apache-2.0
"""A training on this machine, shaped like a job of SageMaker's: LocalEstimator takes the configuration,
fit() starts `telltale run` with it.

Thread safety: one estimator belongs to one thread at a time.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ReadError, UnsupportedError
from . import _command, support
from .environment import argument_list, environment_of
from .hook_config import DebuggerHookConfig, TensorBoardOutputConfig
from .plan import hook_config_of, hook_request_of, plan_of, saves_nothing, to_toml
from .profiler import FrameworkProfile, ProfilerConfig
from .rule_set import rule_set_of
from .rules import ProfilerRule, Rule, RuleBase
from .training_job import LocalTrainingJob

__all__ = ["LocalEstimator", "LocalTrainingJob"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?")
# Arguments of SageMaker's estimators that say where in its cloud a job runs: taken, and not used.
_OF_THE_CLOUD = frozenset(
    """
    checkpoint_local_path checkpoint_s3_uri code_location container_log_level disable_output_compression
    enable_infra_check enable_network_isolation enable_remote_debug enable_sagemaker_metrics
    enable_session_tag_chaining encrypt_inter_container_traffic
    environment_variables framework_version git_config image_uri input_mode instance_type
    keep_alive_period_in_seconds max_retry_attempts max_run max_wait metric_definitions model_channel_name
    model_uri output_kms_key py_version role sagemaker_session script_mode security_group_ids subnets tags
    training_plan training_repository_access_mode training_repository_credentials_provider_arn
    use_spot_instances volume_kms_key volume_size
    """.split()
)
# What these were called before version 2 of its SDK.
_OF_THE_OLD_CLOUD = frozenset(
    """
    enable_cloudwatch_metrics image_name train_instance_count train_instance_type train_max_run train_max_wait
    train_use_spot_instances train_volume_kms_key train_volume_size
    """.split()
)
# How a job is spread over instances and processes, also by its name of before: taken where it says nothing.
_OF_SEVERAL = ("distribution", "distributions", "instance_groups")


class LocalEstimator:
    """What to train, and what to watch.

    Args:
        entry_point: the script; below source_dir where that is given.
        source_dir: folder that becomes the working directory of the training.
        hyperparameters: given to the script as `--name value`, and as SM_HPS and SM_HP_NAME.
        rules: Rule and ProfilerRule objects: they run beside those that Telltale runs in any case, with their
            parameters and actions, and their statuses are summed up.
        debugger_hook_config: what to save; None: Telltale's own default (statistics of weights and
            gradients); False: no tensors.
        profiler_config: how closely to watch the machine.
        tensorboard_output_config: record histograms too; see latest_job_tensorboard_artifacts_path.
        base_job_name: begin of the jobs' names; of None that of the script.
        output_path: folder for the runs.
        environment: further variables of the training.
        dependencies: folders put on the training's PYTHONPATH.
        framework: "pytorch", "tensorflow" or "xgboost": how often is saved where nothing is said (each 500
            steps, for XGBoost each 10).
        python: the interpreter, of None this one; not used where entry_point is a shell script. That of
            custom rules too, which without it is TELLTALE_PYTHON where that is set.
        run_options: further options of `telltale run`, for example ("--overhead", "2%").
        disable_profiler: as ProfilerConfig(disable_profiler=True).
        cloud: arguments of SageMaker's estimators that say where in the cloud a job runs (role,
            instance_type, image_uri, ..., also as version 1 of its SDK called them: train_instance_type):
            taken, and not used.

    Raises:
        ConfigError: something that cannot be meant.
        UnsupportedError: a rule, an action or a profile that Telltale has not; several instances; a
            distribution.
        TypeError: an argument that no estimator has.
    """

    def __init__(
        self,
        entry_point: str | os.PathLike[str],
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        rules: Iterable[RuleBase] | None = None,
        debugger_hook_config: DebuggerHookConfig | bool | None = None,
        profiler_config: ProfilerConfig | None = None,
        tensorboard_output_config: TensorBoardOutputConfig | None = None,
        base_job_name: str | None = None,
        output_path: str | os.PathLike[str] = "telltale-runs",
        environment: Mapping[str, str] | None = None,
        dependencies: Sequence[str | os.PathLike[str]] = (),
        framework: str | None = None,
        python: str | None = None,
        run_options: Sequence[str] = (),
        instance_count: int | None = 1,
        disable_profiler: bool = False,
        **cloud: Any,
    ) -> None:
        unknown = sorted(set(cloud) - _OF_THE_CLOUD - _OF_THE_OLD_CLOUD - set(_OF_SEVERAL))
        if unknown:
            raise TypeError(f"LocalEstimator: no argument {', '.join(unknown)}")
        _refuse_several(cloud.get("train_instance_count", instance_count), cloud)
        debugger_hook_config = hook_config_of(debugger_hook_config)
        if disable_profiler:
            profiler_config = ProfilerConfig(disable_profiler=True)
        self.rules = _rules(rules)
        self._available = _available_rules(self.rules)
        # That of the training has what the user's own rules import.
        self._rule_python = python or os.environ.get("TELLTALE_PYTHON") or sys.executable
        rule_set_of(self.rules, self._available)
        self.interval_ms = support.sampling_interval_ms(profiler_config)
        self.plan = plan_of(
            debugger_hook_config, self.rules, framework, histograms=tensorboard_output_config is not None
        )
        self._captures = not saves_nothing(debugger_hook_config)
        self.entry_point = entry_point
        self.source_dir = source_dir
        self.debugger_hook_config = debugger_hook_config
        self.profiler_config = profiler_config
        self.tensorboard_output_config = tensorboard_output_config
        self.base_job_name = _job_name(base_job_name, entry_point)
        self.output_path = _local(output_path)
        self.environment = dict(environment or {})
        self.dependencies = tuple(dependencies)
        self.python = python
        self.run_options = tuple(run_options)
        self._hyperparameters = dict(hyperparameters or {})
        self.latest_training_job: LocalTrainingJob | None = None
        self.jobs: list[LocalTrainingJob] = []

    def hyperparameters(self) -> dict[str, Any]:
        """What the script is given."""
        return dict(self._hyperparameters)

    def set_hyperparameters(self, **hyperparameters: Any) -> None:
        """More of them, or others."""
        self._hyperparameters.update(hyperparameters)

    def fit(
        self,
        inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        wait: bool = True,
        logs: str | bool = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the training.

        Args:
            inputs: a folder, the channel `training`, or a mapping of channels to folders: the script finds
                them in SM_CHANNEL_<NAME>.
            wait: until it has ended; else latest_training_job.wait() does.
            logs: False or "None": what the training prints goes to a file, RUN.log, instead of to our own
                stdout and stderr.
            job_name: of this job, and of its run directory.
            experiment_config: taken, and not used.

        Raises:
            ConfigError: no such script or folder, a name that is none, no command telltale.
            UnsupportedError: an input that lies in a cloud, a StopTraining of another training.
            TrainingError: it has been waited for, and failed.
        """
        script = self._script()
        name = job_name or f"{self.base_job_name}-{_now()}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"fit: job_name {name!r}: write letters, digits and hyphens")
        folder = Path(self.output_path).resolve()
        run = folder / name
        if run.exists():
            raise ConfigError(
                f"fit: job_name {name!r}: there is a run of this name in {folder}: write another"
            )
        rules = rule_set_of(self.rules, self._available, self._captures, name, self._rule_python)
        hook_request = hook_request_of(self.debugger_hook_config, self.rules)
        # Beside the run, since its directory has to be empty before the run begins.
        files = folder / f"{name}.job"
        environment = environment_of(
            job=name,
            files=files,
            hyperparameters=self._hyperparameters,
            inputs=inputs,
            hook_request=hook_request,
            tensorboard=self.tensorboard_output_config,
            profile=self._framework_profile(),
            more=self.environment,
            python_path=self._python_path(),
        )
        command = [_command.path(), "run", "-o", str(run), *self._options(files, rules)]
        command += [*self.run_options, "--"]
        command += [*self._interpreter(script), str(script), *argument_list(self._hyperparameters)]
        quiet = logs in (False, None, "None", "none")
        log = open(files / "log", "wb") if quiet else None
        try:
            process = subprocess.Popen(
                command,
                cwd=None if self.source_dir is None else os.path.abspath(self.source_dir),
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT if quiet else None,
            )
        finally:
            if log is not None:
                log.close()
        job = LocalTrainingJob(name, run, process, self.rules, hook_request, files / "log" if quiet else None)
        self.latest_training_job = job
        self.jobs.append(job)
        if wait:
            job.wait()

    def rule_job_summary(self) -> list[dict[str, Any]]:
        """Of the newest job: see LocalTrainingJob.rule_job_summary.

        Raises:
            ConfigError: nothing was started yet.
        """
        return self._latest().rule_job_summary()

    def latest_job_debugger_artifacts_path(self) -> str:
        """The run directory of the newest job: tensors and statistics are there. Errors as above."""
        return str(self._latest().run)

    def latest_job_profiler_artifacts_path(self) -> str:
        """The same folder: steps, spans and metrics of the machine are there. Errors as above."""
        return str(self._latest().run)

    def latest_job_tensorboard_artifacts_path(self) -> str:
        """A folder for TensorBoard, made of the newest job at the first call. Errors as above, and:

        Raises:
            ConfigError: the job still runs.
            ReadError: its run cannot be exported.
        """
        job = self._latest()
        if job.status() == "InProgress":
            raise ConfigError(f"TensorBoard: {job.name} still runs: call latest_training_job.wait() first")
        folder = job.run.parent / f"{job.name}.job" / "tensorboard"
        if not folder.exists():
            try:
                _command.ask("export", "tensorboard", str(job.run), "-o", str(folder))
            except ReadError:
                shutil.rmtree(folder, ignore_errors=True)  # A part of it must not pass for the whole.
                raise
            folder.mkdir(exist_ok=True)  # There may have been nothing to export.
        return str(folder)

    def logs(self) -> None:
        """Waits for the newest job, whose output has been on our own stdout."""
        self._latest().wait()

    def enable_default_profiling(self, **_: Any) -> None:
        """Raises UnsupportedError."""
        self._no_live_profiler("enable_default_profiling")

    def disable_profiling(self) -> None:
        """Raises UnsupportedError."""
        self._no_live_profiler("disable_profiling")

    def update_profiler(self, **_: Any) -> None:
        """Raises UnsupportedError."""
        self._no_live_profiler("update_profiler")

    def _no_live_profiler(self, method: str) -> None:
        raise UnsupportedError(
            method,
            "the samples of the machine keep their interval while a job runs",
            "give ProfilerConfig(system_monitor_interval_millis=...) before fit; what is captured of tensors "
            "changes by `telltale capture RUN`",
        )

    def _latest(self) -> LocalTrainingJob:
        if self.latest_training_job is None:
            raise ConfigError("LocalEstimator: no training was started yet: call fit()")
        return self.latest_training_job

    def _script(self) -> Path:
        base = Path(self.source_dir) if self.source_dir is not None else Path()
        script = (base / self.entry_point).resolve()
        if not script.is_file():
            raise ConfigError(f"LocalEstimator: entry_point: no file {script}")
        return script

    def _framework_profile(self) -> FrameworkProfile | None:
        config = self.profiler_config
        return None if config is None or config.disable_profiler else config.framework_profile_params

    def _python_path(self) -> list[str]:
        """The dependencies, and what serves `import smdebug`, as SageMaker's containers have it."""
        smdebug = _command.smdebug_path()
        folders = [os.path.abspath(os.fspath(folder)) for folder in self.dependencies]
        return folders if smdebug is None else [*folders, smdebug]

    def _interpreter(self, script: Path) -> list[str]:
        return ["sh"] if script.suffix == ".sh" else [self.python or sys.executable]

    def _options(self, files: Path, rules: Mapping[str, Any]) -> list[str]:
        options = [] if self.interval_ms is None else ["--interval", str(self.interval_ms)]
        if self.plan is not None:
            path = files / "plan.toml"
            path.write_text(to_toml(self.plan), encoding="utf-8")
            options += ["--plan", str(path)]
        if self.rules:
            path = files / "rules.json"
            path.write_text(json.dumps(rules), encoding="utf-8")
            options += ["--rules", str(path)]
        return options


def _refuse_several(instances: int | None, cloud: Mapping[str, Any]) -> None:
    given = [] if instances in (1, None) else [f"instance_count={instances!r}"]
    given += [f"{name}={cloud[name]!r}" for name in _OF_SEVERAL if cloud.get(name)]
    if given:
        raise UnsupportedError(
            f"LocalEstimator: {', '.join(given)}",
            "one process of this machine is started",
            "leave it out; several processes here: let the script start them, or an entry_point such as "
            "train.sh with torchrun in it",
        )


def _rules(rules: Iterable[RuleBase] | None) -> list[RuleBase]:
    found = list(rules or ())
    for rule in found:
        if not isinstance(rule, (Rule, ProfilerRule)):
            raise ConfigError(
                f"LocalEstimator: rules: {rule!r} is neither a Rule nor a ProfilerRule: write for example "
                "Rule.sagemaker(rule_configs.loss_not_decreasing())"
            )
    return found


def _local(path: str | os.PathLike[str]) -> str:
    """A folder of this machine, of output_path.

    Raises:
        UnsupportedError: it lies in a cloud.
    """
    text = os.fspath(path)
    if text.startswith("file://"):
        return text[len("file://") :]
    if "://" in text:
        raise UnsupportedError(
            f"LocalEstimator: output_path={text!r}",
            "runs are written to this machine alone",
            "leave it out, or give a folder that is here",
        )
    return text


def _available_rules(rules: list[RuleBase]) -> dict[str, Mapping[str, Any]]:
    if not rules:
        return {}
    return {rule["name"]: rule for rule in _command.ask("rules", "list")["rules"]}


def _job_name(base: str | None, entry_point: str | os.PathLike[str]) -> str:
    if base is None:
        base = re.sub(r"[^A-Za-z0-9]+", "-", Path(entry_point).stem).strip("-") or "training"
    if not _NAME.fullmatch(base):
        raise ConfigError(f"LocalEstimator: base_job_name {base!r}: write letters, digits and hyphens")
    return base


def _now() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03d}"
