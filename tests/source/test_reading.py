from __future__ import annotations

import gzip
import json
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.config import SourceConfig
from batchrun.errors import RunError, UsageError
from batchrun.records import Failure, Request, Sampling
from batchrun.source import count_rows, kept_schema, read_requests
from batchrun.source.files import resolve_inputs

USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    },
]

FIELDS = ("messages", "tools", "temperature", "logit_bias", "max_tokens", "stop")


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def table(path: Path, columns: Any, **options: Any) -> str:
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return str(path)


def read(*inputs: str, **options: Any) -> list[Request | Failure]:
    return list(read_requests(SourceConfig(inputs=inputs, **options)))


def counted(*inputs: str, limit: int | None = None) -> int | None:
    return count_rows(SourceConfig(inputs=inputs, limit=limit))


def requests(*inputs: str, **options: Any) -> list[Request]:
    rows = read(*inputs, **options)
    assert not [str(row.error) for row in rows if isinstance(row, Failure)]
    return [row for row in rows if isinstance(row, Request)]


def failures(*inputs: str, **options: Any) -> list[Failure]:
    rows = read(*inputs, **options)
    assert not [row for row in rows if isinstance(row, Request)]
    return [row for row in rows if isinstance(row, Failure)]


def test_each_faulty_line_is_one_failure_and_the_counts_add_up(tmp_path: Path) -> None:
    good = {"custom_id": "g", "method": "POST", "url": "/v1/chat/completions"}
    path = write(
        tmp_path / "a.jsonl",
        good | {"body": {"messages": USER}},
        "",
        "null",
        "[1]",
        '"x"',
        "{",
        good | {"custom_id": "b"},
        good | {"body": "text"},
        good | {"body": {"messages": USER}, "url": "/v1/unknown"},
        good | {"body": {"messages": USER, "stream": True}},
        good | {"body": {"messages": USER}},
    )
    rows = read(path)
    assert counted(path) == len(rows) == 10
    assert [row.row.index for row in rows] == list(range(10))
    assert [row.row.line for row in rows] == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row.error.code if isinstance(row, Failure) else None for row in rows] == [
        None,
        *["invalid_json_line"] * 4,
        "missing_required_parameter",
        "invalid_request",
        "invalid_url",
        "streaming_unsupported",
        None,
    ]
    assert rows[5].row.custom_id == "b"


def test_custom_ids_may_repeat_be_numbers_or_be_missing(tmp_path: Path) -> None:
    ids = ["a", "a", 7, 7, None]
    path = write(
        tmp_path / "a.jsonl", *({"custom_id": i, "prompt": "x"} for i in ids), {"prompt": "x"}
    )
    assert [r.row.custom_id for r in requests(path)] == ["a", "a", "7", "7", None, None]


def test_custom_id_of_another_type_fails_its_row(tmp_path: Path) -> None:
    [failure] = failures(write(tmp_path / "a.jsonl", {"custom_id": [1], "prompt": "x"}))
    assert failure.row.custom_id is None
    assert failure.error.param == "custom_id"


def test_rows_are_counted_over_all_files_and_lines_in_each(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", {"prompt": "a"}, {"prompt": "b"})
    two = table(tmp_path / "2.parquet", {"prompt": ["c", "d"]})
    three = write(tmp_path / "3.csv", "prompt", "e")
    rows = [(r.row.index, r.row.file, r.row.line, r.prompt) for r in requests(one, two, three)]
    assert rows == [
        (0, one, 1, "a"),
        (1, one, 2, "b"),
        (2, two, 1, "c"),
        (3, two, 2, "d"),
        (4, three, 2, "e"),
    ]


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 9])
def test_limit_is_over_all_files_and_counts_failures(tmp_path: Path, limit: int) -> None:
    one = write(tmp_path / "1.jsonl", {"prompt": "a"}, "{")
    two = write(tmp_path / "2.csv", "prompt", "c", "d")
    assert len(read(one, two, limit=limit)) == min(limit, 4)


@pytest.mark.parametrize("limit", [None, 1, 5])
def test_shards_have_each_row_once_with_its_number(tmp_path: Path, limit: int | None) -> None:
    paths = (
        write(tmp_path / "1.jsonl", *({"prompt": str(i)} for i in range(4)), "{"),
        write(tmp_path / "2.jsonl", *({"prompt": str(i)} for i in range(3))),
    )
    total = min(8, limit or 8)
    shards = []
    for number in (1, 2, 3):
        config = SourceConfig(inputs=paths, limit=limit, shard=(number, 3))
        shards.append([row.row.index for row in read_requests(config)])
        assert count_rows(config) == len(shards[-1])
    assert shards == [list(range(first, total, 3)) for first in range(3)]


