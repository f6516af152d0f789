"""How runs end when not all is well, and that their reports say what was."""

from __future__ import annotations

import gzip
import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import batchrun
from batchrun import building, device, ending, models, sink
from batchrun.models import LoadedModel
from batchrun.report import page
from batchrun.report.render import render
from batchrun.report.summary import Summary
from tests.running import read_jsonl, read_parquet, read_summary, texts, write_jsonl

GOOD = {"prompt": "good"}
BAD: dict[str, Any] = {"prompt": "bad", "stream": True}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def good(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"row {i}"} | fields for i in range(count)]


def _never(*args: object) -> None:
    raise AssertionError("the weights were loaded")


# ---------------------------------------------------------------- the report


def test_counts_tokens_and_reasons_of_the_report_add_up(
    run: Callable[..., Summary], output: Path
) -> None:
    eos = {"logit_bias": {"2": 100}}
    rows = [
        *good(3, ignore_eos=True),  # three are cut off at --max-tokens
        {"prompt": "ends at once"} | eos,
        {"prompt": "two choices", "n": 2, "temperature": 1} | eos,
        {"prompt": "one token", "max_tokens": 1, "ignore_eos": True},
        {"prompt": "no token", "max_tokens": 0},
        *good(1, ignore_eos=True),  # the answer of the first row
        BAD,
        b"{",
    ]
    summary = run(rows)

    counts = summary.request_counts
    assert (counts.total, counts.completed, counts.failed) == (10, 8, 2)
    assert (counts.reused, counts.not_run) == (1, 0)
    written = read_parquet(output)
    assert len(written) == 11
    reasons = Counter(row["finish_reason"] for row in written if row["finish_reason"])
    assert summary.finish_reasons == reasons == {"length": 6, "stop": 3}
    assert summary.truncated == 6
    computed = [row for row in written[:8] if row["finish_reason"]]
    assert summary.tokens.completion == sum(row["completion_tokens"] for row in computed)
    assert summary.tokens.prompt == sum(row["prompt_tokens"] for row in computed)
    assert summary.tokens.cached == sum(row["cached_tokens"] for row in computed)
    assert {code: error.count for code, error in summary.errors.items()} == {
        "streaming_unsupported": 1,
        "invalid_json_line": 1,
    }
    report = read_summary(output)
    assert report == summary.to_dict()
    assert report["device"]["kind"]
    assert report["blas"]
    assert "6 rows cut off at max_tokens (their own, or --max-tokens 4)" in render(summary)


