# SPDX-License-Identifier: Apache-2.0
"""Telltale's own Python package, found without a word on the user's path."""

import importlib
import importlib.util
import os
import sys

# Its name where the user has another module `telltale`, as the import hook of `telltale run` has it.
_PRIVATE = "_telltale"


def _is_ours(spec):
    places = getattr(spec, "submodule_search_locations", None) or ()
    return any(os.path.exists(os.path.join(place, "_session.py")) for place in places)


def _folders():
    """Where the package lies beside this one: in an installation, in the source tree."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    above = os.path.dirname(root)
    return [os.path.join(above, "python", "telltale"), os.path.join(above, "telltale")]


def _find():
    """(name, spec) under which it is imported; (None, None): it is nowhere."""
    for name in ("telltale", _PRIVATE):
        loaded = sys.modules.get(name)
        if loaded is not None and _is_ours(getattr(loaded, "__spec__", None)):
            return name, loaded.__spec__
    name = "telltale"
    try:
        spec = importlib.util.find_spec("telltale")
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        if _is_ours(spec):
            return name, spec
        if spec.origin is not None:  # The user's; a mere folder of that name is in nobody's way.
            name = _PRIVATE
    if name == _PRIVATE:
        spec = importlib.util.find_spec(_PRIVATE)
        if _is_ours(spec):
            return name, spec
    for folder in _folders():
        if os.path.exists(os.path.join(folder, "_session.py")):
            return name, importlib.util.spec_from_file_location(
                name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
    return None, None


def _import():
    name, spec = _find()
    if name is None:
        raise ImportError(
            "smdebug (Telltale): its package telltale is nowhere: put the folder that `telltale smdebug-path` "
            "prints on PYTHONPATH, not a copy of it"
        )
    module = sys.modules.get(name)
    if module is None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def telltale():
    """Telltale's package.

    Raises:
        ImportError: it is not where it should be.
    """
    return _import()


def part(name):
    """One of its modules, `_session` for example."""
    return importlib.import_module(f"{telltale().__name__}.{name}")
