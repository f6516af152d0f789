"""The beginning of a job file, for an input whose columns are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_REQUEST_FIELDS = ("messages", "prompt", "body", "params")
_IMAGE_FILES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SHOWN = 60

_TEMPLATE = """\
# A job for batchrun, started with: batchrun job FILE
# Any flag of `batchrun --help` can stand here by its name, and for one run on the command line.
# Paths start at this file; $VARIABLES and dates, as %Y-%m-%d, are filled in.

# A path or several, quoted globs among them, or a folder: each run takes what is there then.
input = {input}

# A folder with an MLX model, or a name on the Hugging Face Hub; without it, a small model for
# demonstration{blind}.
# model = "mlx-community/{model}"

# Be done after this time; the next run goes on from there.
# max-time = "5h"

{prompt}
[sampling]
max-tokens = 64
# 0 gives the same answers each time.
temperature = 0.0
# stop = ["\\n"]

[output]
# .parquet or .jsonl, or a folder (with a / at its end) that gets a part with the new rows each run.
output = {output}
{keep}
"""
_ASKS = """\
[prompt]
# Templates over a row's columns, as they are in the first row:
{columns}
# What is the same in every row is computed once: put it into system.
system = "Answer in one sentence."
prompt = {template}
{images}"""
_IS_ASKED = """\
# The rows are requests themselves. This is for those without a system message:
# [prompt]
# system = "Answer in one sentence."
"""


def starter(path: str, columns: Mapping[str, Any]) -> str:
    """The text of a job file that runs as it is. `path` is as the file should have it, `columns`
    are those of the input's first row."""
    is_request = any(name in columns for name in _REQUEST_FIELDS)
    images = [] if is_request else [name for name in columns if _is_image(columns[name])]
    words = {name: value for name, value in columns.items() if name not in images}
    others = [name for name in words if name not in (_longest(words), "custom_id")]
    stem = PurePath(path).name.partition(".")[0] or "rows"
    return _TEMPLATE.format(
        input=_text(_literal(path)),
        model="Qwen2.5-VL-3B-Instruct-4bit" if images else "Qwen3-4B-4bit",
        blind=", which takes no images" if images else "",
        prompt=_IS_ASKED if is_request else _prompt(words, images),
        output=_text(_literal(f"{stem}.answers.parquet")),
        keep="# keep = []" if is_request or not others else f"keep = {_text(others[:3])}",
    )


def _prompt(columns: Mapping[str, Any], images: list[str]) -> str:
    shown = (f"#   {name}: {_shown(value)}" for name, value in columns.items())
    return _ASKS.format(
        columns="\n".join(shown),
        template=_text(_template(_longest(columns))),
        images=f"# Columns with what is to be looked at.\nimage = {_text(images)}\n"
        if images
        else "",
    )


def _template(column: str | None) -> str:
    if column is None:
        return "What is in the image?"
    return f"{{{{ {column if column.isidentifier() else f'row[{json.dumps(column)}]'} }}}}"


def _longest(columns: Mapping[str, Any]) -> str | None:
    """The column with the most text, if there are any: likely what the row is about."""
    return max(
        columns,
        key=lambda name: len(str(columns[name])) * isinstance(columns[name], str),
        default=None,
    )


def _is_image(value: Any) -> bool:
    """Whether a column's first value is a file's bytes, alone or in a data set's {bytes, path}, or
    names an image."""
    if isinstance(value, str):
        return value.startswith("data:image/") or value.lower().endswith(_IMAGE_FILES)
    return isinstance(value, bytes) or (isinstance(value, dict) and "bytes" in value)


def _shown(value: Any) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _literal(path: str) -> str:
    """A path in which nothing is to be filled in."""
    return path.replace("$", "$$").replace("%", "%%")


def _text(value: str | list[str]) -> str:
    """JSON's strings, as TOML has them too but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
