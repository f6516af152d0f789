"""What shapes cost and what labels save, by whole runs of batchrun.

    python benchmarks/constrained.py                 # 300 rows with 100 schemas, then 1,000 labels
    python benchmarks/constrained.py --rows 60 --labels 200 --rounds 1

README.md says what each figure means.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import jsonschema_rs
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import batchrun  # noqa: E402
from batchrun.report.summary import Summary  # noqa: E402

NUM_SCHEMAS = 100
MAX_TOKENS = 64
CHOICES = ("positive", "negative", "neutral")
QUESTION = "Is this review positive, negative or neutral? Answer with one word."
THINGS = ("kettle", "lamp", "novel", "phone", "chair", "film", "coat", "game")
VERDICTS = (
    "broke after a week and nobody answers my letters",
    "is the best that I ever had, I would buy it again",
    "does what it says, no more and no less",
    "came late, but works well enough",
)

Row = dict[str, Any]


@click.command()
@click.option("--rows", default=300, help="Rows with a schema.")
@click.option("--labels", default=1000, help="Rows to be labelled.")
@click.option("--rounds", default=3)
@click.option("--model", default=None, help="As batchrun's --model.")
def main(rows: int, labels: int, rounds: int, model: str | None) -> None:
    """Compare rows a second with and without shapes, and of labels scored and written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _print("constrained / free", _constrained(folder, rows, rounds, model))
        _print("scored / written labels", _labels(folder, labels, rounds, model))


def _constrained(folder: Path, count: int, rounds: int, model: str | None) -> Iterator[float]:
    shaped = [_shaped_row(number) for number in range(count)]
    for _ in range(rounds):
        summary, answers = _run(folder, shaped, model)
        _check(shaped, answers)
        free = [_as_long(row, answer) for row, answer in zip(shaped, answers, strict=True)]
        yield _rate(summary) / _rate(_run(folder, free, model)[0])


def _labels(folder: Path, count: int, rounds: int, model: str | None) -> Iterator[float]:
    rows = [_chat(f"{_review(number)}\n\n{QUESTION}", max_tokens=8) for number in range(count)]
    for _ in range(rounds):
        written, _ = _run(folder, rows, model)
        scored, _ = _run(folder, rows, model, choices=CHOICES, label=True)
        yield _rate(scored) / _rate(written)


def _run(
    folder: Path, rows: list[Row], model: str | None, **flags: Any
) -> tuple[Summary, list[Row]]:
    source, output = folder / "rows.jsonl", folder / "out.parquet"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = {"model": model, "fresh": True, "no_prefix_cache": True, "quiet": True} | flags
    summary = batchrun.run(source, output=output, **options)
    assert summary.exit_status == 0, summary
    return summary, pq.read_table(output).to_pylist()


def _rate(summary: Summary) -> float:
    """Rows a second, loading aside."""
    seconds = summary.elapsed_time - summary.elapsed["load"]
    return summary.request_counts.completed / seconds


def _chat(content: str, **fields: Any) -> Row:
    return {"messages": [{"role": "user", "content": content}], **fields}


def _shaped_row(number: int) -> Row:
    content = f"Describe in JSON what was bought and how it was: {_review(number)}"
    schema = _schema(number % NUM_SCHEMAS)
    form = {"type": "json_schema", "json_schema": {"name": "review", "schema": schema}}
    return _chat(content, max_tokens=MAX_TOKENS, response_format=form)


def _schema(number: int) -> Row:
    """One of many, of different fields."""
    fields = {
        f"item_{number}": {"type": "string", "maxLength": 10 + number % 7},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5 + number},
        "tags": {"type": "array", "items": {"enum": list(CHOICES)}, "maxItems": 1 + number % 3},
        "good": {"type": "boolean"},
    }
    used = dict(list(fields.items())[: 2 + number % 3])
    return {
        "type": "object",
        "properties": used,
        "required": list(used),
        "additionalProperties": False,
    }


def _review(number: int) -> str:
    thing, verdict = THINGS[number % len(THINGS)], VERDICTS[number // 8 % len(VERDICTS)]
    return f"Order {number}: this {thing} {verdict}."


def _as_long(row: Row, answer: Row) -> Row:
    """The row without its schema, held to as many tokens."""
    free = {name: value for name, value in row.items() if name != "response_format"}
    return free | {"max_tokens": answer["completion_tokens"], "ignore_eos": True}


def _check(rows: list[Row], answers: list[Row]) -> None:
    finished = 0
    for row, answer in zip(rows, answers, strict=True):
        if answer["finish_reason"] == "length":
            continue
        schema = row["response_format"]["json_schema"]["schema"]
        jsonschema_rs.validate(schema, json.loads(answer["text"]))
        finished += 1
    click.echo(f"{finished} of {len(rows)} answers finished, all valid")


def _print(name: str, ratios: Iterator[float]) -> None:
    found = list(ratios)
    rounds = "  ".join(f"{ratio:.2f}" for ratio in found)
    click.echo(f"{name}: {median(found):.2f}  (rounds {rounds})")


if __name__ == "__main__":
    main()
