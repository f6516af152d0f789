"""The forecast: its figures are those of the order that the run itself takes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from batchrun.plan import Forecast, Group, forecast, in_running_order
from batchrun.records import Prefix, Prompt, Sampling
from tests.plan.prompts import block, path, prompt, prompts, token_ids

SEQUENCES = st.lists(token_ids(), max_size=25)


def length(prefix: Prefix | None) -> int:
    return len(prefix.token_ids) if prefix else 0


def asking(sequences: list[list[int]], sampling: Sampling | None = None) -> list[Prompt]:
    """Prompts with one key for each sequence of tokens."""
    made = (prompt(index, ids, sampling) for index, ids in enumerate(sequences))
    return [replace(one, key=str(one.token_ids)) for one in made]


@given(SEQUENCES, st.integers(1, 30))
def test_every_token_is_computed_shared_or_repeated(
    sequences: list[list[int]], window: int
) -> None:
    planned = forecast(asking(sequences), window=window)

    assert planned.rows == len(sequences)
    assert planned.prompt_tokens == sum(map(len, sequences))
    assert planned.prompt_tokens == (
        planned.computed_tokens + planned.shared_tokens + planned.duplicate_tokens
    )
    assert planned.duplicates == len(sequences) - len(set(map(tuple, sequences)))


@given(SEQUENCES, st.integers(1, 30))
def test_computed_are_each_prefix_once_and_what_follows_it(
    sequences: list[list[int]], window: int
) -> None:
    ordered = [p for p in in_running_order(prompts(sequences), window=window) if p is not None]
    prefixes = {prefix for one in ordered for prefix in path(one.prefix)}
    computed = sum(len(one.token_ids) - length(one.prefix) for one in ordered)
    computed += sum(length(prefix) - length(prefix.parent) for prefix in prefixes)

    assert forecast(prompts(sequences), window=window).computed_tokens == computed


@given(SEQUENCES, st.integers(1, 30))
def test_the_groups_make_up_what_is_shared(sequences: list[list[int]], window: int) -> None:
    planned = forecast(prompts(sequences), window=window)
    savings = [group.saved_tokens for group in planned.largest]

    assert len(planned.largest) == min(5, planned.num_groups)
    assert savings == sorted(savings, reverse=True)
    assert sum(savings) <= planned.shared_tokens
    assert planned.num_groups > 5 or sum(savings) == planned.shared_tokens


def test_nested_groups_count_all_their_prompts_and_show_what_is_theirs() -> None:
    system, documents = block(1, 40), (block(2, 100), block(3, 300))
    sequences = [[*system, *text, row] for text in documents for row in range(10)]
    planned = forecast(prompts(sequences))

    assert planned.num_groups == 3
    assert planned.largest == (
        Group(10, 340, 9 * 300, block(3, 32)),
        Group(10, 140, 9 * 100, block(2, 32)),
        Group(20, 40, 19 * 40, block(1, 32)),
    )


def test_a_prefix_that_comes_back_in_a_later_window_is_one_group_computed_twice() -> None:
    sequences = [[*block(1, 100), row] for row in range(10)]
    planned = forecast(prompts(sequences), window=5)

    assert planned.largest == (Group(10, 100, 8 * 100, block(1, 32)),)
    assert planned.computed_tokens == 2 * 100 + 10


def test_only_a_request_whose_answer_is_settled_is_a_duplicate() -> None:
    def duplicates(sampling: Sampling) -> int:
        return forecast(asking([[1, 2], [1, 2], [1, 3]], sampling)).duplicates

    assert duplicates(Sampling()) == 1
    assert duplicates(Sampling(temperature=1.0, seed=5)) == 1
    assert duplicates(Sampling(temperature=1.0)) == 0


def test_a_duplicate_is_not_run() -> None:
    planned = forecast(asking([block(1, 100)] * 3))

    assert (planned.duplicate_tokens, planned.computed_tokens) == (200, 100)
    assert planned.num_groups == 0


def test_other_numbers_of_choices_are_other_requests() -> None:
    one, two = asking([[1, 2]]), asking([[1, 2]], Sampling(n=2))

    assert forecast([*one, *two, *one]).duplicates == 1


def test_no_rows() -> None:
    assert forecast([]) == Forecast(0, 0, 0, 0, 0, 0, 0, ())
