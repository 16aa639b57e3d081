# SPDX-License-Identifier: Apache-2.0
"""The tensors that a rule says it needs at a step."""

from ..exceptions import TensorUnavailable


class RequiredTensors:
    """Filled by Rule.set_required_tensors; invoke_rule waits for what is in it."""

    def __init__(self, base_trial, other_trials=None):
        self.base_trial = base_trial
        # trial -> name -> steps
        self._steps = {trial: {} for trial in [base_trial, *(other_trials or ())]}

    def add(self, name, steps, trial=None, should_match_regex=False):
        """Needs a tensor, or all in whose name the pattern is found, at these steps.

        Raises:
            TensorUnavailable: there is none of that name.
        """
        trial = trial if trial is not None else self.base_trial
        names = trial.tensor_names(regex=[name]) if should_match_regex else [name]
        for each in names:
            if not trial.has_tensor(each):
                raise TensorUnavailable(each)
            self._steps[trial].setdefault(each, []).extend(steps)

    def _of(self, trial):
        return self._steps[trial if trial is not None else self.base_trial]

    def get_names(self, trial=None):
        return list(self._of(trial))

    def get_tensor_steps(self, name, trial=None):
        return self._of(trial)[name]

    def get(self, trial=None):
        """The tensors themselves."""
        trial = trial if trial is not None else self.base_trial
        return [trial.tensor(name) for name in self._of(trial)]

    def clear(self):
        for needed in self._steps.values():
            needed.clear()

    def fetch(self):
        """Waits until the steps are there.

        Raises:
            StepUnavailable, NoMoreData, TensorUnavailableForStep: one of them never will be.
        """
        for trial, needed in self._steps.items():
            trial.wait_for_steps(sorted({step for steps in needed.values() for step in steps}))
            for name, steps in needed.items():
                for step in steps:
                    trial.tensor(name).workers(step)
