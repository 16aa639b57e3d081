# SPDX-License-Identifier: Apache-2.0
"""Makes the files that some cases read, in a temporary folder: images, many small files, one big one."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Callable

# Pictures need a library that this interpreter may not have: the one of the program makes them.
_IMAGES = """
import sys
import numpy as np
from PIL import Image
rng = np.random.RandomState(0)
for index in range(120):
    # Low frequencies and a little noise: decodes about as a photograph does.
    small = Image.fromarray(rng.randint(0, 255, (60, 80, 3), dtype=np.uint8)).resize((1600, 1200), Image.BICUBIC)
    small.save(f"{sys.argv[1]}/{index:04}.jpg", quality=90)
"""


def images(folder: Path, python: Path) -> None:
    """120 JPEG files of 1600 x 1200 points."""
    subprocess.run([str(python), "-c", _IMAGES, str(folder)], check=True, capture_output=True, timeout=300)


def small_files(folder: Path, python: Path) -> None:
    """20,000 files of 5 KB."""
    rng = random.Random(0)
    for index in range(20000):
        if index % 1000 == 0:
            (folder / f"{index // 1000:02}").mkdir()
        (folder / f"{index // 1000:02}/{index:05}.bin").write_bytes(rng.randbytes(5000))
    os.sync()  # what is not written yet cannot leave the cache


def big_file(folder: Path, python: Path) -> None:
    """One file of 1 GB, of which no block is empty."""
    rng = random.Random(0)
    with open(folder / "records.bin", "wb") as file:
        for _ in range(1024):
            file.write(rng.randbytes(1 << 20))
    os.sync()


PREPARE: dict[str, Callable[[Path, Path], None]] = {
    "images": images,
    "small_files": small_files,
    "big_file": big_file,
}
