from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchrun.config import OutputFormat
from batchrun.errors import RowError, RunError, UsageError
from batchrun.records import Answer, Failure, Request, Row
from batchrun.sink import (
    Journal,
    errors_path,
    journal_path,
    output_format,
    read_answers,
    write_output,
)
from batchrun.sink.encode import dumps, microseconds
from tests.sink.builders import chat, completion, failure, make_answer, make_row, names

FORMATS: list[OutputFormat] = ["parquet", "jsonl"]

LOGPROBS = st.lists(
    st.fixed_dictionaries(
        {
            "token": st.text(),
            "logprob": st.floats(-100, 0),
            "bytes": st.lists(st.integers(0, 255), max_size=4),
            "top_logprobs": st.lists(
                st.fixed_dictionaries({"token": st.text(), "logprob": st.floats(-100, 0)}),
                max_size=3,
            ),
        }
    ),
    max_size=3,
)
TOOL_CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(), "function": st.fixed_dictionaries({"arguments": st.text()})}
    ),
    max_size=2,
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
ERRORS = st.builds(
    lambda code, message, status, param: RowError(code, message, status=status, param=param),
    st.text(min_size=1),
    st.text(),
    st.sampled_from([400, 404, 422, 500, 503]),
    st.none() | st.text(),
)


PROMPT_LOGPROBS = st.lists(
    st.dictionaries(
        st.integers(0, 9).map(str),
        st.fixed_dictionaries(
            {"logprob": st.floats(-1e6, 0), "rank": st.integers(1, 9), "decoded_token": st.text()}
        ),
        min_size=1,
    ),
    max_size=3,
).map(lambda scores: [None, *scores])


def to_microseconds(answer: Answer) -> Answer:
    return replace(answer, finished_at=microseconds(answer.finished_at) / 1e6)


def choices(key: str, n: int) -> st.SearchStrategy[list[Answer]]:
    return st.tuples(
        *(
            st.builds(
                Answer,
                key=st.just(key),
                choice=st.just(choice),
                text=st.text(),
                finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
                stop_reason=st.none() | st.integers(0, 300_000) | st.text() | st.just("13"),
                prompt_tokens=st.just(5),
                cached_tokens=st.integers(0, 5),
                disk_tokens=st.integers(0, 5),
                completion_tokens=st.integers(0, 2**31 - 1),
                seconds=st.floats(0, 1e6),
                model=st.just("tiny ✓"),
                finished_at=st.floats(0, 4e9),
                reasoning=st.none() | st.text(),
                tool_calls=st.none() | TOOL_CALLS,
                logprobs=st.none() | LOGPROBS,
                parsed=st.none() | TOOL_CALLS.map(dumps),
                choice_probs=st.none() | st.dictionaries(st.text(), st.floats(0, 1), min_size=1),
                prompt_logprobs=st.none() | PROMPT_LOGPROBS,
                logprob=st.none() | st.floats(-1e6, 0),
                is_greedy=st.none() | st.booleans(),
                reasoning_tokens=st.none() | st.integers(0, 2**31 - 1),
            ).map(to_microseconds)
            for choice in range(n)
        )
    ).map(list)


@dataclass
class Asked:
    """One row of a made-up run, with what it should end as."""

    request: Request
    key: str
    answers: list[Answer]
    error: RowError | None


@st.composite
def runs(draw: st.DrawFn) -> list[Asked]:
    """Rows that share a few requests, of either kind, some of them failing."""
    pool = []
    for key in ("aa", "bb", "cc"):
        n = draw(st.integers(1, 3))
        pool.append((key, draw(st.booleans()), draw(choices(key, n)), draw(st.none() | ERRORS)))
    asked = []
    for index in range(draw(st.integers(0, 6))):
        key, is_chat, answers, error = draw(st.sampled_from(pool))
        kept = draw(st.dictionaries(st.sampled_from(["row", "a", "b", ""]), JSON, max_size=3))
        row = Row(index, draw(st.text()), index + 1, draw(st.none() | st.text()), kept)
        request = (chat if is_chat else completion)(row, len(answers))
        own_error = draw(st.none() | st.none() | ERRORS)
        asked.append(Asked(request, key, answers, own_error or error))
    return asked


