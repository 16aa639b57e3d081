# SPDX-License-Identifier: Apache-2.0
"""The colours hold what the design asks: contrast of text, distance between the phases for those
who see fewer colours, and heat scales that a grey print keeps."""

import re
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path

import pytest

TOKENS = Path(__file__).resolve().parents[2] / "web/src/tokens.css"
PHASES = ("p-data", "p-comm", "p-fwd", "p-bwd", "p-opt", "p-other")
RGB = tuple[float, float, float]

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SEEN_WITH = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def three(values: Iterable[float]) -> RGB:
    r, g, b = values
    return r, g, b


def themes() -> dict[str, dict[str, RGB]]:
    text = TOKENS.read_text()
    light, dark = text.split('[data-theme="dark"]')
    out = {}
    for name, part in (("light", light), ("dark", dark)):
        pairs = re.findall(r"--([\w-]+):\s*#([0-9a-f]{6});", part)
        out[name] = {k: three(int(v[i : i + 2], 16) / 255 for i in (0, 2, 4)) for k, v in pairs}
    return out


def linear(color: RGB) -> RGB:
    return three(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color)


def luminance(color: RGB) -> float:
    r, g, b = linear(color)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: RGB, b: RGB) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: RGB) -> RGB:
    """CIELAB of linear RGB under D65."""
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(a: RGB, b: RGB, seen_with: str) -> float:
    def seen(color: RGB) -> RGB:
        source = linear(color)
        return lab(
            three(sum(w * c for w, c in zip(row, source, strict=True)) for row in SEEN_WITH[seen_with])
        )

    return sum((p - q) ** 2 for p, q in zip(seen(a), seen(b), strict=True)) ** 0.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_keeps_its_contrast_on_every_background(theme: str) -> None:
    colors = themes()[theme]
    for text in ("ink", "ink-2", "ink-3", "accent", "bad", "warn", "good"):
        for back in ("bg", "sunk", "hover", "accent-bg", "warn-bg", "bad-bg"):
            if text in ("ink", "ink-2") or back in ("bg", "sunk"):
                ratio = contrast(colors[text], colors[back])
                assert ratio >= 4.5, f"{text} on {back} in {theme}: {ratio:.2f}"


@pytest.mark.parametrize(
    ("theme", "seen_with", "least"),
    [
        ("light", "protanopia", 20),
        ("light", "deuteranopia", 20),
        ("light", "tritanopia", 13),
        ("dark", "protanopia", 15),
        ("dark", "deuteranopia", 15),
        ("dark", "tritanopia", 13),
    ],
)
def test_phases_stay_apart(theme: str, seen_with: str, least: float) -> None:
    colors = themes()[theme]
    for a, b in combinations(PHASES, 2):
        apart = distance(colors[a], colors[b], seen_with)
        assert apart >= least, f"{a} and {b} with {seen_with} in {theme}: {apart:.1f}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_more_of_the_thing_is_more_contrast_with_the_page(theme: str) -> None:
    colors = themes()[theme]
    steps = [contrast(colors[f"c{i}"], colors["bg"]) for i in range(5)]
    assert all(a < b for a, b in pairwise(steps)), steps