def test_rows_before_a_cut_are_read_before_the_run_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = "".join(json.dumps({"prompt": str(i * 7919)}) + "\n" for i in range(20_000))
    path.write_bytes(gzip.compress(lines.encode())[:-1000])
    rows: list[Request | Failure] = []
    with pytest.raises(RunError, match=r"a\.jsonl\.gz"):
        rows.extend(read_requests(SourceConfig(inputs=(str(path),))))
    assert len(rows) > 10_000
    assert all(isinstance(row, Request) for row in rows)


def test_stdin_is_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "\ufeff" + json.dumps({"prompt": "é\u2028"}, ensure_ascii=False)
    (tmp_path / "in").write_text(data, encoding="utf-8")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        [request] = requests("-")
    assert (request.prompt, request.row.file) == ("é\u2028", "-")


def test_defaults_fill_what_rows_leave_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "a"}, {"prompt": "a", "max_tokens": 3})
    rows = requests(path, sampling=Sampling(max_tokens=5, temperature=1.0))
    assert [(r.sampling.max_tokens, r.sampling.temperature) for r in rows] == [(5, 1.0), (3, 1.0)]


def test_usage_errors_come_before_the_first_row_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "a"})
    with pytest.raises(UsageError):
        read_requests(SourceConfig(inputs=(path,), prompt="{{"))


# Templates


def test_prompt_template_makes_requests_of_data(tmp_path: Path) -> None:
    data = {"custom_id": 3, "review": "good", "n": "many", "body": "b", "messages": "m"}
    sampling = Sampling(max_tokens=4)
    [request] = requests(
        write(tmp_path / "a.jsonl", data),
        prompt="Review: {{ review }} {{ body }}",
        system="Label it.",
        sampling=sampling,
    )
    assert request.messages == [
        {"role": "system", "content": "Label it."},
        {"role": "user", "content": "Review: good b"},
    ]
    assert request.sampling == sampling
    assert request.row.custom_id == "3"


def test_missing_column_fails_its_row_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": "x"}, {"b": "y"}, {"a": "z"})
    rows = read(path, prompt="{{ a }}")
    assert [isinstance(row, Failure) for row in rows] == [False, True, False]
    assert isinstance(rows[1], Failure)
    assert "the row has b" in rows[1].error.message


def test_system_template_goes_before_chat_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"messages": USER, "lang": "fr"},
        {"messages": [{"role": "system", "content": "own"}, *USER], "lang": "fr"},
    )
    first, second = requests(path, system="In {{ lang }}.")
    assert first.messages == [{"role": "system", "content": "In fr."}, *USER]
    assert second.messages == [{"role": "system", "content": "own"}, *USER]


def test_missing_column_of_a_parquet_file_is_named_beside_those_there_are(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"id": [1], "review": ["x"], "stars": [5]})
    [failure] = failures(path, prompt="{{ reveiw }}")
    assert "id, review, stars" in failure.error.message


