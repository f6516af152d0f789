"""SmolLM2's GGUF file -> a model folder as mlx-lm reads it, its 4-bit blocks kept as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

_GROUP_SIZE = 32  # of GGUF's Q4_1 and Q8_0 blocks alike
_SPECIAL = 3  # GGUF's token type of control tokens
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Metadata = dict[str, Any]


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, weights and tokenizer of `gguf` into `folder`."""
    arrays, metadata = mx.load(str(gguf), return_metadata=True)
    config = _config(metadata)
    weights = {_name(key): _weight(key, value, config) for key, value in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(folder / "generation_config.json", ids)
    _write_tokenizer(folder, metadata)


def _config(metadata: Metadata) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[key].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": number("llama.vocab_size"),
        "hidden_size": number("llama.embedding_length"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_hidden_layers": number("llama.block_count"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "max_position_embeddings": number("llama.context_length"),
        "rope_theta": number("llama.rope.freq_base"),
        "rms_norm_eps": number("llama.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
        "quantization": {
            "group_size": _GROUP_SIZE,
            "bits": 4,
            "model.embed_tokens": {"group_size": _GROUP_SIZE, "bits": 8},
        },
    }


def _name(key: str) -> str:
    """blk.3.attn_q.scales -> model.layers.3.self_attn.q_proj.scales"""
    *block, part, kind = key.split(".")
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{_NAMES[part]}.{kind}"


def _weight(key: str, value: mx.array, config: dict[str, Any]) -> mx.array:
    part = key.split(".")[-2]
    if part == "attn_q":
        value = _rope_halves(value, config["num_attention_heads"])
    if part == "attn_k":
        value = _rope_halves(value, config["num_key_value_heads"])
    # The norms come from bfloat16, so float16 holds them exactly, and activations stay float16.
    return value.astype(mx.float16) if value.dtype == mx.float32 else value


def _rope_halves(value: mx.array, heads: int) -> mx.array:
    """Undo GGUF's row order, in which rope's pairs lie side by side in each head."""
    pairs = value.shape[0] // heads // 2
    ordered = value.reshape(heads, pairs, 2, *value.shape[1:]).swapaxes(1, 2)
    return mx.contiguous(ordered.reshape(value.shape))


def _write_tokenizer(folder: Path, metadata: Metadata) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", _tokenizer_config(metadata, tokens))


def _tokenizer_config(metadata: Metadata, tokens: list[str]) -> dict[str, Any]:
    def token(role: str) -> str:
        return tokens[metadata[f"tokenizer.ggml.{role}_token_id"].item()]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"].item(),
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
