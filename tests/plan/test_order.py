"""The running order: longest first within a window, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from batchrun.plan import in_running_order
from batchrun.records import Prompt, Request, Row, Sampling

LENGTHS = st.lists(st.none() | st.integers(1, 9), max_size=40)


def prompt(index: int, length: int) -> Prompt:
    token_ids = [7] * length
    request = Request(Row(index, "in.jsonl", index + 1), Sampling(), prompt=token_ids)
    return Prompt(request, token_ids, key=f"key-{index}")


def prompts(lengths: list[int | None]) -> list[Prompt | None]:
    return [None if length is None else prompt(i, length) for i, length in enumerate(lengths)]


def lengths_of(ordered: Iterator[Prompt | None]) -> list[int | None]:
    return [None if item is None else len(item.token_ids) for item in ordered]


@given(lengths=LENGTHS, window=st.integers(1, 12))
def test_every_prompt_comes_out_once(lengths: list[int | None], window: int) -> None:
    given = prompts(lengths)
    ordered = [item for item in in_running_order(given, window=window) if item is not None]
    assert sorted(item.row.index for item in ordered) == [
        item.row.index for item in given if item is not None
    ]


@given(lengths=st.lists(st.integers(1, 9), max_size=40), window=st.integers(1, 12))
def test_each_window_runs_longest_first(lengths: list[int], window: int) -> None:
    ordered = lengths_of(in_running_order(prompts(list(lengths)), window=window))
    windows = [lengths[start : start + window] for start in range(0, len(lengths), window)]
    assert ordered == [n for part in windows for n in sorted(part, reverse=True)]


@given(lengths=LENGTHS, window=st.integers(1, 12))
def test_no_more_than_a_window_is_held(lengths: list[int | None], window: int) -> None:
    taken = given_out = 0

    def source() -> Iterator[Prompt | None]:
        nonlocal taken
        for item in prompts(lengths):
            taken += item is not None
            assert taken - given_out <= window
            yield item

    for item in in_running_order(source(), window=window):
        given_out += item is not None


def test_prompts_of_one_length_keep_their_order() -> None:
    ordered = in_running_order(prompts([3, 5, 3, 5, 3]))
    assert [item.row.index for item in ordered if item] == [1, 3, 0, 2, 4]


def test_a_slow_source_does_not_hold_up_what_is_here() -> None:
    asked: list[int] = []

    def source() -> Iterator[Prompt | None]:
        for number, item in enumerate(prompts([2, 6, None, 4])):
            asked.append(number)
            yield item

    ordered = in_running_order(source())
    assert [len(item.token_ids) for item in (next(ordered), next(ordered)) if item] == [6, 2]
    assert asked == [0, 1, 2]


def test_not_ready_is_passed_on_when_nothing_is_here() -> None:
    assert lengths_of(in_running_order(prompts([None, None, 2, 3, None, None]))) == [
        *(None, None, 3, 2, None)
    ]
