# SPDX-License-Identifier: Apache-2.0
"""Asking a rule about step after step."""

from ..core.logger import get_logger
from ..exceptions import (
    NoMoreProfilerData,
    RuleEvaluationConditionMet,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)


def invoke_rule(rule_obj, start_step=0, end_step=None, raise_eval_cond=False):
    """Asks the rule about each step over all modes from `start_step` to before `end_step`; steps that were not
    saved are passed over.

    Raises:
        RuleEvaluationConditionMet: the condition held, with `raise_eval_cond`; else it is logged.
        NoMoreData: the training ended (without `end_step` every call ends so).
    """
    logger = get_logger()
    name = type(rule_obj).__name__
    step = start_step if start_step is not None else 0
    logger.info("rule %s begins at step %d", name, step)
    while end_step is None or step < end_step:
        try:
            rule_obj.invoke(step)
        except (TensorUnavailableForStep, StepUnavailable, TensorUnavailable) as missing:
            logger.debug("%s", missing)
        except RuleEvaluationConditionMet as met:
            if raise_eval_cond:
                raise
            logger.info("%s", met)
            if met.end_of_rule:
                break
        except NoMoreProfilerData as end:
            logger.info("rule %s: %s", name, end)
            break
        step += 1
    logger.info("rule %s ends before step %d", name, step)
