"""Values as the text that the journal and the outputs hold: strict JSON, valid UTF-8.

Knows nothing of rows, tables or files.
"""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import date, datetime, time, timedelta
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")
_DECIMAL = re.compile("0|[1-9][0-9]*", re.ASCII)


def clean(text: str) -> str:
    """`text` with every lone surrogate, which UTF-8 cannot hold, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def dumps(value: Any) -> str:
    """Compact JSON. NaN and infinities, which JSON does not have, become null."""
    try:
        return _escape(_STRICT.encode(value))
    except ValueError:
        return _escape(_STRICT.encode(_without_non_finite(value)))


def dumps_kept(kept: dict[str, Any]) -> str:
    """Compact JSON of one row's kept columns.

    bytes become base64, dates and times ISO 8601, a timedelta its seconds, anything else that JSON
    does not know its `str`. NaN stays (as Python's `NaN`), since a table can hold it.
    """
    return _escape(_KEPT.encode(kept))


def microseconds(seconds: float) -> int:
    """Seconds since the epoch in whole microseconds, exact both ways."""
    # By parts: the product of the whole would be rounded a second time.
    fraction, whole = math.modf(seconds)
    return int(whole) * 1_000_000 + round(fraction * 1_000_000)


def stop_text(reason: str | int | None) -> str | None:
    """A stop reason as one string: a token id in decimal, a stop string as it is.

    A stop string that would be read back as something else, such as "13", is put in JSON quotes.
    """
    if reason is None or isinstance(reason, int):
        return None if reason is None else str(reason)
    return reason if parse_stop(reason) == reason else dumps(reason)


def parse_stop(text: str | None) -> str | int | None:
    """The stop reason that `stop_text` turned into `text`."""
    if text is None:
        return None
    if _DECIMAL.fullmatch(text):
        return int(text)
    inner = _quoted(text)
    return text if inner is None or parse_stop(inner) == inner else inner


def _quoted(text: str) -> str | None:
    """The string of which `text` is the JSON form, if it is one."""
    if len(text) < 2 or not (text[0] == text[-1] == '"'):
        return None
    try:
        inner = json.loads(text)
    except ValueError:
        return None
    return inner if isinstance(inner, str) and dumps(inner) == text else None


def _escape(encoded: str) -> str:
    # Outside ASCII only strings occur in JSON, and there a backslash escape is JSON's own.
    if encoded.isascii():
        return encoded
    return encoded.encode("utf-8", "backslashreplace").decode("utf-8")


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_non_finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


_STRICT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_KEPT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
