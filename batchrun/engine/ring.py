"""KV caches of plain attention layers for a batch whose rows come and go.

All rows write their next token into the same column, and columns are used in a circle: a row of
n tokens lives in the n columns before the write position, wherever that is. So a row joins by
copying its own tokens only, leaves by being forgotten, and no row is ever shifted because of
another. Attention does not mind the order of keys; a mask by age says which columns are a row's
own.
Rows that share a prefix have only what follows it here; the prefix itself is kept once.

`Ring` is that geometry, the same for every layer; `RingKV` is one layer's keys and values, with the
names that mlx-lm's models expect of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from batchrun.engine import kvbits
from batchrun.engine.kvbits import Parts
from batchrun.engine.plainkv import PackedPrefixKV, PrefixKV, PrefixState

# Columns are added and removed in steps: a step costs one copy of everything, a spare column a
# little attention in each decode step.
COLUMN_STEP = 64

# In a float32 score this is minus infinity, without the not-a-numbers that infinities breed.
HIDDEN = -1e30


@dataclass(frozen=True, slots=True)
class Relayout:
    """Move the newest token to the last of `columns` columns, older ones before it."""

    head: int
    columns: int


@dataclass(frozen=True, slots=True)
class Group:
    """The rows that share a prefix; `rows` int32 are their places, all if `is_everyone`."""

    state: PrefixState
    rows: mx.array
    is_everyone: bool

    def layer(self, index: int) -> PrefixKV | PackedPrefixKV:
        kv = self.state.layers[index]
        assert isinstance(kv, PrefixKV | PackedPrefixKV)
        return kv


class Ring:
    """Where each row's tokens are. `lengths` are tokens per row in the ring, `head` is the next
    column, `groups` say which rows share a prefix, whose tokens come before those in the ring.

    `capacity` is the rows that layers have memory for, `max_rows` the most that will be needed.
    `num_attended` and `saw_window` record how models used the layers' caches.
    """

    def __init__(self, max_rows: int):
        self.max_rows = max_rows
        self.lengths: list[int] = []
        self.columns = 0
        self.head = 0
        self.capacity = 0
        self.groups: list[Group] = []
        self.num_loners = 0
        self.group_order = mx.array([], dtype=mx.int32)
        self.num_attended = 0
        self.saw_window = False
        self._prefixes: list[PrefixState | None] = []
        self._offset: mx.array | None = None
        self._bias: mx.array | None = None
        self._mask: mx.array | None = None

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def offset(self) -> mx.array:
        """Position of each row's next token, int32 (rows,)."""
        if self._offset is None:
            before = [state.length if state else 0 for state in self._prefixes]
            self._offset = mx.array(np.add(before, self.lengths).astype(np.int32))
        return self._offset

    @property
    def bias(self) -> mx.array:
        """0 for the columns that a row sees once its next token is written, HIDDEN for the
        others: float32 (rows, 1, columns)."""
        if self._bias is None:
            bias = np.where(self._seen(None), 0.0, HIDDEN).astype(np.float32)
            self._bias = mx.array(bias[:, None])
        return self._bias

    def mask(self, window: int | None) -> mx.array:
        """What `bias` says, as bool (rows, 1, 1, columns); with `window`, only the newest
        `window` tokens of each row."""
        if window is not None:
            self.saw_window = True
            return mx.array(self._seen(window)[:, None, None])
        if self._mask is None:
            self._mask = mx.array(self._seen(None)[:, None, None])
        return self._mask

    def is_own_mask(self, mask: mx.array | str | None) -> bool:
        """Whether a model passes on the mask it was given, which says no more than `bias`."""
        return mask is not None and mask is self._mask

    def fit(self, length: int) -> Relayout | None:
        """Make room for rows of up to `length` tokens, or give up room that is far too large;
        what the layers have to do for it is returned."""
        columns = -(-max(length, 1) // COLUMN_STEP) * COLUMN_STEP
        if columns <= self.columns <= columns + max(columns // 2, 2 * COLUMN_STEP):
            return None
        relayout = Relayout(self.head, columns)
        self.columns, self.head = columns, 0
        self._forget()
        return relayout

    def append(self, lengths: Many[int], prefix: PrefixState | None) -> None:
        self.lengths.extend(lengths)
        self._prefixes.extend([prefix] * len(lengths))
        if self.rows > self.capacity:
            self.capacity = min(self.max_rows, max(self.rows, 2 * self.capacity))
        self._regroup()

    def retire(self, row: int) -> None:
        """Forget a row's tokens: it no longer counts in what `fit` has to hold."""
        self.lengths[row] = 0
        self._forget()

    def filter(self, keep: Many[int]) -> None:
        self.lengths = [self.lengths[row] for row in keep]
        self._prefixes = [self._prefixes[row] for row in keep]
        self._regroup()

    def advance(self) -> None:
        """Every row has written one token."""
        self.lengths = [length + 1 for length in self.lengths]
        self.head = (self.head + 1) % self.columns
        self._forget()

    def spans(self, length: int) -> list[tuple[int, int, int]]:
        """The columns of a row of `length` tokens, as (first column, first token, count)."""
        start = (self.head - length) % self.columns
        first = min(length, self.columns - start)
        parts = [(start, 0, first), (0, first, length - first)]
        return [part for part in parts if part[2] > 0]

    def prefixes(self) -> list[PrefixState]:
        """Every prefix that some row has, once."""
        return [group.state for group in self.groups]

    def _seen(self, window: int | None) -> np.ndarray:
        """Bool (rows, columns)."""
        age = (self.head - np.arange(self.columns)) % self.columns
        oldest = np.array(self.lengths)[:, None]
        if window is not None:
            oldest = np.minimum(oldest, window - 1)
        seen: np.ndarray = age[None] <= oldest
        return seen

    def _regroup(self) -> None:
        members: dict[int, list[int]] = {}
        loners: list[int] = []
        for row, state in enumerate(self._prefixes):
            (members.setdefault(id(state), []) if state else loners).append(row)
        self.groups = [
            Group(state, mx.array(rows, dtype=mx.int32), len(rows) == self.rows)
            for rows in members.values()
            if (state := self._prefixes[rows[0]])
        ]
        self.num_loners = len(loners)
        order = np.argsort([row for rows in [*members.values(), loners] for row in rows])
        self.group_order = mx.array(order.astype(np.int32))
        self._forget()

    def _forget(self) -> None:
        """What was worked out for the current step no longer holds."""
        self._offset = self._bias = self._mask = None


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

    def make_mask(
        self,
        num_tokens: int,
        return_array: bool = False,  # noqa: ARG002 mlx-lm's signature
        window_size: int | None = None,
    ) -> mx.array:
        self._check_single(num_tokens)
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

    def extend(self, first_row: int, keys: mx.array, values: mx.array, picks: Many[int]) -> None:
        """Copy rows `picks` of right-padded `keys` and `values` into the rows from `first_row`
        on, whose lengths the ring already knows."""
        self.keys = self._copy(self.keys, first_row, keys, picks)
        self.values = self._copy(self.values, first_row, values, picks)

    def filter(self, keep: Many[int]) -> None:
        """Rows already in place cost nothing. `keep` must not move a row over one that is
        moved later: fill holes from the end."""
        for row, source in enumerate(keep):
            if row != source:
                for part in self.state:
                    part[row] = part[source]

    def _fetch(self, buffer: Parts) -> mx.array:
        return kvbits.unpack(tuple(part[: self.ring.rows] for part in buffer), self.kv_bits)

    def _write(self, buffer: Parts | None, new: mx.array) -> Parts:
        parts = kvbits.pack(new, self.kv_bits)
        buffer = self._with_room(buffer, parts)
        head = self.ring.head
        for part, new_part in zip(buffer, parts, strict=True):
            part[: self.ring.rows, :, head : head + 1] = new_part
        return buffer

    def _copy(self, buffer: Parts | None, first_row: int, new: mx.array, picks: Many[int]) -> Parts:
        parts = kvbits.pack(new, self.kv_bits)
        buffer = self._with_room(buffer, parts)
        for row, pick in enumerate(picks, start=first_row):
            for column, token, count in self.ring.spans(self.ring.lengths[row]):
                for part, new_part in zip(buffer, parts, strict=True):
                    part[row, :, column : column + count] = new_part[pick, :, token : token + count]
        return buffer

    def _with_room(self, buffer: Parts | None, like: Parts) -> Parts:
        old = buffer or (None,) * len(like)
        return tuple(map(self._with_capacity, old, like))

    def _with_capacity(self, buffer: mx.array | None, like: mx.array) -> mx.array:
        _, heads, _, size = like.shape
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
