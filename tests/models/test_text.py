from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from batchrun import device
from batchrun.config import ModelConfig
from batchrun.device import GIB, Device
from batchrun.errors import ModelError
from batchrun.models import LoadedModel, load, locate
from tests import tiny

CPU = Device("cpu", "x", "x", 64 * GIB, 64 * GIB, "0")
METAL = replace(CPU, kind="metal")
TOKENS = mx.array([[5, 6, 7, 8]])


def load_from(path: Path, machine: Device = CPU, **fields: Any) -> LoadedModel:
    config = ModelConfig(model=str(path), **fields)
    return load(locate(config, print), config, machine)


def logits(model: LoadedModel) -> mx.array:
    return model.module(TOKENS, cache=model.make_cache())


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.build("llama", tmp_path / "llama")


def quantized(path: Path, to: Path, dtype: mx.Dtype = mx.float16, **how: Any) -> Path:
    module, config = load_model(path)
    module.set_dtype(dtype)
    module, config = quantize_model(module, config, how.pop("group_size", 32), 4, **how)
    shutil.copytree(path, to)
    save_model(to, module)
    save_config(config, to / "config.json")
    return to


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_every_architecture_loads(kind: str, tiny_model: Callable[..., Path]) -> None:
    path = tiny_model(kind)
    model = load_from(path)
    assert logits(model).shape == (1, 4, tiny.VOCAB_SIZE)
    assert len(model.make_cache()) == len(model.module.layers)
    assert model.eos_token_ids == {tiny.IM_END}
    assert (model.dtype, model.notes, model.context_length) == ("float32", (), 4096)
    assert model.weights_bytes < (path / "model.safetensors").stat().st_size


def test_caches_are_fresh_each_time(llama: Path) -> None:
    model = load_from(llama)
    assert mx.array_equal(logits(model), logits(model))


def test_loads_and_runs_in_another_thread(llama: Path) -> None:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(logits(load_from(llama)).sum().item()))
    thread.start()
    thread.join()
    assert found == [pytest.approx(logits(load_from(llama)).sum().item())]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("machine", [CPU, METAL])
def test_dtype_can_be_chosen(dtype: str, machine: Device, llama: Path) -> None:
    model = load_from(llama, machine, dtype=dtype)
    assert model.dtype == dtype
    assert str(logits(model).dtype) == f"mlx.core.{dtype}"


def test_parameters_that_must_stay_float32_stay_so(tiny_model: Callable[..., Path]) -> None:
    model = load_from(tiny_model("deepseek_v3"), METAL, dtype="bfloat16")
    gate = model.module.model.layers[1].mlp.gate
    assert gate.e_score_correction_bias.dtype == mx.float32
    assert gate.weight.dtype == mx.bfloat16


def test_half_precision_becomes_float32_on_cpu_only(tmp_path: Path, llama: Path) -> None:
    module, _ = load_model(llama)
    module.set_dtype(mx.bfloat16)
    save_model(llama, module)
    assert load_from(llama, CPU).dtype == "float32"
    assert load_from(llama, METAL).dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["llama", "moe", "deepseek_v3"])
def test_quantised_layers_are_unpacked_on_cpu(kind: str, tmp_path: Path) -> None:
    path = quantized(tiny.build(kind, tmp_path / "model", hidden_size=64), tmp_path / "q")
    packed, unpacked = load_from(path, METAL, dtype="float32"), load_from(path, CPU)
    kept = [m for m in unpacked.module.modules() if isinstance(m, nn.QuantizedLinear)]
    assert kept == []
    assert unpacked.weights_bytes > 2 * packed.weights_bytes
    assert unpacked.notes == ()
    assert mx.allclose(logits(packed), logits(unpacked), atol=1e-3, rtol=1e-3)


def test_unpacked_layers_do_not_pass_through_half_precision(tmp_path: Path, llama: Path) -> None:
    model = load_from(quantized(llama, tmp_path / "q", mx.bfloat16))
    weight = model.module.model.layers[0].mlp.up_proj.weight
    assert not mx.array_equal(weight, weight.astype(mx.bfloat16).astype(mx.float32))


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4"])
def test_other_packings_are_unpacked_too(mode: str, tmp_path: Path, llama: Path) -> None:
    group_size = 32 if mode == "mxfp4" else 16
    path = quantized(llama, tmp_path / "q", mode=mode, group_size=group_size)
    packed, unpacked = load_from(path, METAL, dtype="float32"), load_from(path, CPU)
    assert mx.allclose(logits(packed), logits(unpacked), atol=1e-3, rtol=1e-3)


def test_without_room_for_float32_weights_stay_as_stored(tmp_path: Path, llama: Path) -> None:
    path = quantized(llama, tmp_path / "q")
    small = replace(CPU, memory_limit=100_000)
    model = load_from(path, small)
    assert model.dtype == "float16"
    assert model.notes[-1].startswith("As float32 the weights would take 0.0 GB, more than")
    assert load_from(path, small, dtype="float32").dtype == "float32"


def test_gpus_keep_weights_packed(tmp_path: Path, llama: Path) -> None:
    model = load_from(quantized(llama, tmp_path / "q"), METAL)
    assert isinstance(model.module.model.layers[0].mlp.up_proj, nn.QuantizedLinear)
    assert model.dtype == "float16"


