# SPDX-License-Identifier: Apache-2.0
"""The exceptions that scripts catch, by the names that they know."""

from .core.modes import ModeKeys as _Modes


class SMDebugError(Exception):
    """Base of all."""


class SMDebugCustomerError(SMDebugError):
    """Something that the user's code did."""


class SMDebugTypeError(SMDebugError, TypeError):
    """A value of the wrong type."""


class SMDebugRuntimeError(SMDebugError, RuntimeError):
    """Something that cannot go on."""


class SMDebugNotImplementedError(SMDebugError, NotImplementedError):
    """Something that this package does not serve."""


class SMDebugValueError(SMDebugError, ValueError):
    """A value that makes no sense."""


class InvalidCollectionConfiguration(SMDebugError):
    """A collection of the user's own that names no tensors."""

    def __init__(self, c_name):
        super().__init__(c_name)
        self.c_name = c_name

    def __str__(self):
        return f"collection {self.c_name} names no tensors: give it include_regex or tensor_names"


class MissingCollectionFiles(SMDebugError):
    """The job is over and not every worker's collections are there."""

    def __str__(self):
        return "the training has ended, and the collections of all its workers were never written"


class IndexReaderException(SMDebugError):
    """Saved data that cannot be read."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


class _OfStep(SMDebugError):
    """Something about one step of one mode."""

    _what = ""

    def __init__(self, step, mode=_Modes.GLOBAL):
        super().__init__(step, mode)
        self.step = step
        self.mode = mode

    def __str__(self):
        return f"step {self.step} of mode {getattr(self.mode, 'name', self.mode)} {self._what}"


class StepNotYetAvailable(_OfStep):
    """The training may still come to this step."""

    _what = "is not there yet"


class StepUnavailable(_OfStep):
    """The training has passed this step and saved nothing at it."""

    _what = "was not saved"


class TensorUnavailableForStep(SMDebugError):
    """The tensor, or what was asked of it, was not saved at this step."""

    def __init__(self, tname, step, mode=_Modes.GLOBAL, has_reductions=False):
        super().__init__(tname, step, mode, has_reductions)
        self.tname = tname
        self.step = step
        self.mode = mode
        self.has_reductions = has_reductions

    def __str__(self):
        text = f"tensor {self.tname} has no value at step {self.step} of mode {self.mode.name}"
        if self.has_reductions:
            text += "; its reductions were saved: ask reduction_value() or reduction_values()"
        return text


class ShapeUnavailableForStep(SMDebugError):
    """Neither shape nor value was saved at this step."""

    def __init__(self, tname, step, mode=_Modes.GLOBAL):
        super().__init__(tname, step, mode)
        self.tname = tname
        self.step = step
        self.mode = mode

    def __str__(self):
        return f"tensor {self.tname} has no shape at step {self.step} of mode {self.mode.name}"


class TensorUnavailable(SMDebugError):
    """No tensor of this name was saved so far."""

    def __init__(self, tname):
        super().__init__(tname)
        self.tname = tname

    def __str__(self):
        return f"tensor {self.tname} was not saved"


class InvalidWorker(SMDebugError):
    """No such worker."""

    def __init__(self, worker):
        super().__init__(worker)
        self.worker = worker

    def __str__(self):
        return f"no worker {self.worker}"


class NoMoreProfilerData(SMDebugError):
    """The training ended before this time."""

    def __init__(self, timestamp):
        super().__init__(timestamp)
        self.timestamp = timestamp
        self.msg = f"looking for time {timestamp}: the training has ended before it"

    def __str__(self):
        return self.msg


class NoMoreData(SMDebugError):
    """The training ended before this step."""

    def __init__(self, step, mode=_Modes.GLOBAL, last_step=-1):
        super().__init__(step, mode, last_step)
        self.step = step
        self.mode = mode
        self.last_step = last_step
        self.msg = (
            f"looking for step {step} of mode {getattr(mode, 'name', mode)}: the training has ended, "
            f"its last saved step is {last_step}"
        )

    def __str__(self):
        return self.msg


class RuleEvaluationConditionMet(SMDebugError):
    """A rule's condition held at a step; `end_of_rule`: it need not be asked again."""

    def __init__(self, rule_name, step, end_of_rule=False):
        super().__init__(rule_name, step, end_of_rule)
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule

    def __str__(self):
        return f"the condition of rule {self.rule_name} was met at step {self.step}"


class InsufficientInformationForRuleInvocation(SMDebugError):
    """A rule lacks what it needs to judge."""

    def __init__(self, rule_name, message):
        super().__init__(rule_name, message)
        self.rule_name = rule_name
        self.message = message

    def __str__(self):
        return f"rule {self.rule_name} cannot judge: {self.message}"
