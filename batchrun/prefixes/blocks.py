"""Chained hashes of token ids: two prompts have a hash in common where they begin alike."""

from __future__ import annotations

from array import array
from hashlib import blake2b

BLOCK_TOKENS = 64
_TOKEN_BYTES = 8
_BLOCK_BYTES = BLOCK_TOKENS * _TOKEN_BYTES


def encode(token_ids: list[int]) -> bytes:
    """Token ids as int64, in which form they are hashed and kept."""
    return array("q", token_ids).tobytes()


def count(tokens: bytes) -> int:
    """How many tokens these are."""
    return len(tokens) // _TOKEN_BYTES


def first_tokens(tokens: bytes, length: int) -> bytes:
    return tokens[: length * _TOKEN_BYTES]


def chain(seed: str, tokens: bytes) -> list[bytes]:
    """The hash of the first 0, 1, 2, ... whole blocks of `tokens`, as many as it has."""
    hashes = [blake2b(seed.encode(), digest_size=16).digest()]
    for start in range(0, len(tokens) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        block = tokens[start : start + _BLOCK_BYTES]
        hashes.append(blake2b(block, key=hashes[-1], digest_size=16).digest())
    return hashes


def key_of(hashes: list[bytes], tokens: bytes, length: int) -> str:
    """The name of the prefix of `length` tokens of `tokens`, whose `chain` is given."""
    whole = length // BLOCK_TOKENS
    rest = tokens[whole * _BLOCK_BYTES : length * _TOKEN_BYTES]
    return blake2b(rest, key=hashes[whole], digest_size=20).hexdigest()


def common_length(one: bytes, other: bytes) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * _TOKEN_BYTES] == other[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
