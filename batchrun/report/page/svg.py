"""Matplotlib figures as SVG that sits in a page: text stays text, colours are the page's own.

Knows nothing of what is drawn.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batchrun.folders import cache_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.4, 2.3  # inches: so small that the text can be read on a phone

# Colours that stand for the page's: matplotlib writes them, then the names take their place.
INK, MUTED, GRID = "#010101", "#010102", "#010103"
SERIES = ("#010104", "#010105", "#010106")
_NAMES = {INK: "ink", MUTED: "muted", GRID: "line"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES, start=1)
}

_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    # "$" in a name is no formula.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}

_OPENING = re.compile(r"^.*?<svg [^>]*?(viewBox=\"[^\"]+\")[^>]*>", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_DEFAULTS = re.compile(r"<defs>\s*<style.*?</defs>\s*", re.DOTALL)
_GROUP_ID = re.compile(r"<g id=\"[^\"]*\"")
_FONTS = re.compile(r"font-family: [^;\"]*(; )?")


class Drawing:
    """A figure being drawn; `svg` is filled in when its `drawn` block ends."""

    def __init__(self, axes: Axes):
        self.axes = axes
        self.svg = ""


@contextmanager
def drawn(name: str, *, left: float = 0.13, height: float = HEIGHT) -> Iterator[Drawing]:
    """Axes to draw on. `name` keeps the marks of several figures on a page apart; `left` is the
    share of the width for labels, `height` in inches."""
    # In a home that cannot be written to, matplotlib would say so on stderr.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    os.environ.setdefault("MPLCONFIGDIR", str(cache_root() / "matplotlib"))
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        below = 0.42 / height
        drawing = Drawing(figure.add_axes((left, below, 0.97 - left, 0.93 - below)))
        yield drawing
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawing.svg = _for_page(text.getvalue())


def _for_page(svg: str) -> str:
    svg = _OPENING.sub(r'<svg \1 role="img">', svg, count=1)
    svg = _DEFAULTS.sub("", _METADATA.sub("", svg))
    svg = _FONTS.sub("", _GROUP_ID.sub("<g", svg))
    for color, name in _NAMES.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg
