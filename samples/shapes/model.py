"""The model's files: configuration, tokenizer, chat template, processor settings, weights.

The shape is Qwen2-VL's, in mlx-vlm's own classes, at a ten-thousandth of its size.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models import qwen2_vl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from samples.shapes.draw import COLOURS, KINDS, MAX_PIXELS, MIN_PIXELS
from samples.shapes.questions import NUMBERS, conversation

END, START_TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
START_IMAGE, END_IMAGE = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
_SPECIAL = (END, START_TURN, END_TURN, START_IMAGE, END_IMAGE, IMAGE, VIDEO)
_VOCABULARY = 424
_LONGEST = 1024  # tokens

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] in ('image', 'image_url', 'input_image') -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] in ('video', 'video_url') -%}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}\n"
)

_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": MIN_PIXELS,
    "max_pixels": MAX_PIXELS,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "do_rescale": True,
    "do_normalize": True,
    "do_resize": True,
    "do_convert_rgb": True,
}


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of the words that the conversations use."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_TURN,
        pad_token=END,
        additional_special_tokens=list(_SPECIAL[1:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=_LONGEST,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build(words: PreTrainedTokenizerFast, seed: int = 0) -> qwen2_vl.Model:
    """A model with random weights for this tokenizer, in float32."""
    mx.random.seed(seed)
    declared = config(words)
    made = qwen2_vl.ModelConfig.from_dict(dict(declared))
    made.vision_config = qwen2_vl.VisionConfig.from_dict(declared["vision_config"])
    made.text_config = qwen2_vl.TextConfig.from_dict(declared)
    model = qwen2_vl.Model(made)
    mx.eval(model.parameters())
    return model


def save(folder: Path, model: qwen2_vl.Model, words: PreTrainedTokenizerFast) -> None:
    """Write everything that `mlx_vlm.load` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    words.save_pretrained(folder)
    _write_json(folder / "config.json", config(words))
    _write_json(folder / "preprocessor_config.json", _PROCESSOR)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def config(words: PreTrainedTokenizerFast) -> dict[str, Any]:
    def number(token: str) -> int:
        return int(words.convert_tokens_to_ids(token))

    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_size": 96,
        "num_hidden_layers": 4,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": len(words),
        "max_position_embeddings": _LONGEST,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 4]},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": _LONGEST,
        "torch_dtype": "float32",
        "bos_token_id": number(END),
        "pad_token_id": number(END),
        "eos_token_id": [number(END_TURN), number(END)],
        "vision_start_token_id": number(START_IMAGE),
        "vision_end_token_id": number(END_IMAGE),
        "image_token_id": number(IMAGE),
        "video_token_id": number(VIDEO),
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 3,
            "embed_dim": 96,
            "hidden_size": 96,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "in_channels": 3,
            "in_chans": 3,
        },
    }


def _texts() -> Iterator[str]:
    rng = random.Random("words")
    for number in range(2000):
        talk = conversation(rng, images=number % 4)
        for message in talk.messages(lambda _: {"type": "text", "text": ""}):
            content = message["content"]
            yield from [content] if isinstance(content, str) else (p["text"] for p in content)
    # Answers stand at the start of a turn, without a space before them.
    for word in (*COLOURS, *KINDS, *NUMBERS, "yes", "no", "system", "user", "assistant"):
        yield from [word] * 100


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
