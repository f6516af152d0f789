"""The sequences that wait for a place, and which of them go next.

Admission control happens here: a sequence is let in only if the KV caches fit even at everyone's
longest, so that a running one never has to be thrown out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from batchrun.engine.ballots import Ballot
from batchrun.engine.budget import LayerCost
from batchrun.engine.features import CALL_BYTES
from batchrun.engine.finishing import Finisher
from batchrun.engine.guiding import Guide
from batchrun.engine.row import Sequence
from batchrun.engine.sharing import PrefixPool
from batchrun.engine.waiting import PromptScores
from batchrun.records import Prefix, Prompt

# Prompts that are prefilled together may differ in length: padding up to this share of their
# tokens, or up to this many, is cheaper than another turn.
PADDING_SHARE = 0.25
PADDING_TOKENS = 64

# Prompts with images wait in so many times the number that is asked for, as far as their pixels
# are few: images of all that wait are encoded in one call.
MEDIA_AHEAD = 4


class Queue:
    """Waiting sequences, refilled from a stream of prompts. `kv_bytes` bounds the caches of all
    running sequences together; None is no bound."""

    def __init__(
        self,
        finisher: Finisher,
        pool: PrefixPool,
        costs: tuple[LayerCost, ...],
        kv_bytes: int | None,
        *,
        mixes: bool,
    ):
        self._finisher = finisher
        self._pool = pool
        self._last_stored = Prefix([], 0)
        self._costs = costs
        self._kv_bytes = kv_bytes
        self._mixes = mixes
        self._waiting: deque[Sequence] = deque()
        # Apart, so that they are prefilled together: what an answer waits for goes first.
        self._scoring: deque[Sequence] = deque()
        self._empty: list[Sequence] = []
        self._source: Iterator[Prompt | None] = iter(())
        self._exhausted = True

    def __len__(self) -> int:
        return len(self._waiting) + len(self._scoring)

    @property
    def is_done(self) -> bool:
        """Nothing waits and nothing more will come."""
        return self._exhausted and not self and not self._empty

    @property
    def next_prefix(self) -> Prefix | None:
        """That of the sequence which is to go next."""
        return self._line[0].prompt.prefix

    @property
    def _line(self) -> deque[Sequence]:
        """That from which sequences are to be taken now."""
        return self._scoring or self._waiting

    def prompts(self) -> Iterator[Prompt]:
        """Those of the waiting sequences, in their order."""
        return (sequence.prompt for sequence in (*self._scoring, *self._waiting))

    def allows(self, kv_bytes: int) -> bool:
        """Whether caches may take so much."""
        return self._kv_bytes is None or kv_bytes <= self._kv_bytes

    def feed_from(self, prompts: Iterable[Prompt | None]) -> None:
        self._source, self._exhausted = iter(prompts), False

    def close(self) -> None:
        """Forget what waits, and ask for nothing more."""
        self._waiting.clear()
        self._scoring.clear()
        self._empty.clear()
        self._exhausted = True

    def refill(self, count: int) -> None:
        """Have `count` sequences waiting, and more where they have media, as far as the source
        has prompts ready."""
        pixels = _media_bytes(self.prompts())
        while not self._exhausted and self._wants_more(count, sum(pixels.values())):
            try:
                prompt = next(self._source)
            except StopIteration:
                self._exhausted = True
                return
            if prompt is None:
                return
            prompt = self._with_prefix(prompt)
            pixels |= _media_bytes([prompt])
            for sequence in self._sequences(prompt):
                if sequence.scored_from:
                    self._scoring.append(sequence)
                else:
                    (self._waiting if sequence.max_tokens > 0 else self._empty).append(sequence)

    def _wants_more(self, count: int, media_bytes: int) -> bool:
        num_waiting = len(self) + len(self._empty)
        return num_waiting < count or (
            num_waiting < MEDIA_AHEAD * count and 0 < media_bytes < CALL_BYTES
        )

    def put_back(self, sequences: list[Sequence]) -> None:
        """Sequences whose run was cut short start over, before all others."""
        for sequence in reversed(sequences):
            line = self._scoring if sequence.scored_from else self._waiting
            line.appendleft(sequence.restart())

    def take_empty(self) -> list[Sequence]:
        """The sequences that ask for no token at all: there is nothing to run."""
        taken, self._empty = self._empty, []
        return taken

    def take(
        self, room: int, running: list[Sequence], max_tokens: int, prefix_bytes: int
    ) -> list[Sequence]:
        """Up to `room` sequences for one prefill beside those `running`, `max_tokens` prompt tokens
        after their shared prefixes at most, padding included; one alone may be longer. All are
        after the same prefix or none where these do not mix. `prefix_bytes` are in use for shared
        prefixes."""
        taken: list[Sequence] = []
        used = prefix_bytes + sum(sequence.kv_bytes for sequence in running)
        line = self._line
        while line and len(taken) < room:
            sequence = line[0]
            used += sequence.kv_bytes
            if sequence.prompt.prefix not in {one.prompt.prefix for one in taken[-1:]}:
                used += self._new_prefix_bytes(sequence)
            # With nothing else running there is no better moment to try.
            if not self.allows(used) and (running or taken):
                break
            if taken and not self._prefill_together([*taken, sequence], max_tokens):
                break
            taken.append(line.popleft())
        return taken

    def _prefill_together(self, sequences: list[Sequence], max_tokens: int) -> bool:
        prefix = sequences[-1].prompt.prefix
        if not self._mixes and sequences[0].prompt.prefix is not prefix:
            return False
        own = {id(s.prompt): len(s.prompt.token_ids) - s.prompt.prefix_length for s in sequences}
        lengths = own.values()
        padded = max(lengths) * len(lengths)
        padding = padded - sum(lengths)
        return padded <= max_tokens and padding <= max(PADDING_TOKENS, PADDING_SHARE * padded)

    def _new_prefix_bytes(self, sequence: Sequence) -> int:
        """Memory of a sequence's shared prefix if that is still to be computed."""
        prefix = sequence.prompt.prefix
        if prefix is None or self._pool.get(prefix) is not None:
            return 0
        return sum(cost.prefix_bytes(len(prefix.token_ids)) for cost in self._costs)

    def _with_prefix(self, prompt: Prompt) -> Prompt:
        """A prompt that shares its beginning with none that was planned with it may do so with
        one before, of this run or an earlier one. Neighbours that find the same share it."""
        if prompt.prefix is not None:
            return prompt
        content_ids = prompt.content_ids
        length = self._pool.known_part(content_ids[:-1])
        if not length:
            return prompt
        token_ids = content_ids[:length]
        if token_ids != self._last_stored.token_ids:
            self._last_stored = Prefix(token_ids, 1)
        return replace(prompt, prefix=self._last_stored)

    def _sequences(self, prompt: Prompt) -> Iterator[Sequence]:
        """What the prompt takes: a pass for the scores of its tokens, its answers, and walks that
        tell how likely its choices are."""
        ballot = Ballot(prompt, self._finisher.eos_token_ids) if prompt.choices else None
        scores = PromptScores(prompt) if prompt.is_scored else None
        gathering = ballot or scores
        if scores:
            yield self._scoring_pass(prompt, scores)
        if prompt.request.label != "only" and not (scores and not prompt.sampling.max_tokens):
            kv_bytes = self._kv_bytes_of(prompt, prompt.sampling.max_tokens)
            for choice in range(prompt.sampling.n):
                watcher = self._finisher.watcher(prompt.sampling)
                guide = self._guide(prompt)
                yield Sequence(prompt, choice, kv_bytes, watcher, guide, gathering)
        for walk in ballot.walks if ballot else ():
            kv_bytes = self._kv_bytes_of(prompt, walk.num_steps)
            yield Sequence(prompt, 0, kv_bytes, gathering=ballot, walk=walk)

    def _guide(self, prompt: Prompt) -> Guide | None:
        """Reasoning alone needs none: only to be closed in time, or followed by a grammar."""
        is_limited = prompt.thinking is not None and prompt.thinking.budget is not None
        needs_one = prompt.grammar is not None or is_limited
        return Guide(prompt, self._finisher.eos_token_ids) if needs_one else None

    def _scoring_pass(self, prompt: Prompt, scores: PromptScores) -> Sequence:
        if prompt.continuation:
            first = len(prompt.token_ids)
            prompt = replace(prompt, token_ids=[*prompt.token_ids, *prompt.continuation])
        else:
            # A shared prefix has no logits left of its own tokens.
            first, prompt = 1, replace(prompt, prefix=None)
        kv_bytes = self._kv_bytes_of(prompt, 0)
        return Sequence(prompt, 0, kv_bytes, gathering=scores, scored_from=first)

    def _kv_bytes_of(self, prompt: Prompt, num_tokens: int) -> int:
        longest = len(prompt.token_ids) + num_tokens
        return sum(cost.bytes(longest, prompt.prefix_length) for cost in self._costs)


def _media_bytes(prompts: Iterable[Prompt]) -> dict[bytes, int]:
    """Pixels of the prompts' media, by digest: those that several prompts have count once."""
    media = {span.media.digest: span.media for prompt in prompts for span in prompt.media}
    return {digest: medium.nbytes for digest, medium in media.items()}
