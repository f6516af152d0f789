"""The rows being decoded, and one decode step over all of them.

Membership changes only while no step is in flight; between changes everything a step needs stays
on the device, and the next step can start from tokens that the host has not read yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import mlx.core as mx

from batchrun.engine.kv import CacheTraits, DecodeCaches, Model
from batchrun.engine.prefill import Prefill
from batchrun.engine.row import Sequence
from batchrun.engine.sampling import Sampled, Sampler
from batchrun.models.loaded import Given
from batchrun.ranks import ALONE, Ranks
from batchrun.records import TokenLogprob

# Whether a step is started while the last one runs. On a CPU, where both would want the same cores,
# MLX then copies every cache to write a token: it cannot write to what a running step still reads.
OVERLAPS = mx.default_device() != mx.Device(mx.cpu)

# Finished rows stay in the batch, doing no harm, until they are this share of it.
DEAD_SHARE = 1 / 4


class Taken(NamedTuple):
    """A sequence's next token, its log-probability if asked for, and what its walk was told."""

    sequence: Sequence
    token_id: int
    score: TokenLogprob | None
    told: list[float]


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step that has been started: which sequence is at which place, and its tokens."""

    rows: list[Sequence | None]
    sampled: Sampled

    def read(self) -> list[Taken]:
        """Wait for the step; what it gave every sequence that still runs."""
        tokens = self.sampled.tokens.tolist()
        scores = self._read_scores()
        told = self.sampled.told.read() if self.sampled.told else {}
        return [
            Taken(row, tokens[place], scores.get(place), told.get(place, []))
            for place, row in enumerate(self.rows)
            if row is not None and row.ending is None
        ]

    def _read_scores(self) -> dict[int, TokenLogprob]:
        scores = self.sampled.scores
        if scores is None:
            return {}
        tokens = self.sampled.tokens.tolist()
        chosen, ids, top = scores.chosen.tolist(), scores.top_ids.tolist(), scores.top.tolist()
        read = {}
        for index, place in enumerate(scores.rows):
            row = self.rows[place]
            num_top = row.prompt.sampling.top_logprobs if row else 0
            likeliest = tuple(zip(ids[index][:num_top], top[index][:num_top], strict=True))
            read[place] = TokenLogprob(tokens[place], chosen[index], likeliest)
        return read


class Batch:
    """Up to `max_rows` sequences in decoding. A place is None once its sequence has left. All
    `ranks` have the same rows, and go on with rank 0's tokens."""

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int,
        vocab_size: int,
        traits: CacheTraits,
        ranks: Ranks = ALONE,
    ):
        self.rows: list[Sequence | None] = []
        self.caches = DecodeCaches(max_rows=max_rows, traits=traits)
        self._model = model
        self._vocab_size = vocab_size
        self._ranks = ranks
        self._inputs = mx.array([], dtype=mx.int32)
        self._positions = mx.array([], dtype=mx.int32)
        self._sampler: Sampler | None = None
        self._logits: mx.array | None = None

    @property
    def live(self) -> list[Sequence]:
        return [row for row in self.rows if row is not None and row.is_live]

    @property
    def is_sparse(self) -> bool:
        """Whether it is time to close up, with few rows left that want a step, or none."""
        live = len(self.live)
        return live == 0 or live < (1 - DEAD_SHARE) * len(self.rows)

    @property
    def is_guided(self) -> bool:
        """Whether the last step's tokens decide which ones a step may choose."""
        return self._current_sampler().is_guided

    def begin(self) -> None:
        """Start a step on the device up to the choice of its tokens."""
        self.caches.begin_step()
        logits = self._model(self._inputs[:, None], self.caches.layers, self._given())
        self._logits = logits[:, -1]
        if self.is_guided:
            mx.async_eval(self._logits)  # masks are made meanwhile

    def launch(self) -> Step:
        """Start a step on the device, or go on with the one that was begun, and return without
        waiting for it."""
        if self._logits is None:
            self.begin()
        sampled = self._current_sampler()(self._logits)
        sampled = replace(sampled, tokens=self._ranks.agree(sampled.tokens))
        self._logits = None
        self.caches.end_step()
        mx.async_eval(*sampled.arrays())
        self._inputs = sampled.tokens
        for row in self.live:
            row.num_started += 1
        return Step(list(self.rows), sampled)

    def _current_sampler(self) -> Sampler:
        if self._sampler is None:
            self._sampler = Sampler(self.rows, self._vocab_size)
        return self._sampler

    def drop_ended(self) -> None:
        """Empty the places of sequences that have ended; the batch keeps its width."""
        for place, row in enumerate(self.rows):
            if row is not None and not row.is_live:
                self.rows[place] = None
                self.caches.retire(place)
                self._sampler = None

    def compact(self) -> None:
        """Close up empty places, moving as few rows as possible."""
        keep = _fill_holes([row is not None for row in self.rows])
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in keep]
        self.caches.filter(keep)
        rows = mx.array(keep, dtype=mx.int32)
        self._inputs, self._positions = self._inputs[rows], self._positions[rows]
        self._sampler = None

    def extend(self, prefill: Prefill) -> None:
        """Take in the sequences of a finished prefill; the first input of each is its prompt's
        last token."""
        self.caches.extend(prefill.caches, prefill.picks)
        self.rows.extend(prefill.sequences)
        first = mx.array([s.prompt.token_ids[-1] for s in prefill.sequences], dtype=mx.int32)
        self._inputs = mx.concatenate([self._inputs, first])
        last = prefill.inputs.last_positions
        positions = mx.array([last[pick] for pick in prefill.picks], dtype=mx.int32)
        self._positions = mx.concatenate([self._positions, positions])
        self._sampler = None

    def _given(self) -> Given | None:
        """M-RoPE's positions of the tokens that go in now, where the model wants them: text goes on
        from the largest position so far in all three."""
        if not self._model.takes_positions:
            return None
        now, self._positions = self._positions, self._positions + 1
        return Given(positions=mx.broadcast_to(now[None, :, None], (3, len(self.rows), 1)))


def _fill_holes(taken: list[bool]) -> list[int]:
    """Old places in their new order: holes before the new end are filled from behind it."""
    size = sum(taken)
    movers = [place for place in range(size, len(taken)) if taken[place]]
    return [place if taken[place] else movers.pop() for place in range(size)]
