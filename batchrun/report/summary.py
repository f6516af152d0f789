"""What a run came to: the figures of its report file, and whether it may be called a success.

A run is "completed" only when every row has an answer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from batchrun.evaluation import Evaluation
from batchrun.report.meter import ErrorCount
from batchrun.sink.atomic import replacing

Outcome = Literal["finished", "stopped", "failed"]
Status = Literal["completed", "completed_with_failures", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """Rows. `completed` have an answer, `reused` of them that of an earlier run or of another row
    which asks the same. `total` and `not_run` are None when the run ended before the input was read
    to its end."""

    total: int | None
    completed: int
    failed: int
    reused: int
    not_run: int | None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens of the rows answered by this run; `cached` prompt tokens needed no computing."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """Where the tokens of the prompts that ran came from: `computed`, from the `memory` of a row
    before, or from the `disk` of a run before, for which `disk_bytes` were read and about
    `seconds_saved` of prefill were not spent."""

    computed: int
    memory: int
    disk: int
    disk_bytes: int
    seconds_saved: float


@dataclass(frozen=True, kw_only=True)
class MediaCounts:
    """Images and videos: `used` in the prompts that ran, `encoded` by the vision tower. The others
    were those of another prompt, or came with the tokens of a shared prefix."""

    used: int
    encoded: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How full the batch was: `occupancy` is the mean share of `max_num_seqs` in a decode step."""

    mean_running: float | None
    peak_running: int
    max_num_seqs: int
    occupancy: float | None
    decode_steps: int
    retries: int
    kv_peak_memory: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Times are seconds, memory GB (10^9 bytes), dates ISO 8601 in UTC; None is "not measured".

    `requests_per_second` counts rows answered by this run, `tokens_per_second` the tokens generated
    for them, both over the whole of `elapsed_time`; `prompt_tps` and `generation_tps` are tokens
    over the time spent in prefill and in decode. `elapsed` has each phase's time; phases may
    overlap. `reason` says why a run that did not finish ended. `peak_memory` is that of arrays on
    the device alone. `models_named` counts rows by the model that they name; all ran on `model`.
    """

    status: Status
    exit_status: int
    reason: str | None
    request_counts: RequestCounts
    truncated: int
    finish_reasons: dict[str, int]
    models_named: dict[str, int]
    errors: dict[str, ErrorCount]
    tokens: Tokens
    prompt_tokens: PromptTokens
    media: MediaCounts
    elapsed_time: float
    elapsed: dict[str, float]
    requests_per_second: float | None
    tokens_per_second: float | None
    prompt_tps: float | None
    generation_tps: float | None
    batch: Batch
    evaluation: Evaluation | None
    peak_memory: float | None
    peak_process_memory: float | None
    model: str
    device: dict[str, Any]
    blas: str | None
    notes: list[str]
    output: str
    errors_file: str | None
    report: str
    page: str
    started_at: str
    finished_at: str
    versions: dict[str, str]
    configuration: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON's own types only."""
        return asdict(self)


def report_path(output: Path) -> Path:
    """Where the report of the run that writes `output` goes."""
    return output.with_name(output.stem + ".report.json")


def page_path(output: Path) -> Path:
    """Where the report's page, for people, goes."""
    return output.with_name(output.stem + ".report.html")


def report_text(summary: Summary, figures: dict[str, Any]) -> str:
    """The content of the report file: the summary and, under "figures", what its page draws."""
    content = summary.to_dict() | {"figures": figures}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def write_report(text: str, path: Path) -> None:
    """Writes the report whole or not at all. Raises RunError when it cannot be written."""
    with replacing(path) as file:
        # A lone surrogate, as in a file name that is not UTF-8, becomes JSON's own escape.
        file.write((text + "\n").encode("utf-8", "backslashreplace"))
