"""Which requests have been answered, as one array for all workers of a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from batchrun.spread.known import Known

KEYS = st.binary(min_size=20, max_size=20).map(bytes.hex)


@given(st.dictionaries(KEYS, st.integers(1, 3)), KEYS)
def test_it_has_what_it_was_made_of(answered: dict[str, int], other: str) -> None:
    known = Known.of(sorted(answered.items()))

    for key, count in answered.items():
        assert [known.has(key, n) for n in (1, 2, 3)] == [n <= count for n in (1, 2, 3)]
    assert known.has(other, 1) == (other in answered)


def test_a_key_that_ends_in_zeros_is_another_than_a_shorter_one() -> None:
    known = Known.of([("00" * 20, 1)])
    assert known.has("00" * 20, 1)
    assert not known.has("00" * 19 + "01", 1)
