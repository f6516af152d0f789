"""When an answer ends, and its text: as if the whole of it were decoded after every token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine.finishing import REPLACEMENT, Ending, Finisher
from batchrun.records import Sampling
from tests import tiny

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
PIECES = st.sampled_from(
    [
        FAMILY,
        "\U0001f44d\U0001f3fd",
        "שלום",
        "日本語",
        "e\u0301",
        "The answer",
        "###",
        "\n\n",
        " ",
        "a",
    ]
)
TEXTS = (
    st.lists(
        PIECES | st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT), max_size=3),
        min_size=1,
        max_size=12,
    )
    .map("".join)
    .filter(bool)
)
SHARED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@cache
def tokenizer(path: Path) -> Any:
    from mlx_lm.tokenizer_utils import load

    return load(path)


def end(
    decoder: Any, token_ids: list[int], eos: frozenset[int] = frozenset(), **fields: Any
) -> tuple[str, Ending, int]:
    """Feed `token_ids` one by one; the text, how it ended, and after how many tokens."""
    finisher = Finisher(decoder, eos)
    sampling = Sampling(**({"max_tokens": len(token_ids)} | fields))
    watcher = finisher.watcher(sampling)
    for count in range(1, len(token_ids) + 1):
        ending = finisher.ending(token_ids[:count], sampling, watcher)
        if ending is not None:
            return *finisher.finish(token_ids[:count], sampling, ending), count
    raise AssertionError("it never ended")


def end_plainly(decoder: Any, token_ids: list[int], stops: list[str]) -> tuple[str, str, int]:
    """The same by decoding everything after every token."""
    for count in range(1, len(token_ids) + 1):
        text = decoder.decode(token_ids[:count], skip_special_tokens=True)
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], "stop", count
    return text, "length", count


@SHARED
@given(data=st.data(), text=TEXTS)
def test_stops_are_found_wherever_tokens_and_characters_are_cut(
    tiny_model: Callable[..., Path], data: st.DataObject, text: str
) -> None:
    decoder = tokenizer(tiny_model("llama"))
    token_ids = decoder.encode(text)
    start = data.draw(st.integers(0, len(text) - 1), label="start")
    size = data.draw(st.integers(1, 6), label="size")
    others = data.draw(st.lists(PIECES, max_size=2), label="other stops")
    stops = [text[start : start + size], *others]
    said, ending, count = end(decoder, token_ids, stop=tuple(stops))
    assert (said, ending.finish_reason, count) == end_plainly(decoder, token_ids, stops)
    if ending.finish_reason == "stop":
        assert ending.stop_reason in stops
        assert text.startswith(said + str(ending.stop_reason))


@SHARED
@given(data=st.data(), text=TEXTS)
def test_text_cut_anywhere_is_what_the_tokenizer_makes_of_it(
    tiny_model: Callable[..., Path], data: st.DataObject, text: str
) -> None:
    decoder = tokenizer(tiny_model("llama"))
    token_ids = decoder.encode(text)
    limit = data.draw(st.integers(1, len(token_ids)), label="max_tokens")
    said, ending, count = end(decoder, token_ids, max_tokens=limit, stop=("never said",))
    assert said == decoder.decode(token_ids[:limit], skip_special_tokens=True)
    assert (ending.finish_reason, count) == ("length", limit)


def test_a_partial_stop_at_the_end_is_part_of_the_text(tiny_model: Callable[..., Path]) -> None:
    decoder = tokenizer(tiny_model("llama"))
    said, ending, _ = end(decoder, decoder.encode("done ##"), stop=("###", "\n\n"))
    assert (said, ending.finish_reason, ending.stop_reason) == ("done ##", "length", None)


@pytest.mark.parametrize(
    ("fields", "said", "reason", "stop_reason", "count"),
    [
        ({}, "abc", "stop", None, 4),
        ({"max_tokens": 4}, "abc", "stop", None, 4),  # the end is the last token allowed
        ({"max_tokens": 3}, "abc", "length", None, 3),
        ({"ignore_eos": True, "max_tokens": 5}, "abcd", "length", None, 5),
        ({"stop_token_ids": "b"}, "a", "stop", "b", 2),
        ({"stop_token_ids": "eos"}, "abc", "stop", "eos", 4),
        ({"stop": ("bc",)}, "a", "stop", "bc", 3),
        ({"stop": ("c", "bc")}, "a", "stop", "bc", 3),  # the earliest in the text
        ({"stop": ("d",), "ignore_eos": True}, "abc", "stop", "d", 5),
    ],
)
def test_ends_of_every_kind(
    tiny_model: Callable[..., Path],
    fields: dict[str, Any],
    said: str,
    reason: str,
    stop_reason: Any,
    count: int,
) -> None:
    decoder = tokenizer(tiny_model("llama"))
    ids = {letter: decoder.encode(letter)[0] for letter in "abcd"} | {"eos": tiny.IM_END}
    if "stop_token_ids" in fields:
        stop_reason = ids[fields["stop_token_ids"]]
        fields = {"stop_token_ids": (stop_reason,)}
    token_ids = [ids[name] for name in ("a", "b", "c", "eos", "d")]
    text, ending, used = end(decoder, token_ids, frozenset([tiny.IM_END]), **fields)
    assert (text, ending.finish_reason, ending.stop_reason, used) == (
        *(said, reason, stop_reason, count),
    )


def test_a_restarted_watcher_starts_from_nothing(tiny_model: Callable[..., Path]) -> None:
    decoder = tokenizer(tiny_model("llama"))
    watcher = Finisher(decoder, frozenset()).watcher(Sampling(stop=("##",)))
    assert watcher is not None
    assert not watcher.found(decoder.encode("a#"))
    again = watcher.restart()
    assert not again.found(decoder.encode("#"))
    assert again.found(decoder.encode("##"))
