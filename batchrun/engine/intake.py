"""The way into the batch: sequences that wait, and the one prefill that is under way.

Knows nothing of decoding: what runs is told to it where that decides who may come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from batchrun.engine.features import FeatureCache, bytes_to_keep
from batchrun.engine.finishing import Finisher
from batchrun.engine.kv import CacheTraits, Model
from batchrun.engine.plainkv import PrefixState
from batchrun.engine.prefill import Prefill
from batchrun.engine.probe import Traits
from batchrun.engine.queue import Queue
from batchrun.engine.row import Sequence
from batchrun.engine.scoring import ScoringPrefill
from batchrun.engine.sharing import PrefixPool, Store
from batchrun.engine.stats import EngineStats
from batchrun.records import Media


class Intake:
    """`queue` holds what waits, `joining` are the sequences that are being prefilled. At most
    `max_tokens` prompt tokens go in at once; `kv_bytes` bounds all KV caches together."""

    def __init__(
        self,
        model: Model,
        traits: Traits,
        caches: CacheTraits,
        finisher: Finisher,
        stats: EngineStats,
        *,
        max_tokens: int,
        kv_bytes: int | None,
        store: Store | None,
    ):
        self._model = model
        self._vocab_size = traits.vocab_size
        self._caches = caches
        self._stats = stats
        self._max_tokens = max_tokens
        self._features = FeatureCache(model, stats, self._upcoming_media, bytes_to_keep(model))
        self._pool = PrefixPool(model, self._features, caches, store, stats)
        self.queue = Queue(finisher, self._pool, traits.costs, kv_bytes, mixes=caches.mixes)
        self.joining: list[Sequence] = []
        self._prefill: Prefill | None = None

    @property
    def is_filling(self) -> bool:
        return self._prefill is not None

    def prefix_bytes(self, in_use: Iterable[PrefixState]) -> int:
        """Memory of every shared prefix that is kept here or `in_use` by what runs."""
        states = {id(state): state for state in (*self._pool.states, *in_use)}
        return sum(state.nbytes for state in states.values())

    def begin(self, room: int, running: list[Sequence], in_use: Iterable[PrefixState]) -> None:
        """Begin to prefill up to `room` waiting sequences, as far as memory allows beside those
        `running` and the prefixes `in_use`."""
        held = list(in_use)
        taken = self._take(room, running, held)
        if not taken and self.queue and self._pool.shrink(self.queue.next_prefix):
            taken = self._take(room, running, held)
        if taken:
            self.joining = taken
            self._prefill = self._prefill_of(taken)

    def step(self) -> Prefill | None:
        """Feed one chunk of what was begun; returns it once all of it is in."""
        prefill = self._prefill
        if prefill is None:
            return None
        if not prefill.is_done:
            self._stats.prefill_tokens += prefill.step(self._max_tokens)
        if not prefill.is_done:
            return None
        prefill.finish()
        return prefill

    def joined(self) -> None:
        """What was prefilled is in the batch, or has its scores."""
        assert self._prefill is not None
        self._stats.media_used += self._prefill.num_media
        self._stats.cached_tokens += sum(s.cached_tokens for s in self.joining)
        self.drop()

    def drop(self) -> None:
        """Forget what is being prefilled."""
        self._prefill, self.joining = None, []

    def free(self) -> None:
        """Let go of the shared prefixes, as memory ran out."""
        self._pool.clear()

    def _take(
        self, room: int, running: list[Sequence], in_use: list[PrefixState]
    ) -> list[Sequence]:
        return self.queue.take(room, running, self._max_tokens, self.prefix_bytes(in_use))

    def _prefill_of(self, taken: list[Sequence]) -> Prefill:
        parts = (self._model, taken, self._pool, self._features, self._caches)
        is_scored = taken[0].scored_from > 0
        return ScoringPrefill(*parts, self._vocab_size) if is_scored else Prefill(*parts)

    def _upcoming_media(self) -> Iterator[Media]:
        joining = (sequence.prompt for sequence in self.joining)
        for prompt in chain(joining, self.queue.prompts()):
            yield from (span.media for span in prompt.media)
