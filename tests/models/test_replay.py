"""Pictures that earlier rows had: the same rows as from mlx-vlm, without processing them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from batchrun.models.parts import Part, Processed
from batchrun.models.processor import Picture, Processor
from batchrun.models.replay import Replay
from tests import tinyvision
from tests.seeing import picture, processor, upstream_inputs

Vision = Callable[[str], Path]

# Gemma 3 has line feeds around an image, which go together with those of the text.
REPLAYING = tuple(kind for kind in tinyvision.KINDS if kind != "gemma3")
POOL = [picture(60, 40), picture(120, 80), picture(30, 90), picture(60, 40, seed=1)]
TEXTS = ("", " ", "\n", "\n\n", "What is this?", " and ", "é", "<", "im", "ns\n", ">|", "中文 b")

contents = st.lists(st.sampled_from([*range(len(POOL)), *TEXTS]), max_size=7)


def render(how: Processor, content: list[int | str]) -> tuple[str, list[Picture]]:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": one} if isinstance(one, str) else {"type": "image"}
        for one in content
    ]
    text = how.render([{"role": "user", "content": parts}], add_generation_prompt=True)
    return text, [POOL[one] for one in content if isinstance(one, int)]


def same(one: Processed, other: Processed) -> bool:
    assert one.token_ids == other.token_ids
    for part, wanted in zip(one.parts, other.parts, strict=True):
        assert (part.start, part.end, part.sources) == (wanted.start, wanted.end, wanted.sources)
        assert part.inputs.keys() == wanted.inputs.keys()
        for name, array in part.inputs.items():
            assert array.dtype == wanted.inputs[name].dtype
            assert np.array_equal(array, wanted.inputs[name]), name
    return True


@pytest.mark.parametrize("kind", tinyvision.KINDS)
@given(rows=st.lists(contents.filter(lambda row: any(isinstance(p, int) for p in row)), max_size=4))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_those_of_mlx_vlm_whatever_came_before(
    kind: str, rows: list[list[int | str]], tiny_vision: Vision
) -> None:
    how = processor(tiny_vision(kind))
    for row in rows:
        text, pictures = render(how, row)
        for _ in range(2):
            processed = how.process(text, pictures, [])
            assert same(processed, how._processed(text, pictures, []))
        upstream = upstream_inputs(tiny_vision(kind), text, [*pictures])
        assert processed.token_ids == upstream["input_ids"][0].tolist()


class Counted:
    """Counts how often the model's processor runs."""

    def __init__(self, how: Processor, monkeypatch: pytest.MonkeyPatch):
        self.count = 0
        run = how._run

        def counting(*given: Any) -> Any:
            self.count += 1
            return run(*given)

        monkeypatch.setattr(how, "_run", counting)

    def of(self, work: Callable[[], Any]) -> int:
        self.count = 0
        work()
        return self.count


