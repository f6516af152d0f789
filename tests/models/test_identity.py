from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from batchrun.errors import ModelError
from batchrun.models import identity
from tests import tiny

WEIGHTS = "model.safetensors"


def of(path: Path) -> str:
    return identity.of(path, None, None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.build("llama", tmp_path / "model")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_does_not_depend_on_the_place(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "deep" / "copy")
    assert of(copy) == of(model)


def test_symlinked_files_count_as_files(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert of(snapshot) == of(model)


def test_equal_config_with_other_weights_differs(model: Path, tmp_path: Path) -> None:
    assert of(tiny.build("llama", tmp_path / "other", seed=1)) != of(model)


def test_every_rewritten_tensor_is_noticed(tmp_path: Path) -> None:
    """Tensors far larger than what is read of each, in a file where the spread blocks are rare."""
    wide = {"hidden_size": 512, "intermediate_size": 1024}
    model = tiny.build("llama", tmp_path, **wide)
    weights = model / WEIGHTS
    before = of(model)
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    header = json.loads(weights.read_bytes()[8 : 8 + length])
    del header["__metadata__"]
    for name, tensor in header.items():
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        original = weights.read_bytes()[begin:end]
        overwrite(weights, begin, bytes(255 - byte for byte in original))
        assert of(model) != before, name
        overwrite(weights, begin, original)
    assert of(model) == before


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"],
)
def test_every_changed_file_is_noticed(name: str, model: Path) -> None:
    before = of(model)
    with (model / name).open("a") as file:
        file.write("\n")
    assert of(model) != before


def test_added_chat_template_is_noticed(model: Path) -> None:
    before = of(model)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert of(model) != before


def test_dtype_choice_counts(model: Path) -> None:
    assert identity.of(model, None, "float16") != of(model)


def test_adapter_counts(model: Path, tmp_path: Path) -> None:
    adapters = [tmp_path / "a", tmp_path / "b"]
    for seed, adapter in enumerate(adapters):
        tiny.build("llama", adapter, seed=seed)
        (adapter / WEIGHTS).rename(adapter / "adapters.safetensors")
        (adapter / "adapter_config.json").write_text("{}")
    found = {identity.of(model, adapter, None) for adapter in (None, *adapters)}
    assert len(found) == 3


def test_unrelated_files_do_not_count(model: Path) -> None:
    before = of(model)
    (model / "README.md").write_text("hello")
    (model / "model.safetensors.index.json").write_text("{}")
    assert of(model) == before


@pytest.mark.parametrize("size", [0, 5, 100])
def test_truncated_weights_are_one_clear_line(size: int, model: Path) -> None:
    weights = model / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(ModelError, match="is damaged or incomplete; fetch the model again"):
        of(model)


def test_weights_that_are_no_safetensors_are_one_clear_line(model: Path) -> None:
    (model / WEIGHTS).write_bytes((4).to_bytes(8, "little") + b"[1] ")
    with pytest.raises(ModelError, match="is damaged"):
        of(model)
