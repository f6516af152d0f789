"""Rows with images whose answers have shapes, or that want labels and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from batchrun.engine import Engine
from batchrun.models.loaded import Features
from batchrun.models.vision import VisionModel
from batchrun.prepare.grammars import Grammars
from batchrun.records import Completion, Prompt, Shape
from tests import seeing, tinyvision
from tests.engine import fakes
from tests.engine.test_vision import asked
from tests.seeing import picture

each_kind = pytest.mark.parametrize("kind", tinyvision.KINDS)
LABELS = Shape("choice", json.dumps(["yes", "no", "maybe"]))


def shaped(path: Path, prompt: Prompt, shape: Shape, label: str | None = None) -> Prompt:
    words = seeing.words(path)
    grammars = Grammars(words.tokenizer, words.eos_token_ids, None)
    request = replace(prompt.request, shape=shape, label=label)  # type: ignore[arg-type]
    choices = grammars.choices(shape) if label else ()
    return replace(prompt, request=request, grammar=grammars.compile(shape), choices=choices)


def scored(prompt: Prompt, top: int) -> Prompt:
    return replace(prompt, request=replace(prompt.request, prompt_logprobs=top))


def rows(path: Path) -> list[Prompt]:
    """The same two images in rows of every kind, and one without."""
    red, blue = picture(60, 60, 1), picture(40, 90, 2)
    digits = Shape("regex", "[0-9]{4}")
    plain = [asked(path, i, media) for i, media in enumerate([[red], [blue], [], [red, blue]])]
    return [
        *plain,
        *(shaped(path, replace_index(p, 4 + i), digits) for i, p in enumerate(plain)),
        *(shaped(path, replace_index(p, 8 + i), LABELS, "also") for i, p in enumerate(plain)),
        *(shaped(path, replace_index(p, 12 + i), LABELS, "only") for i, p in enumerate(plain)),
        *(scored(replace_index(p, 16 + i), 2) for i, p in enumerate(plain)),
    ]


def replace_index(prompt: Prompt, index: int) -> Prompt:
    row = replace(prompt.row, index=index)
    return replace(prompt, request=replace(prompt.request, row=row), key=f"key-{index}")


def logprobs(seer: VisionModel, prompt: Prompt, answer: list[int]) -> mx.array:
    """Before each token of `answer` and after the last, of the whole vocabulary."""
    given = seeing.given(seer, prompt.token_ids, prompt.media)
    caches = seer.make_cache()
    logits = [seer(mx.array([prompt.token_ids]), caches, given)[0, -1]]
    for step, token in enumerate(answer):
        position = None
        if given.positions is not None:
            position = replace(given, embeds=None, positions=given.positions[:, :, -1:] + 1 + step)
            position = replace(position, visual_mask=None, deepstack=None)
        logits.append(seer(mx.array([[token]]), caches, position)[0, -1])
    scores = mx.stack(logits).astype(mx.float32)
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)


@each_kind
def test_images_in_rows_of_every_kind(kind: str, tiny_vision: Callable[[str], Path]) -> None:
    path = tiny_vision(kind)
    seer = seeing.model(path)
    ends = frozenset(seeing.words(path).eos_token_ids)
    finished = fakes.run(Engine(seer, seer.tokenizer.tokenizer, ends, max_num_seqs=7), rows(path))
    done = {item.prompt.row.index: item for item in finished if isinstance(item, Completion)}
    assert sorted(done) == list(range(20))
    encoded = _encoded_together(seer, done[3].prompt)
    for index in range(4):
        assert done[4 + index].text.isdecimal()
        _check_labels(seer, done[8 + index])
        _check_labels(seer, done[12 + index])
        assert done[16 + index].token_ids == done[index].token_ids
        _check_scores(seer, done[16 + index], encoded)
    assert done[8].choice_probs != pytest.approx(done[9].choice_probs)


def _check_labels(seer: VisionModel, item: Completion) -> None:
    weights = []
    for choice in item.prompt.choices:
        scores = logprobs(seer, item.prompt, list(choice.token_ids[:-1]))
        picked = [scores[i, token].item() for i, token in enumerate(choice.token_ids)]
        weights.append(math.exp(sum(picked)))
    assert item.choice_probs == pytest.approx([w / sum(weights) for w in weights], abs=1e-5)


def _encoded_together(seer: VisionModel, prompt: Prompt) -> dict[bytes, Features]:
    """The images as the engine has them: it encodes them in one call, and products of other sizes
    are rounded otherwise, which a model of random weights makes a hundred times as much of."""
    media = [span.media for span in prompt.media]
    return {one.digest: own for one, own in zip(media, seer.encode(media), strict=True)}


def _check_scores(seer: VisionModel, item: Completion, encoded: dict[bytes, Features]) -> None:
    ids = item.prompt.token_ids
    given = seeing.given(seer, ids, item.prompt.media, encoded)
    logits = seer(mx.array([ids]), seer.make_cache(), given)[0, :-1].astype(mx.float32)
    expected = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    assert item.prompt_scores is not None
    assert [score.token_id for score in item.prompt_scores] == ids[1:]
    for score, row in zip(item.prompt_scores, expected, strict=True):
        assert score.logprob == pytest.approx(row[score.token_id], abs=1e-4)
