"""When an answer counts as right: a text and what was expected, as text, to yes or no.

None says that there is no telling, as what was expected is at fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

Metric = Callable[[str, str], bool | None]

# A sign, digits with commas between them, and the rest. What the commas are is looked at after.
_NUMBER = re.compile(r"([-+]?)(\d+(?:,\d+)*|(?=\.\d))((?:\.\d+)?(?:[eE][-+]?\d+)?)", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)
_FINAL = "####"  # where grade-school-maths sets put the result
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_TOLERANCE = 1e-6


def exact(text: str, expected: str) -> bool:
    """Equal, but for white space around them."""
    return text.strip() == expected.strip()


def contains(text: str, expected: str) -> bool:
    """Somewhere in the answer, in capitals or not."""
    return expected.strip().casefold() in text.casefold()


def matches(text: str, expected: str) -> bool | None:
    """`expected` is a regular expression that is found in the answer."""
    try:
        return re.search(expected, text) is not None
    except re.error:
        return None


def numeric(text: str, expected: str) -> bool | None:
    """The last number in each, or the first after ####, is the same."""
    wanted = _number(expected)
    if wanted is None:
        return None
    found = _number(text)
    return found is not None and math.isclose(found, wanted, rel_tol=_TOLERANCE)


def same_json(text: str, expected: str) -> bool | None:
    """The same JSON, whatever the order of keys and the white space; a fence around the answer
    does not count."""
    try:
        wanted = json.loads(expected)
    except (ValueError, RecursionError):
        return None
    fenced = _FENCE.search(text)
    try:
        return _is_same(json.loads(fenced[1] if fenced else text), wanted)
    except (ValueError, RecursionError):
        return False


METRICS: dict[str, Metric] = {
    "exact": exact,
    "numeric": numeric,
    "contains": contains,
    "regex": matches,
    "json": same_json,
}


def chosen(text: str, classes: Iterable[str]) -> str | None:
    """The class that the answer names first, as a word of its own; the longer of two that begin
    at one place."""
    found = [
        (place, -len(name), name)
        for name in classes
        if name.strip() and (place := _place(text, name)) >= 0
    ]
    return min(found)[2] if found else None


def _place(text: str, name: str) -> int:
    match = _word(name).search(text)
    return -1 if match is None else match.start()


# The module's own cache is too small for the most classes that there may be.
@lru_cache(1024)
def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name.strip())}(?!\w)", re.IGNORECASE)


def _number(text: str) -> float | None:
    _, is_marked, after = text.partition(_FINAL)
    found = _NUMBER.findall(after if is_marked else text)
    if not found:
        return None
    sign, digits, rest = found[0] if is_marked else found[-1]
    if _GROUPED.fullmatch(digits):
        return float(sign + digits.replace(",", "") + rest)
    # Several numbers in a list, of which only the first has the sign and the last the rest.
    first, *others = digits.split(",")
    if is_marked and others:
        return float(sign + first)
    return float(others[-1] + rest if others else sign + first + rest)


def _is_same(one: Any, other: Any) -> bool:
    """JSON's equality: true is not 1, as it is in Python."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
