"""A model's name -> its folder, and what its configuration files declare.

Knows nothing of MLX, weights or tokenizers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchrun.config import ModelConfig
from batchrun.errors import ModelError, UsageError
from batchrun.models import default, identity

# What mlx-lm and mlx-vlm read of a repository, processor files included.
PATTERNS = (
    *("*.json", "model*.safetensors", "*.py", "*.model", "*.tiktoken"),
    *("*.txt", "*.jsonl", "*.jinja"),
)
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"),
    *("seq_length", "n_ctx"),
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    `config` is config.json. `eos_token_ids` are those of config.json and generation_config.json;
    the tokenizer's come on top. `context_length` counts tokens, prompt and answer together; None
    where the model names no bound. `vocab_size`: token ids from there on are none of the model's;
    None where it does not say. `identity` is a hex digest of everything that decides what the
    model answers. `notes` are lines to tell the user.
    """

    name: str
    path: Path
    adapter: Path | None
    config: dict[str, Any]
    eos_token_ids: frozenset[int]
    context_length: int | None
    vocab_size: int | None
    identity: str
    notes: tuple[str, ...] = ()


def locate(config: ModelConfig, say: Callable[[str], None]) -> ModelFiles:
    """Find the model, fetching it once where needed. `say` gets a line before a long wait.

    Raises UsageError for a name, adapter or length that cannot be, ModelError for a model that
    cannot be fetched or read.
    """
    name = config.model or default.NAME
    path = _folder(config.model, say)
    adapter = None if config.adapter is None else _adapter_folder(config.adapter)
    declared = _read_json(path / "config.json", name)
    generation = path / "generation_config.json"
    settings = [declared, *([_read_json(generation, name)] if generation.exists() else [])]
    return ModelFiles(
        name=name,
        path=path,
        adapter=adapter,
        config=declared,
        eos_token_ids=frozenset(_eos_token_ids(settings)),
        context_length=_context_length(declared, config.max_model_len, name),
        vocab_size=_vocab_size(declared),
        identity=identity.of(path, adapter, config.dtype),
        notes=() if config.model else (default.NOTE,),
    )


def _folder(model: str | None, say: Callable[[str], None]) -> Path:
    if model is None:
        return default.folder(say)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelError(f"{model} has no config.json, so it is not a model folder")
        return path
    if path.exists():
        raise UsageError(f"{model} is a file; --model takes a model's folder or its Hub name")
    if not _HUB_NAME.fullmatch(model):
        raise UsageError(f"there is no model folder {model}; --model takes one, or a Hub name")
    return _from_hub(model, say)


def _adapter_folder(adapter: str) -> Path:
    path = Path(adapter).expanduser()
    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (path / name).is_file():
            raise UsageError(f"{adapter} has no {name}; --adapter takes an mlx-lm adapter folder")
    return path


def _from_hub(name: str, say: Callable[[str], None]) -> Path:
    """The cached snapshot where there is one, so that a run needs no network and every night's
    run has the same model; else a download."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(_snapshot(name, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        say(f"Fetching {name} from the Hugging Face Hub")
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    try:
        return Path(_snapshot(name, local_files_only=False))
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name} needs its licence accepted on its Hub page, and `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"there is no folder {name} and no such public model on the Hub;"
            " check the name, or run `hf auth login` for a private one"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{name} is neither a folder nor in the Hub cache, and the Hub cannot be reached"
            f" ({_reason(error)}); connect once, or give a local folder"
        ) from error


def _snapshot(name: str, *, local_files_only: bool) -> str:
    from huggingface_hub import snapshot_download

    return str(
        snapshot_download(
            name, allow_patterns=list(PATTERNS), local_files_only=local_files_only, etag_timeout=10
        )
    )


def _reason(error: BaseException) -> str:
    text = str(error.__cause__ or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{name}: {path.name} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{name}: {path.name} is not a JSON object")
    return value


def _with_text_config(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Vision models keep their language part's settings one level down."""
    inner = config.get("text_config")
    return [config, inner] if isinstance(inner, dict) else [config]


def _eos_token_ids(settings: list[dict[str, Any]]) -> Iterator[int]:
    for config in [part for whole in settings for part in _with_text_config(whole)]:
        declared = config.get("eos_token_id")
        ids = declared if isinstance(declared, list) else [declared]
        yield from (token_id for token_id in ids if isinstance(token_id, int))


def _vocab_size(config: dict[str, Any]) -> int | None:
    declared = [part.get("vocab_size") for part in _with_text_config(config)]
    return max((size for size in declared if isinstance(size, int)), default=None)


def _context_length(config: dict[str, Any], wanted: int | None, name: str) -> int | None:
    declared = [
        part[key]
        for part in _with_text_config(config)
        for key in _LENGTH_KEYS
        if isinstance(part.get(key), int)
    ]
    longest = declared[0] if declared else None
    if wanted is not None and longest is not None and wanted > longest:
        raise UsageError(
            f"--max-model-len {wanted} is more than the {longest} tokens that {name} was made for"
        )
    return wanted or longest
