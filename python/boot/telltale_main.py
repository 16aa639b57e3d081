# SPDX-License-Identifier: Apache-2.0
"""What boot.py does: a module of its own, since __main__ must become the user's."""

import sys


def _hide_frames(own_files):
    """Takes our frames off the traceback of what the user's code raised, when it is printed."""
    previous = sys.excepthook

    def hook(kind, value, traceback):
        while traceback is not None and traceback.tb_frame.f_code.co_filename in own_files:
            traceback = traceback.tb_next
        sys.excepthook = previous
        previous(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = hook


def _main_namespace(file, cached=None):
    """Empties __main__ of what is ours and gives it what python itself would."""
    main = sys.modules["__main__"]
    names = main.__dict__
    names.clear()
    names.update(
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __loader__=None,
        __spec__=None,
        __annotations__={},
        __builtins__=sys.modules["builtins"],
    )
    if file is not None:
        names["__file__"] = file
        names["__cached__"] = cached
    return names


def _run_script(path, first_entry):
    os = sys.modules["os"]
    if path == "-":
        return compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True), _main_namespace(None)
    if os.path.isdir(path) or path.endswith((".zip", ".pyz", ".pyc")):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return None, None
    full = os.path.abspath(path)
    try:
        with open(full, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(
            "{}: can't open file {!r}: [Errno {}] {}\n".format(
                sys.executable, full, error.errno, error.strerror
            )
        )
        sys.exit(2)
    if first_entry:
        sys.path[0] = os.path.dirname(os.path.realpath(full))
    names = _main_namespace(full)
    loader = None
    frozen = sys.modules.get("_frozen_importlib_external")
    if frozen is not None:
        loader = frozen.SourceFileLoader("__main__", full)
    names["__loader__"] = loader
    return compile(source, full, "exec", dont_inherit=True), names


def _start(arguments):
    """Returns (code, namespace) to execute, or (None, None) where that is done already."""
    os = sys.modules["os"]
    # With -I (or -P) python puts neither the script's folder nor the working one on the path.
    first_entry = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    head = arguments[0] if arguments else "-"
    if head == "-c" or (head.startswith("-c") and len(head) > 2):
        code = head[2:] or arguments[1]
        sys.argv[:] = ["-c"] + arguments[1 if head[2:] else 2 :]
        if first_entry:
            sys.path[0] = ""
        names = _main_namespace(None)
        names["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
        return compile(code + "\n", "<string>", "exec", dont_inherit=True), names
    if head == "-m" or (head.startswith("-m") and len(head) > 2):
        module = head[2:] or arguments[1]
        sys.argv[:] = ["-m"] + arguments[1 if head[2:] else 2 :]
        if first_entry:
            sys.path[0] = os.getcwd()
        import runpy

        _main_namespace(None)
        runpy._run_module_as_main(module)
        return None, None
    sys.argv[:] = arguments
    return _run_script(head, first_entry)


def main(boot_file):
    """Runs the command line after boot.py as python would run it. `boot_file`: path of boot.py."""
    arguments = sys.argv[1:]
    try:
        code, names = _start(arguments)
        if code is not None:
            exec(code, names)
    except BaseException:
        _hide_frames((boot_file, __file__))
        raise
