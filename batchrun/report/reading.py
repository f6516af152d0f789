"""Reports of earlier runs, found by whatever names the run: its report file or its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchrun.errors import UsageError
from batchrun.report.summary import report_path

Report = dict[str, Any]

_NEEDED = {"status", "request_counts", "tokens", "figures", "configuration"}


def read_report(run: Path) -> Report:
    """The content of the report of `run`: a report file, an output with one beside it, or a Parquet
    output, which carries its own. Raises UsageError where there is none."""
    if run.name.endswith(".report.json"):
        return _parsed(run, _read(run))
    beside = report_path(run)
    if beside.is_file():
        return _parsed(beside, _read(beside))
    return _parsed(run, _carried(run))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _carried(output: Path) -> str:
    import pyarrow as pa

    from batchrun.sink.parquet import read_report as read_carried

    try:
        text = read_carried(output)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(
            f"{output}: there is no {report_path(output).name} beside it, and it is no Parquet"
            " output either: name an output or its .report.json"
        ) from error
    if text is None:
        raise UsageError(f"{output}: carries no report, and none is beside it")
    return text


def _parsed(path: Path, text: str) -> Report:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: is no report of batchrun: {error}") from error
    if not isinstance(content, dict) or not content.keys() >= _NEEDED:
        raise UsageError(f"{path}: is no report of batchrun, or one of another version")
    return content
