# SPDX-License-Identifier: Apache-2.0
"""What joins this package to Telltale: nothing else here imports it."""
