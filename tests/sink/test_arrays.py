"""Arrays made without pandas are those that pyarrow makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchrun.sink.arrays import make_array, make_timestamps

KINDS = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.bool_(): st.booleans(),
}
COLUMNS = st.sampled_from(list(KINDS)).flatmap(
    lambda kind: st.tuples(st.lists(KINDS[kind] | st.none(), max_size=20), st.just(kind))
)


@settings(deadline=None)  # the first call of pyarrow.array loads pandas
@given(COLUMNS)
def test_every_value_and_null_comes_back(column: tuple[list[Any], pa.DataType]) -> None:
    made, expected = make_array(*column), pa.array(*column)
    made.validate(full=True)
    assert made.type == expected.type
    assert str(made.to_pylist()) == str(expected.to_pylist())  # nan is not equal to itself


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31, pa.int32()),
        (2**63, pa.int64()),
        (1.5, pa.int64()),
        (7, pa.string()),
        (1, pa.bool_()),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        make_array([value], kind)


def test_timestamps_count_from_the_epoch() -> None:
    kind = pa.timestamp("us", tz="UTC")
    made = make_timestamps([0, 1_700_000_000_123_456], kind)
    assert made.equals(pa.array([0, 1_700_000_000_123_456], kind))


def test_pandas_stays_out() -> None:
    code = (
        "import sys, pyarrow as pa; from batchrun.sink.arrays import make_array, make_timestamps;"
        "make_array(['a', None], pa.string()); make_array([1, None], pa.int64());"
        "make_array([True, None], pa.bool_());"
        "make_timestamps([1], pa.timestamp('us')); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
