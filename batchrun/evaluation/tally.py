"""How many answers are right, within what bounds, and which classes are taken for which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from batchrun.evaluation.judge import CHOICE, Judge
from batchrun.records import Result

MOST_IN_MATRIX = 20
NONE = "(none)"
_Z = 1.959964  # of the normal distribution, for 95 %


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """`count` answers should have been `name`. Precision is the share of those that name it which
    should, recall the share of those that should which do; None where there are none."""

    name: str
    count: int
    precision: float | None
    recall: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`accuracy` is the share of `scored` answers that are correct; with 95 % confidence the true
    share lies between `low` and `high`. `not_scored` counts failed rows, and answers of which
    nothing was expected. `matrix` counts answers by what was expected and what they named."""

    metric: str
    expected: str
    scored: int
    correct: int
    not_scored: int
    accuracy: float | None
    low: float | None
    high: float | None
    classes: list[ClassFigures] | None = None
    matrix: dict[str, dict[str, int]] | None = None


def tally(results: Iterable[Result], judge: Judge) -> Evaluation:
    """Counts `results` that `judge` has judged; each choice of a row counts by itself."""
    counts: Counter[bool | None] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for result in results:
        counts[result.correct] += 1
        if judge.metric == CHOICE and result.correct is not None:
            pairs[judge.expected(result) or "", judge.predicted(result) or NONE] += 1
    scored = counts[True] + counts[False]
    low, high = interval(counts[True], scored)
    return Evaluation(
        metric=judge.metric,
        expected=judge.column,
        scored=scored,
        correct=counts[True],
        not_scored=counts[None],
        accuracy=counts[True] / scored if scored else None,
        low=low,
        high=high,
        classes=_classes(pairs) if judge.metric == CHOICE else None,
        matrix=_matrix(pairs) if judge.metric == CHOICE else None,
    )


def interval(correct: int, scored: int) -> tuple[float | None, float | None]:
    """Wilson's score interval at 95 %."""
    if not scored:
        return None, None
    share, square = correct / scored, _Z * _Z
    middle = (share + square / (2 * scored)) / (1 + square / scored)
    spread = share * (1 - share) / scored + square / (4 * scored * scored)
    half = _Z * math.sqrt(spread) / (1 + square / scored)
    return max(0.0, middle - half), min(1.0, middle + half)


def _classes(pairs: Counter[tuple[str, str]]) -> list[ClassFigures]:
    """The most frequent first, and as many as a person reads."""
    wanted: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for (expected, predicted), count in pairs.items():
        wanted[expected] += count
        named[predicted] += count
    return [
        ClassFigures(
            name=name,
            count=count,
            precision=pairs[name, name] / named[name] if named[name] else None,
            recall=pairs[name, name] / count,
        )
        for name, count in wanted.most_common(MOST_IN_MATRIX)
    ]


def _matrix(pairs: Counter[tuple[str, str]]) -> dict[str, dict[str, int]] | None:
    """None where there are too many classes to look at."""
    expected = sorted({expected for expected, _ in pairs})
    if len(expected) > MOST_IN_MATRIX:
        return None
    others = sorted({predicted for _, predicted in pairs} - set(expected))
    columns = [*expected, *others]
    return {name: {column: pairs[name, column] for column in columns} for name in expected}
