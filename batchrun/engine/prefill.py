"""Prompts on their way into the caches: all their tokens but the last, which is the first input
of decoding. So prefill needs no logits, and a prompt of one token needs no prefill."""

from __future__ import annotations

import mlx.core as mx

from batchrun.engine.features import FeatureCache
from batchrun.engine.inputs import PromptInputs
from batchrun.engine.kv import CacheTraits, Model, PrefillCaches
from batchrun.engine.plainkv import PrefixState
from batchrun.engine.prefixing import PrefixJob
from batchrun.engine.row import Sequence
from batchrun.engine.sharing import PrefixPool


class Prefill:
    """One batch of prompts, fed in chunks, each after its shared prefix or none; prefixes that
    `pool` does not have are computed first. Choices of the same prompt share its row: `picks[i]` is
    the row of `sequences[i]`."""

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
        self._starts = [prompt.prefix_length for prompt in self._prompts]
        self._lengths = [len(p.token_ids) - 1 - p.prefix_length for p in self._prompts]
        self._position = 0
        self._features = features
        self._model = model
        self._pool = pool
        self._traits = traits
        # One sequence of each prefix that is still to be had, the others wait for it.
        self._firsts = list({id(s.prompt.prefix): s for s in reversed(sequences)}.values())
        self._states: dict[int, PrefixState | None] = {}
        self._job: PrefixJob | None = None
        self._caches: PrefillCaches | None = None
        self._inputs: PromptInputs | None = None

    @property
    def num_media(self) -> int:
        return sum(len(prompt.media) for prompt in self._prompts)

    @property
    def is_done(self) -> bool:
        return not self._firsts and self._position >= self.caches.columns

    @property
    def caches(self) -> PrefillCaches:
        """Those of the prompts; to be asked for once the prefixes are there."""
        if self._caches is None:
            states = [self._states[id(prompt.prefix)] for prompt in self._prompts]
            self._caches = PrefillCaches(self._model, self._lengths, states, self._traits)
        return self._caches

    @property
    def inputs(self) -> PromptInputs:
        if self._inputs is None:
            self._inputs = PromptInputs(
                self._model, self._features, self._prompts, self._starts, self._lengths
            )
        return self._inputs

    def step(self, max_tokens: int) -> int:
        """Feed the next chunk, at most `max_tokens` with padding; returns the tokens fed."""
        if self._firsts and (fed := self._step_prefix(max_tokens)):
            return fed
        if self.is_done:
            return 0
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
            sequence.cached_tokens += self._starts[pick]
            sequence.cached_tokens += 0 if is_first else self._lengths[pick]

    def _step_prefix(self, max_tokens: int) -> int:
        """Feed the next chunk of the shortest prefix that is missing; 0 if none has to be fed. The
        sequence that it is computed for has computed those tokens."""
        while self._firsts:
            first = self._firsts[-1]
            prefix = first.prompt.prefix
            missing = self._pool.missing(prefix)
            if not missing:
                self._states[id(prefix)] = self._pool.get(prefix)
                self._firsts.pop()
                continue
            if self._job is None and (fed := self._compute_together(max_tokens)):
                return fed
            if self._job is None:
                self._job = self._pool.begin(missing[0], first.prompt)
                first.disk_tokens += self._job.num_read
            fed = self._job.step(max_tokens)
            first.cached_tokens -= fed
            if self._job.is_done:
                self._pool.keep(self._job.computed())
                self._job = None
            if fed:
                return fed
        return 0

    def _compute_together(self, max_tokens: int) -> int:
        """One pass for the prefixes of several sequences, where that can be; returns the tokens
        fed."""
        total = 0
        for first, done in self._pool.compute_together(reversed(self._firsts), max_tokens):
            self._firsts.remove(first)
            self._states[id(done.prefix)] = done.state
            first.cached_tokens -= done.num_fed
            total += done.num_fed
        return total

    def _width(self, max_tokens: int) -> int:
        """Columns of the next chunk: what is left in equal parts."""
        left = self.caches.columns - self._position
        chunks = -(-left * len(self._prompts) // max_tokens)
        return -(-left // chunks)
