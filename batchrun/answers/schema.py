"""Whether an answer is the JSON that its schema asks for.

Decoding holds to the schema; this looks again with a validator that knows nothing of that, as an
answer may have been cut off.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache

import jsonschema_rs

from batchrun.records import Completion

_MAX_KEPT = 1024


def parsed(completion: Completion, text: str) -> str | None:
    """The completion's `text`, without its reasoning, where it is whole and valid after the schema
    of its row, if any."""
    shape = completion.prompt.request.shape
    if shape is None or shape.kind != "json" or completion.finish_reason == "length":
        return None
    text = text.strip()
    return text if _is_valid(text, shape.source) else None


def _is_valid(text: str, schema: str) -> bool:
    try:
        return _validator(schema).is_valid(json.loads(text, parse_float=_finite))
    except (ValueError, RecursionError):
        return False


def _finite(digits: str) -> float:
    """JSON's numbers have no end, but no reader has room for 1e999."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError
    return number


@lru_cache(_MAX_KEPT)
def _validator(schema: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(schema), offline=True)
