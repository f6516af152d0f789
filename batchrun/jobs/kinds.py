"""Whether a value from TOML is of a kind that a flag takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from batchrun.flags import Flags

# Where what is meant is not seen from its kind.
_EXAMPLES = {"shard": "1/4", "ray": "auto"}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def fault(name: str, value: Any) -> str | None:
    """What the flag `name` takes, where `value` is not that."""
    kinds = _kinds()[name]
    if any(_is(value, kind) for kind in kinds):
        return None
    words = ["a list of texts" if get_origin(kind) else _WORDS[kind] for kind in kinds]
    example = f', as "{_EXAMPLES[name]}"' if name in _EXAMPLES else ""
    return " or ".join(dict.fromkeys(words)) + example


@cache
def _kinds() -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(Flags)
    return {
        name: tuple(kind for kind in get_args(hint) or (hint,) if kind not in (NoneType, Path))
        for name, hint in hints.items()
    }


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Sequence:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
