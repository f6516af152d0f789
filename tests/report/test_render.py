from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.report.meter import ErrorCount
from batchrun.report.render import one_line, render
from batchrun.report.summary import Outcome
from tests.report import figures

TOO_LONG = (
    "the prompt has 9,000 tokens and the context length is 8,192, the answer included; shorten "
    "the prompt, or raise --max-model-len if the model allows it"
)


def first_line(**values: Any) -> str:
    return render(figures.summary(figures.meter(**values))).splitlines()[0]


def test_the_screen_of_a_run_with_everything() -> None:
    meter = figures.meter(
        completed=8,
        reused=2,
        truncated=1,
        errors={"context_length_exceeded": TOO_LONG, "empty_prompt": "nothing"},
    )
    assert render(figures.summary(meter, notes=["a small model"])) == (
        """\
10 of 12 rows answered, 2 FAILED, 2 reused
Run the same command again to try only the failed rows once more.

tokens         prompt     cached  generated  prefill/s   decode/s     rows/s
                  800        320        160      300.0       50.0       0.80
seconds          load    prepare    prefill     decode      write      total
                  2.5        0.0        2.0        4.0        0.0       10.0
batch     8.0 of 32 rows a decode step, 10 at most
device    cpu; peak memory 1.00 GB arrays, 1.50 GB all; BLAS openblas

1 row cut off at max_tokens (their own, or --max-tokens 1024)
1 row failed with context_length_exceeded, as in.jsonl:1 (custom_id id-1)
    the prompt has 9,000 tokens and the context length is 8,192, the answer
    included; shorten the prompt, or raise --max-model-len if the model allows…
1 row failed with empty_prompt, as in.jsonl:2 (custom_id id-2)
    nothing

Note: a small model

output    out.parquet
errors    out.errors.jsonl
report    out.report.html"""
    )


def test_images_and_videos_are_counted_where_there_are_any() -> None:
    engine = figures.stats(media_used=60, media_encoded=12)
    lines = render(figures.summary(figures.meter(completed=12), engine=engine)).split("\n")
    assert "batch     8.0 of 32 rows a decode step, 10 at most; 12 of 60 media encoded" in lines


def test_the_verdict_of_a_run_that_did_it_all() -> None:
    assert first_line(completed=12) == "12 of 12 rows answered"
    assert first_line(completed=1) == "1 of 1 row answered"


def test_the_verdict_names_failed_rows_and_never_success() -> None:
    meter = figures.meter(completed=10, errors={"a": "1", "b": "2"})
    text = render(figures.summary(meter))

    assert text.splitlines()[0] == "10 of 12 rows answered, 2 FAILED"
    assert "complete" not in text
    assert "success" not in text


def test_the_verdict_when_all_rows_failed() -> None:
    assert first_line(errors={"a": "1"}) == "0 of 1 row answered, 1 FAILED"


def test_the_verdict_when_nothing_was_left_to_do() -> None:
    text = render(figures.summary(figures.meter(reused=12), device={}, engine=_nothing()))

    assert text.splitlines()[0] == (
        "12 of 12 rows answered, all by an earlier run: nothing was left to do"
    )
    assert "tokens" not in text
    assert "batch" not in text


def test_the_verdict_of_an_empty_input() -> None:
    assert first_line() == "0 of 0 rows answered: the input has no rows"


def test_a_stopped_run_says_why_and_how_to_go_on_and_names_no_output() -> None:
    meter = figures.meter(completed=4, errors={"a": "1"}, total=12)
    lines = render(figures.summary(meter, outcome="stopped", reason="interrupted")).splitlines()

    assert lines[:3] == [
        "Stopped early: 4 of 12 rows answered, 1 FAILED, 7 not run",
        "interrupted.",
        "Run the same command again to go on from here: answers so far are kept.",
    ]
    assert not any(line.startswith("output") for line in lines)


def test_a_stopped_run_of_unknown_length() -> None:
    meter = figures.meter(completed=4)
    text = render(figures.summary(meter, outcome="stopped"))

    assert text.splitlines()[0] == "Stopped early: 4 rows answered"


def test_a_failed_run_says_so_first() -> None:
    meter = figures.meter(completed=4, errors={"a": "1"}, total=12)
    text = render(figures.summary(meter, outcome="failed", reason="1 row failed"))

    assert text.splitlines()[0] == "The run FAILED: 4 of 12 rows answered, 1 FAILED, 7 not run"


