"""Log-probabilities beside the same in double precision."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from batchrun.engine.logprobs import log_total


@pytest.mark.parametrize("vocab_size", [7, 256, 1000, 150_001])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_nothing_of_a_large_vocabulary_is_lost(vocab_size, spread):
    logits = np.random.default_rng(3).normal(5, spread, (2, 3, vocab_size)).astype(np.float32)
    exact = logits.astype(np.float64)
    expected = np.log(np.exp(exact - exact.max()).sum(axis=-1, keepdims=True)) + exact.max()
    total = log_total(mx.array(logits))
    assert total.shape == (2, 3, 1)
    np.testing.assert_allclose(np.array(total), expected, rtol=5e-7, atol=5e-6)


def test_tokens_that_are_ruled_out_count_nothing():
    assert log_total(mx.array([[1.0, -np.inf, 1.0]])).item() == pytest.approx(1 + np.log(2))