def test_only_needed_columns_of_a_parquet_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str] | None] = []
    plain = pq.ParquetFile.iter_batches

    def spy(self: Any, rows: int, columns: list[str] | None) -> Any:
        asked.append(columns)
        return plain(self, rows, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    columns = {"custom_id": ["c"], "a": ["x"], "b": ["y"], "image": [b"0" * 100]}
    path = table(tmp_path / "a.parquet", columns)
    [request] = requests(path, prompt="{{ a }}", keep=("b",))
    assert (request.row.custom_id, request.row.kept) == ("c", {"b": "y"})
    assert len(requests(path, prompt="same for all")) == 1
    assert len(requests(path, prompt='{{ row["a"] }}')) == 1
    assert len(requests(path, prompt="{{ a }}", keep=None)) == 1
    odd = table(tmp_path / "b.parquet", {"range": ["r"], "a": ["x"]})
    assert requests(odd, prompt="{{ range }}")[0].messages == [{"role": "user", "content": "r"}]
    assert asked.pop() == ["range"]
    assert asked == [["custom_id", "a", "b"], ["custom_id"], None, None]


# Tables


def test_parquet_structs_make_the_same_requests_as_json_lines(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    bodies = [
        {"messages": USER, "tools": [TOOLS[0]], "temperature": 0.5, "logit_bias": {"5": 1.0}},
        {
            "messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}],
            "tools": TOOLS,
            "max_tokens": 7,
            "stop": ["a"],
        },
    ]
    rows = [{"custom_id": str(i), "body": body} for i, body in enumerate(bodies)]
    lines = write(tmp_path / "a.jsonl", *rows)
    structs = table(tmp_path / "a.parquet", pa.Table.from_pylist(rows))
    text = [row | {"body": json.dumps(row["body"])} for row in rows]
    strings = table(tmp_path / "b.parquet", pa.Table.from_pylist(text))
    flat = table(
        tmp_path / "c.parquet", pa.Table.from_pylist([dict.fromkeys(FIELDS) | b for b in bodies])
    )
    wanted = [asked(request) for request in requests(lines)]
    for path in (structs, strings, flat):
        assert [asked(request) for request in requests(path)] == wanted


def asked(request: Request) -> tuple[Any, ...]:
    return request.messages, request.tools, request.sampling, request.template_kwargs


def test_parquet_columns_may_hold_json_text_maps_and_dictionaries(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet",
        {
            "messages": pa.array([json.dumps(USER)]).dictionary_encode(),
            "tools": pa.array([json.dumps(TOOLS)], pa.large_string()),
            "logit_bias": pa.array([[("5", 1.0)]], pa.map_(pa.string(), pa.float64())),
            "custom_id": pa.array([5], pa.int64()),
            "max_tokens": pa.array([9.0]),
            "label": pa.array(["a"]),
        },
    )
    [request] = requests(path)
    assert (request.messages, request.tools) == (USER, TOOLS)
    assert request.sampling == Sampling(max_tokens=9, logit_bias=((5, 1.0),))
    assert request.row.custom_id == "5"


def test_column_null_in_the_first_row_group_counts_as_absent(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet",
        {"prompt": ["a", "b"], "stop": pa.array([None, "x"])},
        row_group_size=1,
    )
    assert [r.sampling.stop for r in requests(path)] == [(), ("x",)]


def test_json_column_that_is_not_json_fails_its_row_alone(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"messages": [json.dumps(USER), "[{", "5"]})
    good, broken, wrong = read(path)
    assert isinstance(good, Request)
    assert isinstance(broken, Failure)
    assert "messages is not valid JSON" in broken.error.message
    assert isinstance(wrong, Failure)
    assert (broken.error.param, wrong.error.param) == ("messages", "messages")


def test_json_text_in_json_lines_is_not_parsed_again(tmp_path: Path) -> None:
    [failure] = failures(write(tmp_path / "a.jsonl", {"messages": json.dumps(USER)}))
    assert failure.error.param == "messages"


def test_columns_of_a_csv_file_are_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "custom_id\tprompt\tmax_tokens\ttemperature\tstop\tlabel\n1\t5\t7\t\t3\tx\n",
    )
    [request] = requests(str(path))
    assert (request.row.custom_id, request.prompt) == ("1", "5")
    assert request.sampling == Sampling(max_tokens=7, stop=("3",))


def test_messages_of_a_csv_file_are_json(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", "messages,n", '"[{""role"": ""user"", ""content"": ""hi""}]",x'
    )
    [failure] = failures(path)
    assert failure.error.param == "n"
    path = write(
        tmp_path / "b.csv", "messages,n", '"[{""role"": ""user"", ""content"": ""hi""}]",2'
    )
    [request] = requests(path)
    assert (request.messages, request.sampling.n) == (USER, 2)


# Kept columns


def test_kept_columns_are_those_of_the_row_as_it_is(tmp_path: Path) -> None:
    rows = [{"id": 1, "x": {"y": None}, "prompt": "a"}, {"prompt": ""}, "{"]
    path = write(tmp_path / "a.jsonl", *rows)
    assert [row.row.kept for row in read(path, keep=("x", "id"))] == [
        {"x": {"y": None}, "id": 1},
        {"x": None, "id": None},
        {},
    ]
    assert [row.row.kept for row in read(path, keep=None)] == [rows[0], rows[1], {}]
    assert [row.row.kept for row in read(path)] == [{}, {}, {}]


def test_kept_times_before_1970_and_finer_than_microseconds_are_values(tmp_path: Path) -> None:
    stamps = pa.array([-(10**18) - 1, 1001, None], pa.timestamp("ns"))
    path = table(tmp_path / "a.parquet", {"prompt": ["a"] * 3, "when": stamps})
    assert [r.row.kept["when"] for r in requests(path, keep=("when",))] == [
        datetime(1938, 4, 24, 22, 13, 20),
        datetime(1970, 1, 1, 0, 0, 0, 1),
        None,
    ]
    schema = kept_schema(SourceConfig(inputs=(path,), keep=("when",)))
    assert schema == pa.schema([("when", pa.timestamp("us"))])


def test_kept_schema_is_in_the_order_asked_for(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", {"a": [1], "b": ["x"], "c": [0.5]})
    schema = kept_schema(SourceConfig(inputs=(path,), keep=("c", "a")))
    assert schema is not None
    assert schema.names == ["c", "a"]
    everything = kept_schema(SourceConfig(inputs=(path,), keep=None))
    assert everything is not None
    assert everything.names == ["a", "b", "c"]


def test_kept_schema_of_several_files_fits_all(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"a": pa.array([1], pa.int32())})
    two = table(tmp_path / "2.parquet", {"a": pa.array([1], pa.int64()), "b": ["x"]})
    schema = kept_schema(SourceConfig(inputs=(one, two), keep=("b", "a")))
    assert schema == pa.schema([("b", pa.string()), ("a", pa.int64())])


