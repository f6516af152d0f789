"""What an engine looks at comes out of a packed prompt as it went in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchrun.plan import in_running_order
from batchrun.records import (
    Choice,
    Grammar,
    Prefix,
    Prompt,
    Request,
    Row,
    Sampling,
    Shape,
    Thinking,
)
from batchrun.together.prompts import Packer, Unpacker


class Compiled:
    """Stands for a grammar: nothing but what it was compiled from."""

    vocab_size = 0

    def __init__(self, shape: Shape):
        self.shape = shape

    def begin(self) -> Any:
        raise NotImplementedError


def compiled(shape: Shape) -> Grammar:
    return Compiled(shape)


def told(prompts: list[Prompt]) -> list[Prompt]:
    """`prompts` as the other ranks get them."""
    pack, unpack = Packer(), Unpacker(compiled)
    return [unpack(json.loads(json.dumps(pack(prompt)))) for prompt in prompts]


def prompt(token_ids: list[int], **asked: Any) -> Prompt:
    return Prompt(Request(Row(3, "in.jsonl", 4), Sampling()), token_ids, "key", **asked)


def test_all_that_an_engine_looks_at_is_told() -> None:
    sampling = Sampling(
        max_tokens=7, temperature=0.5, stop=("a", "b"), stop_token_ids=(4,), logit_bias=((3, -1.5),)
    )
    shape = Shape("regex", "[a-c]+", "body.guided_regex")
    request = Request(Row(3, "in.jsonl", 4), sampling, label="also", prompt_logprobs=2)
    before = Prompt(
        request,
        [5, 6, 7],
        "a key",
        grammar=Compiled(shape),
        choices=(Choice("yes", (1, 2)),),
        continuation=(8, 9),
        thinking=Thinking((1,), (2, 3), is_open=True, budget=4),
    )

    (after,) = told([before])

    assert after.grammar is not None
    assert after.grammar.shape == shape
    assert after.request.label == "also"
    assert after.request.prompt_logprobs == 2
    assert after.sampling == sampling
    same = replace(before, request=after.request, grammar=after.grammar)
    assert after == same
    assert after.row.file == ""  # what a row came with is nobody else's business


def chain(prefix: Prefix | None) -> list[list[int]]:
    return [prefix.token_ids, *chain(prefix.parent)] if prefix else []


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=12))
def test_prefixes_are_told_once_and_shared_as_before(rows: list[list[int]]) -> None:
    ordered = [p for p in in_running_order(map(prompt, rows), window=5) if p is not None]
    after = told(ordered)

    assert [p.token_ids for p in after] == [p.token_ids for p in ordered]
    assert [chain(p.prefix) for p in after] == [chain(p.prefix) for p in ordered]
    for first, second in zip(range(len(after)), range(1, len(after)), strict=False):
        is_shared = ordered[first].prefix is ordered[second].prefix
        assert (after[first].prefix is after[second].prefix) == is_shared
