from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchrun.config import ModelConfig
from batchrun.errors import ModelError, UsageError
from batchrun.models import LoadedTokenizer, load_tokenizer, locate
from tests import tiny

HELLO = [{"role": "user", "content": "hello"}]


def load(path: Path, **fields: Any) -> LoadedTokenizer:
    config = ModelConfig(model=str(path), **fields)
    return load_tokenizer(locate(config, print), config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_json(tmp_path / "config.json", tiny.config("llama"))
    tiny.write_tokenizer(tmp_path)
    return tmp_path


def render(loaded: LoadedTokenizer) -> str:
    return str(loaded.tokenizer.apply_chat_template(HELLO, tokenize=False))


def test_reads_tokenizer_and_template(tiny_model: Callable[..., Path]) -> None:
    loaded = load(tiny_model("llama"))
    assert len(loaded.tokenizer) == tiny.VOCAB_SIZE
    assert render(loaded) == "<|im_start|>user\nhello<|im_end|>\n"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("What? é 🙂")) == "What? é 🙂"


def test_eos_is_the_union_of_tokenizer_config_and_generation_config(folder: Path) -> None:
    tiny.write_tokenizer(folder, eos_token="<|endoftext|>")
    tiny.write_json(folder / "config.json", tiny.config("llama", eos_token_id=[9]))
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": tiny.IM_END})
    loaded = load(folder)
    assert loaded.eos_token_ids == {tiny.ENDOFTEXT, 9, tiny.IM_END}


def test_eos_of_the_tokenizer_alone(folder: Path) -> None:
    tiny.write_json(folder / "config.json", tiny.config("llama", eos_token_id=None))
    assert load(folder).eos_token_ids == {tiny.IM_END}


def test_model_without_template_has_none(folder: Path) -> None:
    tiny.write_tokenizer(folder, chat_template=None)
    assert not load(folder).tokenizer.has_chat_template


@pytest.mark.parametrize("own", [None, tiny.CHAT_TEMPLATE])
def test_given_template_replaces_the_models(own: str | None, folder: Path) -> None:
    tiny.write_tokenizer(folder, chat_template=own)
    loaded = load(folder, chat_template="Q: {{ messages[0].content }}")
    assert loaded.tokenizer.has_chat_template
    assert render(loaded) == "Q: hello"


def test_given_template_replaces_the_models_template_file(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    assert render(load(folder)) == "file"
    assert render(load(folder, chat_template="{{ 'given' }}")) == "given"


def test_template_may_be_given_as_a_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.jinja"
    path.write_text("Q: {{ messages[0].content }}")
    assert render(load(folder, chat_template=str(path))) == "Q: hello"


def test_missing_template_file_is_a_usage_error(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--chat-template none\.jinja cannot be read"):
        load(folder, chat_template="none.jinja")


def test_folder_without_tokenizer_is_one_clear_line(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match="has no tokenizer files"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"version": "1.0", "model": {"type": "none"}}'])
def test_damaged_tokenizer_is_one_clear_line(text: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="tokenizer cannot be read") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("trusted", [False, True])
def test_tokenizer_with_its_own_code_must_be_trusted(trusted: bool, folder: Path) -> None:
    (folder / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast):\n"
        "    own = True\n"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    tiny.write_json(folder / "tokenizer_config.json", settings)
    tiny.write_json(folder / "config.json", tiny.config("llama", model_type="not_known"))
    if trusted:
        assert load(folder, trust_remote_code=True).tokenizer.own
    else:
        with pytest.raises(ModelError, match="needs its own code; --trust-remote-code"):
            load(folder)


def test_config_that_transformers_refuses_is_one_clear_line(folder: Path) -> None:
    tiny.write_json(folder / "config.json", tiny.config("llama", num_attention_heads="four"))
    with pytest.raises(ModelError, match="tokenizer cannot be read") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_loading_says_nothing(
    tiny_model: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    load(tiny_model("llama"))
    assert capfd.readouterr() == ("", "")
