"""The pull loop: continuous batching over a stream of prompts.

Each turn either starts the next decode step before reading the last one, so that the device never
waits for Python; or, when rows may join or must leave, reads first, changes the batch, prefills one
chunk of prompts, and then starts the step. On a CPU it always reads first.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import TypeAlias

from batchrun.engine import attention, fastmath, rotary, towers
from batchrun.engine.batch import Batch
from batchrun.engine.finishing import Decoder, Ending, Finisher
from batchrun.engine.intake import Intake
from batchrun.engine.kv import Model
from batchrun.engine.outcomes import Outcomes
from batchrun.engine.plainkv import PrefixState
from batchrun.engine.prefill import Prefill
from batchrun.engine.probe import probe
from batchrun.engine.row import Sequence
from batchrun.engine.scoring import ScoringPrefill
from batchrun.engine.sharing import Store
from batchrun.engine.stats import EngineStats
from batchrun.engine.steps import Steps
from batchrun.engine.troubles import is_out_of_memory, row_error
from batchrun.engine.width import Width
from batchrun.ranks import ALONE, Ranks
from batchrun.records import Completion, Failure, Prompt

# Rows join once this share of the places is free: every change of members costs a pause of the
# pipeline, and prompts prefill better together.
JOIN_SHARE = 1 / 8

# What each turn finished.
Turns: TypeAlias = Generator[list[Completion | Failure], None, None]


class Engine:
    """Runs prompts through `model`, up to `max_num_seqs` sequences at once; None finds out how many
    are fastest.

    `model` is as in `engine.kv.Model`; `tokenizer` turns ids into text. At most
    `max_num_batched_tokens` prompt tokens are prefilled in one turn. `kv_bytes` bounds the memory
    of all KV caches; `kv_bits` 8 or 4 has plain attention layers keep that many bits a number while
    they decode. `store` keeps shared prefixes between runs. Model and engine belong to the
    thread that made them, as MLX's streams do. Engines of several `ranks`, which run one model
    together, take the same turns if they are given the same.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Decoder,
        eos_token_ids: frozenset[int] = frozenset(),
        *,
        max_num_seqs: int | None = 32,
        max_num_batched_tokens: int = 2048,
        kv_bytes: int | None = None,
        kv_bits: int | None = None,
        store: Store | None = None,
        ranks: Ranks = ALONE,
    ):
        attention.install(model)
        fastmath.install(model)
        rotary.install(model)
        towers.install(model)
        self._ranks = ranks
        self.traits = traits = probe(model, kv_bits)
        caches = traits.caches(kv_bits)
        self.stats = EngineStats(notes=traits.notes(kv_bits))
        finisher = Finisher(tokenizer, eos_token_ids)
        self._intake = Intake(
            model,
            traits,
            caches,
            finisher,
            self.stats,
            max_tokens=max_num_batched_tokens,
            kv_bytes=kv_bytes,
            store=store,
        )
        self._queue = self._intake.queue
        limit = max_num_seqs if caches.batched else 1
        self._width = Width(limit, self._would_fit, self.stats.notes)
        self._outcomes = Outcomes(finisher, self._width.finished)
        self._steps = Steps(
            model, traits.vocab_size, caches, self._outcomes, self.stats, self._width.most, ranks
        )

    def run(self, prompts: Iterable[Prompt | None]) -> Turns:
        """Yield what each turn finished, perhaps nothing, until every prompt is done.

        A prompt yields a `Completion` for each of its `n` choices, in any order, or a `Failure`
        for those that cannot be. Prompts are pulled as room for them appears; None among them
        means that none is ready yet.
        """
        self._queue.feed_from(prompts)
        while not self._is_idle:
            if self._has_room:
                # Outside the guard: what the source raises is not the running rows' fault.
                self._queue.refill(self._width.limit - self._num_running)
            for sequence in self._queue.take_empty():
                self._outcomes.finish(sequence, Ending("length"))
            try:
                with self._ranks.step():
                    self._turn()
            # Models raise anything; which row's fault it is, _retry finds out.
            except Exception as error:
                if self._ranks.is_broken:  # the others may be anywhere in their turn
                    raise
                self._retry(error)
            self._note()
            yield self._outcomes.hand_out()

    def drain(self) -> None:
        """Finish the rows that run, and start none of those that wait."""
        self._queue.close()

    @property
    def _batch(self) -> Batch:
        return self._steps.batch

    @property
    def _num_running(self) -> int:
        return len(self._batch.live) + len(self._intake.joining)

    @property
    def _is_idle(self) -> bool:
        return self._steps.is_idle and not self._intake.is_filling and self._queue.is_done

    @property
    def _has_room(self) -> bool:
        live = len(self._batch.live)
        return live == 0 or self._width.limit - live >= max(1, int(self._width.limit * JOIN_SHARE))

    def _turn(self) -> None:
        if not self._may_change():
            self._width.step(self._steps.decode(), self._ranks.clock())
            return
        self._width.pause()
        self._steps.read()
        self._batch.drop_ended()
        self._admit()
        is_filling = self._advance_prefill()
        if self._batch.is_sparse:
            self._batch.compact()
        live = len(self._batch.live)
        # A step costs nearly as much for few rows as for many: while the batch fills, it waits.
        if live and not (is_filling and live * 2 < self._width.limit):
            self._steps.launch(len(self._intake.joining))

    def _may_change(self) -> bool:
        """Whether rows may join or must leave now, for which the step in flight is read first."""
        return (
            self._intake.is_filling
            or self._batch.is_sparse
            or (self._has_room and len(self._queue) > 0)
        )

    def _admit(self) -> None:
        """Begin to prefill waiting sequences if there is room for some."""
        if self._has_room and not self._intake.is_filling:
            live = self._batch.live
            self._intake.begin(self._width.limit - len(live), live, self._prefixes_in_use)

    @property
    def _prefixes_in_use(self) -> list[PrefixState]:
        return self._batch.caches.ring.prefixes()

    def _would_fit(self, num_rows: int) -> bool:
        """Whether the KV budget allows `num_rows` rows like those that run."""
        live = self._batch.live
        each = sum(sequence.kv_bytes for sequence in live) / max(len(live), 1)
        prefix_bytes = self._intake.prefix_bytes(self._prefixes_in_use)
        return self._queue.allows(prefix_bytes + int(each * num_rows))

    def _advance_prefill(self) -> bool:
        """Feed one chunk of the prefill, if there is one; once all are in, the sequences join."""
        if not self._intake.is_filling:
            return False
        start = time.perf_counter()
        ready = self._intake.step()
        if ready:
            self._join(ready)
        self.stats.prefill_seconds += time.perf_counter() - start
        return True

    def _join(self, prefill: Prefill) -> None:
        if isinstance(prefill, ScoringPrefill):
            self._outcomes.score(prefill)
        else:
            self._batch.compact()
            self._batch.caches.ring.max_rows = self._width.most
            self._batch.extend(prefill)
        self._intake.joined()
        prefix_bytes = self._intake.prefix_bytes(self._prefixes_in_use)
        kv_bytes = self._batch.caches.nbytes + prefix_bytes
        self.stats.kv_bytes_peak = max(self.stats.kv_bytes_peak, kv_bytes)

    def _retry(self, error: Exception) -> None:
        """Something raised. Of several rows, half are tried again at once, and so on down to
        the one that raises alone: that one fails. Too little memory lowers the limit for good."""
        sequences = self._unfinished()
        if not sequences:
            raise error
        self._intake.drop()
        self._steps.restart(self._width.most)
        self.stats.retries += 1
        if len(sequences) == 1:
            self._outcomes.fail(sequences[0], row_error(error))
            return
        if is_out_of_memory(error):
            self._intake.free()
        self._width.halve(len(sequences), for_good=is_out_of_memory(error))
        self._queue.put_back(sequences)

    def _unfinished(self) -> list[Sequence]:
        """Every sequence that is somewhere between the queue and its ending."""
        places = [*self._steps.sequences, *self._intake.joining]
        everyone = {id(sequence): sequence for sequence in places}
        return [s for s in everyone.values() if s.ending is None]

    def _note(self) -> None:
        self.stats.running = self._num_running
        self.stats.max_num_seqs = self._width.most
