"""A flag's value, as it was given, into what a run takes. Raises UsageError where it cannot be."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from batchrun import remote
from batchrun.config import OutputFormat
from batchrun.errors import UsageError
from batchrun.folders import cache_root

DTYPES = ("float32", "float16", "bfloat16")
KV_BITS = ("8", "4")
REMOVED = ("keep", "drop")
FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SHARD = re.compile(r"(\d+)/(\d+)", re.ASCII)
_ADDRESS = re.compile(r"local|auto|(ray://)?[^/]+:\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?", re.ASCII | re.IGNORECASE)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def strings(values: str | Sequence[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{flag(name)} must be a whole number of at least 1, not {value!r}")
    return value


def positive(name: str, value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise UsageError(f"{flag(name)} must be a number above 0, not {value!r}")
    return float(value)


def here(name: str, value: str | Path) -> Path:
    """A file on this machine."""
    try:
        return remote.here(str(value))
    except UsageError as error:
        raise UsageError(f"{flag(name)} {error}") from None


def media_root(value: str | Path | None) -> Path | str | None:
    """A folder here, or the URL of one, with a slash at its end."""
    if value is None:
        return None
    named = remote.given(str(value))
    folder = Path(named).expanduser()
    if not (_is_folder_elsewhere(named) if remote.is_url(named) else folder.is_dir()):
        raise UsageError(f"--media-root {named}: no such folder")
    return named.rstrip("/") + "/" if remote.is_url(named) else folder


def prefix_cache(value: str | Path | None) -> tuple[Path | None, str | None]:
    """The folder here, and the URL that it stands for, if it does."""
    if value == "":
        raise UsageError('--prefix-cache-dir "": name a folder, or leave it out')
    named = None if value is None else remote.given(str(value))
    if named is None or not remote.is_url(named):
        return None if named is None else Path(named), None
    if remote.is_web(named):
        raise UsageError(f"--prefix-cache-dir {named}: nothing can be kept there; name a bucket's")
    remote.check_driver(named)
    url = named.rstrip("/") + "/"
    return remote.folder_for("prefixes-elsewhere", cache_root(), url), url


def _is_folder_elsewhere(url: str) -> bool:
    if remote.is_web(url):
        raise UsageError(f"--media-root {url}: on the web are no folders; name a bucket's")
    try:
        return remote.kind(url) == "folder"
    except remote.StoreError as error:
        raise UsageError(f"--media-root {url}: {error}") from error


def nice(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 19:
        raise UsageError(f"--nice must be a whole number from 0 to 19, not {value!r}")
    return value


def max_num_seqs(value: int | str | None) -> int | None:
    """None for "auto". From the command, numbers come as text."""
    if value is None or value == "auto":
        return None
    if not isinstance(value, str):
        return count("max_num_seqs", value)
    if not value.isdecimal() or int(value) == 0:
        raise UsageError(
            f"--max-num-seqs must be auto or a whole number of at least 1, not {value!r}"
        )
    return int(value)


def kv_bits(value: int | str | None) -> int | None:
    chosen = choice("kv_bits", None if value is None else str(value), KV_BITS)
    return None if chosen is None else int(chosen)


def seed(value: int | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**64:
        raise UsageError(f"--seed must be a whole number of 64 bits, not {value!r}")
    return value


def model_map(given: Sequence[str], inputs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs from texts such as "name=model"; `inputs` are read once for each."""
    pairs = [value.partition("=")[::2] for value in given]
    if not all(name and model for name, model in pairs):
        raise UsageError(f"--model-map must be NAME=MODEL, not {', '.join(map(repr, given))}")
    if len({name for name, _ in pairs}) < len(pairs):
        raise UsageError("--model-map gives a name twice")
    if pairs and "-" in inputs:
        raise UsageError("--model-map reads the input once for each model, and - only once")
    return tuple((name, model) for name, model in pairs)


def budget(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UsageError(f"--reasoning-budget must be a whole number of at least 0, not {value!r}")
    return value


def choice(name: str, value: str | None, choices: Sequence[str]) -> str | None:
    if value is not None and value not in choices:
        raise UsageError(f"{flag(name)} must be one of {', '.join(choices)}, not {value!r}")
    return value


def output_form(value: str | None) -> OutputFormat | None:
    choice("format", value, FORMATS)
    return next((known for known in FORMATS if known == value), None)


def duration(name: str, value: float | str) -> float:
    """Seconds from a number, or from text with a unit."""
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise UsageError(f"{flag(name)} must be seconds, or as 90s, 15m or 2h, not {value!r}")
    return float(match[1]) * _UNITS[match[2]]


def size(name: str, value: int | str) -> int:
    """Bytes from a number, or from text with a unit. Raises UsageError."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is not None:
        base = 1024 if match[3] else 1000
        return int(float(match[1]) * base ** ("kmgt".index(match[2].lower()) + 1))
    if str(value).strip() == "0" or (isinstance(value, int) and value > 0):
        return int(value)
    raise UsageError(f"{flag(name)} must be 0, or a size as 500MB or 10GB, not {value!r}")


def max_time(value: float | str | None) -> float | None:
    seconds = None if value is None else duration("max_time", value)
    if seconds == 0:
        raise UsageError(f"--max-time must be more than 0, not {value!r}")
    return seconds


def failures(value: bool | float | str | None) -> float | None:
    if value is None or value is False:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (0 < number < 1 or (number >= 1 and number.is_integer())):
        raise UsageError(
            "--fail-on-error must be a number of rows, or a share of them above 0 and below 1, "
            f"not {value!r}"
        )
    return number


def shard(value: str | None) -> tuple[int, int] | None:
    """The shard's number, from 1, and how many there are."""
    if value is None:
        return None
    match = _SHARD.fullmatch(value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard must be one of so many, as 1/4 to 4/4, not {value!r}")
    return int(match[1]), int(match[2])


def ray_address(value: str) -> str:
    if _ADDRESS.fullmatch(value) is None:
        raise UsageError(
            f"--ray {value}: is no address: name a cluster as auto, HOST:PORT or ray://HOST:PORT,"
            " or write --ray=local"
        )
    return value
