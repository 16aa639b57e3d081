# SPDX-License-Identifier: Apache-2.0
"""At which steps of which mode tensors are saved."""

import json

from ..exceptions import SMDebugTypeError, SMDebugValueError
from .modes import ModeKeys

DEFAULT_SAVE_CONFIG_INTERVAL = 500
DEFAULT_SAVE_CONFIG_START_STEP = 0
DEFAULT_SAVE_CONFIG_END_STEP = None
DEFAULT_SAVE_CONFIG_SAVE_STEPS = ()

_FIELDS = ("save_interval", "start_step", "end_step", "save_steps")


def _whole(name, value, default):
    if value is None:
        return default
    try:
        return int(value)
    except (TypeError, ValueError):
        raise SMDebugValueError(f"{name}={value!r} must be a whole number") from None


class SaveConfigMode:
    """The steps of one mode: those of `save_steps`, and in [start_step, end_step) those that
    `save_interval` divides (absolute steps: start 150, interval 100 saves 200, 300, ...).
    """

    def __init__(self, save_interval=None, start_step=None, end_step=None, save_steps=None):
        """Numbers, or texts of numbers; what is None is the default: 500, 0, no end, none.

        Raises:
            SMDebugValueError: no whole number, or an interval below 1.
        """
        self.save_interval = _whole("save_interval", save_interval, DEFAULT_SAVE_CONFIG_INTERVAL)
        self.start_step = _whole("start_step", start_step, DEFAULT_SAVE_CONFIG_START_STEP)
        self.end_step = _whole("end_step", end_step, DEFAULT_SAVE_CONFIG_END_STEP)
        if save_steps is None:
            save_steps = DEFAULT_SAVE_CONFIG_SAVE_STEPS
        elif isinstance(save_steps, str) or not hasattr(save_steps, "__iter__"):
            raise SMDebugValueError(f"save_steps={save_steps!r} must be a list of whole numbers")
        self.save_steps = [_whole("save_steps", step, None) for step in save_steps]
        if None in self.save_steps:
            raise SMDebugValueError(f"save_steps={save_steps!r} must be a list of whole numbers")
        if self.save_interval < 1:
            raise SMDebugValueError(f"save_interval={self.save_interval} must be at least 1")

    def should_save_step(self, step_num):
        """Whether `step_num` is one of them."""
        if step_num in self.save_steps:
            return True
        return (
            step_num >= self.start_step
            and (self.end_step is None or step_num < self.end_step)
            and step_num % self.save_interval == 0
        )

    def to_json_dict(self):
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, params, default_values=None):
        """From a dict of the constructor's arguments; what it lacks is of `default_values`."""
        if params is None:
            return None
        for values in (params, default_values or {}):
            if not isinstance(values, dict):
                raise SMDebugTypeError(f"{values!r} must be a dict")
        merged = {**(default_values or {}), **{k: v for k, v in params.items() if v is not None}}
        return cls(**{name: merged.get(name) for name in _FIELDS})

    def __eq__(self, other):
        if not isinstance(other, SaveConfigMode):
            return NotImplemented
        return self.to_json_dict() == other.to_json_dict()

    __hash__ = None

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in _FIELDS)
        return f"<class SaveConfigMode: {fields}>"


class SaveConfig:
    """The steps of each mode.

    SaveConfig(save_interval=10) is for all modes; SaveConfig({modes.TRAIN: SaveConfigMode(...)}) for those
    named, and the others follow the hook's.
    """

    def __init__(
        self, mode_save_configs=None, save_interval=None, start_step=None, end_step=None, save_steps=None
    ):
        if mode_save_configs is None:
            self.mode_save_configs = {
                mode: SaveConfigMode(save_interval, start_step, end_step, save_steps) for mode in ModeKeys
            }
            return
        if not isinstance(mode_save_configs, dict) or not all(
            isinstance(mode, ModeKeys) and (value is None or isinstance(value, SaveConfigMode))
            for mode, value in mode_save_configs.items()
        ):
            raise SMDebugValueError(f"{mode_save_configs!r} must be a dict of modes to SaveConfigMode")
        self.mode_save_configs = {mode: mode_save_configs.get(mode) for mode in ModeKeys}

    def get_save_config(self, mode):
        config = self.mode_save_configs[mode]
        if config is None:
            raise SMDebugValueError(f"{self!r} says nothing of mode {mode.name}")
        return config

    def set_save_config(self, mode, save_config_mode):
        if not isinstance(save_config_mode, SaveConfigMode):
            raise SMDebugValueError(f"{save_config_mode!r} must be a SaveConfigMode")
        self.mode_save_configs[mode] = save_config_mode

    def should_save_step(self, mode, step_num):
        return self.get_save_config(mode).should_save_step(step_num)

    def merge_default_save_config(self, default_save_config):
        """Modes of which this says nothing become those of `default_save_config`, else the default."""
        for mode in ModeKeys:
            if self.mode_save_configs[mode] is None:
                self.mode_save_configs[mode] = default_save_config.mode_save_configs[mode] or SaveConfigMode()

    def to_json_dict(self):
        return {
            mode.name: config.to_json_dict() if config else None
            for mode, config in self.mode_save_configs.items()
        }

    def to_json(self):
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params, default_values=None):
        """From a dict of modes, or names of modes, to SaveConfigMode or to dicts of its arguments."""
        if params is None:
            return None
        if not isinstance(params, dict):
            raise SMDebugTypeError(f"{params!r} must be a dict")
        configs = {}
        for mode, value in params.items():
            if isinstance(mode, str):
                if mode not in ModeKeys.__members__:
                    raise SMDebugValueError(f"no mode {mode!r}: one of {', '.join(ModeKeys.__members__)}")
                mode = ModeKeys[mode]
            if not isinstance(value, SaveConfigMode):
                value = SaveConfigMode.from_dict(value, default_values)
            configs[mode] = value
        return cls(mode_save_configs=configs)

    @classmethod
    def from_json(cls, json_str):
        return cls.from_dict(json.loads(json_str))

    @classmethod
    def parse(cls, obj):
        """A SaveConfig of any documented form: None, SaveConfig, SaveConfigMode, a dict by mode."""
        if obj is None:
            return cls()
        if isinstance(obj, SaveConfig):
            return obj
        if isinstance(obj, SaveConfigMode):
            return cls(dict.fromkeys(ModeKeys, obj))
        if isinstance(obj, dict):
            return cls.from_dict(obj)
        raise SMDebugTypeError(
            f"save_config={obj!r} must be a SaveConfig, a SaveConfigMode or a dict by mode"
        )

    def __eq__(self, other):
        if not isinstance(other, SaveConfig):
            return NotImplemented
        return self.mode_save_configs == other.mode_save_configs

    __hash__ = None

    def __repr__(self):
        return f"<class SaveConfig: {self.mode_save_configs}>"
