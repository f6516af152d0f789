"""Rows with images and videos in any company: each as if it were alone, on all shapes of model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import Engine, features, queue
from batchrun.engine.features import CALL_BYTES
from batchrun.models.loaded import Given
from batchrun.models.processor import Clip, Picture
from batchrun.models.vision import VisionModel
from batchrun.plan import in_running_order
from batchrun.records import Completion, Prompt
from tests import seeing, tinyvision
from tests.engine import fakes
from tests.engine.tinymodels import ROUNDING
from tests.prefixes.builders import opened
from tests.seeing import clip, picture

MROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
Vision = Callable[[str], Path]
each_kind = pytest.mark.parametrize("kind", tinyvision.KINDS)
COMPANY = settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def asked(
    path: Path, index: int, media: list[Picture | Clip], text: str = "What?", num_tokens: int = 8
) -> Prompt:
    how = seeing.processor(path)
    processed = seeing.process(how, seeing.ask(how, media, text), media)
    row = fakes.prompt(index, processed.token_ids, max_tokens=num_tokens, ignore_eos=True)
    return replace(row, media=seeing.spans(how, processed, media))


def assert_alone(seer: VisionModel, done: Completion) -> None:
    """The answer is greedy decoding of its prompt alone, ties within rounding aside."""
    ids, answer = done.prompt.token_ids, done.token_ids
    whole = seeing.given(seer, ids, done.prompt.media)
    rest = mx.array([answer[:-1]], dtype=mx.int32)
    caches = seer.make_cache()
    logits = [seer(mx.array([ids]), caches, whole)[0, -1:]]
    if len(answer) > 1:
        after = None
        if whole.positions is not None:
            after = Given(positions=whole.positions[:, :, -1:] + 1 + mx.arange(len(answer) - 1))
        logits.append(seer(rest, caches, after)[0])
    scores = mx.concatenate(logits)
    chosen = mx.take_along_axis(scores, mx.array(answer)[:, None], axis=-1)[:, 0]
    short = mx.max(mx.max(scores, axis=-1) - chosen).item()
    assert short <= ROUNDING, f"row {done.prompt.row.index}: {short} below the best"


def run_all(path: Path, prompts: list[Prompt], **options: object) -> Engine:
    seer = seeing.model(path)
    runner = Engine(seer, seer.tokenizer.tokenizer, **options)
    assert runner.stats.notes == []
    finished = fakes.run(runner, in_running_order(prompts))
    assert sorted(fakes.by_row(finished)) == [row.row.index for row in prompts]
    for done in finished:
        assert isinstance(done, Completion)
        assert len(done.token_ids) == done.prompt.sampling.max_tokens
        assert_alone(seer, done)
    return runner


@cache
def crowd(path: Path) -> list[Prompt]:
    """Rows of none to three images of many sizes, that end soon and late."""
    rng = random.Random(7)
    sizes = [(20, 30), (100, 75), (1, 1), (112, 112), (150, 30), (64, 48), (30, 150), (3, 90)]
    rows = []
    for index in range(14):
        media: list[Picture | Clip] = [
            picture(*rng.choice(sizes), seed=rng.randrange(3)) for _ in range(index % 4)
        ]
        text = "Which colour? " * rng.randint(1, 4)
        rows.append(asked(path, index, media, text, rng.choice([1, 2, 5, 12])))
    return rows


@each_kind
@pytest.mark.parametrize(("num_tokens", "num_seqs"), [(40, 1), (3, 3), (40, 16), (2048, 16)])
def test_rows_of_any_number_of_images_are_as_alone(
    num_tokens: int, num_seqs: int, kind: str, tiny_vision: Vision
) -> None:
    """3 tokens at once are fewer than any image has."""
    path = tiny_vision(kind)
    run_all(path, crowd(path), max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)


@each_kind
def test_answers_are_those_of_mlx_vlm(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    how, seer = seeing.processor(path), seeing.model(path)
    rows: list[list[Picture | Clip]] = [
        [],
        [picture(100, 60)],
        [picture(30, 60), picture(90, 90)],
        [picture(20, 30), picture(100, 100), picture(1, 1)],
    ]
    prompts = [asked(path, index, media) for index, media in enumerate(rows)]
    runner = Engine(seer, seer.tokenizer.tokenizer, max_num_seqs=4)
    answers = fakes.by_row(fakes.run(runner, prompts))
    for index, media in enumerate(rows):
        text = seeing.ask(how, media, "What?")
        assert answers[index] == seeing.upstream_greedy(path, text, media, 8)


@each_kind
@COMPANY
@given(data=st.data())
def test_any_company(kind: str, tiny_vision: Vision, data: st.DataObject) -> None:
    path = tiny_vision(kind)
    size = st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(0, 1))
    rows = data.draw(
        st.lists(
            st.tuples(
                st.lists(size, max_size=3), st.sampled_from(["a", "b " * 9]), st.integers(1, 9)
            ),
            min_size=1,
            max_size=7,
        )
    )
    prompts = [
        asked(path, index, [picture(*one) for one in sizes], text, num_tokens)
        for index, (sizes, text, num_tokens) in enumerate(rows)
    ]
    run_all(
        path,
        prompts,
        max_num_seqs=data.draw(st.integers(1, 16)),
        max_num_batched_tokens=data.draw(st.sampled_from([1, 7, 33, 512])),
    )


@pytest.mark.parametrize("kind", MROPE)
def test_videos_among_images_and_text(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    rows: list[list[Picture | Clip]] = [
        [clip(1)],
        [],
        [clip(5), picture(90, 60)],
        [picture(60, 60), clip(2, 84, 56), clip(4)],
        [picture(30, 30)],
        [clip(3)] * 2,
    ]
    prompts = [asked(path, index, media, "Go on.", 6) for index, media in enumerate(rows)]
    for num_tokens in (5, 2048):
        run_all(path, prompts, max_num_seqs=3, max_num_batched_tokens=num_tokens)


@each_kind
def test_questions_on_one_image_compute_it_once(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    questions = ["What?", "Which colour is it?", "How many are there, and where?", "Why?"]
    shown = [[picture(100, 90, seed)] for seed in (0, 1)]
    prompts = [
        asked(path, 4 * number + index, [*media], text)
        for number, media in enumerate(shown)
        for index, text in enumerate(questions)
    ]
    runner = run_all(path, prompts, max_num_seqs=8)
    image = prompts[0].media[0]
    assert runner.stats.media_encoded == 2
    assert runner.stats.cached_tokens >= 2 * 3 * image.end


@each_kind
def test_images_of_one_size_are_not_taken_for_each_other(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    red, blue = picture(60, 60, 1), picture(60, 60, 2)
    pairs: list[list[Picture | Clip]] = [[red, blue], [blue, red], [red, red], [blue, blue]]
    prompts = [asked(path, index, media) for index, media in enumerate([*pairs, [red], [blue]])]
    assert len({tuple(row.token_ids) for row in prompts}) == 2
    run_all(path, prompts, max_num_seqs=6)


@each_kind
def test_an_image_is_found_on_disk_by_the_next_run(
    kind: str, tiny_vision: Vision, tmp_path: Path
) -> None:
    path = tiny_vision(kind)
    media: list[Picture | Clip] = [picture(112, 112), picture(112, 100)]
    texts = ["What is it?", "Which?", "How many of them?"]
    prompts = [asked(path, index, media, text) for index, text in enumerate(texts)]
    for is_again in (False, True):
        with opened(tmp_path) as store:
            runner = run_all(path, prompts, store=store)
            found = runner.stats.disk_tokens
        assert (found > 0) == is_again
    assert found >= prompts[0].media[-1].end
    assert runner.stats.media_encoded == 0
    with opened(tmp_path) as store:
        other: list[Picture | Clip] = [picture(112, 112, 5), picture(112, 100, 5)]
        strangers = [asked(path, index, other, text) for index, text in enumerate(texts)]
        assert run_all(path, strangers, store=store).stats.media_encoded == 2


@each_kind
def test_features_that_are_forgotten_change_nothing(
    kind: str, tiny_vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchrun.engine.features.MAX_BYTES", 1)
    path = tiny_vision(kind)
    run_all(path, crowd(path)[:8], max_num_seqs=3, max_num_batched_tokens=16)


@pytest.mark.parametrize(("pixels", "num_calls"), [(CALL_BYTES, 2), (1, 16)])
def test_images_of_rows_that_wait_are_encoded_along(
    pixels: int, num_calls: int, tiny_vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows at once, with room for eight that wait, each with an image of its own."""
    for room in (features, queue):
        monkeypatch.setattr(room, "CALL_BYTES", pixels)
    encode, calls = VisionModel.encode, []
    monkeypatch.setattr(
        VisionModel, "encode", lambda self, media: calls.append(media) or encode(self, media)
    )
    path = tiny_vision("qwen2_vl")
    prompts = [asked(path, index, [picture(60, 60, seed=index)]) for index in range(16)]
    seer = seeing.model(path)
    runner = Engine(seer, seer.tokenizer.tokenizer, max_num_seqs=2)
    assert len(fakes.run(runner, prompts)) == 16
    assert [len(call) for call in calls] == [16 // num_calls] * num_calls
