"""The forecast of a plan, as text and as a record for --json."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from batchrun.plan import Forecast, Group
from batchrun.report.render import WIDTH, fit

if TYPE_CHECKING:
    from batchrun.engine.finishing import Decoder

_HEADS = ("tokens saved", "rows", "length")
_MEDIA = "[media]"


def render_forecast(forecast: Forecast, decoder: Decoder) -> str:
    """A dozen lines of 80 columns at most, without a final newline or control characters."""
    lines = [
        "Plan of a run that finds nothing done by an earlier one",
        f"rows{forecast.rows:>29,}",
        f"prompt tokens{forecast.prompt_tokens:>20,}",
        _part("computed", forecast.computed_tokens, forecast),
        _part("shared", forecast.shared_tokens, forecast, f"prefixes: {forecast.num_groups:,}"),
        _part("repeated", forecast.duplicate_tokens, forecast, f"rows: {forecast.duplicates:,}"),
    ]
    if forecast.largest:
        lines.append("".join(head.rjust(13) for head in _HEADS) + "  the prefix begins")
        lines += [_group(group, decoder) for group in forecast.largest]
    return "\n".join(lines)


def forecast_record(forecast: Forecast, decoder: Decoder) -> dict[str, Any]:
    """All figures, with text in place of token ids."""
    largest = [asdict(group) | {"opening": _text(group, decoder)} for group in forecast.largest]
    return asdict(forecast) | {"largest": largest}


def _part(name: str, tokens: int, forecast: Forecast, note: str = "") -> str:
    """A line for a part of the prompt tokens."""
    percent = 100 * tokens / max(1, forecast.prompt_tokens)
    return f"  {name:<11}{tokens:>20,}{percent:>8.1f} %  {note}".rstrip()


def _group(group: Group, decoder: Decoder) -> str:
    figures = (group.saved_tokens, group.num_prompts, group.num_tokens)
    start = "".join(f"{figure:>13,}" for figure in figures) + "  "
    return start + fit(_text(group, decoder), WIDTH - len(start))


def _text(group: Group, decoder: Decoder) -> str:
    """Its opening; images and videos, whose ids are negative, are no text."""
    runs = groupby(group.opening, lambda token: token < 0)
    return "".join(
        _MEDIA if is_media else decoder.decode(list(ids), skip_special_tokens=True)
        for is_media, ids in runs
    )
