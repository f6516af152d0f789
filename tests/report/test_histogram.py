from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchrun.report.histogram import NUM_BINS, Histogram


def filled(values: list[float], width: float) -> Histogram:
    made = Histogram(width)
    for value in values:
        made.add(value)
    return made


def test_nothing_counted_is_none() -> None:
    assert Histogram(1).to_dict() is None


def test_small_numbers_are_counted_one_by_one() -> None:
    assert filled([0, 1, 1, 3], 1).to_dict() == {
        "width": 1,
        "bins": [1, 2, 0, 1],
        "count": 4,
        "mean": 1.25,
        "min": 0,
        "p50": 1,
        "p90": 3,
        "p99": 3,
        "max": 3,
    }


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_whatever_comes_is_counted_in_bounded_space(values: list[float]) -> None:
    made = filled(values, 2.0**-10).to_dict()

    assert made is not None
    assert len(made["bins"]) <= NUM_BINS
    assert sum(made["bins"]) == made["count"] == len(values)
    assert made["min"] <= made["p50"] <= made["p90"] <= made["p99"] <= made["max"] == max(values)


@given(st.lists(st.integers(0, 10_000), min_size=1))
def test_quantiles_are_right_to_a_bin(values: list[int]) -> None:
    made = filled(list(values), 1)
    exact = sorted(values)[max(0, -(-len(values) // 2) - 1)]

    assert abs(made.quantile(0.5) - exact) <= made.width
