"""Prompts on their way into the caches: all their tokens but the last, which is the first input
of decoding. So prefill needs no logits, and a prompt of one token needs no prefill."""

from __future__ import annotations

import mlx.core as mx

from batchrun.engine.features import FeatureCache
from batchrun.engine.inputs import PromptInputs
from batchrun.engine.kv import CacheTraits, Model, PrefillCaches
from batchrun.engine.row import Sequence
from batchrun.engine.sharing import PrefixJob, PrefixPool


class Prefill:
    """One batch of prompts, fed in chunks, all after the same shared prefix or all without one;
    the prefix is computed first unless `pool` has it. Choices of the same prompt share its row:
    `picks[i]` is the row of `sequences[i]`."""

    def __init__(
        self,
        model: Model,
        sequences: list[Sequence],
        pool: PrefixPool,
        features: FeatureCache,
        traits: CacheTraits,
    ):
        self.sequences = sequences
        self.picks: list[int] = []
        rows: dict[int, int] = {}
        for sequence in sequences:
            self.picks.append(rows.setdefault(id(sequence.prompt), len(rows)))
        self._prompts = [sequences[self.picks.index(row)].prompt for row in range(len(rows))]
        self._prefix = sequences[0].prompt.prefix
        self._start = len(self._prefix.token_ids) if self._prefix else 0
        self._lengths = [len(prompt.token_ids) - 1 - self._start for prompt in self._prompts]
        self._position = 0
        self._features = features
        self._model = model
        self._pool = pool
        self._traits = traits
        self._missing = pool.missing(self._prefix)
        self._prefix_tokens_fed = self._prefix_tokens_read = 0
        self._job: PrefixJob | None = None
        self._caches: PrefillCaches | None = None
        self._inputs: PromptInputs | None = None

    @property
    def num_media(self) -> int:
        return sum(len(prompt.media) for prompt in self._prompts)

    @property
    def is_done(self) -> bool:
        return not self._missing and self._position >= self.caches.columns

    @property
    def caches(self) -> PrefillCaches:
        """Those of the prompts; to be asked for once the prefix is there."""
        if self._caches is None:
            prefix = self._pool.get(self._prefix) if self._prefix else None
            self._caches = PrefillCaches(self._model, self._lengths, prefix, self._traits)
        return self._caches

    @property
    def inputs(self) -> PromptInputs:
        if self._inputs is None:
            self._inputs = PromptInputs(
                self._model, self._features, self._prompts, self._start, self._lengths
            )
        return self._inputs

    def step(self, max_tokens: int) -> int:
        """Feed the next chunk, at most `max_tokens` with padding; returns the tokens fed."""
        if self._missing:
            return self._step_prefix(max_tokens)
        end = self._position + self._width(max_tokens)
        chunk = self.inputs.chunk(self._position, end)
        logits = self._model(chunk.tokens, self.caches.layers, chunk.given)
        self.see(logits, self._position)
        self.caches.evaluate()
        self._position = end
        return chunk.num_tokens

    def see(self, logits: mx.array, start: int) -> None:
        """Called with what a chunk gave, none of which prefill needs or computes."""

    def finish(self) -> None:
        """Complete the caches and note which tokens each sequence did not have to compute."""
        self.caches.finalize()
        first_of_row = set()
        for sequence, pick in zip(self.sequences, self.picks, strict=True):
            is_first = pick not in first_of_row
            first_of_row.add(pick)
            sequence.cached_tokens = self._start + (0 if is_first else self._lengths[pick])
        self.sequences[0].cached_tokens -= self._prefix_tokens_fed
        self.sequences[0].disk_tokens = self._prefix_tokens_read

    def _step_prefix(self, max_tokens: int) -> int:
        """Feed the next chunk of the shortest prefix that is missing."""
        if self._job is None:
            self._job = self._pool.begin(self._missing[0], self._prompts[0])
            self._prefix_tokens_read += self._job.num_read
        fed = self._job.step(max_tokens)
        self._prefix_tokens_fed += fed
        if self._job.is_done:
            self._pool.keep(self._job)
            self._missing.pop(0)
            self._job = None
        return fed

    def _width(self, max_tokens: int) -> int:
        """Columns of the next chunk: what is left in equal parts."""
        left = self.caches.columns - self._position
        chunks = -(-left * len(self._prompts) // max_tokens)
        return -(-left // chunks)
