"""A job file, read: its inputs, its output, and the values of its flags by their names."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from batchrun.errors import UsageError
from batchrun.flags import Flags
from batchrun.jobs.kinds import fault
from batchrun.jobs.places import looks_like_a_path, place

_SHAPES = ("choices", "label", "regex", "json_schema", "tool_parser", "reasoning_parser")
# Which flags may stand in which table; all may stand above the first one.
TABLES: dict[str, tuple[str, ...]] = {
    "prompt": ("system", "prompt", "image", "video", "chat_template"),
    "sampling": ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", *_SHAPES),
    "evaluation": ("expected", "metric"),
    "output": ("output", "format", "keep", "keep_all", "explode", "fresh", "removed"),
}
_PLACES = ("input", "output", "media_root", "prefix_cache_dir", "log_file", "json_schema")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
_PLACES_OR_WORDS = ("model", "adapter", "chat_template")


@dataclass(frozen=True)
class Job:
    """What `path` asks for. `values` are flags other than inputs and output, by the names that
    `Flags` has; paths in all of them are resolved."""

    path: Path
    inputs: tuple[str, ...]
    output: str | None
    values: dict[str, Any]

    def told(self, error: UsageError, over: Collection[str]) -> UsageError:
        """`error` as one of this file, with flags as they stand in it; as it is where it is about
        flags `over` those of the file alone."""
        named = {_name(flag) for flag in _FLAG.findall(str(error))}
        if named and not (named & self.values.keys()) - set(over):
            return error
        text = _FLAG.sub(lambda m: m[0] if _name(m[1]) in over else repr(m[1]), str(error))
        return UsageError(f"{self.path}: {text}")


def read_job(path: Path, now: datetime, environment: Mapping[str, str] = os.environ) -> Job:
    """Raises UsageError where the file cannot be read, or holds what no run understands."""
    values: dict[str, Any] = {}
    for name, value in _flat(path, _parsed(path)):
        if name in values:
            raise UsageError(f"{path}: {name.replace('_', '-')!r} is given twice")
        _check(path, name, value)
        values[name] = value
    placed = {name: _placed(path, name, value, now, environment) for name, value in values.items()}
    inputs = placed.pop("input", ())
    return Job(
        path=path,
        inputs=(inputs,) if isinstance(inputs, str) else tuple(inputs),
        output=placed.pop("output", None),
        values=placed,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is no TOML: {error}") from error


def _flat(path: Path, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every key of the file as a flag's name, with its value."""
    everything = ("input", "output", *(field.name for field in fields(Flags)))
    for key, value in content.items():
        table = TABLES.get(key) if isinstance(value, dict) else None
        if table is None:
            yield _known(path, key, everything, ""), value
        else:
            for inner, inner_value in value.items():
                yield _known(path, inner, table, f" in [{key}]"), inner_value


def _known(path: Path, key: str, allowed: tuple[str, ...], where: str) -> str:
    name = _name(key)
    if name in allowed:
        return name
    nearest = get_close_matches(name, (*allowed, *TABLES), n=1)
    hint = f"; did you mean {nearest[0].replace('_', '-')!r}?" if nearest else ""
    raise UsageError(f"{path}: there is no {key!r}{where}{hint}")


def _name(key: str) -> str:
    return key.replace("-", "_")


def _check(path: Path, name: str, value: Any) -> None:
    """Raises UsageError where the flag takes another kind of value."""
    key = name.replace("_", "-")
    if name == "input" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return
    if name in ("input", "output"):
        wanted = None if isinstance(value, str) else "a path"
    else:
        wanted = fault(name, value)
    if wanted is not None:
        raise UsageError(f"{path}: {key!r} must be {wanted}, not {value!r}")


def _placed(
    path: Path, name: str, value: Any, now: datetime, environment: Mapping[str, str]
) -> Any:
    """`value` with the paths in it resolved."""
    is_place = name in _PLACES or (
        name in _PLACES_OR_WORDS and isinstance(value, str) and looks_like_a_path(value)
    )
    if not is_place:
        return value
    try:
        if isinstance(value, list):
            return [place(item, path.parent, environment, now) for item in value]
        return place(value, path.parent, environment, now)
    except UsageError as error:
        raise UsageError(f"{path}: {name.replace('_', '-')!r}: {error}") from None
