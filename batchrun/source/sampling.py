"""The sampling fields of a request's body -> Sampling, each checked for type and range."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from batchrun.records import Sampling
from batchrun.source.fields import Body, shown

_MAX_TOP_LOGPROBS = 20


class _Field(NamedTuple):
    """`read` gives the value in our form; ValueError or OverflowError if it is not `expected`."""

    expected: str
    read: Callable[[Any], Any]


def _require(good: bool) -> None:
    if not good:
        raise ValueError


def _number(low: float = -math.inf, high: float = math.inf) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        _require(isinstance(value, int | float) and not isinstance(value, bool))
        _require(math.isfinite(value) and low <= value <= high)
        return float(value)

    return read


def _positive(high: float = math.inf) -> Callable[[Any], float]:
    number = _number(0, high)

    def read(value: Any) -> float:
        _require(number(value) > 0)
        return float(value)

    return read


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        # Tables with gaps hold whole numbers as floats.
        _require(isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
        _require(not isinstance(value, bool) and low <= value <= high)
        return int(value)

    return read


def _flag(value: Any) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    _require(isinstance(stops, list) and all(isinstance(s, str) and s for s in stops))
    return tuple(stops)


def _token_ids(value: Any) -> tuple[int, ...]:
    _require(isinstance(value, list))
    return tuple(map(_integer(0), value))


def _top_k(value: Any) -> int:
    return max(_integer(-1)(value), 0)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    _require(isinstance(value, dict))
    return tuple(sorted((_token_id(key), _BIAS(bias)) for key, bias in value.items()))


def _token_id(key: Any) -> int:
    digits = str(key)
    _require(digits.isascii() and digits.isdecimal() and len(digits) < 19)
    return int(digits)


_BIAS = _number(-100, 100)

_PENALTY = _Field("a number from -2 to 2", _number(-2, 2))
_TOKENS = _Field("a whole number of at least 0", _integer(0))
_FLAG = _Field("true or false", _flag)
_COUNT = _Field("a whole number from 1 to 128", _integer(1, 128))
_TOP = _Field(f"a whole number from 0 to {_MAX_TOP_LOGPROBS}", _integer(0, _MAX_TOP_LOGPROBS))
_FIELDS = {
    "max_tokens": _TOKENS,
    "max_completion_tokens": _TOKENS,
    "temperature": _Field("a number of at least 0", _number(0)),
    "top_p": _Field("a number above 0 and at most 1", _positive(1)),
    "top_k": _Field("a whole number, -1 or 0 for off", _top_k),
    "min_p": _Field("a number from 0 to 1", _number(0, 1)),
    "seed": _Field("a whole number of 64 bits", _integer(-(2**63), 2**64 - 1)),
    "stop": _Field("a string or a list of strings, none empty", _stop),
    "stop_token_ids": _Field("a list of token ids", _token_ids),
    "ignore_eos": _FLAG,
    "n": _COUNT,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": _Field("a number above 0", _positive()),
    "logit_bias": _Field("an object of token ids with numbers from -100 to 100", _logit_bias),
}

SAMPLING_FIELDS = frozenset({*_FIELDS, "logprobs", "top_logprobs", "best_of"})


def read_sampling(body: Body, defaults: Sampling, *, is_chat: bool) -> Sampling:
    """The body's sampling fields over `defaults`. Raises RowError naming the field at fault."""
    given = {name: _read(body, name, _FIELDS[name]) for name in _FIELDS if name in body.fields}
    if "max_completion_tokens" in given:
        tokens = given.pop("max_completion_tokens")
        if given.setdefault("max_tokens", tokens) != tokens:
            raise body.error("max_tokens", "and max_completion_tokens differ; give one of them")
    given |= _chat_logprobs(body, defaults) if is_chat else _completion_logprobs(body)
    sampling = replace(defaults, **given)
    _check_best_of(body, sampling.n)
    return sampling


def _read(body: Body, name: str, field: _Field) -> Any:
    value = body.fields[name]
    try:
        return field.read(value)
    except (ValueError, OverflowError):
        raise body.error(name, f"must be {field.expected}, not {shown(value)}") from None


def _chat_logprobs(body: Body, defaults: Sampling) -> dict[str, Any]:
    given = {}
    if "logprobs" in body.fields:
        given["logprobs"] = _read(body, "logprobs", _FLAG)
    if "top_logprobs" in body.fields:
        given["top_logprobs"] = _read(body, "top_logprobs", _TOP)
    if given.get("top_logprobs") and not given.get("logprobs", defaults.logprobs):
        raise body.error("top_logprobs", "needs logprobs to be true")
    return given


def _completion_logprobs(body: Body) -> dict[str, Any]:
    """Completions give the number of alternatives in `logprobs` itself."""
    if "top_logprobs" in body.fields:
        raise body.error("top_logprobs", "is for chat requests; give its number as logprobs")
    value = body.fields.get("logprobs")
    if value is None:
        return {}
    if value is False:
        return {"logprobs": False}
    return {"logprobs": True, "top_logprobs": _read(body, "logprobs", _TOP)}


def _check_best_of(body: Body, n: int) -> None:
    if "best_of" in body.fields and _read(body, "best_of", _COUNT) not in (1, n):
        raise body.error(
            "best_of", "is supported only where it equals n", code="unsupported_parameter"
        )
