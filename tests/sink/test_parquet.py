from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.errors import RowError
from batchrun.records import Result
from batchrun.sink import Journal, read_answers, write_output
from batchrun.sink import parquet as writer
from tests.sink.builders import MOMENT, chat, failure, make_answer, make_row

NAMES = [
    *("row", "custom_id", "choice", "text", "reasoning", "tool_calls", "parsed"),
    "choice_probs",
    *(
        "finish_reason",
        "stop_reason",
        "logprobs",
        "prompt_logprobs",
        "logprob",
        "is_greedy",
        "correct",
        "prompt_tokens",
        "cached_tokens",
        "disk_tokens",
        "completion_tokens",
        "reasoning_tokens",
    ),
    *("seconds", "status_code", "error_code", "error_message", "model", "request_key"),
    "finished_at",
]


def is_wrong(result: Result) -> bool | None:
    return None if result.answer is None else False


def test_finished_and_failed_rows_have_the_same_columns(journal: Journal, tmp_path: Path) -> None:
    answer = make_answer(
        "k",
        stop_reason=13,
        reasoning="because",
        tool_calls=[{"id": "1"}],
        parsed='{"a": 1}',
        choice_probs={"é": 0.25, "b": 0.75},
        logprobs=[{"token": "é"}],
        prompt_logprobs=[None, {"5": {"rank": 1}}],
        logprob=-0.5,
        is_greedy=True,
        reasoning_tokens=2,
    )
    journal.add_row(chat(make_row(0, custom_id="a", kept={"label": "x"})), "k")
    journal.add_answer(answer)
    journal.add_failure(failure(make_row(1, custom_id="b", kept={"label": "y"}), 422))
    journal.add_row(chat(make_row(2, custom_id="c")), "bad")
    journal.fail_key("bad", RowError("engine_failed", "it failed", status=500))
    write_output(journal, tmp_path / "out.parquet", "parquet", correct=is_wrong)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == [*NAMES, "label"]
    done, invalid, failed = table.to_pylist()
    assert done == {
        "row": 0,
        "custom_id": "a",
        "choice": 0,
        "text": answer.text,
        "reasoning": "because",
        "tool_calls": '[{"id":"1"}]',
        "parsed": '{"a": 1}',
        "choice_probs": '{"é":0.25,"b":0.75}',
        "finish_reason": "stop",
        "stop_reason": "13",
        "logprobs": '[{"token":"é"}]',
        "prompt_logprobs": '[null,{"5":{"rank":1}}]',
        "logprob": -0.5,
        "is_greedy": True,
        "correct": False,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "disk_tokens": 0,
        "completion_tokens": 3,
        "reasoning_tokens": 2,
        "seconds": 0.25,
        "status_code": 200,
        "error_code": None,
        "error_message": None,
        "model": "tiny",
        "request_key": "k",
        "finished_at": datetime.fromtimestamp(MOMENT, UTC),
        "label": "x",
    }
    assert {name: value for name, value in invalid.items() if value is not None} == {
        "row": 1,
        "custom_id": "b",
        "choice": 0,
        "status_code": 422,
        "error_code": "invalid_request",
        "error_message": "no messages",
        "finished_at": invalid["finished_at"],
        "label": "y",
    }
    assert failed["status_code"] == 500
    assert failed["request_key"] == "bad"
    assert failed["custom_id"] == "c"


def test_column_types_do_not_depend_on_the_rows(journal: Journal, tmp_path: Path) -> None:
    journal.add_failure(failure(make_row(0)))
    write_output(journal, tmp_path / "failed", "parquet")
    journal.start()
    write_output(journal, tmp_path / "empty", "parquet")
    for name in ("failed", "empty"):
        schema = pq.read_schema(tmp_path / name)
        assert schema.equals(writer.COLUMNS)
        assert json.loads(schema.metadata[b"batchrun"]) == {"version": 1}


def test_row_groups_are_bounded_in_rows_and_bytes(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(1000):
        journal.add_row(chat(make_row(index)), str(index))
        journal.add_answer(make_answer(str(index), text="x" * (1 if index < 600 else 5000)))
    monkeypatch.setattr(writer, "_GROUP_ROWS", 256)
    monkeypatch.setattr(writer, "_GROUP_BYTES", 500_000)
    write_output(journal, tmp_path / "out", "parquet")
    file = pq.ParquetFile(tmp_path / "out")
    groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert sum(groups) == 1000
    assert groups[:2] == [256, 256]
    assert max(groups[3:]) == 128
    assert file.metadata.row_group(0).column(3).compression == "ZSTD"
    assert file.read()["row"].to_pylist() == list(range(1000))
    file.close()


def test_answers_are_found_after_another_program_rewrote_the_file(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "out.parquet"
    journal.add_row(chat(make_row()), "k")
    journal.add_answer(make_answer("k", stop_reason="13"))
    write_output(journal, path, "parquet")
    table = pq.read_table(path)
    changed = {"finished_at": pa.timestamp("ns"), "choice": pa.int64(), "text": pa.large_string()}
    other = pa.schema(
        [field.with_type(changed.get(field.name, field.type)) for field in table.schema]
    )
    rewritten = table.cast(other).append_column("mine", [[1]]).select(["mine", *NAMES[::-1]])
    pq.write_table(rewritten, path)
    assert list(read_answers(path, "parquet")) == [make_answer("k", stop_reason="13")]


def test_answers_are_reused_from_an_output_without_what_they_do_not_hold(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "out.parquet"
    journal.add_row(chat(make_row(0)), "k")
    journal.add_answer(make_answer("k"))
    write_output(journal, path, "parquet")
    pq.write_table(pq.read_table(path).drop_columns(["correct"]), path)

    assert list(read_answers(path, "parquet")) == [make_answer("k")]
