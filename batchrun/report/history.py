"""Figures over time, in a fixed number of points however long the run is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from batchrun.engine.stats import EngineStats

MOST_POINTS = 200
_FIRST_INTERVAL = 0.25


class Point(NamedTuple):
    """Totals at a moment, in seconds from the start of the run. As totals, points can be left out
    and the differences between the others stay exact."""

    seconds: float
    prefill_tokens: int
    decode_tokens: int
    row_steps: int
    decode_steps: int


class History:
    """Keeps a point at most every so often; when there are too many, every other one goes and
    points come half as often from then on."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._interval = _FIRST_INTERVAL
        self._due = 0.0

    def sample(self, seconds: float, stats: EngineStats) -> None:
        """The engine's totals now; most calls only look at the clock."""
        if seconds >= self._due:
            self.add(seconds, stats)
            self._due = seconds + self._interval

    def add(self, seconds: float, stats: EngineStats) -> None:
        """As `sample`, whatever the clock says: at the beginning and at the end."""
        if len(self._points) >= MOST_POINTS:
            del self._points[1::2]
            self._interval *= 2
        self._points.append(
            Point(
                seconds,
                stats.prefill_tokens,
                stats.decode_tokens,
                stats.row_steps,
                stats.decode_steps,
            )
        )

    def to_dict(self) -> dict[str, list[Any]] | None:
        """Each figure's totals as a list; None where there is no stretch of time."""
        if len(self._points) < 2:
            return None
        return {
            name: list(values)
            for name, values in zip(Point._fields, zip(*self._points, strict=True), strict=True)
        }
