"""KV caches of plain attention layers for a batch whose rows come and go.

All rows write their next token into the same column, and columns are used in a circle: a row of
n tokens lives in the n columns before the write position, wherever that is. So a row joins by
copying its own tokens only, leaves by being forgotten, and no row is ever shifted because of
another. Attention does not mind the order of keys; a mask by age says which columns are a row's
own. Rows that share a prefix have only what follows it here; the prefix itself is kept once.

`Ring` is that geometry, the same for every layer.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from batchrun.engine.plainkv import PackedPrefixKV, PrefixKV, PrefixState
from batchrun.engine.rotary import lasting

# Columns are added and removed in steps: a step costs one copy of everything, a spare column a
# little attention in each decode step.
COLUMN_STEP = 64

# In a float32 score this is minus infinity, without the not-a-numbers that infinities breed.
HIDDEN = -1e30


class OwnMask(str):
    """Stands for `Ring.bias` where the attention is ours. It is no array: models cut arrays to the
    number of keys that they expect, and nobody could say any more which mask had been meant."""

    __slots__ = ()


OWN_MASK = OwnMask("own")


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
    Where `is_attended`, attention goes through ours, and needs no mask but `bias`.
    `num_attended` and `saw_window` record how models used the layers' caches.
    """

    def __init__(self, max_rows: int, *, is_attended: bool):
        self.max_rows = max_rows
        self.is_attended = is_attended
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
            self._offset = lasting(mx.array(np.add(before, self.lengths).astype(np.int32)))
        return self._offset

    @property
    def bias(self) -> mx.array:
        """0 for the columns that a row sees once its next token is written, HIDDEN for the
        others: float32 (rows, 1, 1, columns)."""
        if self._bias is None:
            bias = np.where(self._seen(None), 0.0, HIDDEN).astype(np.float32)
            self._bias = mx.array(bias[:, None, None])
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

    def append(self, lengths: Many[int], prefixes: Many[PrefixState | None]) -> None:
        self.lengths.extend(lengths)
        self._prefixes.extend(prefixes)
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
        members: dict[PrefixState, list[int]] = {}
        loners: list[int] = []
        for row, state in enumerate(self._prefixes):
            (members.setdefault(state, []) if state else loners).append(row)
        self.groups = [
            Group(state, mx.array(rows, dtype=mx.int32), len(rows) == self.rows)
            for state, rows in members.items()
        ]
        self.num_loners = len(loners)
        order = np.argsort([row for rows in [*members.values(), loners] for row in rows])
        self.group_order = mx.array(order.astype(np.int32))
        self._forget()

    def _forget(self) -> None:
        """What was worked out for the current step no longer holds."""
        self._offset = self._bias = self._mask = None
