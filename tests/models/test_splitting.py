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


class Group:
    """Stands for three ranks that nothing is sent to."""

    def size(self) -> int:
        return 3

    def rank(self) -> int:
        return 0


def refused(path: Path, adapter: Path | None = None) -> str:
    """Why the model at `path` is not split over three ranks."""
    config = ModelConfig(model=str(path))
    files = replace(models.locate(config, print), adapter=adapter)
    with pytest.raises(ModelError) as raised:
        models.load(files, config, device.prepare(), ranks=Ranks(Group()))
    return str(raised.value)


def test_heads_must_go_up_evenly(tiny_model: Callable[..., Path]) -> None:
    assert "4 heads (num_attention_heads)" in refused(tiny_model("llama"))
    model = tiny_model("llama", hidden_size=96, num_attention_heads=6)
    assert "2 heads (num_key_value_heads)" in refused(model)


def test_what_mlx_lm_cannot_shard_is_named(tiny_model: Callable[..., Path]) -> None:
    assert "cannot split models of type mamba2" in refused(tiny_model("mamba2"))


def test_an_odd_width_is_mlx_lms_error(tiny_model: Callable[..., Path]) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 64}
    model = tiny_model("llama", num_key_value_heads=3, **sizes)
    assert "cannot be split over 3 ranks" in refused(model)


def test_vision_models_and_adapters_are_refused(
    tiny_model: Callable[..., Path], tiny_vision: Callable[[str], Path], tmp_path: Path
) -> None:
    assert "runs by mlx-vlm" in refused(tiny_vision("qwen2_vl"))
    assert "mlx_lm.fuse" in refused(tiny_model("llama"), adapter=tmp_path)
