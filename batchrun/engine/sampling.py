"""The next token of every row of a batch, chosen in a few array operations.

Rows differ in every parameter. What only some rows ask for (penalties, bias, randomness,
log-probabilities) is computed for those rows alone, and nothing of it for an all-greedy batch. A
`Sampler` is built whenever the rows of a batch change; from then on its state follows the tokens on
the device.

Order of operations, as in vLLM: logit bias, penalties, grammar, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Many
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from batchrun.engine.guiding import Guide, masked
from batchrun.engine.led import Led, Told
from batchrun.engine.logprobs import ScoredTokens, Scores
from batchrun.engine.row import Sequence

# Logits divided by less would overflow; the likeliest token is as sure as can be long before.
_COLDEST = 1e-20


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens int32 (rows,) of one step, with what was asked about them."""

    tokens: mx.array
    scores: ScoredTokens | None
    told: Told | None = None

    def arrays(self) -> list[mx.array]:
        scores = self.scores
        arrays = [self.tokens] + ([scores.chosen, scores.top_ids, scores.top] if scores else [])
        return arrays + ([self.told.values] if self.told else [])


class Sampler:
    """Samples for `rows`, in batch order; None is a place whose token nobody reads. Rows with a
    guide must have taken their last token before a call."""

    def __init__(self, rows: Many[Sequence | None], vocab_size: int):
        self._rows = list(rows)
        self.is_guided = any(row is not None and row.guide is not None for row in rows)
        taken = [(place, row) for place, row in enumerate(rows) if row is not None]
        places = [(place, row) for place, row in taken if row.walk is None]
        led = [(place, row.walk, row.num_started) for place, row in taken if row.walk is not None]
        self._led = Led(led) if led else None
        self._bias = _LogitBias.of(places, vocab_size)
        self._penalties = _Penalties.of(places, vocab_size)
        self._draws = _Draws.of(places)
        self._scores = Scores.of(places, vocab_size)

    def __call__(self, logits: mx.array) -> Sampled:
        """Tokens from `logits` (rows, vocabulary) of any float type."""
        raw = logits.astype(mx.float32)
        logits = self._bias.apply(raw) if self._bias else raw
        if self._penalties:
            logits = self._penalties.apply(logits)
        if self.is_guided:
            logits = masked(logits, [_guide(row) for row in self._rows])
        tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
        if self._draws:
            tokens = self._draws.replace(tokens, logits)
        if self._penalties:
            self._penalties.count(tokens)
        scores = self._scores.of_tokens(tokens, raw) if self._scores else None
        if self._led is None:
            return Sampled(tokens, scores)
        return Sampled(self._led.replace(tokens), scores, self._led.ask(raw))


class _LogitBias:
    """OpenAI's logit_bias: added to the logits of single tokens."""

    def __init__(self, entries: list[tuple[int, int, float]]):
        places, tokens, values = zip(*entries, strict=True)
        self._places, self._tokens = mx.array(places), mx.array(tokens)
        self._values = mx.array(values, dtype=mx.float32)

    @classmethod
    def of(cls, places: list[tuple[int, Sequence]], vocab_size: int) -> _LogitBias | None:
        # Tokenizers may have ids that the model never got: MLX would write beyond the array.
        entries = [
            (place, token, value)
            for place, row in places
            for token, value in row.prompt.sampling.logit_bias
            if token < vocab_size
        ]
        return cls(entries) if entries else None

    def apply(self, logits: mx.array) -> mx.array:
        return logits.at[self._places, self._tokens].add(self._values)


class _Penalties:
    """Repetition penalty over prompt and answer (CTRL, arXiv 1909.05858), presence and frequency
    penalties over the answer (OpenAI)."""

    def __init__(self, places: list[tuple[int, Sequence]], vocab_size: int):
        rows = [row for _, row in places]
        sampling = [row.prompt.sampling for row in rows]
        self._places = mx.array([place for place, _ in places])
        self._range = mx.arange(len(rows))
        self._repetition = _column([s.repetition_penalty for s in sampling])
        self._presence = _column([s.presence_penalty for s in sampling])
        self._frequency = _column([s.frequency_penalty for s in sampling])
        prompts = [_histogram(row.prompt.token_ids, vocab_size) for row in rows]
        answers = [_histogram(row.token_ids, vocab_size) for row in rows]
        self._in_prompt = mx.array(np.stack(prompts) > 0)
        self._counts = mx.array(np.stack(answers))

    @classmethod
    def of(cls, places: list[tuple[int, Sequence]], vocab_size: int) -> _Penalties | None:
        penalised = [(place, row) for place, row in places if _is_penalised(row)]
        return cls(penalised, vocab_size) if penalised else None

    def apply(self, logits: mx.array) -> mx.array:
        rows = logits[self._places]
        answered = self._counts > 0
        scaled = mx.where(rows > 0, rows / self._repetition, rows * self._repetition)
        rows = mx.where(answered | self._in_prompt, scaled, rows)
        rows = rows - self._frequency * self._counts - self._presence * answered
        penalised = logits[:]  # assignment below must not reach the caller's array
        penalised[self._places] = rows
        return penalised

    def count(self, tokens: mx.array) -> None:
        self._counts = self._counts.at[self._range, tokens[self._places]].add(1.0)