@pytest.mark.parametrize("kind", tinyvision.KINDS)
@pytest.mark.parametrize("numbers", [(0,), (0, 1), (1, 2, 1)])
def test_pictures_at_hand_are_not_processed_again(
    kind: str, numbers: tuple[int, ...], tiny_vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = processor(tiny_vision(kind))
    for question in ("one", "two", "three"):
        text, pictures = render(how, [*numbers, question])
        how.process(text, pictures, [])
    counted = Counted(how, monkeypatch)
    text, pictures = render(how, ["Look: ", *numbers[::-1], " what?"])
    runs = counted.of(lambda: how.process(text, pictures, []))
    assert (runs == 0) is (kind in REPLAYING)


@pytest.mark.parametrize("kind", REPLAYING)
def test_a_new_picture_among_known_ones_is_processed(
    kind: str, tiny_vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = processor(tiny_vision(kind))
    for _ in range(3):
        how.process(*render(how, [0, 1, "what?"]), [])
    text, pictures = render(how, [0, 1, "what?"])
    new = [pictures[0], picture(50, 50, seed=7)]
    counted = Counted(how, monkeypatch)
    assert counted.of(lambda: how.process(text, new, []))
    assert same(how.process(text, new, []), how._processed(text, new, []))


@pytest.mark.parametrize("kind", REPLAYING)
def test_known_pictures_do_not_hide_words_of_the_models_own(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    for _ in range(4):
        how.process(*render(how, [0, "what?"]), [])
    word = sorted(how._image_markers.tokens)[0]
    with pytest.raises(ValueError, match="must not have such words"):
        how.process(*render(how, [0, f"what is {word}?"]), [])


WORDS = ("<image>", "<row>", "<end>")


def replay(*added: AddedToken, kept_bytes: int = 10**6, word: str = "<image>") -> Replay:
    """Over a tokenizer whose ids are those of characters, WORDS and `added`."""
    vocabulary = {chr(code): code for code in range(128)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    given = {token.content for token in added}
    rest = [AddedToken(word, normalized=False) for word in WORDS if word not in given]
    tokenizer.add_special_tokens([*rest, *added])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return Replay(fast, frozenset({word}), adds_special_tokens=True, kept_bytes=kept_bytes)


def row(how: Replay, text: str, *sizes: int, fill: int = 0) -> Processed:
    """What a processor makes of `text`: as many rows for each image as given, and an end."""
    backend = how._tokenizer
    assert backend is not None
    pieces = text.split("<image>")
    ids: list[int] = backend.encode(pieces[0]).ids
    parts = []
    for source, (size, piece) in enumerate(zip(sizes, pieces[1:], strict=True)):
        start = len(ids)
        ids += backend.encode("<row>" * size + "<end>").ids + backend.encode(piece).ids
        parts.append(Part(start, start + size, (source,), {"pixels": np.full((size, 4), fill)}))
    return Processed(ids, parts)


def taught(how: Replay, times: int = 3, text: str = "a<image>b") -> Replay:
    for _ in range(times):
        how.learn(text, [b"x"], row(how, text, 2), how.place(text, [b"x"]))
    return how


def test_a_picture_takes_its_words_place_in_another_text() -> None:
    how = taught(replay())
    placed = how.place("other<image> <", [b"x"])
    assert how.is_trusted(1)
    assert placed is not None
    assert same(placed, row(how, "other<image> <", 2))


def test_pictures_are_trusted_only_after_trials_of_each_number() -> None:
    how = taught(replay(), times=2)
    assert not how.is_trusted(1)
    assert taught(how, times=1).is_trusted(1)
    assert not how.is_trusted(2)
    assert how.place("<image><image>", [b"x", b"x"]) is None


def test_pictures_of_several_sizes_are_told_apart() -> None:
    how = replay()
    how.learn("<image>,<image>", [b"x", b"y"], row(how, "<image>,<image>", 2, 5), None)
    placed = how.place("<image><image>.", [b"y", b"x"])
    assert placed is not None
    assert same(placed, row(how, "<image><image>.", 5, 2))


@pytest.mark.parametrize("kind", ["token", "place", "pixel"])
def test_one_difference_ends_it(kind: str) -> None:
    how = taught(replay())
    real = row(how, "c<image>", 2, fill=kind == "pixel")
    if kind == "token":
        real.token_ids[0] += 1
    if kind == "place":
        real.parts[0] = Part(2, 3, (0,), real.parts[0].inputs)
    how.learn("c<image>", [b"x"], real, how.place("c<image>", [b"x"]))
    assert how.place("a<image>b", [b"x"]) is None
    taught(how)
    assert how.place("a<image>b", [b"x"]) is None


@pytest.mark.parametrize(
    "token",
    [
        *(AddedToken("<image>", normalized=False, **{name: True}) for name in ("lstrip", "rstrip")),
        AddedToken("<image>", normalized=False, single_word=True),
        AddedToken("<image>", normalized=True),
        AddedToken("<end>", normalized=False, rstrip=True),
        AddedToken("an<", normalized=False),
        AddedToken("<image>s", normalized=False),
        AddedToken("a <end>", normalized=False),
    ],
    ids=str,
)
def test_tokens_that_look_at_what_is_beside_them_are_not_replaced(token: AddedToken) -> None:
    text = "a <image> b" if token.single_word else "a<image>b"
    assert taught(replay(token), text=text).place(text, [b"x"]) is None


@pytest.mark.parametrize("text", ["ab", "<image><image>"])
def test_a_text_with_another_number_of_places_is_left_to_the_processor(text: str) -> None:
    assert taught(replay()).place(text, [b"x"]) is None


def test_a_word_that_is_no_token_is_not_replaced() -> None:
    assert taught(replay(word="[image]")).place("a<image>b", [b"x"]) is None


def test_what_is_kept_keeps_to_its_bytes() -> None:
    how = replay(kept_bytes=200)
    for digest in (b"x", b"y", b"z", b"x"):
        how.learn("<image>", [digest], row(how, "<image>", 3), how.place("<image>", [digest]))
    assert [how.place("<image>", [digest]) is not None for digest in (b"x", b"y", b"z")] == [
        *(True, False, True)
    ]