def record(journal: Journal, asked: list[Asked]) -> None:
    """Runs `asked` as the runner does: the error of a request fails every row that made it."""
    for one in asked:
        if one.error is None:
            journal.add_row(one.request, one.key)
            for answer in one.answers:
                journal.add_answer(answer)
        else:
            journal.add_failure(Failure(one.request.row, one.error))
    journal.commit()


@contextmanager
def scratch() -> Iterator[tuple[Journal, Path]]:
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder, "journal"))
        journal.start()
        yield journal, Path(folder, "out")
        journal.close()


def expected_answers(asked: list[Asked]) -> list[Answer]:
    return [answer for one in asked if one.error is None for answer in one.answers]


def check_table(table: list[dict[str, Any]], asked: list[Asked]) -> None:
    assert [(row["row"], row["choice"]) for row in table] == [
        (one.request.row.index, choice)
        for one in asked
        for choice in range(1 if one.error else len(one.answers))
    ]
    assert [row["error_message"] for row in table if row["error_code"] is not None] == [
        one.error.message for one in asked if one.error
    ]


def check_lines(lines: list[dict[str, Any]], asked: list[Asked]) -> None:
    assert [(line["row"], line["custom_id"]) for line in lines] == [
        (one.request.row.index, one.request.row.custom_id) for one in asked
    ]
    assert [line.get("input", {}) for line in lines] == [one.request.row.kept for one in asked]


@settings(max_examples=30, deadline=None)
@given(asked=runs())
def test_every_row_is_written_once_in_order_and_read_back_exactly(asked: list[Asked]) -> None:
    with scratch() as (journal, path):
        record(journal, asked)
        write_output(journal, path, "parquet")
        check_table(pq.read_table(path).to_pylist(), asked)
        assert list(read_answers(path, "parquet")) == expected_answers(asked)
        write_output(journal, path, "jsonl")
        check_lines([json.loads(line) for line in path.read_bytes().splitlines()], asked)
        assert list(read_answers(path, "jsonl")) == expected_answers(asked)


def small_run(journal: Journal) -> None:
    """Two answered rows with equal custom_ids, one failed row and one answered without an id."""
    journal.start()
    journal.add_row(chat(make_row(0, custom_id="same")), "a")
    journal.add_row(completion(make_row(1, custom_id="same")), "b")
    journal.add_failure(failure(make_row(2, custom_id="bad")))
    journal.add_row(chat(make_row(3)), "c")
    for key in "abc":
        journal.add_answer(make_answer(key))


