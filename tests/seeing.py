"""Rows with images for vision models: how to make them, and what mlx-vlm itself says to them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.generate.ar import generate_step
from mlx_vlm.utils import load as mlx_vlm_load
from mlx_vlm.utils import prepare_inputs, should_add_special_tokens
from PIL import Image

from batchrun import device
from batchrun.config import ModelConfig
from batchrun.models import LoadedTokenizer, load, load_tokenizer, locate
from batchrun.models.loaded import Features, Given
from batchrun.models.parts import Processed
from batchrun.models.processor import Clip, Picture, Processor
from batchrun.models.vision import VisionModel
from batchrun.records import Media, MediaSpan

Media_ = list[Picture | Clip]


@cache
def words(path: Path, **fields: Any) -> LoadedTokenizer:
    config = ModelConfig(model=str(path), **fields)
    return load_tokenizer(locate(config, print), config)


def processor(path: Path, **fields: Any) -> Processor:
    found = words(path, **fields).processor
    assert found is not None
    return found


@cache
def model(path: Path) -> VisionModel:
    config = ModelConfig(model=str(path))
    found = load(locate(config, print), config, device.prepare(), words(path))
    assert isinstance(found, VisionModel)
    return found


def picture(width: int, height: int, seed: int = 0) -> Picture:
    """A picture of its own for each size and seed, in large patches of colour."""
    random = np.random.default_rng([width, height, seed])
    colours = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)
    return Picture(image, _digest(image.size, image.tobytes()))


def clip(frames: int, width: int = 60, height: int = 60, fps: float = 2.0) -> Clip:
    random = np.random.default_rng([frames, width, height])
    pixels = random.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    return Clip(pixels, fps, _digest((frames, fps), pixels.tobytes()))


def _digest(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def ask(how: Processor, media: Media_, text: str = "What is this?") -> str:
    """The rendered conversation that has `media` and then `text`."""
    parts: list[dict[str, Any]] = [
        {"type": "image" if isinstance(medium, Picture) else "video"} for medium in media
    ]
    content = [*parts, {"type": "text", "text": text}]
    return how.render([{"role": "user", "content": content}], add_generation_prompt=True)


def process(how: Processor, text: str, media: Media_) -> Processed:
    pictures = [medium for medium in media if isinstance(medium, Picture)]
    return how.process(text, pictures, [medium for medium in media if isinstance(medium, Clip)])


def spans(how: Processor, processed: Processed, media: Media_) -> tuple[MediaSpan, ...]:
    pictures = [medium for medium in media if isinstance(medium, Picture)]
    sources: Media_ = [*pictures, *[medium for medium in media if isinstance(medium, Clip)]]
    return tuple(
        MediaSpan(
            part.start,
            part.end,
            Media(
                _digest(how.identity, [sources[index].digest for index in part.sources]),
                processed.token_ids[part.start : part.end],
                part.inputs,
            ),
        )
        for part in processed.parts
    )


def given(
    seer: VisionModel,
    token_ids: list[int],
    media: tuple[MediaSpan, ...],
    encoded: dict[bytes, Features] | None = None,
) -> Given:
    """What the model is given for a whole prompt at once. `encoded` are the features by digest, of
    media that went through the tower in other company."""
    if encoded is None:
        features = seer.encode([span.media for span in media])
    else:
        features = [encoded[span.media.digest] for span in media]
    embeds = seer.embed(mx.array([token_ids]))
    mask = np.zeros((1, len(token_ids)), dtype=np.bool_)
    for span, own in zip(media, features, strict=True):
        embeds[0, span.start : span.end] = own.embeds
        mask[0, span.start : span.end] = own.is_visual
    positions = None
    if seer.takes_positions:
        positions = mx.array(seer.positions(token_ids, media))[:, None]
    deep = _deep(features)
    return Given(embeds, positions, None if deep is None else mx.array(mask), deep)


def _deep(features: list[Features]) -> mx.array | None:
    deep = [own.deepstack for own in features if own.deepstack is not None]
    return mx.concatenate(deep, axis=1) if deep else None


def greedy(
    seer: VisionModel, token_ids: list[int], media: tuple[MediaSpan, ...], num_tokens: int
) -> list[int]:
    """The answer of one row alone, driven step by step."""
    whole = given(seer, token_ids, media)
    caches = seer.make_cache()
    logits = seer(mx.array([token_ids]), caches, whole)
    answer: list[int] = []
    while len(answer) < num_tokens:
        answer.append(int(mx.argmax(logits[0, -1]).item()))
        step = None
        if whole.positions is not None:
            step = Given(positions=whole.positions[:, :, -1:] + len(answer))
        logits = seer(mx.array([answer[-1:]]), caches, step)
    return answer


@cache
def upstream(path: Path) -> tuple[Any, Any]:
    """mlx-vlm's own model and processor, whose image processor is shielded as ours is."""
    module, theirs = mlx_vlm_load(str(path))
    theirs.image_processor.__class__ = type(processor(path)._upstream.image_processor)
    return module, theirs


def upstream_inputs(path: Path, text: str, media: Media_) -> dict[str, Any]:
    module, theirs = upstream(path)
    clips = [medium for medium in media if isinstance(medium, Clip)]
    inputs: dict[str, Any] = prepare_inputs(
        theirs,
        images=[medium.image for medium in media if isinstance(medium, Picture)] or None,
        videos=[one.frames.transpose(0, 3, 1, 2) for one in clips] or None,
        video_metadata=[
            {
                "total_num_frames": len(one.frames),
                "fps": one.fps,
                "frames_indices": list(range(len(one.frames))),
            }
            for one in clips
        ]
        or None,
        prompts=text,
        image_token_index=vars(module.config).get("image_token_index"),
        add_special_tokens=should_add_special_tokens(module.config.model_type, theirs),
    )
    bos = theirs.tokenizer.bos_token_id
    if inputs["input_ids"][0, :2].tolist() == [bos, bos]:  # what it gets wrong for Gemma 3
        for name in ("input_ids", "attention_mask"):
            inputs[name] = inputs[name][:, 1:]
    return inputs


def upstream_greedy(path: Path, text: str, media: Media_, num_tokens: int) -> list[int]:
    """What mlx-vlm's own generation says to one row."""
    module, _ = upstream(path)
    inputs = upstream_inputs(path, text, media)
    module.language_model._rope_deltas = module.language_model._position_ids = None
    named = {name: inputs.pop(name, None) for name in ("input_ids", "pixel_values")}
    mask = inputs.pop("attention_mask")
    steps = generate_step(
        named["input_ids"],
        module,
        named["pixel_values"],
        mask,
        max_tokens=num_tokens,
        temperature=0,
        **inputs,
    )
    return [token for token, _ in steps]