def test_no_part_of_a_row_is_markup_on_the_page(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    evil = "<img src=x onerror=alert(1)><script>1<"
    echo = {"echo": True, "logprobs": 1, "max_tokens": 0}
    rows = [
        {"custom_id": evil, "prompt": evil, "label": evil, evil: evil, **echo},
        {"custom_id": evil, "prompt": evil, "stream": True, "model": evil},
    ]
    source = write_jsonl(tmp_path / f"{evil}.jsonl", rows)
    output = tmp_path / f"{evil}.parquet"
    options = {"keep": ["label", evil], "expected": "label", "metric": "choice", "quiet": True}
    summary = batchrun.run(source, output=output, model=str(tiny_model("llama")), **options)
    assert summary.exit_status == 3
    text = output.with_name(f"{evil}.report.html").read_text()
    assert re.findall(r"<(?:img|script)", text) == []
    assert text.count(escape(evil)) > 8


def test_failed_and_finished_rows_have_the_same_columns_and_keep_their_custom_id(
    run: Callable[..., Summary], output: Path
) -> None:
    run([GOOD | {"custom_id": "yes"}, BAD | {"custom_id": "no"}, b"[1]"], keep=["prompt"])
    yes, no, junk = read_parquet(output)
    assert yes.keys() == no.keys() == junk.keys()
    assert [row["custom_id"] for row in (yes, no, junk)] == ["yes", "no", None]
    assert [row["status_code"] for row in (yes, no, junk)] == [200, 400, 400]
    assert (no["text"], no["error_code"]) == (None, "streaming_unsupported")
    assert [row["prompt"] for row in (yes, no, junk)] == ["good", "bad", None]


@pytest.mark.parametrize("rows", [[BAD], [GOOD, BAD], [GOOD, b"null", GOOD]])
def test_a_run_with_failed_rows_is_never_called_a_success(
    run: Callable[..., Summary], rows: list[Any]
) -> None:
    summary = run(rows)
    assert (summary.status, summary.exit_status) == ("completed_with_failures", 3)
    first, *_ = render(summary).splitlines()
    assert first.startswith(f"{len(rows) - 1} of {len(rows)} row")
    assert "1 FAILED" in first
    assert "complete" not in render(summary).lower()


def test_lines_of_every_bad_kind_have_one_record_each(
    run: Callable[..., Summary], output: Path
) -> None:
    chat = {"method": "POST", "url": "/v1/chat/completions"}
    lines: list[Any] = [
        *(b"", b"null", b"[1]", b'"x"', b"{", b"7", b"\xff\xfe\x00"),
        {"custom_id": "missing body"} | chat,
        {"custom_id": "body as text"} | chat | {"body": "hello"},
        {"custom_id": "url"} | chat | {"url": "/v1/embeddings", "body": {"input": "x"}},
        {"custom_id": "stream"} | chat | {"body": {"messages": [], "stream": True}},
        {"custom_id": "no messages"} | chat | {"body": {"messages": []}},
        {"custom_id": "empty"} | {"prompt": ""},
        {"custom_id": "one", "prompt": [5]},
    ]
    summary = run(lines)
    written = read_parquet(output)
    assert [row["row"] for row in written] == list(range(13))
    assert [row["status_code"] for row in written] == [400] * 12 + [200]
    assert summary.request_counts.failed == sum(e.count for e in summary.errors.values()) == 12
    assert [line["line"] for line in read_jsonl(output.with_name("out.errors.jsonl"))] == [
        *range(2, 14)
    ]


def test_prompts_over_the_context_length_fail_as_rows(
    run: Callable[..., Summary], output: Path
) -> None:
    rows = [{"prompt": [5] * n, "max_tokens": 8, "ignore_eos": True} for n in (15, 16, 17, 10, 3)]
    summary = run(rows, max_model_len=16)
    assert [row["error_code"] for row in read_parquet(output)] == [
        *(None, "context_length_exceeded", "context_length_exceeded", None, None)
    ]
    # What the context has no room for is cut off, and counted as such.
    done = [row["completion_tokens"] for row in read_parquet(output)]
    assert done == [1, None, None, 6, 8]
    assert summary.truncated == 3
    assert summary.exit_status == 3


# ---------------------------------------------------------------- a model that raises


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`poison(token)`: the model raises whenever it is fed a token of that number or above."""
    whole = LoadedModel.__call__

    def poison(lowest: int) -> None:
        def poisoned(self: LoadedModel, tokens: Any, cache: list[Any], given: Any = None) -> Any:
            if (tokens >= lowest).any().item():
                raise RuntimeError("no kernel for this shape")
            return whole(self, tokens, cache, given)

        monkeypatch.setattr(LoadedModel, "__call__", poisoned)

    return poison


def test_a_model_that_always_raises_fails_every_row_with_its_words(
    run: Callable[..., Summary], output: Path, poison: Callable[[int], None]
) -> None:
    poison(20)  # the trial at the start knows lower ones only
    summary = run([{"prompt": [20 + i, 21]} for i in range(40)], max_num_seqs=8)
    assert (summary.exit_status, summary.status) == (3, "completed_with_failures")
    assert summary.request_counts.failed == 40
    for row in read_parquet(output):
        assert row["error_code"] == "engine_error"
        assert row["error_message"].endswith("RuntimeError: no kernel for this shape")
        assert row["status_code"] == 500
    assert render(summary).startswith("0 of 40 rows answered, 40 FAILED\n")


def test_a_row_on_which_the_model_raises_fails_alone(
    run: Callable[..., Summary], output: Path, poison: Callable[[int], None]
) -> None:
    rows = [{"prompt": [20 + i, 21], "logit_bias": {"30": 100}} for i in range(20)]
    run(rows)
    alone = texts(output)
    poison(300)
    rows[7] = {"prompt": [30, 310], "logit_bias": {"30": 100}}
    summary = run(rows, fresh=True)
    assert summary.request_counts.failed == 1
    assert texts(output) == [None if i == 7 else text for i, text in enumerate(alone)]


# ---------------------------------------------------------------- --fail-on-error


@pytest.mark.parametrize(
    ("limit", "num_bad", "failed"),
    [
        *((True, 1, True), (True, 0, False)),
        *((3, 2, False), (3, 3, True)),
        *((0.5, 5, False), (0.5, 6, True)),
    ],
)
def test_too_many_failed_rows_fail_the_run(
    run: Callable[..., Summary], output: Path, limit: float | bool, num_bad: int, failed: bool
) -> None:
    summary = run([*good(10 - num_bad), *[BAD] * num_bad], fail_on_error=limit)
    assert (summary.status == "failed") is failed
    assert summary.exit_status == (1 if failed else 3 if num_bad else 0)
    assert output.exists() is not failed
    if failed:
        assert summary.reason == f"{summary.request_counts.failed} rows failed (--fail-on-error)"
        assert render(summary).startswith("The run FAILED: ")
        assert output.with_name(output.name + ".journal").exists()


def test_a_share_of_failed_rows_is_judged_at_the_end_where_the_total_is_not_known(
    run: Callable[..., Summary], tmp_path: Path, output: Path
) -> None:
    model = run([GOOD]).model
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in [BAD, *good(3)])
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    flags: dict[str, Any] = {"model": model, "max_tokens": 4, "quiet": True}
    path = tmp_path / "in.jsonl.gz"
    enough = batchrun.run(path, output=output, fail_on_error=0.3, **flags)
    assert (enough.exit_status, len(texts(output))) == (3, 4)
    assert batchrun.run(path, output=output, fail_on_error=0.2, **flags).exit_status == 1


def test_rows_that_fail_before_any_can_run_fail_the_run_without_the_weights(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchrun.models.load", _never)
    summary = run([BAD, *good(50)], fail_on_error=True)
    assert (summary.exit_status, summary.request_counts.failed) == (1, 1)
    assert summary.request_counts.not_run == 50


def test_a_file_of_bad_rows_is_not_read_to_its_end(run: Callable[..., Summary]) -> None:
    summary = run([BAD] * 100, fail_on_error=3)
    assert (summary.exit_status, summary.request_counts.failed) == (1, 3)


def test_the_start_does_not_wait_until_the_rows_are_counted(
    run: Callable[..., Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Event()
    load = models.load

    def count(_config: object) -> int:
        assert loaded.wait(60)
        return 5

    def told(*args: Any) -> Any:
        loaded.set()
        return load(*args)

    monkeypatch.setattr("batchrun.report.counting.count_rows", count)
    monkeypatch.setattr(models, "load", told)
    assert run(good(5)).exit_status == 0


def test_rows_that_fail_in_the_engine_stop_the_run(
    run: Callable[..., Summary], poison: Callable[[int], None]
) -> None:
    poison(20)
    summary = run([{"prompt": [20 + i, 21]} for i in range(40)], fail_on_error=2, max_num_seqs=1)
    assert summary.exit_status == 1
    assert summary.request_counts.failed == 2
    assert summary.request_counts.not_run == 38


# ---------------------------------------------------------------- time and broken files


def test_max_time_ends_the_run_in_time_to_be_continued(
    run: Callable[..., Summary], output: Path
) -> None:
    # At one row at a time this would take a minute.
    rows = good(60, max_tokens=1000, ignore_eos=True)
    # Whether the engine begins when it knows all rows or one.
    first = {"prompt": "the longest prompt runs first, as does the first row"}
    summary = run([first, *rows], max_time=2, max_num_seqs=1)
    assert (summary.status, summary.exit_status) == ("stopped", 4)
    assert summary.reason == "its time was up (--max-time)"
    assert 0 < summary.request_counts.completed < 40
    assert summary.elapsed_time < 20
    assert not output.exists()
    assert "its time was up (--max-time)" in render(summary)
    assert run([first]).request_counts.reused == 1


def test_a_signal_while_the_weights_load_ends_the_run_before_its_first_row(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = models.load

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return load(*args)

    monkeypatch.setattr(models, "load", interrupted)
    summary = run(good(5))
    assert (summary.exit_status, summary.request_counts.completed) == (4, 0)
    assert not output.exists()


def interrupted(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, with a SIGTERM before it the first time: a second one would end this process."""
    signals = iter([signal.SIGTERM])

    def taken(*args: Any, **options: Any) -> Any:
        for number in signals:
            signal.raise_signal(number)
        return step(*args, **options)

    return taken


@pytest.mark.parametrize(
    ("room", "step"),
    [
        (models, "locate"),
        (models, "load_tokenizer"),
        (sink, "Journal"),
        (device, "prepare"),
        (building, "Ledger"),
        (building, "Engine"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_signal_before_the_first_row_saves_what_there_is_and_ends_with_4(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch, room: Any, step: str
) -> None:
    with monkeypatch.context() as during:
        during.setattr(room, step, interrupted(vars(room)[step]))
        summary = run(good(5))
    assert (summary.exit_status, summary.request_counts.completed) == (4, 0)
    assert not output.exists()
    assert run(good(5)).exit_status == 0


@pytest.mark.parametrize(
    ("room", "step"),
    [(ending, "tally"), (ending, "report_text"), (ending, "write_report"), (page, "render_page")],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_signal_after_the_last_row_changes_nothing(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch, room: Any, step: str
) -> None:
    monkeypatch.setattr(room, step, interrupted(vars(room)[step]))
    rows = [row | {"label": "x"} for row in good(5)]
    assert run(rows, expected="label").exit_status == 0
    assert len(texts(output)) == 5
    assert output.with_name("out.report.html").exists()


def test_a_signal_while_the_output_is_written_leaves_it_whole(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sink.write_output

    def interrupted(*args: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        write(*args, **options)

    monkeypatch.setattr(sink, "write_output", interrupted)
    assert run(good(5)).exit_status == 0
    assert len(texts(output)) == 5


def test_a_source_that_breaks_off_fails_the_run_and_loses_nothing(
    run: Callable[..., Summary], tmp_path: Path, output: Path
) -> None:
    model = run(good(2)).model
    whole = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in good(300)))
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(whole[:-200])
    flags: dict[str, Any] = {"model": model, "max_tokens": 4, "quiet": True}
    failed = batchrun.run(path, output=output, **flags)
    assert (failed.status, failed.exit_status) == ("failed", 1)
    assert failed.reason is not None
    assert failed.reason.startswith(f"{path}: cannot be read to its end: ")
    assert failed.request_counts.total is None
    assert failed.request_counts.completed > 2
    assert read_summary(Path(failed.output)) == failed.to_dict()
    assert output.with_name("out.parquet.journal").exists()
    assert len(texts(output)) == 2
    path.write_bytes(whole)
    summary = batchrun.run(path, output=output, **flags)
    assert summary.request_counts.completed == 300
    assert summary.request_counts.reused == failed.request_counts.completed
