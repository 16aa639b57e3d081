# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python process under `telltale run`: sets the import hook, then runs
the sitecustomize that would have run without us. Imports nothing that site has not already loaded.
Any Python of the user's may come here, Python 2 too: keep to what all of them parse.
"""

import sys


def _chain(here):
    """Imports the next sitecustomize on sys.path in our place; its exceptions are its own."""
    ours = sys.modules.pop("sitecustomize", None)
    path = [entry for entry in sys.path if entry.rstrip("/") != here]
    # Ours stays off sys.path: children get it from PYTHONPATH, the user's code never needs it.
    sys.path[:] = path
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":  # Python 2 has no name.
            raise
        sys.modules["sitecustomize"] = ours


_here = __file__.rpartition("/")[0]
try:
    if "os" in sys.modules and "TELLTALE_SOCKET" in sys.modules["os"].environ:
        sys.path.insert(0, _here)
        try:
            import telltale_boot

            telltale_boot.install()
            if "TELLTALE_PTRACER" in sys.modules["os"].environ:
                import telltale_ptracer

                telltale_ptracer.allow()
        finally:
            sys.path.remove(_here)
except Exception:  # Never in the way of the user's interpreter.
    pass
_chain(_here)
