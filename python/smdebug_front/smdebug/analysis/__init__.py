# SPDX-License-Identifier: Apache-2.0
"""Utilities of analysis scripts."""
