"""Figures of a report as a person reads them."""

from __future__ import annotations

from typing import Any

VERDICTS = {
    "completed": "Every row has an answer",
    "completed_with_failures": "Finished, but some rows failed",
    "stopped": "Stopped early, to be continued",
    "failed": "The run failed",
}


NOTHING = "-"


def count(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.0f}"


def figure(number: float | None, unit: str = "") -> str:
    """Three digits or so, whatever the size."""
    if number is None:
        return NOTHING
    text = f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def accuracy(evaluation: dict[str, Any] | None) -> str:
    """As 75.0 % (55.1 to 88.0)."""
    if evaluation is None or evaluation["accuracy"] is None:
        return NOTHING
    share, low, high = (100 * evaluation[name] for name in ("accuracy", "low", "high"))
    return f"{share:.1f} % ({low:.1f} to {high:.1f})"


def duration(seconds: float) -> str:
    """As 12.3 s, 4 min 05 s or 3 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"


def moment(iso: str) -> str:
    return iso.removesuffix("+00:00").replace("T", " ")


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values by dotted names, without those that are not set."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            found |= {f"{prefix}{name}": ", ".join(map(str, value))} if value else {}
        elif value is not None:
            found[f"{prefix}{name}"] = str(value)
    return found
