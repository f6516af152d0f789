"""How a model marks the parts of its answers, as its tokenizer declares it."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING

from batchrun.config import ModelConfig
from batchrun.errors import UsageError
from batchrun.records import Dialect

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

NONE = "none"


def read(tokenizer: TokenizerWrapper, config: ModelConfig) -> Dialect:
    """Raises UsageError for a parser that there is not."""
    start, end = _thinking(tokenizer, config.reasoning_parser)
    dialect = Dialect(start, end)
    name = config.tool_parser
    if name is None and tokenizer.has_tool_calling:
        name = tokenizer.tool_parser.__module__.rpartition(".")[2]
    return dialect if name in (None, NONE) else _with_parser(dialect, str(name), tokenizer)


def _thinking(
    tokenizer: TokenizerWrapper, named: str | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that open and close a block of reasoning, where the model has such."""
    if named == NONE or (named is None and not tokenizer.has_thinking):
        return (), ()
    if named is None:
        return tuple(tokenizer.think_start_tokens), tuple(tokenizer.think_end_tokens)
    start, end = (
        tuple(tokenizer.encode(text, add_special_tokens=False))
        for text in (f"<{named}>", f"</{named}>")
    )
    return start, end


def _with_parser(dialect: Dialect, name: str, tokenizer: TokenizerWrapper) -> Dialect:
    """With one of mlx-lm's parsers."""
    from mlx_lm import tool_parsers

    known = sorted(module.name for module in pkgutil.iter_modules(tool_parsers.__path__))
    if name not in known:
        raise UsageError(f"--tool-parser must be none or one of {', '.join(known)}, not {name!r}")
    module = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    marks = (module.tool_call_start, module.tool_call_end)
    tokens = [tokenizer.encode(mark, add_special_tokens=False) for mark in marks]
    return replace(
        dialect,
        call_start=marks[0],
        call_end=marks[1],
        parse_calls=module.parse_tool_call,
        parser=name,
        call_tokens=(tokens[0][0], tokens[1][0]) if list(map(len, tokens)) == [1, 1] else None,
    )
