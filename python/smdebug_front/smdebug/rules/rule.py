# SPDX-License-Identifier: Apache-2.0
"""The base of rules that users write."""

from abc import ABC, abstractmethod

from ..analysis.utils import no_refresh
from ..core.logger import get_logger
from ..exceptions import RuleEvaluationConditionMet
from ..trials.trial import Trial
from .action import Actions
from .req_tensors import RequiredTensors


def _are_trials(value):
    return isinstance(value, (list, tuple)) or isinstance(value, Trial)


class Rule(ABC):
    """A condition over the steps of a trial.

    class Small(Rule):
        def __init__(self, base_trial, threshold):
            super().__init__(base_trial)
            self.threshold = float(threshold)

        def invoke_at_step(self, step):
            names = self.base_trial.tensor_names(collection="gradients")
            return any(self.base_trial.tensor(n).reduction_value(step, "mean", abs=True) < self.threshold
                       for n in names)
    """

    def __init__(self, base_trial, action_str=None, other_trials=None):
        """
        Args:
            base_trial: the trial whose steps the rule is asked about.
            action_str: what is done when it fires, as JSON: [{"name": "stoptraining"}].
            other_trials: further trials; may also be the second argument, as the documentation has it.
        """
        if _are_trials(action_str) or isinstance(other_trials, str):
            action_str, other_trials = other_trials, action_str
        if isinstance(other_trials, Trial):
            other_trials = [other_trials]
        self.base_trial = base_trial
        self.other_trials = other_trials
        self.trials = [base_trial, *(other_trials or ())]
        self.req_tensors = RequiredTensors(base_trial, other_trials)
        self.logger = get_logger()
        self.rule_name = type(self).__name__
        self._actions = Actions(action_str, rule_name=self.rule_name)
        self.report = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    def set_required_tensors(self, step):
        """May name what the rule needs at a step, with self.req_tensors.add()."""

    @abstractmethod
    def invoke_at_step(self, step):
        """Whether the condition holds at this step (over all modes)."""

    def invoke(self, step):
        """Asks the rule about a step, once it is there.

        Raises:
            RuleEvaluationConditionMet: the condition holds.
        """
        self.base_trial.wait_for_steps([step])
        with no_refresh(self.trials):
            self.req_tensors.clear()
            self.set_required_tensors(step)
            self.req_tensors.fetch()
            self.report["Datapoints"] += 1
            fired = self.invoke_at_step(step)
        if fired:
            self.report["RuleTriggered"] += 1
            self._actions.invoke(f"rule {self.rule_name} fired at step {step}")
            raise RuleEvaluationConditionMet(self.rule_name, step)