class _Draws:
    """Random choice for rows with a temperature.

    One uniform number a row and token picks from the cumulative distribution. It comes from the
    row's key, the choice and the token's number alone, so a draw repeats in any batch.
    """

    def __init__(self, places: list[tuple[int, Sequence]]):
        self._rows = [row for _, row in places]
        sampling = [row.prompt.sampling for row in self._rows]
        self._places = mx.array([place for place, _ in places])
        self._temperature = _column([max(s.temperature, _COLDEST) for s in sampling])
        self._min_p = (
            _column([s.min_p for s in sampling]) if any(s.min_p for s in sampling) else None
        )
        self._sorts = any(s.top_k or s.top_p < 1 for s in sampling)
        self._top_p = _column([s.top_p for s in sampling])
        self._top_k = mx.array([[s.top_k or np.iinfo(np.int32).max] for s in sampling])
        self._steps = [row.num_started for row in self._rows]

    @classmethod
    def of(cls, places: list[tuple[int, Sequence]]) -> _Draws | None:
        drawn = [(place, row) for place, row in places if not row.prompt.sampling.is_greedy]
        return cls(drawn) if drawn else None

    def replace(self, tokens: mx.array, logits: mx.array) -> mx.array:
        scaled = logits[self._places] / self._temperature
        scaled = scaled - mx.max(scaled, axis=-1, keepdims=True)
        kept = self._filtered(scaled)
        cumulative = mx.cumsum(mx.exp(kept), axis=-1)
        picks = mx.argmax(cumulative > self._uniform() * cumulative[:, -1:], axis=-1)
        tokens[self._places] = picks.astype(mx.int32)
        return tokens

    def _filtered(self, scaled: mx.array) -> mx.array:
        """Log-weights (rows, vocabulary), at most 0, with -inf for what the filters take away.
        Tokens that tie with the last one kept are kept too."""
        lowest = mx.full((len(self._rows), 1), -mx.inf)
        if self._sorts:
            lowest = self._lowest_of_top(scaled)
        if self._min_p is not None:
            lowest = mx.maximum(lowest, mx.log(self._min_p))
        return mx.where(scaled >= lowest, scaled, -mx.inf)

    def _lowest_of_top(self, scaled: mx.array) -> mx.array:
        descending = -mx.sort(-scaled, axis=-1)
        in_top_k = mx.arange(scaled.shape[-1])[None] < self._top_k
        weights = mx.where(in_top_k, mx.exp(descending), 0.0)
        before = mx.cumsum(weights, axis=-1) - weights
        total = mx.sum(weights, axis=-1, keepdims=True)
        # Rounded, `before` may reach the total early: a top_p of 1 is no filter all the same.
        in_both = ((before < self._top_p * total) | (self._top_p == 1)) & in_top_k
        count = mx.maximum(mx.sum(in_both, axis=-1, keepdims=True), 1)
        return mx.take_along_axis(descending, count - 1, axis=-1)

    def _uniform(self) -> mx.array:
        numbers = [
            uniform(row.prompt.key, row.choice, step)
            for row, step in zip(self._rows, self._steps, strict=True)
        ]
        self._steps = [step + 1 for step in self._steps]
        return _column(numbers)


def _guide(row: Sequence | None) -> Guide | None:
    """What the row's next token has to follow, if anybody reads that token."""
    return row.guide if row is not None and row.ending is None else None


def uniform(key: str, choice: int, step: int) -> float:
    """A number in [0, 1) with 23 random bits, so that it is exact in float32 and its product
    with a total stays below that total."""
    digest = hashlib.blake2b(f"{key}:{choice}:{step}".encode(), digest_size=4).digest()
    return float(int.from_bytes(digest, "little") >> 9) / 2**23


def _is_penalised(row: Sequence) -> bool:
    sampling = row.prompt.sampling
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


def _histogram(token_ids: list[int], vocab_size: int) -> np.ndarray:
    counts = np.bincount(np.array(token_ids, dtype=np.int64), minlength=vocab_size)
    return counts[:vocab_size].astype(np.float32)


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]
