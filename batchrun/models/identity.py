"""A model's identity: a digest of what decides its answers, wherever its files lie.

Of every tensor a few kibibytes are read, so that 40 GB take well under a second: another training,
quantisation or merge changes every tensor that it touches from end to end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from batchrun.errors import ModelError

_WEIGHTS = "model*.safetensors"
_SMALL_FILES = (
    *("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.jsonl", "*.py"),
    "additional_chat_templates/*",
)
_NOT_USED = {"model.safetensors.index.json"}
_BLOCK = 64 << 10
_SPREAD_BLOCKS = 16
_TENSOR_BLOCK = 4 << 10


def of(path: Path, adapter: Path | None, dtype: str | None) -> str:
    """Hex digest of a model folder, an adapter folder and a dtype choice. Raises ModelError."""
    digest = hashlib.blake2b(digest_size=20)
    for part in _parts(path, adapter, dtype):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(path: Path, adapter: Path | None, dtype: str | None) -> Iterator[bytes]:
    yield f"dtype {dtype}".encode()
    small = {file for pattern in _SMALL_FILES for file in path.glob(pattern) if file.is_file()}
    for file in sorted(small):
        if file.name not in _NOT_USED:
            yield from _whole_file(file)
    for file in sorted(path.glob(_WEIGHTS)):
        yield from _sampled(file)
    if adapter is not None:
        yield from _whole_file(adapter / "adapter_config.json")
        yield from _sampled(adapter / "adapters.safetensors")


def _whole_file(path: Path) -> Iterator[bytes]:
    yield path.name.encode()
    yield path.read_bytes()


def _sampled(path: Path) -> Iterator[bytes]:
    """Name, size, header, the start of every tensor, and blocks spread over the file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        yield path.name.encode()
        yield size.to_bytes(8, "little")
        header, base = _header(file, path)
        yield header
        for offset in _tensor_offsets(header, path):
            yield _read(file, base + offset, _TENSOR_BLOCK)
        for index in range(_SPREAD_BLOCKS):
            yield _read(file, max(size - _BLOCK, 0) * index // (_SPREAD_BLOCKS - 1), _BLOCK)


def _header(file: IO[bytes], path: Path) -> tuple[bytes, int]:
    """The JSON header, and where the tensors' bytes begin."""
    length = int.from_bytes(_read(file, 0, 8), "little")
    header = _read(file, 8, length) if length < 1 << 30 else b""
    if not header or len(header) != length:
        raise _damaged(path)
    return header, 8 + length


def _tensor_offsets(header: bytes, path: Path) -> list[int]:
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        return sorted(tensor["data_offsets"][0] for tensor in tensors.values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path} is damaged or incomplete; fetch the model again")


def _read(file: IO[bytes], offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
