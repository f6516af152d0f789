"""How a model marks the parts of its answers: as its tokenizer says, or as it is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchrun import models
from batchrun.config import ModelConfig
from batchrun.errors import UsageError
from batchrun.records import Dialect
from tests import thinking


def dialect_of(path: Path, **options: str) -> Dialect:
    config = ModelConfig(model=str(path), **options)
    return models.load_tokenizer(models.locate(config, print), config).dialect


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking.build(tmp_path_factory.mktemp("thinking"))


def test_a_plain_tokenizer_marks_nothing(tiny_model: Callable[..., Path]) -> None:
    assert dialect_of(tiny_model("llama")) == Dialect()


def test_a_tokenizer_declares_its_marks(path: Path) -> None:
    found = dialect_of(path)
    assert (found.think_start, found.think_end) == ((thinking.THINK,), (thinking.END_THINK,))
    assert (found.parser, found.call_start) == ("json_tools", "<tool_call>")


def test_both_can_be_replaced_or_turned_off(path: Path, tiny_model: Callable[..., Path]) -> None:
    assert dialect_of(path, tool_parser="none", reasoning_parser="none") == Dialect()
    found = dialect_of(tiny_model("llama"), tool_parser="mistral", reasoning_parser="quick")
    assert (found.parser, found.call_start, found.call_end) == ("mistral", "[TOOL_CALLS]", "")
    assert found.think_start
    assert found.think_end


def test_a_parser_that_there_is_not_is_a_usage_error(path: Path) -> None:
    with pytest.raises(UsageError, match=r"--tool-parser must be none or one of .*json_tools"):
        dialect_of(path, tool_parser="json")
