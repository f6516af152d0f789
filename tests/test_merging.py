"""Shards of an input, each run by itself, joined: as one run of all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import batchrun
from batchrun.errors import RunError, UsageError
from batchrun.merging import merge
from batchrun.report.reading import read_report
from batchrun.report.render import render
from batchrun.report.summary import Summary
from tests.running import read_jsonl, read_parquet, write_jsonl

Runner = Callable[..., Summary]
_OTHERS = {"seconds", "finished_at", "cached_tokens", "disk_tokens", "usage", "created"}

HOT = {"prompt": "once", "temperature": 1.5, "max_tokens": 6}
ROWS = [
    *({"custom_id": f"r{i}", "prompt": f"about {i}", "right": "a"} for i in range(5)),
    *[HOT, HOT | {"n": 2}, {"prompt": ""}, HOT, {"prompt": ""}, HOT],
]


@pytest.fixture
def shard(tmp_path: Path, tiny_model: Callable[..., Path]) -> Runner:
    """`shard("1/2", "out.parquet", **flags)`: the rows of that shard, or None for all."""
    path = write_jsonl(tmp_path / "in.jsonl", ROWS)

    def run(number: str | None, output: str, **flags: Any) -> Summary:
        defaults = {"model": str(tiny_model("llama")), "max_tokens": 4, "quiet": True}
        return batchrun.run(path, output=tmp_path / output, shard=number, **(defaults | flags))

    return run


def same(value: Any) -> Any:
    """What does not depend on when and beside what a row was answered."""
    if isinstance(value, dict):
        return {name: same(item) for name, item in value.items() if name not in _OTHERS}
    return [same(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("num_shards", [1, 3, 20])
def test_joined_shards_are_the_whole_run(shard: Runner, tmp_path: Path, num_shards: int) -> None:
    """Of twenty shards, nine have no rows."""
    whole = shard(None, "whole.parquet", keep=["right"])
    names = [f"{number}.parquet" for number in range(1, num_shards + 1)]
    for number, name in enumerate(names, start=1):
        shard(f"{number}/{num_shards}", name, keep=["right"])
    joined = merge([tmp_path / name for name in reversed(names)], tmp_path / "all.parquet")

    assert same(read_parquet(tmp_path / "all.parquet")) == same(
        read_parquet(tmp_path / "whole.parquet")
    )
    assert read_jsonl(tmp_path / "all.errors.jsonl") == read_jsonl(tmp_path / "whole.errors.jsonl")
    assert (joined.status, joined.exit_status) == (whole.status, 3)
    assert joined.request_counts == whole.request_counts
    assert joined.finish_reasons == whole.finish_reasons
    assert joined.tokens.completion == whole.tokens.completion
    assert joined.errors["invalid_request"].count == 2
    assert f"Joined from {num_shards} shards" in joined.notes[0]
    assert "9 of 11 rows answered, 2 FAILED" in render(joined)
    assert read_report(tmp_path / "all.parquet")["request_counts"]["total"] == 11
    assert "all.parquet" in (tmp_path / "all.report.html").read_text()


def test_shards_as_jsonl_and_what_is_right(shard: Runner, tmp_path: Path) -> None:
    flags = {"expected": "right", "metric": "exact"}
    whole = shard(None, "whole.jsonl", **flags)
    paths = [tmp_path / f"{number}.jsonl" for number in (1, 2)]
    for number, path in enumerate(paths, start=1):
        shard(f"{number}/2", path.name, **flags)
    joined = merge(paths, tmp_path / "all.jsonl")
    merge(paths, tmp_path / "all.parquet")

    assert same(read_jsonl(tmp_path / "all.jsonl")) == same(read_jsonl(tmp_path / "whole.jsonl"))
    assert joined.evaluation == whole.evaluation is not None
    wrong = read_report(tmp_path / "all.jsonl")["figures"]["wrong"]
    assert len(wrong) == len(read_report(tmp_path / "whole.jsonl")["figures"]["wrong"]) > 0
    assert "correct" in pq.read_schema(tmp_path / "all.parquet").names


def test_shards_that_are_not_whole_are_refused(shard: Runner, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        shard(f"{number}/3", f"{number}.parquet")
    shard("1/2", "other.parquet")
    shard(None, "whole.parquet")
    one, two, three, other, whole = (
        tmp_path / f"{name}.parquet" for name in (1, 2, 3, "other", "whole")
    )
    target = tmp_path / "all.parquet"
    for paths, message in (
        ([one, three], "shard 2/3 is missing"),
        ([one], "shard 2/3, 3/3 is missing"),
        ([one, two, two, three], "are both shard 2/3"),
        ([one, other], "is one of 2 shards"),
        ([one, two, whole], "is no shard"),
        ([one, two, tmp_path / "none.parquet"], "no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            merge(paths, target)
    with pytest.raises(UsageError, match="is an input"):
        merge([one, two, three], two)
    assert not target.exists()


def test_rows_that_are_missing_or_there_twice_are_named(shard: Runner, tmp_path: Path) -> None:
    for number in (1, 2):
        shard(f"{number}/2", f"{number}.parquet")
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    table = pq.read_table(paths[1])
    rows = table["row"].to_pylist()
    assert rows == [1, 3, 5, 7, 9]
    changed = pa.concat_tables([table.slice(0, 1), table.slice(0, 1), table.slice(4)])
    pq.write_table(changed, paths[1])

    with pytest.raises(RunError, match=r"3 rows are missing: 3, 5, 7; 1 rows are there twice: 1;"):
        merge(paths, tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()
    assert not (tmp_path / "all.errors.jsonl").exists()


def test_columns_are_those_of_one_run_whatever_each_shard_saw(
    shard: Runner, tmp_path: Path
) -> None:
    """A shard that saw no score has a column of text, as it has one of what it saw."""
    scores = [None, 1, None, 2, "low", None, 1.5, 3]
    rows = [{"prompt": str(i), "text": "t", "score": s} for i, s in enumerate(scores)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    paths = [tmp_path / f"{number}.parquet" for number in (1, 2, 3, 4)]
    for keep in (["text", "score"], ["score"]):
        shard(None, "whole.parquet", keep=keep)
        for number, path in enumerate(paths, start=1):
            shard(f"{number}/4", path.name, keep=keep)
        merge(paths, tmp_path / "all.parquet")

        found, whole = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("all", "whole"))
        assert set(found.schema) == set(whole.schema)
        assert found["score"].to_pylist() == whole["score"].to_pylist()


def test_phases_are_those_of_the_shard_that_took_longest(shard: Runner, tmp_path: Path) -> None:
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    runs = [shard(f"{number}/2", path.name) for number, path in enumerate(paths, start=1)]
    joined = merge(paths, tmp_path / "all.parquet")

    longest = max((read_report(path) for path in paths), key=lambda run: run["elapsed_time"])
    assert joined.elapsed == longest["elapsed"]
    assert joined.elapsed_time == longest["elapsed_time"] in [run.elapsed_time for run in runs]


def test_shards_of_another_input_or_format_are_refused(shard: Runner, tmp_path: Path) -> None:
    one, two = shard("1/2", "1.parquet"), tmp_path / "2.jsonl"
    shard("2/2", "2.jsonl")
    with pytest.raises(UsageError, match=r"2\.jsonl: is not in the format of .*1\.parquet"):
        merge([one.output, two], tmp_path / "all.parquet")
    report = tmp_path / "2.report.json"
    report.write_text(report.read_text().replace("in.jsonl", "other.jsonl"))
    with pytest.raises(UsageError, match=r"has rows of another input than .* \(other\.jsonl\)"):
        merge([one.output, two], tmp_path / "all.parquet")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("folder/", "folder/: is a folder; name a file in it"),
        ("here.jsonl", "here.jsonl: is a folder; name a file in it"),
        ("all.txt", "end its name in .parquet or .jsonl$"),
        ("no/all.jsonl", "there is no folder .*no; make it with"),
    ],
)
def test_a_wrong_target_is_named(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "here.jsonl").mkdir()
    with pytest.raises(UsageError, match=message):
        merge(["1.parquet"], f"{tmp_path}/{target}")


def test_a_shard_that_was_stopped_is_refused(shard: Runner, tmp_path: Path) -> None:
    shard("1/1", "1.parquet")
    report = tmp_path / "1.report.json"
    report.write_text(json.dumps(json.loads(report.read_text()) | {"status": "stopped"}))
    with pytest.raises(UsageError, match="did not finish"):
        merge([tmp_path / "1.parquet"], tmp_path / "all.parquet")


def test_an_output_of_another_shard_is_not_replaced(shard: Runner, tmp_path: Path) -> None:
    shard("1/2", "out.parquet")
    before = (tmp_path / "out.parquet").read_bytes()
    for number, held in (("2/2", "shard 1/2"), ("1/3", "shard 1/2")):
        with pytest.raises(UsageError, match=f"holds the rows of {held}; give each"):
            shard(number, "out.parquet")
    assert (tmp_path / "out.parquet").read_bytes() == before
    assert shard("1/2", "out.parquet").request_counts.reused
    shard("2/2", "out.parquet", fresh=True)


@pytest.mark.parametrize(
    "flags", [{"prompt": "{{ prompt }}!"}, {"max_tokens": 3}, {"keep": ["right"]}]
)
def test_shards_that_were_asked_otherwise_are_not_joined(
    shard: Runner, tmp_path: Path, flags: dict[str, Any]
) -> None:
    shard("1/2", "1.parquet")
    shard("2/2", "2.parquet", **flags)
    with pytest.raises(UsageError, match=r"2.parquet: was run with other flags than .*1.parquet"):
        merge([tmp_path / "1.parquet", tmp_path / "2.parquet"], tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()
