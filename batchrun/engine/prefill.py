"""Prompts on their way into the caches: all their tokens but the last, which is the first input
of decoding. So prefill needs no logits, and a prompt of one token needs no prefill."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from batchrun.engine.kv import Model, PrefillCaches
from batchrun.engine.row import Sequence


class Prefill:
    """One batch of prompts, fed in chunks. Choices of the same prompt share its row:
    `picks[i]` is the row of `sequences[i]`."""

    def __init__(self, model: Model, sequences: list[Sequence], *, batched: bool):
        self.sequences = sequences
        self.picks: list[int] = []
        prompts: dict[int, int] = {}
        for sequence in sequences:
            row = prompts.setdefault(id(sequence.prompt), len(prompts))
            self.picks.append(row)
        self._rows = [sequences[self.picks.index(row)].prompt.token_ids for row in range(len(prompts))]
        self._position = 0
        self._model = model
        self._batched = batched
        self.lengths = [len(token_ids) - 1 for token_ids in self._rows]
        self.caches = PrefillCaches(model, self.lengths, batched=batched)

    @property
    def is_done(self) -> bool:
        return self._position >= max(self.lengths)

    def step(self, max_tokens: int) -> int:
        """Feed the next chunk, at most `max_tokens` with padding; returns the prompt tokens fed."""
        end = self._position + self._width(max_tokens)
        chunk = np.zeros((len(self._rows), end - self._position), dtype=np.int32)
        fed = 0
        for row, token_ids in enumerate(self._rows):
            part = token_ids[self._position : min(end, self.lengths[row])]
            chunk[row, : len(part)] = part
            fed += len(part)
        self._model(mx.array(chunk), cache=self.caches.layers)
        self.caches.evaluate()
        self._position = end
        return fed

    def _width(self, max_tokens: int) -> int:
        """Columns of the next chunk: what is left in equal parts. Never one column where rows are
        padded: mlx-lm's recurrent and sliding-window layers take that for decoding."""
        left = max(self.lengths) - self._position
        chunks = -(-left * len(self._rows) // max_tokens)
        width = -(-left // chunks)
        return max(width, 2) if len(self._rows) > 1 else width

    def finish(self) -> None:
        """Complete the caches and note which tokens each sequence did not have to compute."""
        self.caches.finalize(batched=self._batched)
        shared = set()
        for sequence, pick in zip(self.sequences, self.picks, strict=True):
            if pick in shared:
                sequence.cached_tokens = self.lengths[pick]
            shared.add(pick)
