"""The figures of a run's summary, from what was counted while it went on."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchrun.config import RunConfig
from batchrun.evaluation import Evaluation
from batchrun.remote import beside
from batchrun.report.meter import Meter
from batchrun.report.summary import (
    Batch,
    MediaCounts,
    Outcome,
    PromptTokens,
    RequestCounts,
    Status,
    Summary,
    Tokens,
    page_path,
    report_path,
)
from batchrun.sink.output import errors_path

if TYPE_CHECKING:
    from batchrun.engine.stats import EngineStats

_EXIT_STATUS: dict[Status, int] = {
    "completed": 0,
    "failed": 1,
    "completed_with_failures": 3,
    "stopped": 4,
}
_PACKAGES = ("batchrun", "mlx", "mlx-lm", "transformers")
_GB = 1e9


def summarize(
    meter: Meter,
    stats: EngineStats,
    config: RunConfig,
    *,
    model: str,
    device: Mapping[str, Any],
    peak_memory: tuple[int, int] | None = None,
    outcome: Outcome = "finished",
    reason: str | None = None,
    notes: Iterable[str] = (),
    evaluation: Evaluation | None = None,
) -> Summary:
    """The summary of a run that ends now.

    `device` is the device's own description, empty if none was used. `peak_memory` is bytes of the
    device and of the process. `notes` are sentences for the user, beside the engine's own.
    """
    elapsed = meter.elapsed
    status = _status(meter, outcome)
    output = config.destination or str(config.output)
    failures = beside(output, errors_path)
    return Summary(
        status=status,
        exit_status=_EXIT_STATUS[status],
        reason=reason,
        request_counts=_request_counts(meter, outcome),
        truncated=meter.num_truncated,
        finish_reasons=dict(meter.finish_reasons),
        models_named=dict(meter.models_named),
        errors=dict(sorted(meter.errors.items(), key=lambda item: -item[1].count)),
        tokens=Tokens(
            prompt=meter.prompt_tokens,
            cached=meter.cached_tokens,
            completion=meter.completion_tokens,
        ),
        prompt_tokens=_prompt_tokens(meter, stats),
        media=MediaCounts(used=stats.media_used, encoded=stats.media_encoded),
        elapsed_time=elapsed,
        elapsed=_phases(meter, stats),
        requests_per_second=_ratio(meter.num_completed, elapsed),
        tokens_per_second=_ratio(meter.completion_tokens, elapsed),
        prompt_tps=_ratio(stats.prefill_tokens, stats.prefill_seconds),
        generation_tps=_ratio(stats.decode_tokens, stats.decode_seconds),
        batch=_batch(stats, config.max_num_seqs or stats.max_num_seqs),
        evaluation=evaluation,
        peak_memory=None if peak_memory is None else peak_memory[0] / _GB,
        peak_process_memory=None if peak_memory is None else peak_memory[1] / _GB,
        model=model,
        device=dict(device),
        blas=device.get("blas"),
        notes=[*notes, *stats.notes, *_blank(meter)],
        output=output,
        errors_file=failures if outcome == "finished" and meter.num_failed else None,
        report=beside(output, report_path),
        page=beside(output, page_path),
        started_at=_iso(meter.started_at),
        finished_at=_iso(meter.started_at + elapsed),
        versions=_versions(),
        configuration=_plain(asdict(config)),
    )


def _blank(meter: Meter) -> list[str]:
    if not meter.num_blank:
        return []
    rows = f"{meter.num_blank:,} row{'s' * (meter.num_blank > 1)}"
    return [f"{rows} asked about nothing: all columns in the template were empty text"]


def _status(meter: Meter, outcome: Outcome) -> Status:
    if outcome != "finished":
        return outcome
    return "completed_with_failures" if meter.num_failed else "completed"


def _request_counts(meter: Meter, outcome: Outcome) -> RequestCounts:
    # Once every row has been seen their number is known, whatever was expected.
    total = meter.num_done if outcome == "finished" else meter.total
    return RequestCounts(
        total=total,
        completed=meter.num_answered,
        failed=meter.num_failed,
        reused=meter.num_reused,
        not_run=None if total is None else max(0, total - meter.num_done),
    )


def _phases(meter: Meter, stats: EngineStats) -> dict[str, float]:
    engine = {"prefill": stats.prefill_seconds, "decode": stats.decode_seconds}
    return {phase: spent + engine.get(phase, 0.0) for phase, spent in meter.seconds.items()}


def _batch(stats: EngineStats, max_num_seqs: int) -> Batch:
    mean = _ratio(stats.row_steps, stats.decode_steps)
    return Batch(
        mean_running=mean,
        peak_running=stats.peak_running,
        max_num_seqs=max_num_seqs,
        occupancy=None if mean is None else mean / max_num_seqs,
        decode_steps=stats.decode_steps,
        retries=stats.retries,
        kv_peak_memory=stats.kv_bytes_peak / _GB,
    )


def _prompt_tokens(meter: Meter, stats: EngineStats) -> PromptTokens:
    return PromptTokens(
        computed=meter.prompt_tokens - meter.cached_tokens,
        memory=max(0, meter.cached_tokens - stats.disk_tokens),
        disk=stats.disk_tokens,
        disk_bytes=stats.disk_bytes,
        seconds_saved=stats.disk_seconds_saved,
    )


def _ratio(amount: float, over: float) -> float | None:
    return amount / over if over > 0 else None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # run from a source tree that is not installed
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
