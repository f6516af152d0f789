"""Grammars in decoding: where each answer stands in its own, and what may come next in it.

Knows nothing of schemas, text or the way a grammar is written.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import mlx.core as mx
import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

from batchrun.records import Grammar

# Near the end of float32, so that even a logit bias does not bring such a token back.
_NEVER = 3e38


class Guide:
    """One answer's way through its grammar, from before its first token on."""

    def __init__(self, grammar: Grammar):
        self.grammar = grammar
        self.matcher: LLMatcher = grammar.begin()

    def restart(self) -> Guide:
        return Guide(self.grammar)

    @property
    def is_done(self) -> bool:
        """Whether nothing can follow but an end."""
        return self.matcher.is_stopped()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, if so."""
        return self.matcher.get_error() or None

    def take(self, token_id: int) -> None:
        """The answer's next token, which must be one that was allowed."""
        self.matcher.consume_token(token_id)


def masked(logits: mx.array, guides: Many[Guide | None]) -> mx.array:
    """`logits` float32 (rows, vocabulary), so low that they are never chosen where a row's guide
    allows no such token; a row without a guide keeps all of its own."""
    matchers = [(guide.matcher, row) for row, guide in enumerate(guides) if guide]
    if not matchers:
        return logits
    num_rows, vocab_size = logits.shape
    known = next(guide.grammar.vocab_size for guide in guides if guide)
    words = allocate_token_bitmask(num_rows, known)
    fill_next_token_bitmask_par(_executor(), matchers, words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    # Ids that only the model has: no grammar allows them, and nothing forbids them to others.
    bits[[guide is None for guide in guides], known:] = 1
    # Sums and products, as MLX is ten times slower at choosing on a CPU.
    return logits + (mx.array(bits).astype(mx.float32) - 1.0) * _NEVER


@cache
def _executor() -> LLExecutor:
    """Threads that fill masks, made when first needed."""
    return LLExecutor()
