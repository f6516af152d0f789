from __future__ import annotations

from typing import Any

import pytest

from batchrun.report.samples import MOST_CHARACTERS, NUM_SAMPLES, Samples
from tests.report.completions import completion


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


def test_long_texts_are_cut() -> None:
    samples = Samples()
    samples.add(completion(text="a" * 1_000_000, prompt="b" * 1_000_000))
    (sample,) = samples.to_list()

    assert len(sample["answer"]) == len(sample["prompt"]) == MOST_CHARACTERS + 1
