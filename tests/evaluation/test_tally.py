from __future__ import annotations

from typing import Any

import pytest

from batchrun.errors import RunError
from batchrun.evaluation import Judge, tally
from batchrun.evaluation.judge import MOST_CLASSES
from batchrun.evaluation.tally import MOST_IN_MATRIX, NONE, interval
from batchrun.records import Result
from tests.sink.builders import failure, make_answer, make_row


def result(text: str | None, expected: Any) -> Result:
    row = make_row(kept={"label": expected})
    if text is None:
        return Result(row, None, failure(row).error)
    return Result(row, make_answer("k", text=text))


def judged(pairs: list[tuple[str | None, Any]], metric: str = "choice") -> Any:
    results = [result(*pair) for pair in pairs]
    judge = Judge.of_rows("label", metric, (each.row.kept for each in results))
    return tally(judge.judged(results), judge)


def test_right_wrong_and_what_cannot_be_told() -> None:
    found = judged([("a", "a"), ("b", "a"), ("a", None), (None, "a"), ("7", 7)], "exact")

    assert (found.correct, found.scored, found.not_scored) == (2, 3, 2)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.classes is found.matrix is None


def test_classes_have_precision_recall_and_a_matrix() -> None:
    pairs = [("yes", "yes"), ("yes", "no"), ("no", "no"), ("no", "no"), ("maybe", "yes")]
    found = judged(pairs)

    assert found.matrix == {
        "no": {"no": 2, "yes": 1, NONE: 0},
        "yes": {"no": 0, "yes": 1, NONE: 1},
    }
    assert [(each.name, each.count, each.precision, each.recall) for each in found.classes] == [
        ("no", 3, 1.0, 2 / 3),
        ("yes", 2, 0.5, 0.5),
    ]


def test_a_class_that_nobody_names_has_no_precision() -> None:
    (only,) = judged([("b", "a")]).classes

    assert (only.precision, only.recall) == (None, 0.0)


def test_many_classes_are_scored_and_not_drawn() -> None:
    found = judged([(f"c{i}", f"c{i}") for i in range(MOST_IN_MATRIX + 1)])

    assert found.accuracy == 1.0
    assert found.matrix is None
    assert len(found.classes) == MOST_IN_MATRIX


def test_a_column_that_is_no_class_is_one_clear_error() -> None:
    with pytest.raises(RunError, match="more than 1,000 different values"):
        judged([("x", str(i)) for i in range(MOST_CLASSES + 1)])


@pytest.mark.parametrize(
    ("correct", "scored", "low", "high"),
    # Wilson's interval, as in Newcombe (1998), table I.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_wilsons(correct: int, scored: int, low: float, high: float) -> None:
    assert interval(correct, scored) == pytest.approx((low, high), abs=5e-5)


def test_nothing_scored_has_no_interval() -> None:
    assert interval(0, 0) == (None, None)
    assert judged([]).accuracy is None
