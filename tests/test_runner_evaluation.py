"""Runs that are evaluated: the figures in summary, report and output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchrun.errors import UsageError
from batchrun.report.render import render
from batchrun.report.summary import Summary
from tests.running import read_jsonl, read_parquet

ROWS = [{"word": word, "label": label} for word, label in (("a", "x"), ("b", "y"), ("c", None))]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def labelled(run: Callable[..., Summary], rows: list[dict[str, Any]], **flags: Any) -> Summary:
    return run(rows, prompt="say {{ word }}", expected="label", **flags)


def test_answers_are_judged_again_when_they_are_reused(
    run: Callable[..., Summary], output: Path
) -> None:
    first = labelled(run, ROWS)
    texts = [row["text"] for row in read_parquet(output)]
    assert first.evaluation is not None
    assert (first.evaluation.scored, first.evaluation.not_scored) == (2, 1)
    right = [dict(row, label=text) for row, text in zip(ROWS, texts, strict=True)]
    right[1]["label"] = f"{texts[1]} and more"
    second = labelled(run, right)

    assert second.evaluation is not None
    assert (second.evaluation.correct, second.evaluation.scored) == (2, 3)
    assert second.request_counts.reused == 3
    assert [row["correct"] for row in read_parquet(output)] == [True, False, True]
    assert "correct   2 of 3 (exact), 66.7 %, 95 % interval 20.8 to 93.9" in render(second)
    report = json.loads(output.with_name("out.report.json").read_text())
    assert report["evaluation"]["accuracy"] == pytest.approx(2 / 3)
    page = output.with_name("out.report.html").read_text()
    assert "66.7 %" in page


def test_lines_say_what_is_correct(run: Callable[..., Summary], output: Path) -> None:
    labelled(run, ROWS, format="jsonl")
    choices = [line["response"]["body"]["choices"][0] for line in read_jsonl(output)]

    assert [choice.get("correct") for choice in choices] == [False, False, None]


def test_a_choice_has_classes_on_the_page(run: Callable[..., Summary], output: Path) -> None:
    labelled(run, [*ROWS, {"word": "d", "label": "<b>x"}], metric="choice")
    page = output.with_name("out.report.html").read_text()

    assert "Which classes were found" in page
    assert "&lt;b&gt;x" in page
    assert "<b>x" not in page


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"metric": "numeric"}, "--metric needs --expected"), ({"metric": "bleu"}, "must be one of")],
)
def test_flags_that_cannot_be(
    run: Callable[..., Summary], flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(ROWS, prompt="{{ word }}", **flags)