def test_kept_columns_of_types_that_do_not_go_together_are_a_usage_error(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"a": [1]})
    two = table(tmp_path / "2.parquet", {"a": ["x"]})
    with pytest.raises(UsageError, match="differ between input files"):
        kept_schema(SourceConfig(inputs=(one, two), keep=("a",)))


def test_kept_schema_is_none_where_not_all_is_parquet(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"a": [1]})
    two = write(tmp_path / "2.jsonl", {"a": 1})
    assert kept_schema(SourceConfig(inputs=(one, two), keep=("a",))) is None


def test_kept_column_that_no_table_has_is_a_usage_error(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"id": [1]})
    two = write(tmp_path / "2.csv", "review", "x")
    read_requests(SourceConfig(inputs=(one, two), keep=("id", "review")))
    with pytest.raises(UsageError, match=r"--keep lable: no such column; the input has id, review"):
        read_requests(SourceConfig(inputs=(one, two), keep=("id", "lable")))


def test_kept_column_that_a_json_line_lacks_is_null(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"prompt": ["a"]})
    two = write(tmp_path / "2.jsonl", {"prompt": "a", "id": 7})
    assert [r.row.kept for r in requests(one, two, keep=("id",))] == [{"id": None}, {"id": 7}]


def test_csv_header_that_cannot_be_used_is_found_before_any_row(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than once"):
        read_requests(SourceConfig(inputs=(write(tmp_path / "a.csv", "a,a", "1,2"),)))


# Counts


def test_rows_are_counted_over_plain_lines_and_parquet(tmp_path: Path) -> None:
    one = table(tmp_path / "1.parquet", {"a": [1, 2, 3]})
    two = write(tmp_path / "2.jsonl", {}, "", "{", "  ", {})
    assert counted(one, two) == 6
    assert [counted(one, two, limit=limit) for limit in (2, 3, 4, 6, 7)] == [2, 3, 4, 6, 6]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.jsonl", "-"])
def test_rows_are_not_counted_where_that_means_reading_all(tmp_path: Path, name: str) -> None:
    one = table(tmp_path / "1.parquet", {"a": [1, 2, 3]})
    path = name if name == "-" else str(tmp_path / name)
    if name.startswith("a.jsonl"):
        Path(path).write_bytes(gzip.compress(b"{}\n"))
    elif name != "-":
        Path(path).write_text("a\n1\n")
    assert counted(one, path) is None
    assert counted(one, path, limit=2) is None


# Memory


LONG = "x" * 1000


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_memory_does_not_grow_with_the_length_of_a_text_file(tmp_path: Path, kind: str) -> None:
    line = '{{"prompt": "{} {}"}}' if kind == "jsonl" else "{} {}"
    rows = [line.format(i, LONG) for i in range(10_000)]
    path = write(tmp_path / f"a.{kind}", *(["prompt"] if kind == "csv" else []), *rows)
    del rows
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_requests(SourceConfig(inputs=(path,)))) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_length_of_a_row_group(tmp_path: Path) -> None:
    texts = [f"{i} {LONG}" for i in range(100_000)]
    path = table(
        tmp_path / "a.parquet", {"prompt": texts}, use_dictionary=False, compression="none"
    )
    assert pq.read_metadata(path).num_row_groups == 1
    del texts
    before = pa.total_allocated_bytes()
    most = 0
    for _ in read_requests(SourceConfig(inputs=(path,))):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 20_000_000


# Samples


SAMPLES = Path(__file__).parents[2] / "samples"


def test_question_samples_are_requests() -> None:
    rows = requests(str(SAMPLES / "questions.jsonl"))
    assert len(rows) == 12
    assert all(row.row.custom_id and 16 <= row.sampling.max_tokens <= 48 for row in rows)
    assert sum(row.messages is not None and len(row.messages) == 2 for row in rows) == 2


def test_review_samples_are_the_same_in_both_files() -> None:
    inputs = resolve_inputs((str(SAMPLES / "reviews.*"),))
    assert [Path(path).name for path in inputs] == ["reviews.csv", "reviews.jsonl"]
    prompt = "{{ id }} {{ review }} {{ stars }}"
    table_rows, line_rows = (requests(path, prompt=prompt) for path in inputs)
    assert len(line_rows) == 24
    assert [row.messages for row in table_rows] == [row.messages for row in line_rows]
