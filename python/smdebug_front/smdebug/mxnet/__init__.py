# SPDX-License-Identifier: Apache-2.0
"""MXNet is not served: it has had no release since 2022."""

raise ImportError(
    "smdebug.mxnet: Telltale does not record MXNet; it records PyTorch, TensorFlow and Keras, XGBoost and JAX"
)
