"""Judges the results of a run by what a kept column says was expected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from batchrun.errors import RunError
from batchrun.evaluation.metrics import METRICS, chosen
from batchrun.records import Result

CHOICE = "choice"
METRIC_NAMES = (*METRICS, CHOICE)

MOST_CLASSES = 1000


class Judge:
    """`column` holds what is expected, and `metric` is a name of METRIC_NAMES. `classes` are the
    values that a choice may have."""

    def __init__(self, column: str, metric: str, classes: Iterable[str] = ()):
        self.column = column
        self.metric = metric
        self.classes = tuple(classes)

    @classmethod
    def of_rows(cls, column: str, metric: str, kept_values: Iterable[dict[str, Any]]) -> Judge:
        """With the classes that the rows have. Raises RunError where there are too many of them."""
        if metric != CHOICE:
            return cls(column, metric)
        classes: dict[str, None] = {}
        for kept in kept_values:
            value = as_text(kept.get(column))
            if value is not None:
                classes[value] = None
            if len(classes) > MOST_CLASSES:
                raise RunError(
                    f"--metric choice: {column!r} has more than {MOST_CLASSES:,} different values;"
                    " use --metric exact, finished rows are kept"
                )
        return cls(column, metric, classes)

    def expected(self, result: Result) -> str | None:
        return as_text(result.row.kept.get(self.column))

    def predicted(self, result: Result) -> str | None:
        """The class that the answer names, None for none."""
        return None if result.answer is None else chosen(result.answer.text, self.classes)

    def judged(self, results: Iterable[Result]) -> Iterator[Result]:
        """The results, each with whether it is correct."""
        return (replace(result, correct=self.correct(result)) for result in results)

    def correct(self, result: Result) -> bool | None:
        """None where there is no answer, or nothing that can be expected of it."""
        expected = self.expected(result)
        if result.answer is None or expected is None:
            return None
        if self.metric == CHOICE:
            return self.predicted(result) == expected
        return METRICS[self.metric](result.answer.text, expected)


def as_text(value: Any) -> str | None:
    """A column's value as the metrics compare it: text as it is, all else as JSON has it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
