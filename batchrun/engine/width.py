"""How many rows run at once: as many as asked for, or as many as pay; fewer for a while after
something raised, and for good when memory ran out.

It is told of steps and troubles, and knows nothing of models, caches or clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

# Where nobody says how many rows to run, these are tried in turn.
LADDER = (32, 64, 96, 128)

# A rate is the median over this many steps, so that other work on the machine hardly shows, in
# which at least this share of the rows ran.
NUM_STEPS = 24
FULL_SHARE = 7 / 8

# More rows stay if they make at least this many times the tokens a second.
GAIN = 1.05


class Width:
    """`limit` is how many rows may run now, `most` how many without troubles.

    `asked` None starts with the first of LADDER and goes on for as long as tokens a second rise
    and `fits` says that so many rows are within the memory for caches. What was decided goes to
    `notes`.
    """

    def __init__(self, asked: int | None, fits: Callable[[int], bool], notes: list[str]):
        self.limit = self.most = LADDER[0] if asked is None else asked
        self._is_growing = asked is None
        self._fits = fits
        self._notes = notes
        self._before: tuple[int, float] | None = None
        self._rates: list[float] = []
        self._last_step_at: float | None = None
        self._finished_since_trouble = 0

    def step(self, num_tokens: int, at: float) -> None:
        """A decode step gave `num_tokens` at the time `at`, in seconds."""
        last, self._last_step_at = self._last_step_at, at
        if not self._is_growing or last is None or num_tokens < FULL_SHARE * self.most:
            return
        self._rates.append(num_tokens / max(at - last, 1e-9))
        if len(self._rates) >= NUM_STEPS:
            self._judge(median(self._rates))
            self._rates = []

    def pause(self) -> None:
        """Until the next step there is other work, so that its time says nothing."""
        self._last_step_at = None

    def finished(self) -> None:
        """A row is done: after as many as the limit, the limit may rise again."""
        self._finished_since_trouble += 1
        if self._finished_since_trouble >= self.limit < self.most:
            self.limit = min(2 * self.limit, self.most)
            self._finished_since_trouble = 0

    def halve(self, num_running: int, *, for_good: bool) -> None:
        """`num_running` rows, two or more, were too much; `for_good` where memory ran out."""
        self.limit = num_running // 2
        self._finished_since_trouble = 0
        self.pause()
        if for_good:
            self.most, self._is_growing = self.limit, False
            self._notes.append(f"memory ran out: continuing with {self.limit} rows at once")

    def _judge(self, rate: float) -> None:
        """The rows that run make `rate` tokens a second: are more worth a try?"""
        before, self._before = self._before, (self.most, rate)
        wider = next((rows for rows in LADDER if rows > self.most), None)
        if before is not None and rate < GAIN * before[1]:
            self._settle(before[0], "more were not faster")
        elif wider is None:
            self._settle(self.most, "more are not tried")
        elif not self._fits(wider):
            self._settle(self.most, "the memory for caches allows no more")
        else:
            self.limit = self.most = wider
            self.pause()

    def _settle(self, rows: int, why: str) -> None:
        self.limit = self.most = rows
        self._is_growing = False
        self._notes.append(f"--max-num-seqs auto settled on {rows} rows at once: {why}")
