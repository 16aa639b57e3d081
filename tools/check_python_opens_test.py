# SPDX-License-Identifier: Apache-2.0
"""The check of Python's opens finds each way to a file that is not the helper's, and nothing else."""

import pathlib
import unittest

from tree_check import run_on

CHECK = pathlib.Path(__file__).parent / "check_python_opens"
FILE = "python/telltale/a.py"


class CheckPythonOpens(unittest.TestCase):
    def run_on(self, files: dict[str, str]) -> tuple[int, str]:
        return run_on(CHECK, files)

    def test_the_helper_names_and_comments_pass(self) -> None:
        code, out = self.run_on(
            {
                FILE: "\n".join(
                    [
                        '"""open(path) would follow a link."""',
                        "import os, telltale",
                        "with Folder.of_run() as run, run.open('run.json') as file: file.read()",
                        "run.write(name, data); run.remove(name); run.move(name, run, other)",
                        "os.statvfs(folder.fd); os.fstat(fd); os.path.join(a, b); os.close(fd)",
                        "text.replace('a', 'b'); frame.rename(columns={}); telltale.open(run)",
                        "def open_it(open: bool) -> None: telltale.read(open)",
                        "def read_it(folder: Folder) -> bytes: return folder.open(name).read()",
                        "run = package.telltale().open(path); os.listdir(fd); getattr(torch, name)",
                        "import ast, numpy as np, torch; ast.walk(tree); np.sum(a); torch.zeros(1)",
                        "now.replace(year=1); text.replace('a', 'b', 1); getattr(text, 'open_it')",
                    ]
                )
            }
        )
        self.assertEqual((code, out), (0, ""))

    def test_every_other_way_is_found_with_its_line(self) -> None:
        ways = {
            "open(p)": "open",
            "with open(p, 'wb') as file: pass": "open",
            "import os; os.open(p, os.O_RDONLY, dir_fd=folder)": "os.open",
            "import os as o; o.open(p, 0)": "os.open",
            "from os import replace; replace(p, q)": "os.replace",
            "from os import path as way; way.exists(p)": "os.path.exists",
            "import os.path; os.path.getsize(p)": "os.path.getsize",
            "import os; os.listdir(p)": "os.listdir",
            "import os; os.statvfs(p)": "os.statvfs",
            "import sys; os = sys.modules['os']; os.unlink(p)": "os.unlink",
            "import io; io.open(p)": "io.open",
            "import gzip; gzip.open(p)": "gzip.open",
            "import shutil; shutil.rmtree(p)": "shutil.rmtree",
            "import tempfile; tempfile.mkdtemp()": "tempfile.mkdtemp",
            "(run / 'logs').mkdir(parents=True)": ".mkdir",
            "path.read_text()": ".read_text",
            "path.write_bytes(data)": ".write_bytes",
            "path.rename(other)": ".rename",
            "path.replace(other)": ".replace",
            "path.exists()": ".exists",
            "folder.rglob('*')": ".rglob",
            "Path(p).open()": ".open",
            "(run / 'x').open('w')": ".open",
            "with Path(p) as q, q.open() as file: pass": ".open",
            "def read(path: Path): return path.open()": ".open",
            "p.chmod(0)": ".chmod",
            "p.walk(follow_symlinks=True)": ".walk",
            "p.readlink()": ".readlink",
            "p.samefile(q)": ".samefile",
            "p.rename(target=q)": ".rename",
            "p.stat(follow_symlinks=False)": ".stat",
            "p.exists(follow_symlinks=False)": ".exists",
            "getattr(p, 'unlink')()": ".unlink",
            "list(map(kind.touch, paths))": ".touch",
            "from pathlib import Path; list(map(Path.exists, paths))": "pathlib.Path.exists",
            "import os; f = os.open; f(p, 0)": "os.open",
            "o = open; o(p)": "open",
            "def f(open=open): return open(p)": "open",
            "import os; getattr(os, 'open')(p, 0)": "os.open",
            "import os; getattr(os, name)(p, 0)": "os.*",
            "from os import *": "os.*",
            "from os import unlink": "os.unlink",
            "from os import getcwd, replace as put": "os.replace",
            "import builtins; builtins.open(p)": "builtins.open",
            "import posix; posix.open(p, 0)": "posix.open",
            "import os; os.chdir(p)": "os.chdir",
            "import os; os.getxattr(p, 'user.a')": "os.getxattr",
            "import os; os.lchown(p, 0, 0)": "os.lchown",
            "import shutil; shutil.copymode(p, q)": "shutil.copymode",
            "import shutil; shutil.chown(p, 'me')": "shutil.chown",
            "import shutil; shutil.unpack_archive(p)": "shutil.unpack_archive",
            "import gzip; gzip.GzipFile(p)": "gzip.GzipFile",
            "import bz2; bz2.BZ2File(p)": "bz2.BZ2File",
            "import lzma; lzma.LZMAFile(p)": "lzma.LZMAFile",
            "import tarfile; tarfile.TarFile(p)": "tarfile.TarFile",
            "import numpy as np; np.save(p, a)": "numpy.save",
            "import numpy as np; np.load(p)": "numpy.load",
            "import numpy as np; np.memmap(p)": "numpy.memmap",
            "import numpy as np; np.fromfile(p)": "numpy.fromfile",
            "import torch; torch.save(a, p)": "torch.save",
            "from torch import load; load(p)": "torch.load",
            "import logging; logging.FileHandler(p)": "logging.FileHandler",
            "import dbm; dbm.open(p)": "dbm.open",
            "import shelve; shelve.open(p)": "shelve.open",
            "import tokenize; tokenize.open(p)": "tokenize.open",
            "import runpy; runpy.run_path(p)": "runpy.run_path",
        }
        for way, name in ways.items():
            with self.subTest(way):
                code, out = self.run_on({FILE: f"a = 1\n{way}\n"})
                self.assertEqual(code, 1)
                self.assertIn(f"{FILE}:2: {name}: ", out)

    def test_what_the_table_allows_is_for_that_file_alone(self) -> None:
        self.assertEqual(self.run_on({"python/telltale/_pictures.py": "open(p)"}), (0, ""))
        code, out = self.run_on({"python/telltale/_pictures.py": "open(p); p.unlink()"})
        self.assertEqual(code, 1)
        self.assertIn("python/telltale/_pictures.py:1: .unlink", out)

    def test_the_table_holds_nothing_that_is_not_done(self) -> None:
        code, out = self.run_on({"python/telltale/_pictures.py": "a = 1"})
        self.assertEqual(code, 1)
        self.assertIn("python/telltale/_pictures.py does not call open", out)

    def test_an_empty_tree_is_an_error(self) -> None:
        self.assertEqual(self.run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()
