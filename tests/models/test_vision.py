from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_lm_cache
from mlx_vlm.models.base import InputEmbeddingsFeatures
from mlx_vlm.utils import load_model

from batchrun.config import ModelConfig
from batchrun.device import GIB, Device
from batchrun.errors import ModelError
from batchrun.models import LoadedModel, load, locate, precision
from batchrun.models.encoder import Encoder
from batchrun.models.loaded import Features
from batchrun.models.processor import Clip, Picture
from batchrun.models.vision import VisionModel
from batchrun.records import Media, MediaSpan
from tests import seeing, tiny, tinyvision
from tests.seeing import ask, clip, picture

CPU = Device("cpu", "x", "x", 64 * GIB, 64 * GIB, "0")
METAL = replace(CPU, kind="metal")
MROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
NUM_TOKENS = 8

Vision = Callable[[str], Path]
sizes = st.tuples(st.integers(1, 150), st.integers(1, 150))
each_kind = pytest.mark.parametrize("kind", tinyvision.KINDS)


def load_from(path: Path, machine: Device = CPU, **fields: Any) -> LoadedModel:
    config = ModelConfig(model=str(path), **fields)
    return load(locate(config, print), config, machine)


def row(path: Path, media: list[Picture | Clip]) -> tuple[str, list[int], tuple[MediaSpan, ...]]:
    how = seeing.processor(path)
    text = ask(how, media)
    processed = seeing.process(how, text, media)
    return text, processed.token_ids, seeing.spans(how, processed, media)


def assert_as_mlx_vlm(path: Path, media: list[Picture | Clip]) -> None:
    text, token_ids, spans = row(path, media)
    answer = seeing.greedy(seeing.model(path), token_ids, spans, NUM_TOKENS)
    assert answer == seeing.upstream_greedy(path, text, media, NUM_TOKENS)


def media_of(path: Path, media: list[Picture | Clip]) -> list[Media]:
    return [span.media for one in media for span in row(path, [one])[2]]


def close(one: mx.array, other: mx.array) -> bool:
    return bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item())


def assert_same_features(one: Features, other: Features) -> None:
    assert close(one.embeds, other.embeds)
    assert np.array_equal(one.is_visual, other.is_visual)
    assert (one.deepstack is None) == (other.deepstack is None)
    if one.deepstack is not None and other.deepstack is not None:
        assert close(one.deepstack, other.deepstack)


@each_kind
@given(wanted=st.lists(sizes, max_size=3))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_those_of_mlx_vlm(
    kind: str, wanted: list[tuple[int, int]], tiny_vision: Vision
) -> None:
    assert_as_mlx_vlm(tiny_vision(kind), [picture(*size, n) for n, size in enumerate(wanted)])


@pytest.mark.parametrize("kind", MROPE)
@pytest.mark.parametrize("frames", [1, 2, 3, 5])
def test_answers_to_videos_are_those_of_mlx_vlm(
    frames: int, kind: str, tiny_vision: Vision
) -> None:
    assert_as_mlx_vlm(tiny_vision(kind), [clip(frames), clip(frames + 2, 84, 60)])


def test_images_and_videos_in_one_row(tiny_vision: Vision) -> None:
    # Qwen3-VL alone: mlx-vlm puts just one of the two into rows of the others.
    assert_as_mlx_vlm(tiny_vision("qwen3_vl"), [clip(3), picture(60, 90), clip(2)])


@each_kind
@given(wanted=st.lists(sizes, min_size=1, max_size=4), copies=st.integers(1, 4))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_features_are_the_same_encoded_together_and_alone(
    kind: str, wanted: list[tuple[int, int]], copies: int, tiny_vision: Vision
) -> None:
    path = tiny_vision(kind)
    seer = seeing.model(path)
    pictures = [picture(*size, n) for size in wanted for n in range(copies)]
    media = media_of(path, [*pictures, pictures[0]])
    together = seer.encode(media)
    for medium, features in zip(media, together, strict=True):
        assert_same_features(features, seer.encode([medium])[0])
        assert features.embeds.shape == (len(medium.token_ids), 32)