def test_identity_and_name_come_from_the_files(llama: Path) -> None:
    model = load_from(llama)
    assert model.name == str(llama)
    assert model.identity == locate(ModelConfig(model=str(llama)), print).identity


def adapter_for(path: Path, folder: Path, rank: int = 4) -> Path:
    """An adapter that adds noise to the query projection of every layer."""
    module, _ = load_model(path)
    folder.mkdir()
    settings = {"rank": rank, "scale": 10.0, "dropout": 0.5, "keys": ["self_attn.q_proj"]}
    tiny.write_json(folder / "adapter_config.json", {"num_layers": 2, "lora_parameters": settings})
    mx.random.seed(0)
    weights = {}
    for number, layer in enumerate(module.layers):
        outputs, inputs = layer.self_attn.q_proj.weight.shape
        prefix = f"model.layers.{number}.self_attn.q_proj"
        weights[f"{prefix}.lora_a"] = mx.random.normal((inputs, rank))
        weights[f"{prefix}.lora_b"] = mx.random.normal((rank, outputs))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


def test_adapter_changes_the_answers_the_same_way_each_time(tmp_path: Path, llama: Path) -> None:
    adapter = str(adapter_for(llama, tmp_path / "adapter"))
    plain, one, two = load_from(llama), *(load_from(llama, adapter=adapter) for _ in range(2))
    assert not mx.allclose(logits(plain), logits(one))
    assert mx.array_equal(logits(one), logits(two))
    assert one.identity != plain.identity


def test_adapter_of_another_model_is_one_clear_line(tmp_path: Path, llama: Path) -> None:
    other = tiny.build("llama", tmp_path / "other", hidden_size=32)
    adapter = adapter_for(other, tmp_path / "adapter")
    with pytest.raises(ModelError, match="does not fit the model") as caught:
        load_from(llama, adapter=str(adapter))
    assert "\n" not in str(caught.value)


def test_unsupported_architecture_is_named(llama: Path) -> None:
    tiny.write_json(llama / "config.json", tiny.config("llama", model_type="no_such_model"))
    with pytest.raises(ModelError, match="runs model type no_such_model; upgrade them"):
        load_from(llama)


def test_model_type_that_is_no_module_name(llama: Path) -> None:
    tiny.write_json(llama / "config.json", tiny.config("llama", model_type="../x.y"))
    with pytest.raises(ModelError, match="runs model type"):
        load_from(llama)


def test_config_without_model_type(llama: Path) -> None:
    tiny.write_json(llama / "config.json", {})
    with pytest.raises(ModelError, match="names no model_type"):
        load_from(llama)


def test_folder_without_weights(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no model\*\.safetensors; convert it with"):
        load_from(llama)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 32},
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"intermediate_size": 32},
        {"rope_scaling": {"rope_type": "no_such_type"}},
    ],
)
def test_weights_that_do_not_fit_the_config_are_one_clear_line(
    change: dict[str, Any], llama: Path
) -> None:
    tiny.write_json(llama / "config.json", tiny.config("llama", **change))
    with pytest.raises(ModelError, match=r"config\.json and weights cannot be loaded") as caught:
        load_from(llama)
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_one_clear_line(llama: Path) -> None:
    """Cut after `locate` has looked at them, so that reading itself meets the end."""
    config = ModelConfig(model=str(llama))
    files = locate(config, print)
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="fetch the model again") as caught:
        load(files, config, CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("trusted", [False, True])
def test_model_with_its_own_code_must_be_trusted(trusted: bool, llama: Path) -> None:
    (llama / "own.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    settings = tiny.config("llama", model_type="own", model_file="own.py")
    tiny.write_json(llama / "config.json", settings)
    if trusted:
        assert logits(load_from(llama, trust_remote_code=True)).shape[-1] == tiny.VOCAB_SIZE
    else:
        with pytest.raises(ModelError, match=r"own code \(own\.py\); --trust-remote-code"):
            load_from(llama)


def test_vision_model_that_nothing_runs_is_named(llama: Path) -> None:
    settings = tiny.config("llama", model_type="idefics9", vision_config={"depth": 2})
    tiny.write_json(llama / "config.json", settings)
    with pytest.raises(ModelError, match=r"neither mlx-lm .* nor mlx-vlm .* idefics9; upgrade"):
        load_from(llama)


def test_language_part_of_a_vision_model_runs(tmp_path: Path) -> None:
    inner = tiny.config("gemma3", max_position_embeddings=512, eos_token_id=[7])
    path = tiny.build(
        "llama",
        tmp_path,
        model_type="gemma3",
        text_config=inner,
        vision_config={},
        max_position_embeddings=None,
    )
    model = load_from(path)
    assert logits(model).shape == (1, 4, tiny.VOCAB_SIZE)
    assert model.context_length == 512
    assert model.eos_token_ids == {7, tiny.IM_END}


def test_text_model_in_a_folder_named_like_a_vision_model_runs(tmp_path: Path) -> None:
    model = load_from(tiny.build("llama", tmp_path / "my-VL-test"))
    assert logits(model).shape == (1, 4, tiny.VOCAB_SIZE)


def test_real_device_loads(llama: Path) -> None:
    assert load_from(llama, device.prepare()).weights_bytes > 0
