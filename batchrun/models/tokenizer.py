"""A model's tokenizer with its chat template and the union of its end tokens."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from batchrun import device
from batchrun.config import ModelConfig
from batchrun.errors import ModelError, UsageError
from batchrun.models import dialect
from batchrun.models.locate import ModelFiles
from batchrun.records import Dialect

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from batchrun.models.processor import Processor


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """`tokenizer` answers like a transformers tokenizer. `eos_token_ids` are all ids that end an
    answer, as tokenizer, config.json and generation_config.json declare them. `processor` is there
    if images and videos can be given to the model."""

    tokenizer: TokenizerWrapper
    eos_token_ids: frozenset[int]
    processor: Processor | None = None
    dialect: Dialect = field(default_factory=Dialect)


def load(
    files: ModelFiles, config: ModelConfig, chat_template: str | None = None
) -> LoadedTokenizer:
    """`chat_template` is the model's own where the tokenizer does not know of it.

    Raises UsageError for a chat template that is not there, ModelError for the rest.
    """
    extra: dict[str, object] = {"trust_remote_code": config.trust_remote_code}
    if config.chat_template is not None:
        extra["chat_template"] = _chat_template(config.chat_template)
    elif chat_template is not None:
        extra["chat_template"] = chat_template
    load_tokenizer = _library()
    try:
        tokenizer = load_tokenizer(
            files.path, extra, eos_token_ids=sorted(files.eos_token_ids) or None
        )
    except Exception as error:  # the Rust library raises nothing narrower
        raise ModelError(_message(files, error)) from error
    return LoadedTokenizer(
        tokenizer, frozenset(tokenizer.eos_token_ids), dialect=dialect.read(tokenizer, config)
    )


def quieten() -> None:
    """Ready the device before anything imports MLX, and spare the user transformers' advice."""
    device.prepare()
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # for what it says when it is imported
        from transformers.utils import logging

        logging.set_verbosity_error()


def _library() -> Callable[..., TokenizerWrapper]:
    """mlx-lm's loader, imported once the device is ready and without transformers' advice."""
    quieten()
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer


def _chat_template(given: str) -> str:
    """A template's text, given as such or as the path of a file."""
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--chat-template {given} cannot be read ({error});"
            " it takes a file or a Jinja2 template"
        ) from error


def _message(files: ModelFiles, error: Exception) -> str:
    if not any(files.path.glob("tokenizer*")):
        return f"{files.name} has no tokenizer files; fetch the model again"
    if "trust_remote_code" in str(error):
        return f"{files.name}'s tokenizer needs its own code; --trust-remote-code lets it run"
    reason = shorten(str(error), 200, placeholder=" ...")
    return f"{files.name}'s tokenizer cannot be read ({reason}); fetch the model again"
