"""Tiny random models with a real tokenizer, written in the layout of a model directory.

`build("gemma3", folder)` writes config.json, model.safetensors (float32), generation_config.json
and a byte-level BPE tokenizer with a ChatML template. The same arguments give the same bytes. The
weights are random but wide enough that greedy tokens vary.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ENDOFTEXT, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 320

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = """\
The quick brown fox jumps over the lazy dog. What is the capital of France? The answer is Paris.
Is this review positive or negative? This film was great and I would watch it again and again.
Answer with one word. The system reads the question, the assistant writes the answer for the user.
"""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": ENDOFTEXT,
    "eos_token_id": IM_END,
    "pad_token_id": ENDOFTEXT,
    "torch_dtype": "float32",
}

_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "head_dim": 16,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 16,
        "sliding_window": 32,
        "sliding_window_pattern": 2,
    },
    "moe": {"model_type": "qwen3_moe", **_MOE},
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
    "lfm2": {
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 96,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
        "tie_word_embeddings": True,
    },
    # A layer has a nested cache, of attention and of recurrent state.
    "falcon_h1": {
        "model_type": "falcon_h1",
        "head_dim": 16,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 4,
        "attention_in_multiplier": 1.0,
        "key_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **_MOE,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "partial_rotary_factor": 0.5,
        "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "phi3": {
        "model_type": "phi3",
        "num_key_value_heads": 4,
        "original_max_position_embeddings": 1024,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0],
        },
    },
}

KINDS = tuple(CONFIGS)


def config(kind: str, **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny model; `overrides` replace or add keys."""
    return {**_COMMON, **CONFIGS[kind], **overrides}


def build(kind: str, path: Path, *, seed: int = 0, gain: float = 2.0, **overrides: Any) -> Path:
    """Write a tiny model to `path` and return it.

    kind: one of KINDS. gain: standard deviation of each matrix product's output for unit inputs.
    overrides: config.json keys.
    """
    path.mkdir(parents=True, exist_ok=True)
    settings = config(kind, **overrides)
    write_json(path / "config.json", settings)
    eos = settings["eos_token_id"]
    write_json(path / "generation_config.json", {"eos_token_id": eos, "do_sample": False})
    write_tokenizer(path)
    write_weights(path, settings, seed, gain)
    return path


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def write_tokenizer(
    path: Path,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    special_tokens: tuple[str, ...] = SPECIAL_TOKENS,
    **extra: Any,
) -> None:
    """tokenizer.json and tokenizer_config.json; `extra` are keys of the latter. Special tokens have
    the ids 0, 1, ..."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    write_json(path / "tokenizer_config.json", {**settings, **extra})


def write_weights(path: Path, settings: dict[str, Any], seed: int, gain: float) -> None:
    architecture = importlib.import_module(f"mlx_lm.models.{settings['model_type']}")
    module = architecture.Model(architecture.ModelArgs.from_dict(settings))
    save_random(path, module, seed, gain)


def save_random(path: Path, module: Any, seed: int, gain: float) -> None:
    """Write random weights of the shapes that `module` has."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    random = np.random.default_rng(seed)
    shapes = sorted((name, value.shape) for name, value in tree_flatten(module.parameters()))
    weights = {
        name: mx.array(_values(random, name, shape, gain).astype(np.float32))
        for name, shape in shapes
    }
    mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": "mlx"})


def _values(
    random: np.random.Generator, name: str, shape: tuple[int, ...], gain: float
) -> np.ndarray[Any, Any]:
    if len(shape) == 1:
        return _vector_mean(name) + 0.1 * random.normal(size=shape)
    depthwise = "conv" in name and len(shape) == 3
    fan_in = shape[1] if depthwise else shape[-1]
    spread = 0.3 if "embed" in name else gain / fan_in**0.5
    return random.normal(0.0, spread, shape)


def _vector_mean(name: str) -> float:
    """Values at which attention picks a few tokens and recurrent state lasts for dozens."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    means = {"A_log": -3.0, "dt_bias": 0.0, "q_norm": 2.0, "k_norm": 2.0}
    means |= {"q_layernorm": 2.0, "k_layernorm": 2.0}
    if part in means:
        return means[part]
    return 0.0 if part in ("bias", "e_score_correction_bias") else 1.0


def greedy(
    module: Callable[..., Any], cache: list[Any], token_ids: list[int], num_tokens: int
) -> list[int]:
    """The next `num_tokens` greedy tokens of one prompt alone, EOS or not: the plain reference."""
    import mlx.core as mx

    logits = module(mx.array([token_ids]), cache=cache)
    chosen: list[int] = []
    while len(chosen) < num_tokens:
        chosen.append(int(mx.argmax(logits[0, -1]).item()))
        logits = module(mx.array([chosen[-1:]]), cache=cache)
    return chosen