@pytest.mark.parametrize("kind", FORMATS)
def test_duplicate_and_missing_custom_ids_keep_all_results(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    small_run(journal)
    path = tmp_path / "out"
    write_output(journal, path, kind)
    if kind == "parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == ["same", "same", "bad", None]
    assert [answer.key for answer in read_answers(path, kind)] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_run_without_rows_writes_an_empty_output(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    path = tmp_path / "out"
    write_output(journal, path, kind)
    assert path.is_file()
    assert list(read_answers(path, kind)) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_failed_rows_are_listed_apart_and_a_stale_list_goes(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    path = tmp_path / f"out.{kind}"
    small_run(journal)
    journal.fail_key("nobody", RowError("x", "y"))
    write_output(journal, path, kind)
    (line,) = errors_path(path).read_text().splitlines()
    found = json.loads(line)
    assert (found["custom_id"], found["file"], found["line"]) == ("bad", "in.jsonl", 3)
    assert found["response"]["body"]["error"]["code"] == "invalid_request"
    journal.start()
    write_output(journal, path, kind)
    assert not errors_path(path).exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_an_output_has_the_modes_of_any_new_file_and_nothing_else_stays(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    small_run(journal)
    old = os.umask(0o027)
    try:
        write_output(journal, folder / f"out.{kind}", kind)
    finally:
        os.umask(old)
    assert names(folder) == ["out.errors.jsonl", f"out.{kind}"]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_an_output_made_private_stays_so(journal: Journal, tmp_path: Path) -> None:
    small_run(journal)
    path = tmp_path / "out.jsonl"
    write_output(journal, path, "jsonl")
    path.chmod(0o600)
    write_output(journal, path, "jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_and_what_it_leads_to_is_written(journal: Journal, tmp_path: Path) -> None:
    small_run(journal)
    disk = tmp_path / "disk"
    disk.mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to(disk / "answers.jsonl")
    write_output(journal, link, "jsonl")
    assert link.is_symlink()
    assert names(disk) == ["answers.jsonl"]
    assert link.read_bytes()


@pytest.mark.parametrize("name", ["out.jsonl", "out.errors.jsonl"])
def test_a_folder_in_the_way_is_an_error_of_the_run(
    journal: Journal, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RunError, match=f"cannot write.*{name}"):
        write_output(journal, tmp_path / "out.jsonl", "jsonl")
    assert names(tmp_path) == ["journal", name]


def test_an_unfinished_run_is_not_written(journal: Journal, tmp_path: Path) -> None:
    journal.add_row(chat(make_row(), n=2), "k")
    journal.add_answer(make_answer("k"))
    with pytest.raises(RunError, match="1 rows have no result"):
        write_output(journal, tmp_path / "out.parquet", "parquet")
    assert names(tmp_path) == ["journal"]


def test_a_kept_value_that_does_not_fit_leaves_the_old_output(
    journal: Journal, tmp_path: Path
) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    path = folder / "out.parquet"
    path.write_text("old")
    journal.add_row(chat(make_row(kept={"c": "x"})), "k")
    journal.add_answer(make_answer("k"))
    with pytest.raises(RunError, match="'c'"):
        write_output(journal, path, "parquet", pa.schema([("c", pa.int64())]))
    assert path.read_text() == "old"
    assert names(folder) == ["out.parquet"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "content",
    [b"my thesis\n", b'{"custom_id": "a", "text": "b"}\n', b"[1]\n", b"PAR1 torn", b"null\n"],
)
def test_a_file_of_another_make_is_never_taken_for_an_output(
    tmp_path: Path, kind: OutputFormat, content: bytes
) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"not an output of batchrun.*--fresh"):
        list(read_answers(path, kind))


def test_openai_output_and_foreign_tables_are_not_ours(tmp_path: Path) -> None:
    line = {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"choices": []}},
        "error": None,
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    pq.write_table(pa.table({"row": [1], "text": ["mine"]}), tmp_path / "a.parquet")
    for kind in FORMATS:
        with pytest.raises(UsageError):
            list(read_answers(tmp_path / f"a.{kind}", kind))


def test_an_output_cut_short_is_refused(journal: Journal, tmp_path: Path) -> None:
    small_run(journal)
    for kind in FORMATS:
        path = tmp_path / f"out.{kind}"
        write_output(journal, path, kind)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(UsageError):
            list(read_answers(path, kind))


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("a.parquet", None, "parquet"),
        ("a.b.JSONL", None, "jsonl"),
        ("a.ndjson", None, "jsonl"),
        ("a.csv", "jsonl", "jsonl"),
        ("a.jsonl", "parquet", "parquet"),
    ],
)
def test_the_format_is_what_was_asked_or_the_ending(
    name: str, asked: OutputFormat | None, expected: str
) -> None:
    assert output_format(Path(name), asked) == expected


@pytest.mark.parametrize("name", ["out", "out.csv", "out.jsonl.gz", "-"])
def test_an_unknown_ending_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder of that name would be an output of many files
    with pytest.raises(UsageError, match=r"\.parquet or \.jsonl.*--format"):
        output_format(Path(name))


def test_files_beside_the_output_have_its_name() -> None:
    assert journal_path(Path("d/out.parquet")) == Path("d/out.parquet.journal")
    assert errors_path(Path("d/my.out.parquet")) == Path("d/my.out.errors.jsonl")


def test_importing_the_sink_does_not_load_pyarrow() -> None:
    script = "import sys, batchrun.sink; sys.exit('pyarrow' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
