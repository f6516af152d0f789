"""The beginning of a job file, for an input whose columns are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_REQUEST_FIELDS = ("messages", "prompt", "body", "params")
_SHOWN = 60

_TEMPLATE = """\
# A job for batchrun, started with: batchrun job FILE
# Any flag of `batchrun --help` can stand here by its name, and for one run on the command line.
# Paths start at this file; $VARIABLES and dates, as %Y-%m-%d, are filled in.

# A path or several, quoted globs among them, or a folder: each run takes what is there then.
input = {input}

# A folder with an MLX model, or a name on the Hugging Face Hub; without it, a small demonstration.
# model = "mlx-community/Qwen3-4B-4bit"

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
"""
_IS_ASKED = """\
# The rows are requests themselves. This is for those without a system message:
# [prompt]
# system = "Answer in one sentence."
"""


def starter(path: str, columns: Mapping[str, Any]) -> str:
    """The text of a job file that runs as it is. `path` is as the file should have it, `columns`
    are those of the input's first row."""
    is_request = any(name in columns for name in _REQUEST_FIELDS)
    others = [name for name in columns if name not in (_longest(columns), "custom_id")]
    stem = PurePath(path).name.partition(".")[0] or "rows"
    return _TEMPLATE.format(
        input=_text(_literal(path)),
        prompt=_IS_ASKED if is_request else _prompt(columns),
        output=_text(_literal(f"{stem}.answers.parquet")),
        keep="# keep = []" if is_request or not others else f"keep = {_text(others[:3])}",
    )


def _prompt(columns: Mapping[str, Any]) -> str:
    shown = (f"#   {name}: {_shown(value)}" for name, value in columns.items())
    name = _longest(columns)
    inside = name if name.isidentifier() else f"row[{json.dumps(name)}]"
    return _ASKS.format(columns="\n".join(shown), template=_text(f"{{{{ {inside} }}}}"))


def _longest(columns: Mapping[str, Any]) -> str:
    """The column with the most text: likely what the row is about."""
    return max(columns, key=lambda name: len(str(columns[name])) * isinstance(columns[name], str))


def _shown(value: Any) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _literal(path: str) -> str:
    """A path in which nothing is to be filled in."""
    return path.replace("$", "$$").replace("%", "%%")


def _text(value: str | list[str]) -> str:
    """JSON's strings, as TOML has them too but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
