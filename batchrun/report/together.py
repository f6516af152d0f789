"""The reports of the shards of one input, as the report of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from batchrun.evaluation import Evaluation
from batchrun.remote import beside
from batchrun.report.meter import ErrorCount
from batchrun.report.samples import NUM_SAMPLES
from batchrun.report.summary import (
    Batch,
    MediaCounts,
    PromptTokens,
    RequestCounts,
    Summary,
    Tokens,
    page_path,
    report_path,
)
from batchrun.sink.output import errors_path

Report = dict[str, Any]
T = TypeVar("T", RequestCounts, Tokens, PromptTokens, MediaCounts)


def together(reports: Sequence[Report], output: str, evaluation: Evaluation | None) -> Summary:
    """As if one run had come to all of them, with its output at a path or URL. Shards run side by
    side: seconds are those of the one that took longest, and rates are counted over them."""
    first = reports[0]
    longest = max(reports, key=lambda report: report["elapsed_time"])
    seconds = longest["elapsed_time"]
    counts = _sum(RequestCounts, reports, "request_counts")
    tokens = _sum(Tokens, reports, "tokens")
    return Summary(
        status="completed_with_failures" if counts.failed else "completed",
        exit_status=3 if counts.failed else 0,
        reason=None,
        request_counts=counts,
        truncated=sum(report["truncated"] for report in reports),
        finish_reasons=_added(report["finish_reasons"] for report in reports),
        models_named=_added(report["models_named"] for report in reports),
        errors=_errors(reports),
        tokens=tokens,
        prompt_tokens=_sum(PromptTokens, reports, "prompt_tokens"),
        media=_sum(MediaCounts, reports, "media"),
        elapsed_time=seconds,
        elapsed=longest["elapsed"],
        requests_per_second=_rate(counts.completed - counts.reused, seconds),
        tokens_per_second=_rate(tokens.completion, seconds),
        prompt_tps=_mean(reports, lambda report: (report["prompt_tps"], _spent(report, "prefill"))),
        generation_tps=_mean(
            reports, lambda report: (report["generation_tps"], _spent(report, "decode"))
        ),
        batch=_batch(reports),
        evaluation=evaluation,
        peak_memory=_largest(report["peak_memory"] for report in reports),
        peak_process_memory=_largest(report["peak_process_memory"] for report in reports),
        model=", ".join(dict.fromkeys(report["model"] for report in reports)),
        device=first["device"],
        blas=first["blas"],
        notes=[*_notes(reports)],
        output=output,
        errors_file=beside(output, errors_path) if counts.failed else None,
        report=beside(output, report_path),
        page=beside(output, page_path),
        started_at=min(report["started_at"] for report in reports),
        finished_at=max(report["finished_at"] for report in reports),
        versions=first["versions"],
        configuration=_configuration(first, output),
    )


def figures(reports: Sequence[Report]) -> dict[str, Any]:
    """What the page draws: some answers of each. Courses of time and distributions are those of the
    shards, in their own reports."""
    nothing = dict.fromkeys(("history", "latency", "prompt_tokens", "completion_tokens"))
    return nothing | {name: _some(reports, name) for name in ("samples", "wrong")}


def _some(reports: Sequence[Report], name: str) -> list[dict[str, Any]]:
    each = max(1, NUM_SAMPLES // len(reports))
    found = (one for report in reports for one in report["figures"][name][:each])
    return list(islice(found, NUM_SAMPLES))


def _sum(kind: type[T], reports: Sequence[Report], name: str) -> T:
    return kind(**_added(report[name] for report in reports))


def _added(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)


def _errors(reports: Sequence[Report]) -> dict[str, ErrorCount]:
    found: dict[str, ErrorCount] = {}
    for report in reports:
        for code, error in report["errors"].items():
            first = found.setdefault(code, ErrorCount(0, error["row"], error["message"]))
            first.count += error["count"]
    return dict(sorted(found.items(), key=lambda item: -item[1].count))


def _batch(reports: Sequence[Report]) -> Batch:
    batches = [report["batch"] for report in reports]
    mean = _mean(batches, lambda batch: (batch["mean_running"], batch["decode_steps"]))
    widest = max(batch["max_num_seqs"] for batch in batches)
    return Batch(
        mean_running=mean,
        peak_running=max(batch["peak_running"] for batch in batches),
        max_num_seqs=widest,
        occupancy=None if mean is None else mean / widest,
        decode_steps=sum(batch["decode_steps"] for batch in batches),
        retries=sum(batch["retries"] for batch in batches),
        kv_peak_memory=max(batch["kv_peak_memory"] for batch in batches),
    )


def _notes(reports: Sequence[Report]) -> dict[str, None]:
    own = f"Joined from {len(reports)} shards; seconds and memory are the largest one's"
    return dict.fromkeys((own, *(note for report in reports for note in report["notes"])))


def _configuration(first: Report, output: str) -> dict[str, Any]:
    source = first["configuration"]["source"] | {"shard": None}
    asked: dict[str, Any] = first["configuration"]
    return asked | {"source": source, "output": output, "destination": None}


def _spent(report: Report, phase: str) -> float:
    return float(report["elapsed"][phase])


def _mean(
    reports: Iterable[Report], pair: Callable[[Report], tuple[float | None, float]]
) -> float | None:
    """The mean of values, each with its weight; None where none was measured."""
    pairs = [(value, weight) for value, weight in map(pair, reports) if value is not None]
    weights = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / weights if weights else None


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
