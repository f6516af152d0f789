"""The summary as text for the end of a run: at most 24 lines of 80 columns, whatever is in it.

The first line is the verdict. What is cut here is whole in the report file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tqdm.utils import disp_len, disp_trim

from batchrun.evaluation import Evaluation
from batchrun.report.summary import Summary

WIDTH = 80
HEIGHT = 24

_ERRORS = 2
_NOTES = 2
_REASON = 3
_INDENT = "    "
_ROW_ROOM = 24
_LABEL = 10
_COLUMN = 11
_Figure = tuple[str, str]


def render(summary: Summary) -> str:
    """Lines without a final newline, free of control characters."""
    sections = [
        [_verdict(summary), *_what_next(summary)],
        _figures(summary),
        [*_truncated(summary), *_errors(summary)],
        _notes(summary),
        _files(summary),
    ]
    sections = [section for section in sections if section]
    spare = HEIGHT - sum(map(len, sections))
    gap = "\n\n" if spare >= len(sections) else "\n"
    return gap.join("\n".join(section) for section in sections)


def one_line(text: str) -> str:
    """`text` without line breaks and what a terminal might obey: rows may hold anything."""
    return " ".join(_harmless(text).split())


def printable(text: str) -> str:
    """`text` with its lines, without what a terminal might obey."""
    return "\n".join(_harmless(line) for line in text.splitlines())


def _harmless(text: str) -> str:
    return "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text)


def _verdict(summary: Summary) -> str:
    counts = summary.request_counts
    of_total = "" if counts.total is None else f" of {counts.total:,}"
    text = f"{counts.completed:,}{of_total} row{'' if counts.total == 1 else 's'} answered"
    if counts.failed:
        text += f", {counts.failed:,} FAILED"
    if counts.not_run:
        text += f", {counts.not_run:,} not run"
    if 0 < counts.reused < counts.completed:
        text += f", {counts.reused:,} reused"
    if summary.status == "stopped":
        text = f"Stopped early: {text}"
    elif summary.status == "failed":
        text = f"The run FAILED: {text}"
    elif counts.total == 0:
        text += ": the input has no rows"
    elif counts.reused == counts.total:
        text += ", all by an earlier run: nothing was left to do"
    return fit(text)


def _what_next(summary: Summary) -> list[str]:
    reason = _wrapped(f"{summary.reason}.", _REASON) if summary.reason else []
    is_fresh = summary.configuration["fresh"]
    again = "Run it again without --fresh" if is_fresh else "Run the same command again"
    if summary.status in ("stopped", "failed"):
        return [*reason, f"{again} to go on from here: answers so far are kept."]
    if summary.status == "completed_with_failures":
        return [*reason, f"{again} to try only the failed rows once more."]
    return reason


def _figures(summary: Summary) -> list[str]:
    lines = []
    if summary.request_counts.completed > summary.request_counts.reused:
        lines += _row("tokens", _token_figures(summary))
    lines += _row("seconds", _time_figures(summary))
    if summary.evaluation is not None:
        lines.append(_labelled("correct", _right(summary.evaluation)))
    if summary.batch.mean_running is not None:
        lines.append(_batch(summary))
    if summary.prompt_tokens.disk:
        lines.append(_from_disk(summary))
    if summary.device:
        lines.append(_machine(summary))
    return lines


def _token_figures(summary: Summary) -> list[_Figure]:
    tokens = summary.tokens
    return [
        ("prompt", _count(tokens.prompt)),
        ("cached", _count(tokens.cached)),
        ("generated", _count(tokens.completion)),
        ("prefill/s", _decimal(summary.prompt_tps)),
        ("decode/s", _decimal(summary.generation_tps)),
        ("rows/s", _decimal(summary.requests_per_second, 2)),
    ]


def _time_figures(summary: Summary) -> list[_Figure]:
    phases = [(name, _decimal(seconds)) for name, seconds in summary.elapsed.items()]
    return [*phases, ("total", _decimal(summary.elapsed_time))]


def _row(label: str, figures: Sequence[_Figure]) -> list[str]:
    """A line of names above a line of figures, in columns that all rows share."""
    names = "".join(name.rjust(_COLUMN) for name, _ in figures)
    values = "".join(value.rjust(_COLUMN) for _, value in figures)
    return [label.ljust(_LABEL) + names, " " * _LABEL + values]


def _right(evaluation: Evaluation) -> str:
    of = f"{evaluation.correct:,} of {evaluation.scored:,} ({evaluation.metric})"
    if evaluation.accuracy is None or evaluation.low is None or evaluation.high is None:
        return f"{of}: nothing to compare with {evaluation.expected!r}"
    bounds = f"95 % interval {100 * evaluation.low:.1f} to {100 * evaluation.high:.1f}"
    rest = f"; {evaluation.not_scored:,} not scored" if evaluation.not_scored else ""
    return f"{of}, {100 * evaluation.accuracy:.1f} %, {bounds}{rest}"


def _batch(summary: Summary) -> str:
    batch = summary.batch
    media = summary.media
    found = " (auto)" if summary.configuration["max_num_seqs"] is None else ""
    retries = f", {_count(batch.retries)} retries" if batch.retries else ""
    encoded = (
        f"; {_count(media.encoded)} of {_count(media.used)} media encoded" if media.used else ""
    )
    return _labelled(
        "batch",
        f"{_decimal(batch.mean_running)} of {batch.max_num_seqs}{found} rows a decode step,"
        f" {batch.peak_running} at most{retries}{encoded}",
    )


def _from_disk(summary: Summary) -> str:
    tokens = summary.prompt_tokens
    saved = f"about {_decimal(tokens.seconds_saved)} s of prefill saved"
    return _labelled("disk", f"{_count(tokens.disk)} of the cached tokens, {saved}")


def _machine(summary: Summary) -> str:
    parts = [str(summary.device.get("kind"))]
    if summary.peak_memory is not None and summary.peak_process_memory is not None:
        arrays, process = summary.peak_memory, summary.peak_process_memory
        parts.append(f"peak memory {arrays:,.2f} GB arrays, {process:,.2f} GB all")
    if summary.blas and summary.device.get("kind") == "cpu":
        parts.append(f"BLAS {summary.blas}")
    return _labelled("device", "; ".join(parts))


def _truncated(summary: Summary) -> list[str]:
    if not summary.truncated:
        return []
    limit = summary.configuration["source"]["sampling"]["max_tokens"]
    cut = f"{_rows(summary.truncated)} cut off at max_tokens"
    return [fit(f"{cut} (their own, or --max-tokens {limit})")]


def _errors(summary: Summary) -> list[str]:
    errors = list(summary.errors.items())
    lines = []
    for code, error in errors[:_ERRORS]:
        start = fit(f"{_rows(error.count)} failed with {code}, as ", WIDTH - _ROW_ROOM) + " "
        lines.append(start + _end_of(error.row, WIDTH - disp_len(start)))
        lines += _wrapped(error.message, 2, _INDENT)
    others = [f"{error.count:,} with {code}" for code, error in errors[_ERRORS:]]
    return [*lines, fit(f"Also failed: {', '.join(others)}")] if others else lines


def _wrapped(text: str, most: int, indent: str = "") -> list[str]:
    """So many lines at most: more than one, since a message ends with what to do about it."""
    width = WIDTH - len(indent)
    lines = textwrap.wrap(one_line(text), width, max_lines=most, placeholder="…")
    return [indent + fit(line, width) for line in lines]


def _notes(summary: Summary) -> list[str]:
    if len(summary.notes) <= _NOTES:
        return [fit(f"Note: {note}") for note in summary.notes]
    shown = [fit(f"Note: {note}") for note in summary.notes[: _NOTES - 1]]
    return [*shown, f"and {len(summary.notes) - len(shown)} more notes: see the report"]


def _files(summary: Summary) -> list[str]:
    is_written = summary.status in ("completed", "completed_with_failures")
    output = [_path("output", summary.output)] if is_written else []
    errors = [_path("errors", summary.errors_file)] if summary.errors_file is not None else []
    return [*output, *errors, _path("report", summary.page)]


def _path(label: str, path: str) -> str:
    return label.ljust(_LABEL) + _end_of(path, WIDTH - _LABEL)


def _end_of(path: str, width: int) -> str:
    """A path too long keeps its end, where the file's name and the line are."""
    text = one_line(path)
    if disp_len(text) <= width:
        return text
    return "…" + disp_trim(text[::-1][:width], width - 1)[::-1]


def _labelled(label: str, text: str) -> str:
    return label.ljust(_LABEL) + fit(text, WIDTH - _LABEL)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def fit(text: str, width: int = WIDTH) -> str:
    """One line of at most `width` columns, wide characters counted as two."""
    text = one_line(text)
    if disp_len(text) <= width:
        return text
    return disp_trim(text[:width], width - 1).rstrip() + "…"


def _decimal(number: float | None, digits: int = 1) -> str:
    if number is None:
        return "-"
    return f"{number:,.{digits}f}" if number < 1e6 else _count(round(number))


def _count(number: int) -> str:
    """Large figures in thousands of millions, so that they stay in their column."""
    if number < 1e8:
        return f"{number:,}"
    return f"{number / 1e9:,.2f}G" if number < 1e14 else f"{number:.1e}"
