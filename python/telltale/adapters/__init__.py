# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks: one package each, with install(module), called right after the framework
was imported under `telltale run`.
"""
