from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from batchrun.records import Result
from batchrun.report.samples import (
    MOST_CHARACTERS,
    MOST_IMAGES,
    NUM_SAMPLES,
    Samples,
    WrongAnswers,
)
from tests.report.completions import completion
from tests.sink.builders import make_answer, make_row


def sampled(count: int) -> list[dict[str, Any]]:
    samples = Samples()
    for index in range(count):
        samples.add(completion(index, text=f"answer {index}"))
    return samples.to_list()


def test_few_answers_are_all_there_in_order() -> None:
    assert [sample["answer"] for sample in sampled(3)] == ["answer 0", "answer 1", "answer 2"]


def test_of_many_a_few_are_kept_from_everywhere() -> None:
    rows = [int(sample["answer"].split()[1]) for sample in sampled(10_000)]

    assert len(rows) == NUM_SAMPLES
    assert rows == sorted(rows)
    assert rows[0] < 5_000 < rows[-1]


def test_the_same_run_shows_the_same_samples() -> None:
    assert sampled(1_000) == sampled(1_000)


PARTS = [{"type": "text", "text": "one"}, {"type": "image_url"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"messages": [{"role": "system", "content": "be"}, {"content": "hi"}]}, "hi"),
        ({"messages": [{"role": "user", "content": PARTS}]}, "one\ntwo"),
        ({"messages": [{"role": "assistant", "content": None}]}, ""),
        ({"prompt": "go on"}, "go on"),
        ({"prompt": [1, 2]}, "(token ids)"),
    ],
)
def test_the_prompt_shown_is_what_was_asked_last(asked: dict[str, Any], shown: str) -> None:
    samples = Samples()
    samples.add(completion(**asked))

    assert samples.to_list()[0]["prompt"] == shown


def test_what_a_row_showed_is_there_as_small_images() -> None:
    samples = Samples()
    samples.add(completion(thumbnails=[b"one", b"", *[b"two"] * MOST_IMAGES]))
    (sample,) = samples.to_list()

    assert len(sample["images"]) == MOST_IMAGES
    assert [base64.b64decode(each) for each in sample["images"][:2]] == [b"one", b"two"]


def judged(index: int, correct: bool | None, **kept: Any) -> Result:
    row = make_row(index, kept={"label": "x", **kept})
    return Result(row, make_answer(f"k{index}", text=f"no {index}"), correct=correct)


def test_wrong_answers_are_shown_beside_what_was_expected() -> None:
    wrong = WrongAnswers()
    for index, correct in enumerate((True, False, None)):
        wrong.add(judged(index, correct, id=7, empty=None), "label")

    assert wrong.to_list() == [
        {"row": "in.jsonl:2", "columns": {"id": "7"}, "expected": "x", "answer": "no 1"}
    ]


def test_of_many_wrong_answers_and_columns_a_few_are_kept() -> None:
    wrong = WrongAnswers()
    for index in range(1_000):
        wrong.add(
            judged(index, False, **{f"c{n}" * 1_000: "v" * 1_000 for n in range(50)}), "label"
        )
    kept = wrong.to_list()

    assert len(kept) == NUM_SAMPLES
    assert len(json.dumps(kept)) < 80_000


def test_long_texts_are_cut() -> None:
    samples = Samples()
    samples.add(completion(text="a" * 1_000_000, prompt="b" * 1_000_000))
    (sample,) = samples.to_list()

    assert len(sample["answer"]) == len(sample["prompt"]) == MOST_CHARACTERS + 1
