"""Nobody waits for ever."""

from __future__ import annotations

from threading import Event

import pytest

from batchrun.remote import StoreError, within


def test_a_store_that_does_not_answer_is_left() -> None:
    for_ever = Event()
    with pytest.raises(StoreError, match=r"within 0\.01 seconds"):
        within(0.01, for_ever.wait)
    for_ever.set()
    assert within(60, lambda: 5) == 5
    with pytest.raises(KeyError):
        within(60, lambda: {}["x"])
