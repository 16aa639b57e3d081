# SPDX-License-Identifier: Apache-2.0
"""The parts that all frameworks share, under the paths by which scripts import them."""
