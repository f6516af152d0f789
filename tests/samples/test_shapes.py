"""The drawings, their questions, the sample files, and the small vision model trained on them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_vlm
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_vlm.models import activations
from mlx_vlm.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from PIL import Image

from batchrun.engine import fastmath
from samples.shapes import batches, draw, evaluate, forward, rows, train
from samples.shapes.questions import NUMBERS, PLACES, Question, conversation

SAMPLES = Path(__file__).parents[2] / "samples"
MODEL = SAMPLES / "shapes-vlm"
seeds = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return mlx_vlm.load(str(MODEL))


@pytest.fixture(scope="module")
def answer() -> evaluate.Answer:
    return evaluate.answerer(MODEL)


@pytest.fixture(scope="module")
def processor(loaded: tuple[Any, Any]) -> Qwen2VLProcessor:
    return loaded[1]


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """A few steps are over before they would be compiled."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def differentiable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine puts in the place of activations stays for the whole process, and has no
    gradients."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_vlm.models") and vars(module).get("swiglu") is fastmath.swiglu:
            monkeypatch.setattr(module, "swiglu", activations.swiglu)


def weights(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def image_part(_: int) -> dict[str, Any]:
    return {"type": "image"}


def chat_rows() -> list[dict[str, Any]]:
    lines = (SAMPLES / "shapes.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def right_answer(drawings: tuple[draw.Drawing, ...], question: Question) -> str:
    """Read from the drawing that the question's own words name."""
    words = question.text.lower().replace("?", "").split()
    place = next((n for n, name in enumerate(PLACES) if name in words), 0)
    shapes = drawings[place].shapes
    kind = next((word for word in words if word in draw.KINDS), None)
    colour = next((word for word in words if word in draw.COLOURS), None)
    if question.kind == "count":
        return NUMBERS[len(shapes) - 1]
    if question.kind == "exists":
        return "yes" if (colour, kind) in {(s.colour, s.kind) for s in shapes} else "no"
    if question.kind == "colour":
        (answer,) = [shape.colour for shape in shapes if shape.kind == kind]
    else:
        (answer,) = [shape.kind for shape in shapes if shape.colour == colour]
    return answer


@given(seeds)
def test_a_seed_decides_the_drawing(seed: int) -> None:
    one, same, other = (draw.drawing(random.Random(s)) for s in (seed, seed, seed + 1))
    assert one == same != other
    assert draw.picture(one).tobytes() == draw.picture(same).tobytes()


@given(seeds)
def test_shapes_lie_where_and_in_the_colour_that_they_say(seed: int) -> None:
    drawn = draw.drawing(random.Random(seed), stray=40)
    image = draw.picture(drawn)
    down, across = drawn.grid
    for shape in drawn.shapes:
        assert image.getpixel((int(shape.x), int(shape.y))) == shape.rgb
        assert shape.row == int(shape.y / drawn.height * down)
        assert shape.column == int(shape.x / drawn.width * across)
        palette = draw.COLOURS[shape.colour]
        assert all(abs(a - b) <= 40 for a, b in zip(shape.rgb, palette, strict=True))


@given(seeds, st.integers(0, 3))
def test_answers_are_right(seed: int, images: int) -> None:
    talk = conversation(random.Random(seed), images, turns=2)
    assert talk.images == images
    for question in talk.questions:
        assert question.answer == right_answer(talk.drawings, question)


def test_every_answer_is_asked_for() -> None:
    answers = {evaluate.held_out(1, number).questions[0].answer for number in range(500)}
    assert answers == {*draw.COLOURS, *draw.KINDS, *NUMBERS, "yes", "no"}


@given(width=st.integers(40, 300), height=st.integers(40, 300))
def test_cells_are_the_processors(processor: Qwen2VLProcessor, width: int, height: int) -> None:
    made = processor.image_processor(images=[Image.new("RGB", (width, height))])
    assert (made["image_grid_thw"][0, 1:] // 2).tolist() == list(draw.grid(width, height))


@pytest.mark.parametrize("images", range(4))
def test_training_sees_the_prompt_that_generation_sees(
    images: int, processor: Qwen2VLProcessor
) -> None:
    talk = evaluate.held_out(images, 0)
    shown = {"images": [draw.picture(drawn) for drawn in talk.drawings]} if images else {}
    text = processor.apply_chat_template(
        talk.messages(image_part), tokenize=False, add_generation_prompt=True
    )
    prompt = processor(text=text, **shown)["input_ids"].tolist()[0]
    texts = batches.texts([talk], processor, turns=1, first=0)
    assert texts.tokens[0, : len(prompt)].tolist() == prompt
    assert texts.answers_at[0].tolist() == [len(prompt) - 1, len(prompt)]
    answer = processor.tokenizer.decode(texts.answers[0, :1])
    assert answer == talk.questions[0].answer
    assert texts.answers[0, 1] == processor.tokenizer.eos_token_id


@pytest.mark.parametrize("images", [1, 2, 3])
def test_positions_are_those_of_mlx_vlm(images: int, loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    talk = evaluate.held_out(images, 5)
    texts = batches.texts([talk], processor, turns=1, first=0)
    length = int(texts.answers_at[0, -1]) + 1
    grids = mx.array(
        [[1, 2 * down, 2 * across] for down, across in (d.grid for d in talk.drawings)]
    )
    expected, _ = model.language_model.get_rope_index(mx.array(texts.tokens[:, :length]), grids)
    assert texts.positions[:, 0, :length].tolist() == expected[:, 0].tolist()


def test_the_batched_tower_computes_what_mlx_vlms_does(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    drawings = [draw.drawing(random.Random(seed)) for seed in range(5)]
    made = processor.image_processor(images=[draw.picture(drawn) for drawn in drawings])
    expected = model.vision_tower(mx.array(made["pixel_values"]), mx.array(made["image_grid_thw"]))
    padded = batches.pictures(drawings, processor)
    found = forward.features(
        model.vision_tower,
        mx.array(padded.patches),
        mx.array(padded.places),
        mx.array(padded.used),
    )
    cells = np.concatenate([used[::4] for used in padded.used])
    ours = np.array(found).reshape(-1, found.shape[-1])[cells]
    np.testing.assert_allclose(ours, np.array(expected), atol=1e-4)


class Stopped(Exception):
    pass


def test_a_stopped_training_goes_on_to_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncompiled: None, differentiable: None
) -> None:
    monkeypatch.setattr(train, "_REPORT_EVERY", 1)
    monkeypatch.setattr(train, "_SAVE_EVERY", 1)
    phases = [
        train.Phase("tower", 2, 1e-3, 0.5, (0, 2, 0, 0), 24, answers=False),
        train.Phase("answers", 3, 1e-3, 0.5, (1, 2, 1, 1), 24),
    ]

    steps = itertools.count(1)

    def stop_in_the_fourth_step(_: str) -> None:
        if next(steps) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        train.train(phases, tmp_path / "model", tmp_path / "kept", stop_in_the_fourth_step)
    assert not (tmp_path / "model").exists()
    reports: list[str] = []
    train.train(phases, tmp_path / "model", tmp_path / "kept", reports.append)
    assert len(reports) == 2
    train.train(phases, tmp_path / "whole", tmp_path / "other", report=lambda _: None)
    model, whole = (weights(mlx_vlm.load(str(tmp_path / name))[0]) for name in ("model", "whole"))
    assert all(mx.isfinite(array).all() for array in model.values())
    assert all(mx.allclose(model[name], whole[name], atol=1e-5) for name in whole)
    written = {path.name for path in (tmp_path / "model").iterdir()}
    assert written == {path.name for path in MODEL.iterdir()}


def test_the_models_files_are_small(loaded: tuple[Any, Any]) -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 4_000_000
    assert {array.dtype for array in weights(loaded[0]).values()} == {mx.float32}


@pytest.mark.parametrize(
    ("images", "count", "fewest"), [(1, 20, 19), (2, 8, 5), (3, 8, 4), (0, 8, 8)]
)
def test_the_model_answers_drawings_that_it_never_saw(
    images: int, count: int, fewest: int, answer: evaluate.Answer
) -> None:
    talks = [evaluate.held_out(images, number) for number in range(count)]
    assert sum(answer(talk) == talk.questions[0].answer for talk in talks) >= fewest


def test_the_sample_files_are_what_the_script_writes(tmp_path: Path) -> None:
    rows.write(tmp_path)
    assert (tmp_path / "shapes.jsonl").read_text() == (SAMPLES / "shapes.jsonl").read_text()
    pictures = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")}
    assert pictures == {path.relative_to(SAMPLES) for path in SAMPLES.rglob("*.png")}
    for path in pictures:
        assert Image.open(tmp_path / path).tobytes() == Image.open(SAMPLES / path).tobytes()


def test_the_rows_have_none_to_three_images_and_different_answers() -> None:
    counts = [len(images_of(row)) for row in chat_rows()]
    assert set(counts) == {0, 1, 2, 3}
    answers = [row["expected"] for row in chat_rows()]
    assert all(one != other for one, other in itertools.pairwise(answers))


def test_parquet_holds_the_rows_of_one_image_or_none() -> None:
    table = pq.read_table(SAMPLES / "shapes.parquet").to_pylist()
    expected = [row for row in chat_rows() if len(images_of(row)) <= 1]
    assert [row["custom_id"] for row in table] == [row["custom_id"] for row in expected]
    for ours, chat in zip(table, expected, strict=True):
        assert ours["expected"] == chat["expected"]
        assert ours["question"] in json.dumps(chat["messages"])
        stored = [(SAMPLES / url).read_bytes() for url in images_of(chat)]
        assert ([ours["image"]["bytes"]] if ours["image"] else []) == stored


def test_the_model_gives_the_expected_answers(answer: evaluate.Answer) -> None:
    """It finds what is asked for, but does not yet tell the images of one prompt apart."""
    right = {s.name: answer(s.talk) == s.expected for s in rows.samples()}
    several = [s.name for s in rows.samples() if s.talk.images > 1]
    assert all(right[name] for name in right if name not in several)
    assert sum(right[name] for name in several) >= len(several) - 1


def test_a_neighbours_picture_gives_a_wrong_answer(answer: evaluate.Answer) -> None:
    talks = [sample.talk for sample in rows.samples() if sample.talk.images == 1]
    wrong = 0
    for talk, neighbour in zip(talks, [*talks[1:], talks[0]], strict=True):
        mixed_up = dataclasses.replace(talk, drawings=neighbour.drawings)
        wrong += answer(mixed_up) != talk.questions[0].answer
    assert wrong >= len(talks) / 2


def images_of(row: dict[str, Any]) -> list[str]:
    parts = row["messages"][-1]["content"]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
