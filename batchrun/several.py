"""Runs over several models: rows by the model that they name, one model in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

from batchrun.config import RunConfig
from batchrun.ending import Ended
from batchrun.engine.stats import EngineStats
from batchrun.errors import RowError, UsageError
from batchrun.records import Failure, Request
from batchrun.source import read_requests

Rows = Iterator[Request | Failure]

_PEAKS = {"running", "peak_running", "max_num_seqs", "kv_bytes_peak"}


def parts(config: RunConfig) -> list[tuple[RunConfig, Rows]]:
    """The run as one part for each model, each with the rows that are its own, read anew. Rows that
    name no model of the map belong to `--model`; where that is not given, they fail."""
    if not config.model_map:
        return [(config, read_requests(config.source))]
    names = frozenset(name for name, _ in config.model_map)
    found = []
    if config.model.model is not None:
        found.append((config, _others(read_requests(config.source), names, fails=False)))
    for name, model in config.model_map:
        part = replace(config, model=replace(config.model, model=model))
        found.append((part, _of(read_requests(config.source), name)))
    if config.model.model is None:
        part, rows = found[0]
        found[0] = (part, _first(rows, _others(read_requests(config.source), names, fails=True)))
    return found


def check_media(config: RunConfig, takes_media: Iterable[bool]) -> None:
    """Raises UsageError where rows have columns of images or videos, and none of the models, of
    which each either takes media or does not, can see them: every such row would fail."""
    named = {"--image": config.source.images, "--video": config.source.videos}
    flag = next((flag for flag, columns in named.items() if columns), None)
    if flag is not None and not any(takes_media):
        remedy = "leave out --text-only" if config.model.text_only else "choose one with --model"
        raise UsageError(f"{flag} needs a model that takes images: {remedy}, or leave out {flag}")


def joined(first: Ended, second: Ended) -> Ended:
    """How a run ended of which `second` came after `first`."""
    return replace(
        second,
        stats=summed(first.stats, second.stats),
        model=f"{first.model}, {second.model}",
        notes=(*first.notes, *(note for note in second.notes if note not in first.notes)),
    )


def _of(rows: Rows, name: str) -> Rows:
    return (row for row in rows if isinstance(row, Request) and row.model == name)


def _others(rows: Rows, names: frozenset[str], *, fails: bool) -> Rows:
    """Rows at fault, and those that name none of `names`."""
    for row in rows:
        if isinstance(row, Failure):
            yield row
        elif row.model not in names:
            yield Failure(row.row, _not_found(row, names)) if fails else row


def _first(one: Rows, other: Rows) -> Rows:
    yield from other
    yield from one


def _not_found(row: Request, names: frozenset[str]) -> RowError:
    named = "no model" if row.model is None else f"the model {row.model!r}"
    return RowError(
        "model_not_found",
        f"the row names {named}, and --model-map has {', '.join(sorted(names))};"
        " add it there, or give --model for all others",
        status=404,
        param="model",
    )


def summed(first: EngineStats, second: EngineStats) -> EngineStats:
    """What two engines did together."""
    one, other = asdict(first), asdict(second)
    return EngineStats(
        **{
            name: max(one[name], other[name]) if name in _PEAKS else one[name] + other[name]
            for name in one
        }
    )
