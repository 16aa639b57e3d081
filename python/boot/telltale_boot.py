# SPDX-License-Identifier: Apache-2.0
"""The import hook: finds the package telltale beside us, and hands a framework to its adapter right
after the framework's own import. Imports nothing beyond sys; os is there since site. Parsed by every
Python of the user's, active from 3.9.
"""

import sys

# Module -> what is done once it has been imported: a function of the module, or the name of a module
# of ours with such a function `install`; None: only the time of its import is of interest.
_TARGETS = {
    "gym": "adapters.environments",
    "gymnasium": "adapters.environments",
    "jax": "adapters.jax_compiles",
    "keras": "adapters.keras",
    "stable_baselines3": "adapters.environments",
    "tensorflow": "adapters.tensorflow",
    "torch": "adapters.torch",
    "xgboost": "adapters.xgboost",
}  # type: dict[str, str | None]
for _name in (
    "accelerate boto3.s3.transfer datasets deepspeed diffusers flax fsspec.asyn httpcore lightning matplotlib numpy optax "
    "pandas pyarrow pyarrow.parquet pytorch_lightning scipy sklearn sklearn.datasets tarfile timm torchaudio torchvision "
    "transformers wandb zipfile"
).split():
    _TARGETS[_name] = None
# When this interpreter came here, and (name, begin, end) of the imports since, by time.monotonic_ns;
# on_import(name, begin, end) is told instead once somebody sets it.
started_ns = 0
imports = []  # type: list[tuple[str, int, int]]
on_import = None
# Our package's name where the user has another module `telltale`.
_PRIVATE = "_telltale"
_installed = False


def note(text):
    """Appends one line to the probe's log: for failures before there is a channel."""
    try:
        os = sys.modules["os"]
        path = os.environ.get("TELLTALE_PROBE_LOG")
        if path:
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(path, how, 0o600)
            try:
                if os.fstat(fd).st_mode & 0o170000 == 0o100000:  # A plain file.
                    os.write(fd, "pid {}: {}\n".format(os.getpid(), text).encode("utf-8", "replace"))
            finally:
                os.close(fd)
    except Exception:
        pass


def _now():
    time = sys.modules.get("time")
    return time.monotonic_ns() if time is not None else 0


def _imported(name, begin, end):
    try:
        if begin == 0 or name not in _TARGETS:
            return
        if on_import is not None:
            on_import(name, begin, end)
        elif len(imports) < 64:
            imports.append((name, begin, end))
    except Exception:
        pass


def _adapt(module, adapter):
    try:
        if callable(adapter):
            adapter(module)
        else:
            adapter = "{}.{}".format(_package(), adapter)
            __import__(adapter)
            sys.modules[adapter].install(module)
    except Exception as error:
        note("adapter {} not installed: {}: {}".format(adapter, type(error).__name__, error))


def _package():
    """The name under which our package is imported; a module of the user's is not executed for it."""
    there = sys.modules.get("telltale")
    if there is None:
        for finder in sys.meta_path:
            if isinstance(finder, _Finder):
                spec = finder.find_spec("telltale")
                return "telltale" if spec is None or _is_ours(spec) else _PRIVATE
        return "telltale"
    return "telltale" if _is_ours(getattr(there, "__spec__", None)) else _PRIVATE


class _Finder:
    """On sys.meta_path, first. Only acts for the names it knows; all else is one set lookup."""

    def __init__(self, package_dir):
        self._package_dir = package_dir

    def find_spec(self, name, path=None, target=None):
        if name == "telltale":
            return self._find_telltale(target)
        if name == _PRIVATE:
            return self._find_private()
        if name not in _TARGETS:
            return None
        spec = self._ask_others(name, path, target)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader, _TARGETS[name])
        return spec

    def _ask_others(self, name, path, target):
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _find_telltale(self, target):
        # The version that belongs to the running supervisor, unless the user's code has a module of
        # that name that is not ours.
        own = self._ask_others("telltale", None, target)
        folders = []
        if own is not None and not _is_ours(own):
            if not _is_namespace(own):
                return own
            # A mere folder of that name (a clone of ours, say): a package goes before it.
            folders = list(own.submodule_search_locations)
        ours = self._ask_others("telltale", [self._package_dir], target)
        if ours is None or _is_namespace(ours):
            return own
        ours.submodule_search_locations.extend(folders)
        return ours

    def _find_private(self):
        external = sys.modules["_frozen_importlib_external"]
        folder = self._package_dir + "/telltale"
        return external.spec_from_file_location(
            _PRIVATE, folder + "/__init__.py", submodule_search_locations=[folder]
        )

    @staticmethod
    def _wrap(loader, adapter):
        execute = loader.exec_module

        def exec_module(module):
            # Gone before the module runs: what it leaves behind is its own loader, unchanged.
            try:
                del loader.exec_module
            except AttributeError:
                pass
            begin = _now()
            execute(module)
            end = _now()
            if adapter is not None:
                _adapt(module, adapter)
            _imported(module.__name__, begin, end)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            note("cannot hook the loader {!r}".format(loader))


def _is_namespace(spec):
    return spec.origin is None and spec.submodule_search_locations is not None


def _is_ours(spec):
    places = spec.submodule_search_locations if spec is not None else None
    if not places or _is_namespace(spec):
        return False
    os = sys.modules["os"]
    return any(os.path.exists(os.path.join(place, "_session.py")) for place in places)


def install():
    """Sets the import hook, once. Does nothing outside `telltale run`."""
    global _installed, started_ns
    environ = sys.modules["os"].environ
    directory = environ.get("TELLTALE_PYTHON_DIR")
    if _installed or not directory or "TELLTALE_SOCKET" not in environ or sys.version_info < (3, 9):
        return
    _installed = True
    started_ns = _now()
    _tell_at_exit()
    sys.meta_path.insert(0, _Finder(directory))


def _tell_at_exit():
    # Of a process that loads nothing of ours an exception that ends it is told too. First here, so that the
    # program's own handlers run before, as they would without us.
    import atexit

    def tell():
        if getattr(sys, "last_value", None) is None:
            return
        try:
            package = _package()
            if package + "._exceptions" in sys.modules:
                return
            __import__(package + "._exceptions")
            exceptions = sys.modules[package + "._exceptions"]
            exceptions.tell_last()
            sys.modules[package + "._session"].finish()
        except Exception as error:
            note("exceptions: {}: {}".format(type(error).__name__, error))

    atexit.register(tell)


def route_children(boot_file):
    """Children of multiprocessing inherit -I and -E, and with them the deafness to PYTHONPATH: they
    start through boot.py as this process did.
    """

    def install_route(util):
        spawn = util.spawnv_passfds

        def spawnv_passfds(path, args, passfds):
            args = list(args)
            if "-c" in args and boot_file not in args:
                args.insert(args.index("-c"), boot_file)
            return spawn(path, args, passfds)

        util.spawnv_passfds = spawnv_passfds

    _TARGETS["multiprocessing.util"] = install_route
