# SPDX-License-Identifier: Apache-2.0
"""A name that is markup, quotes, line breaks, and commands of a terminal."""

NAME = "<img src=x onerror=alert(1)>\"'&\n\x1b]0;owned\x07\x1b[31m\u009b2J\u202egnp"
# What of it everything that shows it shows as it is.
SHOWN = "<img src=x onerror=alert(1)>\"'&"
