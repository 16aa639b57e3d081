# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of the SageMaker Python SDK, without a cloud: telltale.sagemaker.debugger has its classes
for Debugger, LocalEstimator runs a training with them on this machine. docs/guide/sagemaker.md.
"""

from .estimator import LocalEstimator, LocalTrainingJob

__all__ = ["LocalEstimator", "LocalTrainingJob"]
