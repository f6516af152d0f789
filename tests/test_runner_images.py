"""Whole runs over images: the trained sample model answers, so that a mix-up shows."""

from __future__ import annotations

import base64
import json
import random
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

import batchrun
from batchrun.errors import UsageError
from batchrun.report.summary import Summary
from samples.shapes.draw import picture
from samples.shapes.evaluate import held_out
from tests.command import ROOT
from tests.running import computed, read_jsonl, read_parquet, texts, write_jsonl

SAMPLES = ROOT / "samples"
MODEL = SAMPLES / "shapes-vlm"
FLAGS: dict[str, Any] = {"model": str(MODEL), "quiet": True, "max_tokens": 4}
COLOURS = {"red": (214, 40, 40), "blue": (40, 90, 210), "green": (44, 160, 70)}
COLOUR = "Which colour is the circle?"


@pytest.fixture(autouse=True)
def stored_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a prefix store of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(source: Path, output: Path, **flags: Any) -> Summary:
    return batchrun.run(source, output=output, **(FLAGS | flags))


def disc(path: Path, colour: str, size: tuple[int, int] = (84, 84)) -> Path:
    """One disc in the middle of a white picture."""
    image = Image.new("RGB", size, "white")
    width, height = size
    radius = min(width, height) // 4
    box = (width // 2 - radius, height // 2 - radius, width // 2 + radius, height // 2 + radius)
    ImageDraw.Draw(image).ellipse(box, fill=COLOURS[colour])
    image.save(path)
    return path


def row(text: str, *images: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    content = [*parts, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], **more}


def drawn(folder: Path, images: int, number: int) -> dict[str, Any]:
    """A held-out question on so many drawings, with its answer."""
    talk = held_out(images, number)
    names = []
    for place, drawing in enumerate(talk.drawings if talk.images else ()):
        names.append(f"{images}-{number}-{place}.png")
        picture(drawing).save(folder / names[-1])
    parts = iter(names)
    messages = talk.messages(lambda _: {"type": "image_url", "image_url": {"url": next(parts)}})
    return {"messages": messages, "expected": talk.questions[-1].answer, "shown": images}


def test_rows_of_any_number_of_images_together_and_alone(tmp_path: Path) -> None:
    counts = [1] * 60 + [0, 2, 3] * 10
    rows = [drawn(tmp_path, images, number) for number, images in enumerate(counts)]
    random.Random(1).shuffle(rows)
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    run(source, tmp_path / "many.parquet", max_num_seqs=16, keep_all=True)
    run(source, tmp_path / "one.parquet", max_num_seqs=1, no_prefix_cache=True, window=1)
    assert texts(tmp_path / "many.parquet") == texts(tmp_path / "one.parquet")
    answers = [one for one in read_parquet(tmp_path / "many.parquet") if one["shown"] == 1]
    right = sum(one["text"].strip() == one["expected"] for one in answers)
    assert right >= 0.95 * len(answers)


@pytest.mark.parametrize("name", ["shapes.jsonl", "shapes.parquet"])
def test_the_sample_files_are_answered(name: str, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "shapes" / "images", tmp_path / "shapes" / "images")
    source = Path(shutil.copy(SAMPLES / name, tmp_path))
    columns = {"image": "image", "prompt": "{{ question }}"} if name.endswith("parquet") else {}
    summary = run(source, tmp_path / "out.parquet", keep="expected", **columns)
    assert summary.exit_status == 0
    answers = read_parquet(tmp_path / "out.parquet")
    assert sum(one["text"].strip() == one["expected"] for one in answers) >= len(answers) - 1


def test_images_alike_but_for_their_colour_in_one_run_and_the_next(tmp_path: Path) -> None:
    for number, colour in enumerate(COLOURS):
        disc(tmp_path / f"{colour}.png", colour)
        source = write_jsonl(tmp_path / "in.jsonl", [row(COLOUR, f"{colour}.png")])
        run(source, tmp_path / f"{number}.jsonl")
        assert texts(tmp_path / f"{number}.jsonl") == [colour]
    source = write_jsonl(tmp_path / "in.jsonl", [row(COLOUR, f"{one}.png") for one in COLOURS])
    run(source, tmp_path / "all.jsonl")
    assert texts(tmp_path / "all.jsonl") == list(COLOURS)


def test_the_page_shows_a_small_picture_and_what_was_wrong(tmp_path: Path) -> None:
    disc(tmp_path / "red.png", "red", (300, 300))
    rows = [{**row(COLOUR, "red.png"), "label": label} for label in ("red", "green")]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    run(source, tmp_path / "out.parquet", expected="label", metric="choice")
    report = json.loads((tmp_path / "out.report.json").read_text())["figures"]
    (sample,), (wrong,) = report["samples"], report["wrong"]
    (shown,) = sample["images"]
    image = Image.open(BytesIO(base64.b64decode(shown))).convert("RGB")

    assert image.size == (96, 96)
    red, green, blue = image.getpixel((48, 48))
    assert red > 150 > 100 > max(green, blue)
    assert (wrong["expected"], wrong["answer"]) == ("green", "red")
    assert shown in (tmp_path / "out.report.html").read_text()


def test_a_picture_that_changes_under_its_name_is_a_new_row(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [row(COLOUR, "a.png"), row(COLOUR, "b.png")])
    disc(tmp_path / "a.png", "red")
    disc(tmp_path / "b.png", "green")
    assert computed(run(source, tmp_path / "out.parquet")) == 2
    disc(tmp_path / "b.png", "blue")
    assert computed(run(source, tmp_path / "out.parquet")) == 1
    assert texts(tmp_path / "out.parquet") == ["red", "blue"]


def test_a_row_is_not_answered_without_one_of_its_images(tmp_path: Path) -> None:
    disc(tmp_path / "red.png", "red")
    rows = [
        row(COLOUR, "red.png"),
        row("In the second image, which colour is the circle?", "red.png", "gone.png"),
        row(COLOUR, ""),
        row(COLOUR, "../red.png"),
        row(COLOUR, "red.png", max_tokens=3),
    ]
    summary = run(write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet")
    assert summary.exit_status == 3
    assert texts(tmp_path / "out.parquet") == ["red", None, None, None, "red"]
    failed = [one for one in read_parquet(tmp_path / "out.parquet") if one["text"] is None]
    assert "messages[0].content[1]" in failed[0]["error_message"]
    assert "gone.png" in failed[0]["error_message"]


def test_several_questions_on_one_image_encode_it_once_and_never_the_next_night(
    tmp_path: Path,
) -> None:
    for colour in COLOURS:
        disc(tmp_path / f"{colour}.png", colour, (112, 112))
    opening = "Look closely at the drawing and answer with a single word, nothing else at all. "
    asked = [COLOUR, "Is there a red circle?", "How many shapes are there?"]
    rows = [row(opening + text, f"{colour}.png") for colour in COLOURS for text in asked]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    first = run(source, tmp_path / "out.jsonl")
    again = run(source, tmp_path / "out.jsonl", fresh=True)
    assert (first.media.used, first.media.encoded) == (9, 3)
    assert again.media.encoded == 0
    assert again.prompt_tokens.disk > 0
    alone = run(source, tmp_path / "alone.jsonl", max_num_seqs=1, no_prefix_cache=True, window=1)
    assert alone.request_counts.completed == 9
    assert texts(tmp_path / "out.jsonl") == texts(tmp_path / "alone.jsonl")


@pytest.mark.parametrize("flags", [{"image": "picture"}, {"video": ["picture"]}])
def test_columns_of_images_need_a_model_that_sees(tmp_path: Path, flags: dict[str, Any]) -> None:
    rows = [{"picture": "red.png", "word": "a"}]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    with pytest.raises(UsageError, match="needs a model that takes images: leave out --text-only"):
        run(source, tmp_path / "out.parquet", text_only=True, prompt="{{ word }}", **flags)

    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_text_alone_and_a_model_without_its_eyes(tmp_path: Path) -> None:
    disc(tmp_path / "red.png", "red")
    rows = [row("Say one word."), {"prompt": "red"}, row(COLOUR, "red.png")]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    assert run(source, tmp_path / "seeing.jsonl").exit_status == 0
    blind = run(source, tmp_path / "blind.jsonl", text_only=True)
    assert blind.request_counts.failed == 1
    assert texts(tmp_path / "seeing.jsonl")[:2] == texts(tmp_path / "blind.jsonl")[:2]
    error = read_jsonl(tmp_path / "blind.jsonl")[2]["response"]["body"]["error"]
    assert error["code"] == "unsupported_content"
