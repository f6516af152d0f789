"""The charts of a report: figures in, SVG out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from batchrun.report.page.svg import INK, SERIES, Drawing, drawn
from batchrun.report.words import figure

_MARKS = (("median (line)", "p50"), ("p90", "p90"), ("p99", "p99"), ("longest", "max"))
_BARS_HEIGHT = 0.55  # inches, and for each bar:
_BAR_HEIGHT = 0.33


@dataclass(frozen=True, slots=True)
class Chart:
    """`text` says what the drawing shows; `note` holds its main figures."""

    title: str
    svg: str
    note: str = ""


def tokens_over_time(history: dict[str, list[Any]]) -> Chart:
    """Tokens a second between each two points, of prompts and of answers."""
    times = history["seconds"]
    with drawn("tokens") as drawing:
        for name, label, color in (
            ("prefill_tokens", "prompt", SERIES[1]),
            ("decode_tokens", "generated", SERIES[0]),
        ):
            rates = _rates(history[name], times)
            drawing.axes.stairs(rates, times, color=color, label=label, linewidth=1.4)
        drawing.axes.legend(loc="upper right", fontsize=8)
        _over_time(drawing)
    return Chart("Tokens per second", drawing.svg)


def rows_running(history: dict[str, list[Any]], most: int) -> Chart:
    """How many rows a decode step served, and how many it might have."""
    with drawn("running") as drawing:
        means = _rates(history["row_steps"], history["decode_steps"])
        drawing.axes.stairs(means, history["seconds"], color=SERIES[0], fill=True, alpha=0.35)
        drawing.axes.stairs(means, history["seconds"], color=SERIES[0], linewidth=1.4)
        if most:
            drawing.axes.axhline(most, color=INK, linewidth=0.8, linestyle="--")
        _over_time(drawing)
    return Chart("Rows running", drawing.svg, f"Of {most} at most (dashed)." if most else "")


def spread(name: str, title: str, unit: str, histogram: dict[str, Any]) -> Chart:
    """A histogram with its median and 99th percentile."""
    width = histogram["width"]
    edges = [width * index for index in range(len(histogram["bins"]) + 1)]
    with drawn(name) as drawing:
        drawing.axes.stairs(histogram["bins"], edges, fill=True, color=SERIES[0], alpha=0.8)
        drawing.axes.axvline(histogram["p50"], color=SERIES[1], linewidth=1.2)
        drawing.axes.set_xlabel(unit)
        drawing.axes.locator_params(axis="x", integer=unit == "tokens")
        drawing.axes.set_ylim(bottom=0)
        drawing.axes.grid(axis="y")
        drawing.axes.set_axisbelow(True)
    named = (f"{name} {figure(histogram[key])}" for name, key in _MARKS)
    return Chart(title, drawing.svg, ", ".join(named))


def bars(
    name: str,
    title: str,
    values: dict[str, float],
    unit: str = "",
    *,
    with_share: bool = True,
) -> Chart:
    """A horizontal bar for each of `values`, the first on top, with its figure and share."""
    whole = sum(values.values()) or 1
    room = max(len(values), 2)
    height = _BARS_HEIGHT + _BAR_HEIGHT * room
    with drawn(name, left=0.26, height=height) as drawing:
        axes = drawing.axes
        places = range(len(values), 0, -1)
        axes.barh(places, list(values.values()), height=0.62, color=SERIES[0])
        most = max(values.values(), default=0) or 1
        axes.set_xlim(0, most * 1.42)
        axes.set_yticks(list(places), labels=[label[:14] for label in values])
        axes.set_ylim(len(values) + 0.5 - room, len(values) + 0.5)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        for place, value in zip(places, values.values(), strict=True):
            text = f"{_amount(value)}{unit}"
            text += f" · {100 * value / whole:.0f} %" if with_share else ""
            axes.text(value + most * 0.02, place, text, va="center", fontsize=8)
    return Chart(title, drawing.svg)


def _over_time(drawing: Drawing) -> None:
    drawing.axes.set_xlabel("seconds since the start")
    drawing.axes.set_ylim(bottom=0)
    drawing.axes.set_xlim(left=0)
    drawing.axes.grid(axis="y")


def _rates(amounts: list[float], over: list[float]) -> list[float]:
    """The growth of `amounts` over that of `over` between each two points."""
    pairs = zip(pairwise(amounts), pairwise(over), strict=True)
    return [
        (after - before) / (end - start) if end > start else 0.0
        for (before, after), (start, end) in pairs
    ]


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"
