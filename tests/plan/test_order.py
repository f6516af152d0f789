"""The running order: what shares a prefix together, longest first, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchrun.plan import in_running_order
from batchrun.records import Media, MediaSpan, Prefix, Prompt
from tests.plan.prompts import block, path, prompt, prompts, token_ids

LENGTHS = st.lists(st.none() | st.integers(1, 9), max_size=40)
SEQUENCES = st.lists(token_ids(), max_size=25)
WINDOWS = st.integers(1, 12)


def of_lengths(lengths: list[int | None]) -> list[Prompt | None]:
    return [None if n is None else prompt(i, [7] * n) for i, n in enumerate(lengths)]


def planned(sequences: list[list[int]], window: int = 4096) -> list[Prompt]:
    return [one for one in in_running_order(prompts(sequences), window=window) if one is not None]


def work(ordered: list[Prompt], prefix: Prefix) -> int:
    """The tokens to compute for a prefix and for all that is below it."""
    below = [one for one in ordered if prefix in path(one.prefix)]
    prefixes = {shared for one in below for shared in path(one.prefix)}
    inside = [shared for shared in prefixes if prefix in path(shared)]
    return sum(len(one.token_ids) - len(path(one.prefix)[0].token_ids) for one in below) + sum(
        len(shared.token_ids) - (len(shared.parent.token_ids) if shared.parent else 0)
        for shared in inside
    )


def lengths_of(ordered: Iterator[Prompt | None]) -> list[int | None]:
    return [None if item is None else len(item.token_ids) for item in ordered]


@given(lengths=LENGTHS, window=WINDOWS)
def test_every_prompt_comes_out_once(lengths: list[int | None], window: int) -> None:
    given = of_lengths(lengths)
    ordered = [item for item in in_running_order(given, window=window) if item is not None]
    assert sorted(item.row.index for item in ordered) == [
        item.row.index for item in given if item is not None
    ]


@given(lengths=st.lists(st.integers(1, 9), max_size=40), window=WINDOWS)
def test_each_window_runs_longest_first(lengths: list[int], window: int) -> None:
    ordered = lengths_of(in_running_order(of_lengths(list(lengths)), window=window))
    windows = [lengths[start : start + window] for start in range(0, len(lengths), window)]
    assert ordered == [n for part in windows for n in sorted(part, reverse=True)]


@given(lengths=LENGTHS, window=WINDOWS)
def test_no_more_than_a_window_is_held(lengths: list[int | None], window: int) -> None:
    taken = given_out = 0

    def source() -> Iterator[Prompt | None]:
        nonlocal taken
        for item in of_lengths(lengths):
            taken += item is not None
            assert taken - given_out <= window
            yield item

    for item in in_running_order(source(), window=window):
        given_out += item is not None


def test_prompts_of_one_length_keep_their_order() -> None:
    ordered = in_running_order(of_lengths([3, 5, 3, 5, 3]))
    assert [item.row.index for item in ordered if item] == [1, 3, 0, 2, 4]


def test_a_slow_source_does_not_hold_up_what_is_here() -> None:
    asked: list[int] = []

    def source() -> Iterator[Prompt | None]:
        for number, item in enumerate(of_lengths([2, 6, None, 4])):
            asked.append(number)
            yield item

    ordered = in_running_order(source())
    assert [len(item.token_ids) for item in (next(ordered), next(ordered)) if item] == [6, 2]
    assert asked == [0, 1, 2]


def test_not_ready_is_passed_on_when_nothing_is_here() -> None:
    assert lengths_of(in_running_order(of_lengths([None, None, 2, 3, None, None]))) == [
        *(None, None, 3, 2, None)
    ]


@given(SEQUENCES, WINDOWS)
def test_what_is_run_does_not_depend_on_the_window(sequences: list[list[int]], window: int) -> None:
    ordered = planned(sequences, window)

    assert sorted(one.row.index for one in ordered) == list(range(len(sequences)))
    for one in ordered:
        start = one.prefix.token_ids if one.prefix else []
        assert one.token_ids == sequences[one.row.index]
        assert start == one.token_ids[: len(start)]
        assert one.key == f"key-{one.row.index}"


@given(SEQUENCES)
def test_all_that_share_a_prefix_follow_one_another(sequences: list[list[int]]) -> None:
    ordered = planned(sequences)
    paths = [path(one.prefix) for one in ordered]
    for prefix in {prefix for above in paths for prefix in above}:
        assert sum(is_below for is_below, _ in groupby(prefix in above for above in paths)) == 1
        assert sum(is_own for is_own, _ in groupby(one.prefix is prefix for one in ordered)) <= 1


@given(SEQUENCES)
def test_a_group_comes_before_its_children_and_loners_last(sequences: list[list[int]]) -> None:
    met: set[Prefix] = set()
    loners = False
    for one in planned(sequences):
        loners = loners or one.prefix is None
        assert not (loners and one.prefix)
        assert one.prefix not in {shared for below in met for shared in path(below)[1:]}
        met |= {one.prefix} if one.prefix else set()


@given(SEQUENCES)
def test_a_group_runs_longest_first(sequences: list[list[int]]) -> None:
    for _, group in groupby(planned(sequences), key=lambda one: one.prefix):
        keys = [(-len(one.token_ids), one.row.index) for one in group]
        assert keys == sorted(keys)


@given(SEQUENCES)
def test_of_sibling_groups_the_largest_comes_first(sequences: list[list[int]]) -> None:
    ordered = planned(sequences)
    opened = list(dict.fromkeys(p for one in ordered for p in reversed(path(one.prefix))))
    for parent in [None, *opened]:
        siblings = [work(ordered, prefix) for prefix in opened if prefix.parent is parent]
        assert all(one >= other for one, other in pairwise(siblings))


@given(SEQUENCES, WINDOWS)
def test_a_prefix_counts_its_own_prompts_of_the_window(
    sequences: list[list[int]], window: int
) -> None:
    ordered = planned(sequences, window)
    for prefix in {shared for one in ordered for shared in path(one.prefix)}:
        assert prefix.num_prompts == sum(one.prefix is prefix for one in ordered)


def test_the_questions_on_a_document_run_together() -> None:
    documents = [block(number, 300) for number in range(4)]
    sequences = [[*documents[n % 4], *block(4 + n, 5 + n)] for n in range(20)]
    ordered = planned(sequences)

    assert [one.row.index for one in ordered] == [
        *(19, 15, 11, 7, 3),
        *(18, 14, 10, 6, 2),
        *(17, 13, 9, 5, 1),
        *(16, 12, 8, 4, 0),
    ]
    assert [one.prefix.token_ids for one in ordered[::5] if one.prefix] == documents[::-1]


def test_a_window_of_one_shares_nothing_and_keeps_the_order() -> None:
    ordered = planned([block(1, 100), block(1, 100), block(1, 200)], window=1)

    assert [one.row.index for one in ordered] == [0, 1, 2]
    assert all(one.prefix is None for one in ordered)


def with_media(index: int, *media: Media) -> Prompt:
    spans = tuple(MediaSpan(place, place + 1, one) for place, one in enumerate(media))
    return replace(prompt(index, [7] * (index + 1)), media=spans)


def medium(nbytes: int) -> Media:
    return Media(bytes(32), [7], {"pixel_values": np.zeros(nbytes, np.uint8)})


def windows_of(given: list[Prompt], media_bytes: int) -> list[list[int]]:
    """Which rows are planned together: each window runs longest, so latest, first."""
    windows: list[list[int]] = []
    for one in in_running_order(given, media_bytes=media_bytes):
        assert one is not None
        if not windows or one.row.index > windows[-1][0]:
            windows.append([])
        windows[-1].append(one.row.index)
    return windows


def test_a_window_ends_where_its_media_reach_their_bytes() -> None:
    given = [with_media(index, medium(10)) for index in range(7)]
    assert windows_of(given, 30) == [[2, 1, 0], [5, 4, 3], [6]]
    assert windows_of(given, 1) == [[index] for index in range(7)]


def test_media_that_prompts_share_count_once() -> None:
    one = medium(10)
    given = [with_media(index, one, one) for index in range(7)]
    assert windows_of(given, 11) == [[6, 5, 4, 3, 2, 1, 0]]


def test_prompts_without_media_are_not_bounded_by_bytes() -> None:
    assert windows_of([with_media(index) for index in range(5)], 1) == [[4, 3, 2, 1, 0]]
