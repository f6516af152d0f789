"""One plain attention layer's keys and values in decoding, laid out as `Ring` says, with the names
that mlx-lm's models expect of a cache."""

from __future__ import annotations

from collections.abc import Sequence as Many

import mlx.core as mx

from batchrun.engine import kvbits
from batchrun.engine.kvbits import Parts
from batchrun.engine.ring import OWN_MASK, OwnMask, Relayout, Ring


class RingKV:
    """The keys and values of layer `index`, in `kv_bits` bits a number or, if None, as they are:
    (capacity, KV heads, columns, head size) each, or None while no row has any token."""

    def __init__(self, ring: Ring, index: int, kv_bits: int | None = None):
        self.ring = ring
        self.index = index
        self.kv_bits = kv_bits  # mlx-lm takes a cache with an attribute `bits` for its own kind
        self.keys: Parts | None = None
        self.values: Parts | None = None

    @property
    def offset(self) -> mx.array:
        return self.ring.offset

    @property
    def state(self) -> Parts:
        return (*(self.keys or ()), *(self.values or ()))

    @property
    def nbytes(self) -> int:
        return kvbits.nbytes(self.state)

    def empty(self) -> bool:
        return self.keys is None

    def size(self) -> int:
        return max(self.ring.lengths)

    @property
    def _idx(self) -> int:
        """mlx-vlm's name for it, which it looks for so as not to read `offset` back."""
        return self.size()

    def make_mask(
        self,
        num_tokens: int,
        return_array: bool = False,
        window_size: int | None = None,
    ) -> mx.array | OwnMask:
        self._check_single(num_tokens)
        if self.ring.is_attended and window_size is None and not return_array:
            return OWN_MASK
        return self.ring.mask(window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write one token of every row; returns all columns, to be used with `make_mask`'s mask."""
        self._check_single(keys.shape[2])
        self.keys = self._write(self.keys, keys)
        self.values = self._write(self.values, values)
        return self._fetch(self.keys), self._fetch(self.values)

    def relayout(self, change: Relayout) -> None:
        if self.keys is not None and self.values is not None:
            self.keys = tuple(_relayout(part, change) for part in self.keys)
            self.values = tuple(_relayout(part, change) for part in self.values)

    def extend(self, first_row: int, keys: mx.array, values: mx.array) -> None:
        """Copy `keys` and `values`, (rows, KV heads, tokens, size) with each row's own tokens last,
        into the rows from `first_row` on, whose lengths the ring already knows."""
        self.keys = self._join(self.keys, first_row, keys)
        self.values = self._join(self.values, first_row, values)

    def filter(self, keep: Many[int]) -> None:
        """Rows already in place cost nothing. `keep` must not move a row over one that is
        moved later: fill holes from the end."""
        for row, source in enumerate(keep):
            if row != source:
                taken = mx.array([source])
                for part in self.state:
                    # Taken and not sliced: MLX copies all rows to write to what a slice looks at.
                    part[row] = part[taken][0]

    def _fetch(self, buffer: Parts) -> mx.array:
        return kvbits.unpack(tuple(part[: self.ring.rows] for part in buffer), self.kv_bits)

    def _write(self, buffer: Parts | None, new: mx.array) -> Parts:
        parts = kvbits.pack(new, self.kv_bits)
        buffer = self._with_room(buffer, parts)
        head = self.ring.head
        for part, new_part in zip(buffer, parts, strict=True):
            part[: self.ring.rows, :, head : head + 1] = new_part
        return buffer

    def _join(self, buffer: Parts | None, first_row: int, new: mx.array) -> Parts:
        parts = kvbits.pack(new, self.kv_bits)
        buffer = self._with_room(buffer, parts)
        rows = slice(first_row, first_row + new.shape[0])
        for column, token, count in self.ring.spans(new.shape[2]):
            for part, new_part in zip(buffer, parts, strict=True):
                part[rows, :, column : column + count] = new_part[:, :, token : token + count]
        return buffer

    def _with_room(self, buffer: Parts | None, like: Parts) -> Parts:
        old = buffer or (None,) * len(like)
        return tuple(map(self._with_capacity, old, like))

    def _with_capacity(self, buffer: mx.array | None, like: mx.array) -> mx.array:
        heads, _, size = like.shape[-3:]
        if buffer is None:
            return mx.zeros((self.ring.capacity, heads, self.ring.columns, size), like.dtype)
        missing = self.ring.capacity - buffer.shape[0]
        return mx.pad(buffer, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing > 0 else buffer

    def _check_single(self, num_tokens: int) -> None:
        if num_tokens != 1:
            raise ValueError(f"a decode batch takes one token a row, not {num_tokens}")


def _relayout(buffer: mx.array, change: Relayout) -> mx.array:
    head, columns = change.head, change.columns
    ordered = [buffer[:, :, head:], buffer[:, :, :head]] if head else [buffer]
    missing = columns - buffer.shape[2]
    if missing > 0:
        rows, heads, _, size = buffer.shape
        ordered.insert(0, mx.zeros((rows, heads, missing, size), buffer.dtype))
    moved = mx.concatenate(ordered, axis=2) if len(ordered) > 1 else buffer
    return moved[:, :, -columns:] if missing < 0 else moved
