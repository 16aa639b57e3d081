# SPDX-License-Identifier: Apache-2.0
"""Analysis of what the machine and the framework did."""
