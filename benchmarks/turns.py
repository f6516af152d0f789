"""Runs what is compared in turns, and prints figures side by side with their ratios."""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sides import Ended

_SHOWN = 8


@dataclass(frozen=True)
class Outcome:
    """What one run came to: figures by name, and texts by custom_id."""

    figures: dict[str, float]
    answers: dict[str, str]
    blas: str

    @classmethod
    def of(cls, ended: Ended, figures: dict[str, float]) -> Outcome:
        return cls(figures, ended.answers, ended.report["blas"])


Turn = Callable[[], dict[str, Outcome]]
Outcomes = dict[str, list[Outcome]]


def in_turns(turns: Sequence[Turn], rounds: int) -> Outcomes:
    """Every turn once a round, in the other order every other round; outcomes by name."""
    outcomes: Outcomes = defaultdict(list)
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            for name, outcome in turn().items():
                outcomes[name].append(outcome)
                figures = " ".join(f"{key}={_number(v)}" for key, v in outcome.figures.items())
                print(f"round {number + 1}: {name}: {figures}", file=sys.stderr)
    return outcomes


def print_comparison(outcomes: Outcomes, one: str, other: str) -> None:
    """Figures as min / median / max; the ratio is taken within each round, where both had much the
    same machine."""
    ours, theirs = outcomes[one], outcomes[other]
    print(f"\nBLAS: {one} {ours[0].blas}, {other} {theirs[0].blas}")
    print(f"{'':22}{one:>26}{other:>26}{'ratio':>26}")
    for name in ours[0].figures:
        mine = [outcome.figures[name] for outcome in ours]
        yours = [outcome.figures[name] for outcome in theirs]
        ratios = [a / b if b else math.nan for a, b in zip(mine, yours, strict=True)]
        print(f"{name:22}{_spread(mine):>26}{_spread(yours):>26}{_spread(ratios):>26}")
    _print_differences(ours[0].answers, theirs[0].answers)


def median(outcomes: Sequence[Outcome], figure: str) -> float:
    return statistics.median(outcome.figures[figure] for outcome in outcomes)


def _spread(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return " / ".join(map(_number, (low, middle, high)))


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _print_differences(ours: dict[str, str], theirs: dict[str, str]) -> None:
    different = [name for name, text in ours.items() if theirs[name] != text]
    if not different:
        print(f"answers of {len(ours)} rows: all equal")
        return
    some = ", ".join(different[:_SHOWN]) + (", ..." if len(different) > _SHOWN else "")
    print(f"answers of {len(ours)} rows: {len(ours) - len(different)} equal, not {some}")
