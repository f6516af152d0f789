"""What is kept of a shared prefix, and plain attention layers' keys and values in prefill."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from batchrun.engine import kvbits
from batchrun.engine.kvbits import Parts


@dataclass(frozen=True, slots=True)
class PrefixKV:
    """One layer's keys and values of a shared prefix: (1, KV heads, tokens, size) each."""

    keys: mx.array
    values: mx.array

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class PackedPrefixKV:
    """The same in `bits` bits a number, for decoding; unpacked whenever it is asked for."""

    packed_keys: Parts
    packed_values: Parts
    bits: int

    @property
    def keys(self) -> mx.array:
        return kvbits.unpack(self.packed_keys, self.bits)

    @property
    def values(self) -> mx.array:
        return kvbits.unpack(self.packed_values, self.bits)

    @property
    def nbytes(self) -> int:
        return kvbits.nbytes((*self.packed_keys, *self.packed_values))


@dataclass(frozen=True, slots=True, eq=False)
class PrefixState:
    """The caches after a prefix of `length` tokens, one per layer: `PrefixKV` for plain layers,
    None for those that the model does not use, and for other kinds the layer's own cache of one
    sequence, not to be written to.

    `packed` is what rows decode after, where keys and values are kept in few bits: its plain
    layers alone, as `PackedPrefixKV`.
    """

    length: int
    layers: list[Any]
    packed: PrefixState | None = None

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers if layer is not None)

    def with_packed(self, bits: int) -> PrefixState:
        layers = [_packed(layer, bits) for layer in self.layers]
        return replace(self, packed=PrefixState(self.length, layers))


def _packed(layer: Any, bits: int) -> PackedPrefixKV | None:
    if not isinstance(layer, PrefixKV):
        return None
    keys, values = kvbits.pack(layer.keys, bits), kvbits.pack(layer.values, bits)
    mx.eval(keys, values)
    return PackedPrefixKV(keys, values, bits)


# A prefix, or none, and how many rows have it.
PrefixGroup = tuple[PrefixKV | None, int]


class PrefillKV:
    """One layer's keys and values of prompts in prefill, each row after a prefix or none: `groups`
    are the prefixes of as many rows each, in order.

    `keys` and `values` (rows, KV heads, tokens, size) are the rows' own, padded on the right;
    causality hides the padding from the real tokens.
    """

    def __init__(self, groups: Many[PrefixGroup]):
        self.groups = groups
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether not all rows have the same prefix."""
        return len(self.groups) > 1

    @property
    def prefix(self) -> PrefixKV | None:
        """That of all rows."""
        ((prefix, _),) = self.groups
        return prefix

    @property
    def offset(self) -> int | mx.array:
        """Position of each row's next token, int32 (rows,) where they differ."""
        lengths = [_length(prefix) for prefix, _ in self.groups]
        if min(lengths) == max(lengths):
            return lengths[0] + self.own_length
        of_rows = [
            length
            for length, (_, rows) in zip(lengths, self.groups, strict=True)
            for _ in range(rows)
        ]
        return mx.array(of_rows, dtype=mx.int32) + self.own_length

    @property
    def own_length(self) -> int:
        """Tokens per row after the prefix, padding included."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    @property
    def _idx(self) -> int:
        """mlx-vlm's name for it, which it looks for so as not to read `offset` back."""
        return self.size()

    @property
    def state(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def empty(self) -> bool:
        return self.size() == 0

    def size(self) -> int:
        return max(_length(prefix) for prefix, _ in self.groups) + self.own_length

    def make_mask(
        self, num_tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        if return_array or window_size is not None:
            if self.is_mixed:
                raise ValueError("rows after different prefixes have no mask in common")
            return create_causal_mask(num_tokens, self.offset, window_size=window_size)
        return "causal" if num_tokens > 1 else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The rows' own keys and values with the new ones; the prefix is `attend`'s to add."""
        if self.keys is not None and self.values is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        return keys, values

    def with_prefix(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """`keys` and `values` of every row after a copy of the prefix."""
        if self.prefix is None:
            return keys, values
        return _after(self.prefix.keys, keys), _after(self.prefix.values, values)

    def repeat_prefix(self, rows: int) -> None:
        """Give each of `rows` rows a copy of the prefix as its own tokens."""
        if self.prefix is not None:
            self.keys = mx.repeat(self.prefix.keys, rows, axis=0)
            self.values = mx.repeat(self.prefix.values, rows, axis=0)
            self.groups = ((None, rows),)


def _length(prefix: PrefixKV | None) -> int:
    return int(prefix.keys.shape[2]) if prefix else 0


def _after(prefix: mx.array, own: mx.array) -> mx.array:
    rows, heads, _, size = own.shape
    copies = mx.broadcast_to(prefix, (rows, heads, prefix.shape[2], size))
    return mx.concatenate([copies, own], axis=2)
