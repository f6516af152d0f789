"""The size limit holds, and what saves least for its bytes goes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.prefixes.eviction import to_evict, worth
from batchrun.prefixes.index import Use
from tests.prefixes.builders import (
    OTHER_MODEL,
    entry_files,
    kv_caches,
    loaded,
    opened,
    prompt,
    saved,
)

DAY = 24 * 3600.0
NOW = 1000 * DAY
USE = Use("use", "model", nbytes=100, digest="", seconds=1.0, hits=0, last_use=NOW)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (replace(USE, seconds=2.0), USE),
        (replace(USE, nbytes=50), USE),
        (replace(USE, hits=1), USE),
        (USE, replace(USE, last_use=NOW - DAY)),
        (replace(USE, hits=3, last_use=NOW - 7 * DAY), USE),
        (USE, replace(USE, hits=3, last_use=NOW - 30 * DAY)),
    ],
)
def test_worth_is_the_seconds_likely_to_be_saved_for_each_byte(better: Use, worse: Use) -> None:
    assert worth(better, NOW) > worth(worse, NOW)


def test_a_clock_that_went_back_makes_nothing_worth_more() -> None:
    assert worth(replace(USE, last_use=NOW + 100 * DAY), NOW) == worth(USE, NOW)


USES = st.lists(
    st.builds(
        Use,
        key=st.uuids().map(str),
        model=st.just("model"),
        nbytes=st.integers(1, 1000),
        digest=st.just(""),
        seconds=st.floats(0, 100),
        hits=st.integers(0, 5),
        last_use=st.floats(0, NOW),
    ),
    max_size=8,
)


@given(uses=USES, newcomer=st.none() | USES.filter(bool).map(lambda uses: uses[0]), data=st.data())
def test_what_stays_fits_and_is_worth_at_least_what_goes(
    uses: list[Use], newcomer: Use | None, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(0, 3000))
    pinned = {use.key for use in uses if data.draw(st.booleans())}
    gone = to_evict(uses, limit, NOW, newcomer=newcomer, pinned=pinned)

    extra = [] if newcomer is None else [newcomer]
    if gone is None:
        able = [use for use in uses if use.key not in pinned]
        if newcomer is not None:
            able = [use for use in able if worth(use, NOW) <= worth(newcomer, NOW) / 2]
        kept = [use for use in [*uses, *extra] if use not in able]
        assert sum(use.nbytes for use in kept) > limit
        return
    stays = [use for use in uses if use not in gone]
    assert sum(use.nbytes for use in [*stays, *extra]) <= limit
    assert not pinned & {use.key for use in gone}
    movable = [use for use in stays if use.key not in pinned]
    for use in gone:
        assert all(worth(use, NOW) <= worth(other, NOW) for other in movable)
    assert not gone or sum(use.nbytes for use in [*stays, *extra]) + gone[-1].nbytes > limit


@pytest.fixture
def size(tmp_path: Path) -> int:
    """What an entry of 100 tokens takes."""
    return saved(tmp_path / "measured", prompt(100)).stat().st_size


def test_the_entry_that_saved_least_makes_room(tmp_path: Path, size: int) -> None:
    limit = 2 * size
    costly = saved(tmp_path, prompt(100, first=1), seconds=5.0, max_bytes=limit)
    cheap = saved(tmp_path, prompt(100, first=2), seconds=1.0, max_bytes=limit)
    new = saved(tmp_path, prompt(100, first=3), seconds=3.0, max_bytes=limit)

    assert entry_files(tmp_path) == sorted([costly, new])
    assert not cheap.exists()
    with opened(tmp_path) as store:
        assert store.find(prompt(100, first=2)) is None


def test_more_prefixes_than_there_is_room_for_do_not_replace_each_other(
    tmp_path: Path, size: int
) -> None:
    for _ in range(2):
        for first in range(6):
            saved(tmp_path, prompt(100, first), max_bytes=3 * size)
    with opened(tmp_path) as store:
        assert [store.find(prompt(100, first)) is not None for first in range(6)] == [
            *[True] * 3,
            *[False] * 3,
        ]


def test_a_new_entry_worth_less_than_all_others_is_not_written(tmp_path: Path, size: int) -> None:
    old = saved(tmp_path, prompt(100, first=1), seconds=5.0, max_bytes=size)
    with opened(tmp_path, max_bytes=size) as store:
        store.save(prompt(100, first=2), kv_caches(prompt(100, first=2)), 1.0)
    assert entry_files(tmp_path) == [old]
    assert store.notes == []


def test_use_makes_an_entry_stay(tmp_path: Path, size: int) -> None:
    used = saved(tmp_path, prompt(100, first=1), seconds=1.0)
    saved(tmp_path, prompt(100, first=2), seconds=1.5)
    with opened(tmp_path) as store:
        loaded(store, prompt(100, first=1))
    new = saved(tmp_path, prompt(100, first=3), seconds=3.5, max_bytes=2 * size)

    assert entry_files(tmp_path) == sorted([used, new])


def test_what_was_found_may_be_gone_when_it_is_to_be_loaded(tmp_path: Path, size: int) -> None:
    old = saved(tmp_path, prompt(100, first=1), seconds=1.0)
    with opened(tmp_path, max_bytes=size) as store:
        found = store.find(prompt(100, first=1))
        assert found is not None
        saved(tmp_path, prompt(100, first=2), seconds=9.0, max_bytes=size)
        assert old not in entry_files(tmp_path)
        assert store.load(found) is None
    with opened(tmp_path, max_bytes=size) as store:
        assert loaded(store, prompt(100, first=2)) == prompt(100, first=2)


def test_the_limit_is_for_all_models_together(tmp_path: Path, size: int) -> None:
    saved(tmp_path, prompt(100), seconds=1.0, model=OTHER_MODEL, max_bytes=size)
    new = saved(tmp_path, prompt(100), seconds=4.0, max_bytes=size)

    assert entry_files(tmp_path) == [new]