@pytest.mark.parametrize("kind", MROPE)
def test_videos_are_encoded_together_as_alone(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    seer = seeing.model(path)
    media = media_of(path, [clip(4), clip(4, fps=1.0), clip(2), picture(60, 60)])
    for medium, features in zip(media, seer.encode(media), strict=True):
        assert_same_features(features, seer.encode([medium])[0])


@each_kind
def test_alike_images_share_a_call(
    kind: str, tiny_vision: Vision, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_vision(kind)
    module = seeing.model(path).module
    encoder = Encoder(module)
    media = media_of(path, [picture(60, 90, seed) for seed in range(6)])
    encoder.encode(media)
    lengths: list[int] = []
    whole = type(module).get_input_embeddings

    def counted(self: Any, input_ids: mx.array, *rest: Any, **named: Any) -> Any:
        lengths.append(input_ids.shape[1])
        return whole(self, input_ids, *rest, **named)

    monkeypatch.setattr(type(module), "get_input_embeddings", counted)
    encoder.encode(media)
    assert lengths == [6 * len(media[0].token_ids)]


@each_kind
def test_which_tokens_are_visual(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    (medium,) = media_of(path, [picture(100, 60)])
    (features,) = seeing.model(path).encode([medium])
    assert features.is_visual.shape == (len(medium.token_ids),)
    if kind == "qwen3_vl":
        assert features.is_visual.all()
        assert features.deepstack is not None
        assert features.deepstack.shape == (2, len(medium.token_ids), 32)
    else:
        assert features.deepstack is None


def test_tokens_between_the_frames_of_a_video_are_not_visual(tiny_vision: Vision) -> None:
    path = tiny_vision("qwen3_vl")
    (medium,) = media_of(path, [clip(4)])
    (features,) = seeing.model(path).encode([medium])
    video = tinyvision.read(path)["video_token_id"]
    assert features.is_visual.tolist() == [token == video for token in medium.token_ids]
    assert not features.is_visual.all()


@pytest.mark.parametrize("kind", MROPE)
def test_positions_are_those_of_mlx_vlm(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    seer = seeing.model(path)
    for media in ([], [picture(60, 90)], [picture(90, 60), clip(5), picture(30, 30)]):
        text, token_ids, spans = row(path, media)
        positions = seer.positions(token_ids, spans)
        assert positions.dtype == np.int32
        grids = seeing.upstream_inputs(path, text, media)
        expected, _ = seer.language.get_rope_index(
            mx.array([token_ids]), grids.get("image_grid_thw"), grids.get("video_grid_thw")
        )
        assert np.array_equal(
            positions,
            np.broadcast_to(np.array(expected).reshape(-1, len(token_ids)), positions.shape),
        )
        assert bool(media) == bool((positions[0] != positions[1]).any())


@each_kind
def test_positions_are_asked_for_by_mrope_alone(kind: str, tiny_vision: Vision) -> None:
    assert seeing.model(tiny_vision(kind)).takes_positions == (kind in MROPE)


@each_kind
def test_no_row_leaves_anything_behind(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    seer = load_from(path)
    assert isinstance(seer, VisionModel)
    rows = [row(path, media) for media in ([], [picture(140, 60)], [picture(30, 90)] * 2)]
    first = [seeing.greedy(seer, ids, spans, 4) for _, ids, spans in rows]
    again = [seeing.greedy(seer, ids, spans, 4) for _, ids, spans in reversed(rows)]
    assert first == again[::-1]
    if seer.takes_positions:
        assert seer.language._position_ids is None
        assert seer.language._rope_deltas is None


@each_kind
def test_loads_and_runs_in_another_thread(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    _, token_ids, spans = row(path, [picture(60, 60)])
    found: list[list[int]] = []

    def work() -> None:
        seer = load_from(path)
        assert isinstance(seer, VisionModel)
        found.append(seeing.greedy(seer, token_ids, spans, 4))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [seeing.greedy(seeing.model(path), token_ids, spans, 4)]


@each_kind
def test_caches_are_mlx_lms(kind: str, tiny_vision: Vision) -> None:
    caches = seeing.model(tiny_vision(kind)).make_cache()
    plain, sliding = mlx_lm_cache.KVCache, mlx_lm_cache.RotatingKVCache
    if kind == "gemma3":
        assert [type(cache) for cache in caches] == [sliding, plain, sliding, plain]
        assert caches[0].max_size == 16
        assert caches[0].keep == 0
    else:
        assert [type(cache) for cache in caches] == [plain, plain]


def quantized(path: Path, to: Path) -> Path:
    """The model with its language part in 4 bits and everything else in half precision."""
    module = load_model(path)
    module.set_dtype(mx.float16)
    nn.quantize(module.language_model, group_size=32, bits=4, class_predicate=_fits)
    shutil.copytree(path, to)
    weights = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(to / "model.safetensors"), weights, metadata={"format": "mlx"})
    settings = tinyvision.read(path) | {"quantization": {"group_size": 32, "bits": 4}}
    tiny.write_json(to / "config.json", settings)
    return to


def _fits(_: str, part: nn.Module) -> bool:
    return hasattr(part, "to_quantized") and part.weight.shape[-1] % 32 == 0


@each_kind
def test_half_precision_and_quantised_parts_become_float32_on_a_cpu(
    kind: str, tiny_vision: Vision, tmp_path: Path
) -> None:
    path = quantized(tiny_vision(kind), tmp_path / "quantized")
    packed, unpacked = load_from(path, METAL, dtype="float32"), load_from(path, CPU)
    dtypes = {str(array.dtype) for _, array in tree_flatten(unpacked.module.parameters())}
    assert dtypes == {"mlx.core.float32"}
    assert not any(isinstance(part, nn.QuantizedLinear) for part in unpacked.modules())
    assert load_from(path, METAL).dtype == "float16"
    _, token_ids, spans = row(path, [picture(60, 60)])
    logits = []
    for seer in (packed, unpacked):
        assert isinstance(seer, VisionModel)
        whole = seeing.given(seer, token_ids, spans)
        logits.append(seer(mx.array([token_ids]), seer.make_cache(), whole))
    assert mx.allclose(*logits, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_experts_of_mlx_vlm_are_unpacked_too(mode: str, bias: bool) -> None:
    from mlx_vlm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

    layers = nn.Sequential(QuantizedSwitchLinear(64, 8, 3, bias, group_size=32, mode=mode))
    x, experts = mx.random.normal((5, 1, 1, 64)), mx.array([[0, 2], [1, 1], [2, 0], [0, 1], [1, 2]])
    expected = layers.layers[0](x, experts)
    assert precision.apply(layers, None, CPU) is None
    assert type(layers.layers[0]) is SwitchLinear
    assert mx.allclose(layers.layers[0](x, experts), expected, rtol=1e-4, atol=1e-4)


@each_kind
def test_text_only_runs_the_language_part(kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    whole, part = seeing.model(path), load_from(path, text_only=True)
    _, token_ids, _ = row(path, [])
    tokens = mx.array([token_ids])
    expected = whole(tokens, whole.make_cache(), seeing.given(whole, token_ids, ()))
    given = None
    if part.takes_positions:
        given = seeing.given(whole, token_ids, ())
        given = replace(given, embeds=None)
    assert close(part(tokens, part.make_cache(), given), expected)
    assert part.tokenizer.processor is None
    assert part.weights_bytes < whole.weights_bytes
    assert not any("Vision" in type(module).__name__ for module in part.modules())


def adapter_for(path: Path, folder: Path) -> Path:
    """As mlx-vlm writes it, for the query projections of the language part."""
    module = load_model(path)
    names = [
        name
        for name, part in module.named_modules()
        if name.startswith("language_model") and name.endswith("q_proj")
    ]
    folder.mkdir()
    settings = {"rank": 4, "scale": 10.0, "dropout": 0.5, "keys": names}
    described = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": settings}
    tiny.write_json(folder / "adapter_config.json", described)
    weights = {}
    for number, name in enumerate(names):
        keys = mx.random.split(mx.random.key(number))
        weights[f"{name}.lora_a"] = mx.random.normal((32, 4), key=keys[0])
        weights[f"{name}.lora_b"] = mx.random.normal((4, 32), key=keys[1])
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    return folder


def test_adapter_changes_the_answers_the_same_way_each_time(
    tiny_vision: Vision, tmp_path: Path
) -> None:
    path = tiny_vision("qwen2_vl")
    adapter = str(adapter_for(path, tmp_path / "adapter"))
    _, token_ids, spans = row(path, [picture(60, 60)])
    logits = []
    for seer in (load_from(path), *(load_from(path, adapter=adapter) for _ in range(2))):
        assert isinstance(seer, VisionModel)
        whole = seeing.given(seer, token_ids, spans)
        logits.append(seer(mx.array([token_ids]), seer.make_cache(), whole))
    assert not mx.allclose(logits[0], logits[1])
    assert mx.array_equal(logits[1], logits[2])


def test_a_model_that_mlx_lm_runs_too_is_text_without_a_vision_part(tmp_path: Path) -> None:
    path = tiny.build("qwen3", tmp_path / "my-VL-test")
    model = load_from(path)
    assert not isinstance(model, VisionModel)
    assert model.tokenizer.processor is None


def test_a_vision_model_under_any_name_is_one(tiny_vision: Vision, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_vision("qwen3_vl"), tmp_path / "plain-text-llama")
    assert isinstance(load_from(path), VisionModel)


def test_weights_that_do_not_fit_are_one_clear_line(tiny_vision: Vision, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_vision("qwen2_vl"), tmp_path / "copy")
    tiny.write_json(path / "config.json", tinyvision.config("qwen2_vl", num_hidden_layers=3))
    with pytest.raises(ModelError, match=r"cannot be loaded together .* newer mlx-vlm") as caught:
        load_from(path)
    assert "\n" not in str(caught.value)


def test_embeddings_with_more_to_say_than_fits_are_refused() -> None:
    class Chatty(nn.Module):
        def get_input_embeddings(self, tokens: mx.array, *_: Any, **__: Any) -> Any:
            embeds = mx.zeros((*tokens.shape, 8))
            return InputEmbeddingsFeatures(embeds, per_layer_inputs=embeds)

    medium = Media(b"1", [1, 2], {"pixel_values": np.zeros((1, 3, 4, 4), np.float32)})
    with pytest.raises(ValueError, match="come with per_layer_inputs"):
        Encoder(Chatty()).encode([medium])


def test_images_that_do_not_bear_company_are_encoded_alone() -> None:
    class Jealous(nn.Module):
        def get_input_embeddings(self, tokens: mx.array, pixels: mx.array, **_: Any) -> Any:
            embeds = mx.broadcast_to(mx.sum(pixels), (*tokens.shape, 8))
            return InputEmbeddingsFeatures(embeds)

    media = [
        Media(bytes([n]), [1, 2], {"pixel_values": np.full((1, 3, 4, 4), n, np.float32)})
        for n in (1, 2, 3)
    ]
    features = Encoder(Jealous()).encode(media)
    assert [one.embeds[0, 0].item() for one in features] == [48, 96, 144]
