"""Tiny random vision models of each shape that mlx-vlm's families have, as model directories with
tokenizer, processor files and chat template. The same arguments give the same bytes.
"""

from __future__ import annotations

import importlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests import tiny

_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": tiny.VOCAB_SIZE,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_IDS: dict[str, Any] = {
    "bos_token_id": tiny.ENDOFTEXT,
    "eos_token_id": tiny.IM_END,
    "pad_token_id": tiny.ENDOFTEXT,
    "vocab_size": tiny.VOCAB_SIZE,
    "torch_dtype": "float32",
}
_MROPE = {"type": "mrope", "mrope_section": [1, 1, 2]}
_HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IDS = {
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
}
_QWEN_VISION = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_patch_size": 14,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_QWEN_PIXELS = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 112 * 112,
    **_HALVES,
}


def _template(image: str, video: str = "", opening: str = "") -> str:
    """ChatML whose messages are text or lists of parts."""
    return (
        opening + "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}"
        + image
        + "{% elif part['type'] == 'video' %}"
        + video
        + "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


_QWEN_TEMPLATE = _template(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
)

# Takes lists only, and writes an image before all text, as the templates of SmolVLM do.
_SMOL_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

# Takes lists only, and puts all images of a message first, as LLaVA's on the Hub does.
_LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
    "image_size": 56,
}
_IDEFICS_TOKENS = (
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3, 4) for column in (1, 2, 3, 4)),
)


def _idefics(kind: str) -> dict[str, Any]:
    """Images of up to 112 pixels in tiles of 56, each of 4 tokens."""
    sizes = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    return {
        "config": {
            **_IDS,
            "model_type": kind,
            "image_token_id": 3,
            "scale_factor": 2,
            "text_config": {**_TEXT, "model_type": "llama", "tie_word_embeddings": False},
            "vision_config": {**_SIGLIP, "model_type": f"{kind}_vision"},
        },
        "tokens": _IDEFICS_TOKENS,
        "template": _SMOL_TEMPLATE,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "Idefics3ImageProcessor",
                "do_image_splitting": True,
                "do_resize": True,
                "resample": 1,
                **sizes,
                **_HALVES,
            },
            "processor_config.json": {"image_seq_len": 4, "processor_class": "Idefics3Processor"},
        },
    }


