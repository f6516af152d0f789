"""Rows that join a decode batch: the keys and values of all of them are gathered at once, as a call
of MLX for each row would cost more than the copying where rows are short."""

from __future__ import annotations

from collections.abc import Sequence as Many

import mlx.core as mx
import numpy as np

from batchrun.engine.plainkv import PrefillKV, PrefixState


class Joining:
    """Rows that join, each with the tokens of one of `num_rows` prefilled rows (`picks`, of which
    one may be picked again) after a copy of its entry of `prefixes`, if any. `lengths` are tokens
    per row with that, `columns` those per prefilled row, padding included."""

    def __init__(
        self,
        picks: Many[int],
        lengths: Many[int],
        prefixes: Many[PrefixState | None],
        *,
        num_rows: int,
        columns: int,
    ):
        self._copied = [prefix for prefix in dict.fromkeys(prefixes) if prefix]
        own = num_rows * columns
        starts = np.cumsum([own, *(prefix.length for prefix in self._copied)])
        first = dict(zip(self._copied, starts.tolist(), strict=False))
        in_prefix = _column([first[prefix] if prefix else 0 for prefix in prefixes])
        before = _column([prefix.length if prefix else 0 for prefix in prefixes])
        # Every row ends in the last column; what is before its first token is never looked at.
        token = np.maximum(np.arange(-max(lengths), 0) + _column(lengths), 0)
        own_token = _column(picks) * columns + token - before
        index = np.where(token < before, in_prefix + token, own_token)
        self._index = mx.array(index.astype(np.int32))

    def gather(self, number: int, layer: PrefillKV) -> tuple[mx.array, mx.array] | None:
        """Keys and values of layer `number`, (rows, KV heads, tokens, size) each and padded on the
        left; None if there are none."""
        tables = [layer.state] if layer.state else []
        prefixes = [prefix.layers[number] for prefix in self._copied]
        tables.extend([prefix.keys, prefix.values] for prefix in prefixes if prefix)
        if not tables or not self._index.size:
            return None
        keys, values = (self._take(both) for both in zip(*tables, strict=True))
        return keys, values

    def _take(self, tables: Many[mx.array]) -> mx.array:
        """From `tables`, (rows, KV heads, tokens, size) each, whose tokens count on."""
        tokens = [table.swapaxes(1, 2).flatten(0, 1) for table in tables]
        taken = (mx.concatenate(tokens) if len(tokens) > 1 else tokens[0])[self._index]
        return taken.swapaxes(1, 2)


def _column(numbers: Many[int]) -> np.ndarray:
    return np.array(numbers)[:, None]
