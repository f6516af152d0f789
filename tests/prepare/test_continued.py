"""Where a context ends and its continuation begins."""

from __future__ import annotations

import pytest

from batchrun.errors import RowError
from batchrun.prepare import Preparer
from batchrun.records import Prompt, Request, Row, Sampling
from tests.prepare.conftest import preparer, tokenizer

BOS = 256


def prepared(context: str, continuation: str, using: Preparer | None = None) -> Prompt:
    request = Request(
        Row(0, "in.jsonl", 1), Sampling(max_tokens=0), prompt=context, continuation=continuation
    )
    return (using or preparer()).prepare(request)


def texts(prompt: Prompt) -> tuple[str, str]:
    decode = tokenizer().decode
    return decode(prompt.token_ids), decode(list(prompt.continuation))


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("A b", " c", ("A b", " c")),
        ("A b ", "c", ("A b", " c")),
        ("A:\n\n", "é", ("A:", "\n\né")),
    ],
)
def test_white_space_between_belongs_to_the_continuation(
    context: str, continuation: str, expected: tuple[str, str]
) -> None:
    assert texts(prepared(context, continuation)) == expected


def test_the_context_has_its_bos_and_the_continuation_none() -> None:
    prompt = prepared("A", " b", preparer(adds_bos=True))
    assert prompt.token_ids[0] == BOS
    assert BOS not in prompt.continuation
    assert prompt.num_tokens == 4


@pytest.mark.parametrize("adds_bos", [False, True])
def test_after_an_empty_context_comes_what_begins_a_text(adds_bos: bool) -> None:
    prompt = prepared("", "b", preparer(adds_bos=adds_bos))
    assert prompt.token_ids == [BOS]
    assert texts(prompt)[1] == "b"


def test_keys_tell_contexts_and_continuations_apart() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("ab", "d")]
    assert len({prepared(*pair).key for pair in pairs}) == 3
    assert prepared("a ", "b").key == prepared("a", " b").key


def test_both_together_must_fit_the_context_length() -> None:
    assert prepared("ab", "cd", preparer(context_length=4)).num_tokens == 4
    with pytest.raises(RowError) as caught:
        prepared("ab", "cd", preparer(context_length=3))
    assert caught.value.code == "context_length_exceeded"
