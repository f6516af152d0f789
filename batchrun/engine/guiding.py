"""Grammars in decoding: where each answer stands in its own, and what may come next in it.

Knows nothing of schemas, text or the way a grammar is written.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

from batchrun.engine.thought import Thought
from batchrun.records import Prompt

# Near the end of float32, so that even a logit bias does not bring such a token back.
_NEVER = 3e38


class Guide:
    """One answer's way through its reasoning, if any, and its grammar, if any, from before its
    first token on. `ends` are the tokens that end an answer."""

    def __init__(self, prompt: Prompt, ends: frozenset[int]):
        self._prompt = prompt
        self._ends = ends
        self.grammar = prompt.grammar
        self.matcher: LLMatcher | None = prompt.grammar.begin() if prompt.grammar else None
        self._thought = Thought(prompt.thinking) if prompt.thinking else None

    def restart(self) -> Guide:
        return Guide(self._prompt, self._ends)

    @property
    def is_done(self) -> bool:
        """Whether nothing can follow but an end."""
        return self._is_answering and self.matcher is not None and self.matcher.is_stopped()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed any further, if so."""
        return (self.matcher.get_error() or None) if self.matcher else None

    @property
    def _is_answering(self) -> bool:
        return self._thought is None or self._thought.is_over

    @property
    def followed(self) -> LLMatcher | None:
        """The grammar's matcher where it has a say in the next token."""
        return self.matcher if self._thought is None or self._thought.may_be_over else None

    @property
    def is_free(self) -> bool:
        """Whether any token may come next."""
        return self.followed is None and self.forced is None and not self.forbidden

    @property
    def forced(self) -> int | None:
        """The one token that may come next, where it is none of the grammar's."""
        return self._thought.forced if self._thought else None

    @property
    def also_allowed(self) -> int | None:
        """A token that may come beside the grammar's: that which begins the reasoning."""
        return self._thought.opening if self._thought else None

    @property
    def forbidden(self) -> frozenset[int]:
        """Tokens that may not come: an end before the grammar has begun."""
        is_early = self.matcher is not None and self.followed is None
        return self._ends if is_early else frozenset()

    def take(self, token_id: int) -> None:
        """The answer's next token, which must be one that was allowed."""
        if self._thought is not None and not self._thought.is_over:
            answer = self._thought.take(token_id)
        else:
            answer = [token_id]
        if self.matcher is not None and answer:
            self.matcher.consume_tokens(answer)


def masked(logits: mx.array, guides: Many[Guide | None]) -> mx.array:
    """`logits` float32 (rows, vocabulary), so low that they are never chosen where a row's guide
    allows no such token; a row without a guide keeps all of its own."""
    if all(guide is None or guide.is_free for guide in guides):
        return logits
    num_rows, vocab_size = logits.shape
    sizes = (guide.grammar.vocab_size for guide in guides if guide and guide.grammar)
    known = next(sizes, vocab_size)
    words = allocate_token_bitmask(num_rows, known)
    followed = [guide.followed if guide else None for guide in guides]
    matchers = [(matcher, row) for row, matcher in enumerate(followed) if matcher]
    if matchers:
        fill_next_token_bitmask_par(_executor(), matchers, words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    # Ids that only the model has: no grammar allows them, and nothing forbids them to others.
    bits[[matcher is None for matcher in followed], known:] = 1
    for row, guide in enumerate(guides):
        if guide is not None:
            _adjust(bits[row], guide)
    # Sums and products, as MLX is ten times slower at choosing on a CPU.
    return logits + (mx.array(bits).astype(mx.float32) - 1.0) * _NEVER


def _adjust(bits: npt.NDArray[np.uint8], guide: Guide) -> None:
    """What reasoning changes in one row's allowed tokens."""
    if guide.forced is not None:
        bits[:] = 0
        bits[guide.forced] = 1
        return
    if guide.also_allowed is not None:
        bits[guide.also_allowed] = 1
    bits[[token for token in guide.forbidden if token < len(bits)]] = 0


@cache
def _executor() -> LLExecutor:
    """Threads that fill masks, made when first needed."""
    return LLExecutor()
