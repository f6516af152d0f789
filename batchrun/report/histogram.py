"""How values are spread, in a fixed number of bins however many and however large they are."""

from __future__ import annotations

from typing import Any

NUM_BINS = 48


class Histogram:
    """Counts values of 0 and more in bins of equal width, which doubles when one falls outside.

    `width` is that of the first bins: the finest that is of interest; an int where values are.
    """

    def __init__(self, width: float):
        self.width = width
        self.count = 0
        self.total = 0.0
        self.least = float("inf")
        self.most = 0.0
        self._bins = [0] * NUM_BINS

    def add(self, value: float) -> None:
        while value >= self.width * NUM_BINS:
            self._widen()
        self._bins[int(value / self.width)] += 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def quantile(self, share: float) -> float:
        """The value below which `share` of all lie, as exactly as the bins tell."""
        below = 0.0
        for index, count in enumerate(self._bins):
            if count and below + count >= share * self.count:
                inside = (share * self.count - below) / count
                value = self.width * (index + inside)
                return min(max(self._whole(value), self.least), self.most)
            below += count
        return self.most

    def to_dict(self) -> dict[str, Any] | None:
        """Bins without the empty ones at the end, and figures; None where nothing was counted."""
        if not self.count:
            return None
        used = int(self.most / self.width) + 1
        return {
            "width": self.width,
            "bins": self._bins[:used],
            "count": self.count,
            "mean": self.total / self.count,
            "min": self.least,
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "max": self.most,
        }

    def _whole(self, value: float) -> float:
        """Between whole numbers of tokens there is nothing."""
        return int(value) if isinstance(self.width, int) else value

    def _widen(self) -> None:
        pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
        self._bins = [low + high for low, high in pairs] + [0] * (NUM_BINS // 2)
        self.width *= 2