SHAPES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "config": {
            **_TEXT,
            **_IDS,
            **_QWEN_IDS,
            "model_type": "qwen2_vl",
            "rope_scaling": _MROPE,
            "vision_config": {
                **_QWEN_VISION,
                "model_type": "qwen2_vl",
                "embed_dim": 32,
                "hidden_size": 32,
                "mlp_ratio": 2,
            },
        },
        "tokens": _QWEN_TOKENS,
        "template": _QWEN_TEMPLATE,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                **_QWEN_PIXELS,
            }
        },
    },
    "qwen2_5_vl": {
        "config": {
            **_TEXT,
            **_IDS,
            **_QWEN_IDS,
            "model_type": "qwen2_5_vl",
            "rope_scaling": _MROPE,
            "vision_config": {
                **_QWEN_VISION,
                "model_type": "qwen2_5_vl",
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": 32,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
        },
        "tokens": _QWEN_TOKENS,
        "template": _QWEN_TEMPLATE,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                **_QWEN_PIXELS,
            }
        },
    },
    "qwen3_vl": {
        "config": {
            **_IDS,
            **_QWEN_IDS,
            "model_type": "qwen3_vl",
            "text_config": {
                **_TEXT,
                "model_type": "qwen3_vl_text",
                "head_dim": 8,
                "rope_scaling": _MROPE,
            },
            "vision_config": {
                **_QWEN_VISION,
                "model_type": "qwen3_vl",
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": 32,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
        },
        "tokens": _QWEN_TOKENS,
        "template": _QWEN_TEMPLATE,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessorFast",
                **_QWEN_PIXELS,
            }
        },
    },
    "smolvlm": _idefics("smolvlm"),
    "idefics3": _idefics("idefics3"),
    "gemma3": {
        "config": {
            **_IDS,
            "model_type": "gemma3",
            "image_token_index": 5,
            "hidden_size": 32,
            "pad_token_id": 6,
            "text_config": {
                **_TEXT,
                "model_type": "gemma3_text",
                "num_hidden_layers": 4,
                "head_dim": 8,
                "query_pre_attn_scalar": 8,
                "rope_theta": 1e6,
                "sliding_window": 16,
                "sliding_window_pattern": 2,
                "mm_tokens_per_image": 4,
            },
            "vision_config": _SIGLIP,
        },
        "tokens": ("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<pad>"),
        "template": _template("<start_of_image>", opening="{{ bos_token }}"),
        "tokenizer": {
            "pad_token": "<pad>",
            "extra_special_tokens": {
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "image_token": "<image_soft_token>",
            },
        },
        "adds_bos": True,
        "ties_lm_head": True,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "size": {"height": 56, "width": 56},
                "image_seq_length": 4,
                **_HALVES,
            },
            "processor_config.json": {
                "image_seq_length": 4,
                "processor_class": "Gemma3Processor",
            },
        },
    },
    "llava": {
        "config": {
            **_IDS,
            "model_type": "llava",
            "image_token_index": 3,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "text_config": {**_TEXT, "model_type": "llama", "tie_word_embeddings": False},
            "vision_config": {**_SIGLIP, "model_type": "clip_vision_model", "projection_dim": 32},
        },
        "tokens": ("<image>",),
        "template": _LLAVA_TEMPLATE,
        "files": {
            "preprocessor_config.json": {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 56},
                "crop_size": {"height": 56, "width": 56},
                **_HALVES,
            },
            "processor_config.json": {
                "processor_class": "LlavaProcessor",
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
                "num_additional_image_tokens": 1,
                "image_token": "<image>",
            },
        },
    },
}

KINDS = tuple(SHAPES)


def config(kind: str, **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny model; `overrides` replace or add keys."""
    return deepcopy({**SHAPES[kind]["config"], **overrides})


def build(kind: str, path: Path, *, seed: int = 0, gain: float = 2.0, **overrides: Any) -> Path:
    """Write a tiny model to `path` and return it. kind: one of KINDS."""
    path.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[kind]
    tiny.write_json(path / "config.json", config(kind, **overrides))
    tiny.write_json(path / "generation_config.json", {"eos_token_id": tiny.IM_END})
    for name, value in shape["files"].items():
        tiny.write_json(path / name, value)
    tiny.write_tokenizer(
        path,
        chat_template=shape["template"],
        special_tokens=(*tiny.SPECIAL_TOKENS, *shape["tokens"]),
        **shape.get("tokenizer", {}),
    )
    if shape.get("adds_bos"):
        _add_bos(path / "tokenizer.json")
    module = _module(config(kind, **overrides))
    if shape.get("ties_lm_head"):
        del module.language_model.lm_head
    tiny.save_random(path, module, seed, gain)
    return path


def _module(settings: dict[str, Any]) -> Any:
    """A module of mlx-vlm's class, as its loader makes it."""
    from mlx_vlm.utils import update_module_configs

    architecture = importlib.import_module(f"mlx_vlm.models.{settings['model_type']}")
    settings.setdefault("text_config", {})
    model_config = architecture.ModelConfig.from_dict(settings)
    model_config = update_module_configs(model_config, architecture, settings, ["text", "vision"])
    return architecture.Model(model_config)


def _add_bos(path: Path) -> None:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(path))
    word = tiny.SPECIAL_TOKENS[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{word} $A", special_tokens=[(word, 0)]
    )
    tokenizer.save(str(path))


def read(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((path / "config.json").read_text())
    return settings
