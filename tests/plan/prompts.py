"""Prompts with shared structure, for the tests of this room."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from batchrun.records import Prefix, Prompt, Request, Row, Sampling

# Blocks that prompts are made of: each of one repeated token, shorter and longer than what pays.
LENGTHS = (1, 3, 15, 16, 17, 33, 60)


def prompt(index: int, token_ids: list[int], sampling: Sampling | None = None) -> Prompt:
    request = Request(Row(index, "in.jsonl", index + 1), sampling or Sampling(), prompt=token_ids)
    return Prompt(request, token_ids, key=f"key-{index}")


def prompts(sequences: Sequence[list[int]]) -> list[Prompt]:
    return [prompt(index, token_ids) for index, token_ids in enumerate(sequences)]


def block(number: int, length: int | None = None) -> list[int]:
    return [1000 + number] * (length or LENGTHS[number])


def token_ids(
    lengths: Sequence[int] = LENGTHS, *, max_blocks: int = 5
) -> st.SearchStrategy[list[int]]:
    """Sequences of blocks, so that beginnings are shared, nested, equal and whole prompts."""
    numbers = st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=max_blocks)
    return numbers.map(lambda chosen: [id_ for n in chosen for id_ in block(n, lengths[n])])


def path(prefix: Prefix | None) -> list[Prefix]:
    """A prefix and all above it, the longest first."""
    found = []
    while prefix is not None:
        found.append(prefix)
        prefix = prefix.parent
    return found
