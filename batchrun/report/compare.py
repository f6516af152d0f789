"""Several runs side by side: what each came to, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from tqdm.utils import disp_len

from batchrun.report import words
from batchrun.report.render import fit

Report = dict[str, Any]
_WIDEST = 28
Line = tuple[str, list[str]]


def comparison(reports: Sequence[Report]) -> list[Line]:
    """A line for each figure, with its value in each run; without those that no run has."""
    lines = [(name, [figure(report) for report in reports]) for name, figure in _FIGURES]
    return [line for line in lines if any(value != words.NOTHING for value in line[1])]


def comparison_text(reports: Sequence[Report]) -> str:
    """The lines in columns, without what a terminal might obey."""
    lines = [
        [name, *(fit(value, _WIDEST) for value in values)] for name, values in comparison(reports)
    ]
    widths = [max(map(disp_len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(cells, widths) for cells in lines)


def differences(reports: Sequence[Report]) -> list[Line]:
    """What the runs were asked for differently, by the dotted names of the configuration."""
    asked = [words.flat(report["configuration"]) for report in reports]
    names = dict.fromkeys(name for values in asked for name in values)
    lines = [(name, [values.get(name, words.NOTHING) for values in asked]) for name in names]
    return [line for line in lines if len(set(line[1])) > 1]


def _aligned(cells: list[str], widths: list[int]) -> str:
    gaps = [" " * (width - disp_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded = [gap + cell for gap, cell in zip(gaps, cells, strict=True)]
    return "  ".join([cells[0] + gaps[0], *padded[1:]])


def _rows(name: str) -> Callable[[Report], str]:
    return lambda report: words.count(report["request_counts"][name])


def _tokens(name: str) -> Callable[[Report], str]:
    return lambda report: words.count(report["tokens"][name])


def _rate(name: str) -> Callable[[Report], str]:
    return lambda report: words.figure(report[name])


def _cached(report: Report) -> str:
    return words.share(report["tokens"]["cached"], report["tokens"]["prompt"])


_FIGURES: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("run", lambda report: PurePath(report["output"]).name),
    ("model", lambda report: report["model"]),
    ("started", lambda report: words.moment(report["started_at"])),
    ("status", lambda report: report["status"].replace("_", " ")),
    ("rows answered", _rows("completed")),
    ("rows reused", _rows("reused")),
    ("rows failed", _rows("failed")),
    ("cut off", lambda report: words.count(report["truncated"])),
    ("correct", lambda report: words.accuracy(report["evaluation"])),
    ("prompt tokens", _tokens("prompt")),
    ("of them not computed", _cached),
    ("answer tokens", _tokens("completion")),
    ("seconds", lambda report: words.figure(report["elapsed_time"])),
    ("rows per second", _rate("requests_per_second")),
    ("prefill tokens per second", _rate("prompt_tps")),
    ("decode tokens per second", _rate("generation_tps")),
    ("rows in a decode step", lambda report: words.figure(report["batch"]["mean_running"])),
    ("peak memory, GB", _rate("peak_process_memory")),
)
