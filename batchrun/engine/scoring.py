"""Log-probabilities of tokens that are given: of a prompt's own, or of its continuation.

They are prefilled like any prompt, after what they share with others, and the logits are read that
prefill otherwise never computes. Nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from batchrun.engine.features import FeatureCache
from batchrun.engine.kv import CacheTraits, Model
from batchrun.engine.logprobs import likeliest, log_total
from batchrun.engine.prefill import Prefill
from batchrun.engine.row import Sequence
from batchrun.engine.sharing import PrefixPool
from batchrun.records import TokenLogprob

# Most logits of one chunk, 256 MB of them: the vocabulary is far wider than a layer.
MAX_LOGITS = 2**26


@dataclass(frozen=True, slots=True)
class _Scored:
    """Columns `start` and on of a chunk, all rows: log-probability and rank of the tokens that come
    next (rows, columns), and the likeliest ones (rows, columns, k)."""

    start: int
    chosen: mx.array
    ranks: mx.array
    top_ids: mx.array
    top: mx.array


class ScoringPrefill(Prefill):
    """Prefills sequences that are there for their scores. `scores` has a list for each sequence,
    once it is done, with an entry for each token from `scored_from` on."""

    def __init__(
        self,
        model: Model,
        sequences: list[Sequence],
        pool: PrefixPool,
        features: FeatureCache,
        traits: CacheTraits,
        vocab_size: int,
    ):
        super().__init__(model, sequences, pool, features, traits)
        self.scores: list[list[TokenLogprob]] = [[] for _ in sequences]
        self._most = max(1, MAX_LOGITS // vocab_size)
        asked = [sequence.prompt.request.prompt_logprobs or 0 for sequence in sequences]
        self._num_top = min(max(asked), vocab_size)
        self._asked = asked

    def step(self, max_tokens: int) -> int:
        return super().step(min(max_tokens, self._most))

    def see(self, logits: mx.array, start: int) -> None:
        """Score what comes next at each column of a chunk whose first follows `start` tokens of
        every row's own."""
        width = logits.shape[1]
        first = min(s.scored_from - 1 - s.prompt.prefix_length for s in self.sequences) - start
        if first >= width:
            return
        first = max(first, 0)
        targets = self._targets(start + first, width - first)
        scored = self._score(logits[:, first:].astype(mx.float32), targets, start + first)
        mx.eval(scored.chosen, scored.ranks, scored.top_ids, scored.top)
        self._note(scored, targets)

    def _targets(self, start: int, width: int) -> np.ndarray:
        """The tokens that come next (rows, columns); 0 where a row has ended."""
        targets = np.zeros((len(self.sequences), width), dtype=np.int32)
        for row, sequence in enumerate(self.sequences):
            begin = sequence.prompt.prefix_length + start + 1
            tokens = sequence.prompt.token_ids[begin : begin + width]
            targets[row, : len(tokens)] = tokens
        return targets

    def _score(self, logits: mx.array, targets: np.ndarray, start: int) -> _Scored:
        chosen = mx.take_along_axis(logits, mx.array(targets)[..., None], axis=-1)
        total = log_total(logits)
        ranks = mx.sum(logits > chosen, axis=-1) + 1
        top_ids, top = likeliest(logits - total, self._num_top)
        return _Scored(start, (chosen - total)[..., 0], ranks, top_ids, top)

    def _note(self, scored: _Scored, targets: np.ndarray) -> None:
        chosen, ranks = scored.chosen.tolist(), scored.ranks.tolist()
        top_ids, top = scored.top_ids.tolist(), scored.top.tolist()
        for row, sequence in enumerate(self.sequences):
            for column in self._columns(sequence, scored.start, targets.shape[1]):
                cut = slice(self._asked[row])
                pairs = zip(top_ids[row][column][cut], top[row][column][cut], strict=True)
                self.scores[row].append(
                    TokenLogprob(
                        int(targets[row, column]),
                        chosen[row][column],
                        tuple(pairs),
                        ranks[row][column],
                    )
                )

    def _columns(self, sequence: Sequence, start: int, width: int) -> Iterator[int]:
        """Those in which a token is scored, of `width` that follow `start` of the row's own."""
        begin = (
            sequence.prompt.prefix_length + start + 1
        )  # the place in the prompt of what comes after the first
        first = max(sequence.scored_from - begin, 0)
        return iter(range(first, min(width, len(sequence.prompt.token_ids) - begin)))
