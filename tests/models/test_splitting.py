"""What is split over ranks, and what is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batchrun import device, models
from batchrun.config import ModelConfig
from batchrun.errors import ModelError
from batchrun.ranks import Ranks
from tests.tiny import write_json


class Group:
    """Stands for three ranks that nothing is sent to."""

    def size(self) -> int:
        return 3

    def rank(self) -> int:
        return 0


def refused(path: Path, adapter: Path | None = None, *, text_only: bool = False) -> str:
    """Why the model at `path` is not split over three ranks, which its config tells."""
    config = ModelConfig(model=str(path), text_only=text_only)
    files = replace(models.locate(config, print), adapter=adapter)
    with pytest.raises(ModelError) as raised:
        models.check_split(files, config, 3)
    return str(raised.value)


def test_heads_must_go_up_evenly(tiny_model: Callable[..., Path]) -> None:
    assert "4 heads (num_attention_heads)" in refused(tiny_model("llama"))
    model = tiny_model("llama", hidden_size=96, num_attention_heads=6)
    assert "2 heads (num_key_value_heads)" in refused(model)


def test_latent_attention_has_no_heads_of_keys(tiny_model: Callable[..., Path]) -> None:
    config = ModelConfig(model=str(tiny_model("deepseek_v2", num_attention_heads=3)))

    models.check_split(models.locate(config, print), config, 3)


def test_what_mlx_lm_cannot_shard_is_named(tiny_model: Callable[..., Path]) -> None:
    assert "cannot split models of type mamba2" in refused(tiny_model("mamba2"))


def test_an_odd_width_is_mlx_lms_error(tiny_model: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 64}
    config = ModelConfig(model=str(tiny_model("llama", num_key_value_heads=3, **sizes)))
    files = models.locate(config, print)

    models.check_split(files, config, 3)
    with pytest.raises(ModelError, match="cannot be split over 3 ranks"):
        models.load(files, config, device.prepare(), ranks=Ranks(Group()))


def test_vision_models_and_adapters_are_refused(
    tiny_model: Callable[..., Path], tiny_vision: Callable[[str], Path], tmp_path: Path
) -> None:
    vision = tiny_vision("qwen2_vl")
    for text_only in (False, True):
        assert "cannot split models of type qwen2_vl" in refused(vision, text_only=text_only)
    assert "mlx_lm.fuse" in refused(tiny_model("llama"), adapter=tmp_path)


def test_a_vision_model_that_mlx_lm_splits_is_split_without_its_eyes(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "qwen3_5", "vision_config": {"depth": 1}})
    config = ModelConfig(model=str(tmp_path))
    files = models.locate(config, print)

    assert "give --text-only" in refused(tmp_path)
    models.check_split(files, replace(config, text_only=True), 3)
