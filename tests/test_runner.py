"""Whole runs on a tiny model: every kind of row and file, to both outputs, as the row alone."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import batchrun
from batchrun.errors import ModelError, UsageError
from batchrun.report.render import render
from batchrun.report.summary import Summary
from tests.running import alone, read_jsonl, read_parquet, texts, write_jsonl

TOKENS = 6


def turn(content: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.fixture(params=["parquet", "jsonl"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"out.{request.param}"


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama")


def run(*inputs: Path | str, output: Path, model: Path, **flags: Any) -> Summary:
    flags = {"max_tokens": TOKENS, "quiet": True} | flags
    return batchrun.run(*inputs, output=output, model=str(model), **flags)


# ---------------------------------------------------------------- rows and files


def test_every_form_of_row_is_answered_as_the_row_alone(
    tmp_path: Path, output: Path, model: Path
) -> None:
    chat = [turn("Be short.", "system"), turn("What is the capital of France?")]
    batch = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions"}
    rows = [
        batch | {"body": {"model": "any", "messages": chat}},
        {
            "custom_id": "completion",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "The quick brown", "max_tokens": 4},
        },
        {"custom_id": "body", "body": {"messages": chat[1:], "max_tokens": 3}},
        {
            "custom_id": "params",
            "params": {"system": "Be short.", "messages": chat[1:], "max_tokens": 5},
        },
        {"custom_id": 7, "messages": chat[1:]},
        {"prompt": "The lazy dog", "max_completion_tokens": 2},
        {"custom_id": "ids", "prompt": [40, 41, 42]},
    ]
    summary = run(write_jsonl(tmp_path / "in.jsonl", rows), output=output, model=model)

    reference = alone(model)
    assert texts(output) == [
        reference.chat(chat, TOKENS),
        reference.complete("The quick brown", 4),
        reference.chat(chat[1:], 3),
        reference.chat(chat, 5),
        reference.chat(chat[1:], TOKENS),
        reference.complete("The lazy dog", 2),
        reference.text([40, 41, 42], TOKENS),
    ]
    ids = [row["custom_id"] for row in _records(output)]
    assert ids == ["chat", "completion", "body", "params", "7", None, "ids"]
    assert (summary.status, summary.exit_status) == ("completed", 0)
    assert not list(tmp_path.glob("out*journal*")) + list(tmp_path.glob("*.lock"))


def _records(output: Path) -> list[dict[str, Any]]:
    return read_parquet(output) if output.suffix == ".parquet" else read_jsonl(output)


def test_data_of_every_kind_of_file_goes_through_templates(
    tmp_path: Path, output: Path, model: Path
) -> None:
    data = [{"id": i, "text": f"film number {i}"} for i in range(4)]
    write_jsonl(tmp_path / "a.jsonl", data[:1])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(data[1]).encode()))
    (tmp_path / "c.csv").write_text("id,text\n2,film number 2\n")
    pq.write_table(pa.Table.from_pylist(data[3:]), tmp_path / "d.parquet")
    summary = run(
        *(tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.csv", "d.parquet")),
        output=output,
        model=model,
        system="You judge {{ 'films' }}.",
        prompt="Good or bad? {{ text }}",
        keep=["id"],
    )

    expected = [
        alone(model).chat([turn("You judge films.", "system"), turn(f"Good or bad? {t}")], TOKENS)
        for t in (row["text"] for row in data)
    ]
    assert texts(output) == expected
    assert summary.request_counts.completed == 4
    if output.suffix == ".jsonl":
        assert [line["input"]["id"] for line in read_jsonl(output)] == [0, 1, "2", 3]


def test_kept_columns_of_a_table_keep_their_types(tmp_path: Path, model: Path) -> None:
    table = pa.table(
        {"text": ["a", "b"], "when": pa.array([1, None], pa.timestamp("ms")), "n": [1.5, 2.5]}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    run(tmp_path / "in.parquet", output=output, model=model, prompt="{{ text }}", keep_all=True)

    written = pq.read_table(output)
    assert written.schema.field("when").type == pa.timestamp("ms")
    assert written.column("when").equals(table.column("when"))
    assert written.column("n").to_pylist() == [1.5, 2.5]
    # "text" is the answer's own column: the input's has another name.
    assert written.column("input_text").to_pylist() == ["a", "b"]


def test_parquet_rows_are_requests_as_jsonl_ones_are(tmp_path: Path, model: Path) -> None:
    rows = [
        {"messages": [turn("hello")], "max_tokens": 3},
        {"messages": [turn("Be short.", "system"), turn("hi")], "max_tokens": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    write_jsonl(tmp_path / "in.jsonl", rows)
    for kind in ("parquet", "jsonl"):
        run(tmp_path / f"in.{kind}", output=tmp_path / f"{kind}.out.jsonl", model=model)
    assert texts(tmp_path / "parquet.out.jsonl") == texts(tmp_path / "jsonl.out.jsonl")
    assert None not in texts(tmp_path / "jsonl.out.jsonl")


def test_standard_input_is_read(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text('{"prompt": "one"}\n{"prompt": "two"}')
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        summary = run("-", output=tmp_path / "out.jsonl", model=model)
    assert summary.request_counts.total == summary.request_counts.completed == 2


def test_a_file_with_no_rows_is_an_empty_output_and_needs_no_weights(
    tmp_path: Path, output: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchrun.models.load", _never)
    (tmp_path / "in.jsonl").write_text("\n\n")
    summary = run(tmp_path / "in.jsonl", output=output, model=model)
    assert (summary.exit_status, summary.request_counts.total) == (0, 0)
    assert texts(output) == []
    assert render(summary).startswith("0 of 0 rows answered: the input has no rows\n")


def _never(*args: object) -> None:
    raise AssertionError("the weights were loaded")


def test_limit_reads_the_first_rows_only(tmp_path: Path, output: Path, model: Path) -> None:
    rows = write_jsonl(tmp_path / "in.jsonl", [{"prompt": f"row {i}"} for i in range(9)])
    summary = run(rows, output=output, model=model, limit=4)
    assert len(texts(output)) == 4
    assert summary.request_counts.total == 4
    assert summary.exit_status == 0


def test_duplicate_and_missing_custom_ids_keep_all_results(
    tmp_path: Path, output: Path, model: Path
) -> None:
    rows = [
        {"custom_id": "same", "prompt": "one"},
        {"custom_id": "same", "prompt": "two"},
        {"prompt": "three"},
        {"prompt": "four"},
    ]
    run(write_jsonl(tmp_path / "in.jsonl", rows), output=output, model=model)
    records = _records(output)
    assert [record["custom_id"] for record in records] == ["same", "same", None, None]
    assert texts(output) == [alone(model).complete(row["prompt"], TOKENS) for row in rows]


def test_choices_of_a_row_never_collapse_into_one(
    tmp_path: Path, output: Path, model: Path
) -> None:
    hot = {"prompt": "Once upon a time", "temperature": 1.5, "max_tokens": 12}
    rows = [hot | {"n": 4}, hot, hot | {"n": 2, "seed": 3}]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    run(path, output=output, model=model)
    first = texts(output)
    assert len(first) == 7
    # Four choices, then the same request once more, and another with a seed of its own.
    assert len(set(first)) == 7
    run(path, output=output, model=model, fresh=True, max_num_seqs=2)
    assert texts(output) == first


def test_answers_do_not_depend_on_the_window(tmp_path: Path, output: Path, model: Path) -> None:
    shared, others = [3 + n % 90 for n in range(60)], [3 + n % 70 for n in range(40)]
    rows = [
        {"prompt": [*start, 5 + row, 4, 3][: 60 + row], "max_tokens": 4}
        for row in range(12)
        for start in (shared, others, [*shared, *others], [5 + row])
    ]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    answers = []
    for window in (1, 5, 4096):
        run(path, output=output, model=model, fresh=True, window=window)
        answers.append(texts(output))

    assert len(answers[0]) == len(rows)
    assert answers[0] == answers[1] == answers[2]


def test_never_more_rows_at_once_than_allowed_and_all_are_answered(
    tmp_path: Path, model: Path
) -> None:
    rows = [{"prompt": f"row {i}" * (1 + i % 7), "max_tokens": 1 + i % 9} for i in range(40)]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    outputs = []
    for seqs in (1, 3, 40):
        output = tmp_path / f"at{seqs}.parquet"
        summary = run(path, output=output, model=model, max_num_seqs=seqs)
        assert min(seqs, 3) <= summary.batch.peak_running <= seqs
        outputs.append(texts(output))
    assert len(outputs[0]) == 40
    assert outputs[1:] == outputs[:1] * 2


def test_more_rows_than_are_read_ahead_in_bounded_memory(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc

    from batchrun import ledger, runner
    from batchrun.records import Prompt

    window, seqs, held = 16, 8, []
    record = runner.Ledger.record

    def alive() -> int:
        return sum(isinstance(item, Prompt) for item in gc.get_objects())

    gc.collect()
    others = alive()  # other tests'

    def counted(self: Any, finished: Any) -> None:
        record(self, finished)
        if self._meter.num_done % 50 == 0:
            held.append(alive() - others)

    monkeypatch.setattr(runner.Ledger, "record", counted)
    rows = [{"prompt": [3 + i % 300, 3 + i // 300], "max_tokens": 1 + i % 3} for i in range(600)]
    output = tmp_path / "out.parquet"
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    summary = run(path, output=output, model=model, max_num_seqs=seqs, window=window)

    assert [row["row"] for row in read_parquet(output)] == list(range(600))
    assert summary.request_counts.completed == 600
    # Read ahead, booked, waiting in order, waiting in the engine, running, and one in each hand.
    assert max(held) <= 2 * window + ledger._AT_ONCE + 2 * seqs + 8


# ---------------------------------------------------------------- refusals


def test_an_output_that_is_an_input_is_refused_before_anything_is_read(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchrun.runner.execute", _never)
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "one"}])
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is an input, and this run would replace it"):
        run(path, output=path, model=model)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"prompt": "{{ text"}, "--prompt"),
        ({"model": "no/such/folder/here"}, "no model folder"),
        ({"adapter": "nowhere"}, "--adapter"),
        ({"chat_template": "nowhere.jinja"}, "--chat-template"),
    ],
)
def test_a_run_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, model: Path, flags: dict[str, Any], message: str
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "one"}])
    with pytest.raises(UsageError, match=message):
        run(path, output=tmp_path / "out.parquet", **({"model": model} | flags))
    assert [item.name for item in tmp_path.iterdir()] == ["in.jsonl"]


def test_kept_columns_that_do_not_go_together_are_refused_at_the_start(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchrun.models.load", _never)
    pq.write_table(pa.table({"prompt": ["a"], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "x": [[1]]}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match="kept columns differ between input files"):
        run(tmp_path / "*.parquet", output=tmp_path / "out.jsonl", model=model, keep=["x"])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_a_model_that_cannot_run_at_all_is_one_clear_error(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchrun.models import LoadedModel

    def broken(self: LoadedModel, tokens: object, cache: object, given: object) -> None:
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(LoadedModel, "__call__", broken)
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "one"}])
    with pytest.raises(ModelError, match=r"cannot run even one row alone .*no kernel"):
        run(path, output=tmp_path / "out.parquet", model=model)
    assert not (tmp_path / "out.parquet").exists()


# ---------------------------------------------------------------- where it runs


def test_a_whole_run_in_another_thread_and_two_in_one_process(tmp_path: Path, model: Path) -> None:
    rows = [{"prompt": f"row {i}", "temperature": i % 2} for i in range(6)]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    run(path, output=tmp_path / "main.jsonl", model=model)
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            run(path, output=tmp_path / name, model=model)
        except BaseException as error:  # noqa: BLE001  # the test fails with it
            problems.append(error)

    for name in ("thread.jsonl", "another.jsonl"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    assert problems == []
    run(path, output=tmp_path / "again.jsonl", model=model)
    outputs = [texts(tmp_path / f"{n}.jsonl") for n in ("main", "thread", "another", "again")]
    assert outputs[1:] == outputs[:1] * 3


def test_rows_that_asked_about_nothing_are_counted(
    tmp_path: Path, output: Path, model: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,text\n1,good\n2,\n3, \n")
    summary = run(source, output=output, model=model, prompt="Label: {{ text }}")

    assert summary.status == "completed"
    note = "2 rows asked about nothing: all columns in the template were empty text"
    assert summary.notes == [note]
    assert f"Note: {note}" in render(summary)
