# SPDX-License-Identifier: Apache-2.0
"""Pictures for notebooks, made here: PNG of arrays, SVG of histograms and lines over steps. numpy alone is needed."""

from __future__ import annotations

import base64
import html
import math
import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from ._views import as_float, numpy_module

# Dark blue, teal, green, yellow: five points of a scale that is even to the eye and to the colour-blind.
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_MAX_CELLS = 400
_GAP = 1


class Picture:
    """A picture that a notebook shows, and that can be saved. `format`: "png" or "svg"."""

    def __init__(self, data: bytes, title: str, png: bool) -> None:
        self.data, self.title, self.format = data, title, "png" if png else "svg"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file."""
        with open(path, "wb") as file:
            file.write(self.data)

    def _repr_html_(self) -> str:
        title = html.escape(self.title)
        if self.format == "svg":
            return f"<div>{self.data.decode()}</div>"
        encoded = base64.b64encode(self.data).decode()
        return (
            f'<div>{title}<br><img alt="{title}" style="image-rendering:pixelated;min-width:240px;max-width:100%"'
            f' src="data:image/png;base64,{encoded}"></div>'
        )

    def __repr__(self) -> str:
        return f"<picture {self.format}, {len(self.data)} bytes: {self.title}>"


def png(pixels: Any) -> bytes:
    """A PNG file of uint8 pixels: (height, width) grey or (height, width, 3) red, green, blue."""
    numpy = numpy_module()
    pixels = numpy.ascontiguousarray(pixels, numpy.uint8)
    height, width = pixels.shape[:2]
    colour_type = 0 if pixels.ndim == 2 else 2
    rows = pixels.reshape(height, -1)
    # Each row begins with the number of its filter: none.
    raw = numpy.concatenate([numpy.zeros((height, 1), numpy.uint8), rows], axis=1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(raw, 6))
        + chunk(b"IEND", b"")
    )


def colour(share: float) -> str:
    """ "#rrggbb" of a share of 0 to 1."""
    at = min(max(share, 0.0), 1.0) * (len(_COLOURS) - 1)
    low = min(int(at), len(_COLOURS) - 2)
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(_COLOURS[low], _COLOURS[low + 1]))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _grey(tile: Any) -> Any:
    """Values of one tile to 0 to 255, by the tile's own extremes; what is not finite is black."""
    numpy = numpy_module()
    finite = numpy.isfinite(tile)
    if not finite.any():
        return numpy.zeros(tile.shape, numpy.uint8)
    low, high = tile[finite].min(), tile[finite].max()
    scaled = numpy.full(tile.shape, 0.0)
    scaled[finite] = 127.5 if high == low else (tile[finite] - low) / (high - low) * 255
    return numpy.rint(scaled).astype(numpy.uint8)


def tiles_of(array: Any, max_tiles: int) -> list[Any]:
    """The two-dimensional parts of an array, or those of three colours: filters (out, in, height, width),
    activations (batch, channels, height, width), matrices, vectors as one row.

    Filters and images of three channels are tiles in colour.
    """
    numpy = numpy_module()
    values = as_float(array)
    if values.size == 0:
        return []
    if values.ndim < 2:
        return [_grey(values.reshape(1, -1))]
    if values.ndim == 2:
        return [_grey(values)]
    if values.ndim >= 4 and values.shape[-3] == 3:
        images = values.reshape(-1, *values.shape[-3:])[:max_tiles]
        return [_grey(numpy.moveaxis(image, 0, -1)) for image in images]
    planes = values.reshape(-1, *values.shape[-2:])[:max_tiles]
    return [_grey(plane) for plane in planes]


def tile_picture(array: Any, title: str, max_tiles: int) -> Picture:
    """All tiles in a grid as near to a square as their shape lets it be."""
    numpy = numpy_module()
    tiles = tiles_of(array, max_tiles)
    if not tiles:
        return Picture(png(numpy.zeros((1, 1), numpy.uint8)), title + ": no element", True)
    height, width = tiles[0].shape[:2]
    columns = max(1, min(len(tiles), round(math.sqrt(len(tiles) * (height + _GAP) / (width + _GAP)))))
    rows = -(-len(tiles) // columns)
    colours = tiles[0].shape[2:]
    grid = numpy.full(
        (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, *colours), 255, numpy.uint8
    )
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + _GAP), i % columns * (width + _GAP)
        grid[top : top + height, left : left + width] = tile
    return Picture(png(grid), title, True)


