"""Shared prefixes: what may be one, which are chosen, and that nothing cheaper was missed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from itertools import chain, combinations
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from batchrun.plan import tree
from batchrun.plan.tree import MIN_TOKENS, PREFIX_COST, shared_prefixes
from batchrun.records import Prefix
from tests.plan.prompts import block, path, token_ids

Beginning = tuple[int, ...]
SEQUENCES = st.lists(token_ids(), max_size=25)


def lengths(found: Iterable[Prefix | None]) -> list[int | None]:
    return [None if prefix is None else len(prefix.token_ids) for prefix in found]


def cost(sequences: list[list[int]], beginnings: Iterable[Beginning], per_prefix: int) -> int:
    """Tokens to compute with these prefixes, each computed from the longest other one it has."""
    kept = set(beginnings)

    def beyond(tokens: list[int] | Beginning, at_most: int) -> int:
        inside = (n for n in range(at_most, 0, -1) if tuple(tokens[:n]) in kept)
        return len(tokens) - next(inside, 0)

    shared = sum(per_prefix + beyond(beginning, len(beginning) - 1) for beginning in kept)
    return shared + sum(beyond(tokens, len(tokens) - 1) for tokens in sequences)


def cost_of(sequences: list[list[int]], found: list[Prefix | None], per_prefix: int) -> int:
    kept = {tuple(prefix.token_ids) for one in found for prefix in path(one)}
    return cost(sequences, kept, per_prefix)


def common(sequences: list[list[int]]) -> set[Beginning]:
    """Every beginning of two sequences or more that leaves each a token."""
    counts = Counter(tuple(ids[:n]) for ids in sequences for n in range(1, len(ids)))
    return {beginning for beginning, count in counts.items() if count > 1}


def partings(sequences: list[list[int]]) -> set[Beginning]:
    """What pairs of sequences have in common."""
    return {
        max(common([one, other]), key=len, default=()) for one, other in combinations(sequences, 2)
    }


def inside(beginning: Beginning, others: Iterable[Beginning]) -> list[Beginning]:
    """Those that are a beginning of this one."""
    return [one for one in others if len(one) < len(beginning) and beginning[: len(one)] == one]


def subsets(items: Iterable[Beginning]) -> Iterable[tuple[Beginning, ...]]:
    ordered = sorted(items)
    return chain.from_iterable(combinations(ordered, n) for n in range(len(ordered) + 1))


@given(SEQUENCES)
def test_a_prefix_is_a_beginning_that_leaves_a_token(sequences: list[list[int]]) -> None:
    for tokens, prefix in zip(sequences, shared_prefixes(sequences), strict=True):
        for shared in path(prefix):
            assert len(shared.token_ids) < len(tokens)
            assert shared.token_ids == tokens[: len(shared.token_ids)]


@given(SEQUENCES)
def test_a_prefix_is_long_enough_and_longer_than_its_parent(sequences: list[list[int]]) -> None:
    for prefix in shared_prefixes(sequences):
        sizes = [len(shared.token_ids) for shared in path(prefix)]
        assert all(a - b >= MIN_TOKENS for a, b in zip(sizes, [*sizes[1:], 0], strict=False))


@given(SEQUENCES)
def test_a_prefix_is_one_object_that_knows_its_prompts(sequences: list[list[int]]) -> None:
    found = shared_prefixes(sequences)
    everyone = {prefix for one in found for prefix in path(one)}
    counts = Counter(found)

    assert len({tuple(prefix.token_ids) for prefix in everyone}) == len(everyone)
    assert all(prefix.num_prompts == counts[prefix] for prefix in everyone)


@given(SEQUENCES)
def test_at_least_two_share_a_prefix(sequences: list[list[int]]) -> None:
    below = Counter(prefix for one in shared_prefixes(sequences) for prefix in path(one))
    assert all(count >= 2 for count in below.values())


@given(SEQUENCES, st.randoms())
def test_the_order_of_prompts_changes_nothing(
    sequences: list[list[int]], chance: random.Random
) -> None:
    order = list(range(len(sequences)))
    chance.shuffle(order)
    shuffled = lengths(shared_prefixes([sequences[index] for index in order]))

    assert shuffled == [lengths(shared_prefixes(sequences))[index] for index in order]


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=5),
    st.integers(0, 5),
)
def test_no_set_of_prefixes_is_cheaper(sequences: list[list[int]], per_prefix: int) -> None:
    with patch.multiple(tree, MIN_TOKENS=1, PREFIX_COST=per_prefix):
        found = shared_prefixes(sequences)
    assert cost_of(sequences, found, per_prefix) == min(
        cost(sequences, kept, per_prefix) for kept in subsets(common(sequences))
    )


@given(st.lists(token_ids((20, 35, 60, 90), max_blocks=3), max_size=9))
def test_no_prefixes_without_parents_are_cheaper(sequences: list[list[int]]) -> None:
    def alone(kept: tuple[Beginning, ...]) -> int:
        nested = cost(sequences, kept, PREFIX_COST)
        return nested + sum(max(map(len, inside(one, kept)), default=0) for one in kept)

    places = {one for one in partings(sequences) if len(one) >= MIN_TOKENS}
    found = cost_of(sequences, shared_prefixes(sequences), PREFIX_COST)
    assert found <= min(map(alone, subsets(places)))


def test_an_instruction_is_one_prefix_though_some_rows_go_on_alike() -> None:
    instruction = block(1, 405)
    sequences = [
        [*instruction, 7, 8, pair, *block(row, 25)] for pair in range(32) for row in (2, 3)
    ]
    found = shared_prefixes(sequences)

    assert lengths(found) == [407] * 64
    sequences = [
        [*instruction, pair, pair, pair, *block(row, 25)] for pair in range(32) for row in (2, 3)
    ]
    assert lengths(shared_prefixes(sequences)) == [405] * 64


def test_a_large_group_is_not_divided_for_a_token_more() -> None:
    sequences = [
        [*block(1, 405), digit, row, *block(2)] for digit in range(9) for row in range(500)
    ]
    found = shared_prefixes(sequences)

    assert set(lengths(found)) == {405}
    assert len(set(found)) == 1


def test_a_row_that_parts_early_does_not_shorten_what_the_others_share() -> None:
    sequences = [[*block(1, 395), row] for row in range(2)]
    sequences += [[*block(1, 395), *block(2, 10), row, 9] for row in range(100)]

    assert lengths(shared_prefixes(sequences)) == [None] * 2 + [405] * 100


def test_few_shot_blocks_are_nested_in_their_system_prompt() -> None:
    system, shots = block(1, 60), [block(2 + subject, 500) for subject in range(57)]
    sequences = [[*system, *shot, question, 9] for shot in shots for question in range(20)]
    found = shared_prefixes(sequences)
    subjects = {prefix for prefix in found if prefix}
    parents = {prefix.parent for prefix in subjects}

    assert set(lengths(subjects)) == {560}
    assert lengths(parents) == [60]
    assert [prefix.num_prompts for prefix in subjects] == [20] * 57
    assert [prefix.num_prompts for prefix in parents if prefix] == [0]


def test_a_system_prompt_that_saves_little_is_left_out() -> None:
    sequences = [[*block(1, 20), *block(subject), row, 9] for subject in (5, 6) for row in range(9)]

    assert set(lengths(shared_prefixes(sequences))) == {53, 80}


def test_two_rows_share_what_costs_more_than_a_prefix() -> None:
    for length, expected in ((PREFIX_COST, None), (PREFIX_COST + 1, PREFIX_COST + 1)):
        sequences = [[*block(1, length), row] for row in range(2)]
        assert lengths(shared_prefixes(sequences)) == [expected] * 2


def test_equal_prompts_share_all_but_the_last_token() -> None:
    assert lengths(shared_prefixes([block(1, 100)] * 3)) == [99] * 3


def test_a_prompt_that_others_continue_shares_all_but_its_last_token() -> None:
    sequences = [block(1, 100), *([*block(1, 100), *block(2), row] for row in range(2))]

    assert lengths(shared_prefixes(sequences)) == [99, 99, 99]


def test_prompts_that_each_continue_the_last_are_no_matter_of_recursion() -> None:
    sequences = [block(1, length) for length in range(20, 1500)]
    found = shared_prefixes(sequences)
    depth = max(len(path(prefix)) for prefix in found)

    assert depth > 50
    assert cost_of(sequences[-3:], found[-3:], 0) < 2000
