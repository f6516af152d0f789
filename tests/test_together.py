"""One model over two ranks, as mlx.launch starts them on one machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from tests import running
from tests.command import answers
from tests.launched import MLX_LAUNCH, Launched

pytestmark = pytest.mark.skipif(not MLX_LAUNCH.exists(), reason="there is no mlx.launch here")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
# Four rows that are soon done, and more that keep a run busy until it is interrupted.
SHORT_THEN_LONG = [
    {"prompt": f"row {row:02}", "max_tokens": 4 if row < 4 else 150, "ignore_eos": True}
    for row in range(16)
]


def varied() -> list[dict[str, Any]]:
    """Rows after one of two instructions or none: greedy, drawn, after grammars, with scores."""
    asked: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": 2},
        {"temperature": 0.9, "seed": 5, "n": 2},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"repetition_penalty": 1.3, "stop": ["e", "a"]},
    ]
    systems = ["Answer with one word. " * 6, "The system reads the question. " * 5, "Go."]
    return [
        {
            "messages": [
                {"role": "system", "content": systems[row % 3]},
                {"role": "user", "content": f"Question {row} " * (1 + row % 4)},
            ],
            "max_tokens": 8,
        }
        | asked[row % 5]
        for row in range(10)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    running.write_jsonl(tmp_path / "in.jsonl", SHORT_THEN_LONG)
    return tmp_path


def answered(path: Path) -> list[dict[str, Any]]:
    """Rows of an output without what a run's course decides."""
    course = {"seconds", "finished_at", "cached_tokens", "logprobs", "logprob"}
    return [
        {name: value for name, value in row.items() if name not in course}
        for row in running.read_parquet(path)
    ]


def logprobs(path: Path) -> list[float]:
    rows = running.read_parquet(path)
    scored = [token["logprob"] for row in rows for token in json.loads(row["logprobs"] or "[]")]
    return scored + [row["logprob"] for row in rows if row["logprob"] is not None]


def test_answers_are_those_of_one_process(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    scored = {"context": "The capital of France is", "continuation": " Paris"}
    path = running.write_jsonl(tmp_path / "in.jsonl", [*varied(), {"messages": "none"}, scored])
    model, alone = tiny_model("llama"), tmp_path / "alone.parquet"
    batchrun.run(path, output=alone, model=str(model), max_num_seqs=5, quiet=True)

    launched = Launched(tmp_path, "--max-num-seqs", "5", "--quiet", model=model)
    _, stdout, stderr = launched.wait()

    assert answered(launched.output) == answered(alone)
    assert len(logprobs(alone)) > 10
    assert logprobs(launched.output) == pytest.approx(logprobs(alone), abs=1e-4)
    report = running.read_summary(launched.output)
    assert report["exit_status"] == 3
    assert "the model is split over 2 ranks" in report["notes"]
    assert any("prefixes are not kept on disk" in note for note in report["notes"])
    assert stdout == ""
    assert stderr.count("rows answered") == 1


def interrupted(folder: Path, model: Path) -> Launched:
    """A run that has some answers, and not all."""
    launched = Launched(folder, "--max-num-seqs", "4", "--grace", "1s", model=model)
    launched.until_answered(4)
    return launched


def test_a_rank_that_dies_ends_the_run_which_then_goes_on(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    launched = interrupted(folder, tiny_model("llama"))
    os.kill(launched.ranks()[1], signal.SIGKILL)
    _, _, stderr = launched.wait()
    kept = answers(launched.journal)

    assert "Error: rank 0 of 2 cannot go on" in stderr
    assert not launched.output.exists()
    assert len(kept) >= 4

    again = batchrun.run(
        folder / "in.jsonl", output=launched.output, model=str(tiny_model("llama")), quiet=True
    )
    assert again.exit_status == 0
    assert again.request_counts.reused == len(kept)
    assert again.request_counts.completed == len(SHORT_THEN_LONG)


def test_without_rank_0_the_others_end(folder: Path, tiny_model: Callable[..., Path]) -> None:
    launched = interrupted(folder, tiny_model("llama"))
    os.kill(launched.ranks()[0], signal.SIGKILL)
    _, _, stderr = launched.wait()

    assert "Error: rank 1 of 2 cannot go on" in stderr
    assert "Traceback" not in stderr
    assert len(answers(launched.journal)) >= 4


@pytest.mark.parametrize(
    ("whom", "reason"),
    [("rank 0", "SIGTERM"), ("launcher", "launched it is gone")],
)
def test_whoever_is_told_to_end_rank_0_ends_the_run(
    folder: Path, tiny_model: Callable[..., Path], whom: str, reason: str
) -> None:
    launched = interrupted(folder, tiny_model("llama"))
    pid = launched.ranks()[0] if whom == "rank 0" else launched.process.pid
    os.kill(pid, signal.SIGTERM)
    _, _, stderr = launched.wait()
    launched.until_let_go()

    report = running.read_summary(launched.output)
    assert (report["status"], report["exit_status"]) == ("stopped", 4)
    assert reason in report["reason"]
    assert len(answers(launched.journal)) == report["request_counts"]["completed"]
    assert "Error" not in stderr


def test_a_model_that_cannot_be_split_is_one_error(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    _, _, stderr = Launched(folder, model=tiny_model("mamba2")).wait()

    assert stderr.count("Error: ") == 1
    assert "mlx-lm cannot split models of type mamba2" in stderr
    assert "exited with code 1" in stderr
    assert not (folder / "out.parquet").exists()
