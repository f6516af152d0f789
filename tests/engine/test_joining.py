"""Rows that join a batch have the tokens that each would have if copied alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchrun.engine.joining import Joining
from batchrun.engine.plainkv import PrefillKV, PrefixKV, PrefixState

HEADS, SIZE = 2, 3


def numbers(rows: int, tokens: int, seed: int) -> mx.array:
    drawn = np.random.default_rng(seed).normal(size=(rows, HEADS, tokens, SIZE))
    return mx.array(drawn.astype(np.float32))


def state(length: int) -> PrefixState:
    return PrefixState(length, [None, PrefixKV(numbers(1, length, length), numbers(1, length, 9))])


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    picked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_every_row_ends_with_its_own_tokens(
    lengths: list[int], picked: list[tuple[int, int]]
) -> None:
    picks = [pick % len(lengths) for pick, _ in picked]
    states = [None, state(3), state(7)]
    prefixes = [states[which] for _, which in picked]
    columns = max(lengths)
    layer = PrefillKV([(None, len(lengths))])
    if columns:
        layer.update_and_fetch(numbers(len(lengths), columns, 1), numbers(len(lengths), columns, 2))
    of_rows = [
        lengths[pick] + (prefix.length if prefix else 0)
        for pick, prefix in zip(picks, prefixes, strict=True)
    ]
    joining = Joining(picks, of_rows, prefixes, num_rows=len(lengths), columns=columns)

    gathered = joining.gather(1, layer)

    if gathered is None:
        assert max(of_rows) == 0
        return
    keys, values = gathered
    assert keys.shape == values.shape == (len(picks), HEADS, max(of_rows), SIZE)
    for row, (pick, prefix) in enumerate(zip(picks, prefixes, strict=True)):
        for found, own, before in [
            (keys, layer.keys, prefix and prefix.layers[1].keys),
            (values, layer.values, prefix and prefix.layers[1].values),
        ]:
            parts = [before[0]] if before is not None else []
            parts += [own[pick, :, : lengths[pick]]] if own is not None else []
            expected = mx.concatenate(parts, axis=1) if parts else mx.zeros((HEADS, 0, SIZE))
            start = max(of_rows) - of_rows[row]
            assert np.array_equal(np.array(found[row, :, start:]), np.array(expected))


def test_a_layer_that_the_model_does_not_use_has_nothing_to_join() -> None:
    joining = Joining([0, 0], [4, 1], [state(3), None], num_rows=1, columns=1)

    assert joining.gather(0, PrefillKV([(None, 1)])) is None