def test_a_long_reason_goes_over_lines() -> None:
    reason = (
        "/data/requests/2025/in.jsonl.gz: cannot be read to its end: the file is "
        + ("cut off " * 9).strip()
    )
    lines = render(figures.summary(figures.meter(), outcome="failed", reason=reason)).splitlines()

    assert " ".join(lines[1:3]) == f"{reason}."


def test_errors_beyond_the_first_kinds_are_still_counted() -> None:
    meter = figures.meter(errors={"a": "1", "b": "2", "c": "3", "d": "4"})

    assert "Also failed: 1 with c, 1 with d" in render(figures.summary(meter))


def test_notes_beyond_two_are_counted() -> None:
    summary = figures.summary(figures.meter(completed=1), notes=["one", "two", "three"])

    assert "Note: one\nand 2 more notes: see the report" in render(summary)


def test_a_long_path_keeps_its_end() -> None:
    output = "a/" * 60 + "out.parquet"
    text = render(figures.summary(figures.meter(completed=1), output=output))

    line = next(line for line in text.splitlines() if line.startswith("output"))
    assert len(line) == 80
    assert line.endswith("/a/out.parquet")


def test_a_failed_row_in_a_long_path_keeps_its_line() -> None:
    meter = figures.meter(errors={"context_length_exceeded": "too long"})
    meter.errors["context_length_exceeded"].row = "a/" * 60 + "rows.jsonl:17"

    lines = render(figures.summary(meter)).splitlines()
    line = next(line for line in lines if line.startswith("1 row failed"))
    assert line.startswith("1 row failed with context_length_exceeded, as …")
    assert line.endswith("/rows.jsonl:17")


def test_a_row_cannot_send_commands_to_the_terminal() -> None:
    meter = figures.meter(errors={"a": "red \x1b[31m\r\nnext \u202e line\x07"})

    assert "    red \ufffd[31m next \ufffd line\ufffd" in render(figures.summary(meter))


def test_one_line_keeps_wide_and_accented_text() -> None:
    assert one_line("  grüße \n\t 你好 ") == "grüße 你好"


def _nothing() -> Any:
    return figures.stats(decode_steps=0, row_steps=0)


texts = st.text(max_size=300)
counts = st.integers(0, 10**12)


@given(
    codes=st.dictionaries(st.text(min_size=1, max_size=100), texts, max_size=6),
    row=texts,
    output=st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=200),
    notes=st.lists(texts, max_size=5),
    reason=st.none() | texts,
    outcome=st.sampled_from(["finished", "stopped", "failed"]),
    total=st.none() | counts,
    tokens=counts,
    number=counts,
    seconds=st.just(0.0) | st.floats(1e-3, 1e9),
)
def test_it_fits_a_terminal_whatever_is_in_it(
    codes: dict[str, str],
    row: str,
    output: str,
    notes: list[str],
    reason: str | None,
    outcome: Outcome,
    total: int | None,
    tokens: int,
    number: int,
    seconds: float,
) -> None:
    meter = figures.meter(completed=2, truncated=1, errors=codes, total=total, elapsed=seconds)
    meter.num_completed += number
    meter.num_reused = number // 2
    meter.num_truncated += number
    meter.prompt_tokens = meter.completion_tokens = tokens
    for code in codes:
        meter.errors[code] = ErrorCount(number + 1, row, codes[code])
    engine = figures.stats(
        prefill_tokens=tokens,
        decode_tokens=tokens,
        prefill_seconds=seconds,
        row_steps=number,
        media_used=number,
        peak_running=number,
        retries=number,
    )
    summary = figures.summary(
        meter,
        output="folder/" + output.replace(".", "_") + ".parquet",
        engine=engine,
        notes=notes,
        reason=reason,
        outcome=outcome,
        peak_memory=(number, number),
    )

    lines = render(summary).split("\n")
    assert len(lines) <= 24
    for line in lines:
        assert _columns(line) <= 80
        assert line.isprintable()


def _columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in line)


@pytest.mark.parametrize("outcome", ["stopped", "failed"])
def test_a_run_that_did_not_finish_is_never_called_answered_in_full(outcome: Outcome) -> None:
    meter = figures.meter(completed=3, total=3)
    text = render(figures.summary(meter, outcome=outcome))

    assert not text.startswith("3 of 3")