def number(value: float) -> str:
    """Short, for an axis."""
    return f"{value:.4g}"


def _frame(title: str, steps: Sequence[int], low: float, high: float, body: str) -> str:
    """The SVG around a drawing of 600 by 200 at (60, 24)."""
    label = 'font-family="sans-serif" font-size="11" fill="#555"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 250" width="680" height="250" role="img">'
        f"<title>{html.escape(title)}</title>"
        f'<text x="60" y="15" {label}>{html.escape(title)}</text>'
        f'<text x="56" y="33" text-anchor="end" {label}>{number(high)}</text>'
        f'<text x="56" y="224" text-anchor="end" {label}>{number(low)}</text>'
        f'<text x="60" y="240" {label}>step {steps[0]}</text>'
        f'<text x="660" y="240" text-anchor="end" {label}>{steps[-1]}</text>'
        f'<svg x="60" y="24" width="600" height="200" viewBox="0 0 600 200" preserveAspectRatio="none">'
        f'<rect width="600" height="200" fill="#f4f4f4"/>{body}</svg></svg>'
    )


def histogram_svg(title: str, steps: Sequence[int], lows: Any, highs: Any, counts: Any) -> str:
    """A heat map: steps to the right, values upwards, the share of the elements as colour.

    `counts` is (steps, bins); each row has bins of its own from lows[i] to highs[i].
    """
    numpy = numpy_module()
    chosen = numpy.unique(numpy.linspace(0, len(steps) - 1, min(len(steps), _MAX_CELLS)).astype(int))
    low, high = float(numpy.min(lows)), float(numpy.max(highs))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    width = 600 / len(chosen)
    cells = []
    for column, row in enumerate(chosen):
        total = counts[row].sum()
        if not total:
            continue
        edges = numpy.linspace(lows[row], highs[row], counts.shape[1] + 1)
        tops = 200 * (1 - (edges - low) / (high - low))
        shares = counts[row] / counts[row].max()
        for i in numpy.nonzero(counts[row])[0]:
            cells.append(
                f'<rect x="{column * width:.2f}" y="{tops[i + 1]:.2f}" width="{width + 0.05:.2f}" '
                f'height="{max(tops[i] - tops[i + 1], 1):.2f}" fill="{colour(float(shares[i]) ** 0.5)}"/>'
            )
    return _frame(title, steps, low, high, "".join(cells))


def band_svg(title: str, steps: Sequence[int], lows: Any, middles: Any, highs: Any) -> str:
    """A band from lows to highs with a line of middles in it, for what has statistics alone."""
    numpy = numpy_module()
    finite = numpy.isfinite(lows) & numpy.isfinite(highs) & numpy.isfinite(middles)
    kept = numpy.nonzero(finite)[0]
    if not len(kept):
        return _frame(title + ": no finite value", steps, 0, 1, "")
    kept = kept[numpy.unique(numpy.linspace(0, len(kept) - 1, min(len(kept), _MAX_CELLS)).astype(int))]
    low, high = float(lows[kept].min()), float(highs[kept].max())
    if high <= low:
        low, high = low - 0.5, high + 0.5
    span = max(steps[-1] - steps[0], 1)

    def points(values: Any, order: Any) -> str:
        return " ".join(
            f"{600 * (steps[i] - steps[0]) / span:.2f},{200 * (1 - (values[i] - low) / (high - low)):.2f}"
            for i in order
        )

    band = points(highs, kept) + " " + points(lows, kept[::-1])
    line = points(middles, kept)
    return _frame(
        title,
        steps,
        low,
        high,
        f'<polygon points="{band}" fill="{colour(0.25)}" fill-opacity="0.25"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour(0.25)}" stroke-width="1.5" '
        'vector-effect="non-scaling-stroke"/>',
    )


def table_html(columns: Sequence[str], rows: Sequence[Sequence[object]], more: int = 0) -> str:
    """A small table for notebooks; `more` rows are not shown."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    note = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"
