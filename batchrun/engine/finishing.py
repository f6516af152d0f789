"""When a sequence ends, and the text it then has.

Text is decoded once, at the end. Only sequences with stop strings decode as they go, and there
only the last few tokens, to learn that a stop string has appeared; where to cut is decided on the
whole text.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Protocol

from batchrun.records import FinishReason, Sampling

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended, and how many of its last tokens are not part of its text."""

    finish_reason: FinishReason
    stop_reason: str | int | None = None
    dropped_tokens: int = 0


class StopWatcher:
    """Notices that one of the stop strings has appeared in a growing sequence of tokens.

    A character may span tokens and a token's text may depend on the ones before it, so text is
    only taken from the difference between two decodings that share their beginning, and not
    while it ends in the middle of a character (the scheme of Hugging Face's
    text-generation-inference).
    """

    def __init__(self, stops: tuple[str, ...], decoder: Decoder):
        self.stops = stops
        self._decoder = decoder
        self._keep = max(map(len, stops)) - 1
        self._tail = ""
        self._anchor = 0
        self._seen = 0

    def restart(self) -> StopWatcher:
        return StopWatcher(self.stops, self._decoder)

    def found(self, token_ids: list[int]) -> bool:
        """Whether a stop string has appeared by the end of `token_ids`, which only ever grows."""
        known = self._decode(token_ids[self._anchor : self._seen])
        text = self._decode(token_ids[self._anchor :])
        if text.endswith(REPLACEMENT) or len(text) <= len(known):
            return False
        window = self._tail + text[len(known) :]
        self._tail = window[-self._keep :] if self._keep else ""
        self._anchor, self._seen = self._seen, len(token_ids)
        return self._holds_stop(window) and self._holds_stop(self._decode(token_ids))

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.stops)

    def _decode(self, token_ids: list[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=True)


class Finisher:
    """Applies a model's end-of-sequence tokens and every row's own stops."""

    def __init__(self, decoder: Decoder, eos_token_ids: frozenset[int]):
        self._decoder = decoder
        self.eos_token_ids = eos_token_ids

    def watcher(self, sampling: Sampling) -> StopWatcher | None:
        return StopWatcher(sampling.stop, self._decoder) if sampling.stop else None

    def ending(
        self,
        token_ids: list[int],
        sampling: Sampling,
        watcher: StopWatcher | None,
        *,
        is_whole: bool = False,
    ) -> Ending | None:
        """How the sequence ends with the newest of its `token_ids`, or None if it goes on.
        `is_whole` says that its grammar lets nothing follow."""
        newest = token_ids[-1]
        if newest in sampling.stop_token_ids:
            return Ending("stop", newest, dropped_tokens=1)
        if newest in self.eos_token_ids and not sampling.ignore_eos:
            return Ending("stop", dropped_tokens=1)
        if is_whole or (watcher and watcher.found(token_ids)):
            return Ending("stop")
        if len(token_ids) >= sampling.max_tokens:
            return Ending("length")
        return None

    def finish(self, token_ids: Ids[int], sampling: Sampling, ending: Ending) -> tuple[str, Ending]:
        """The final text, cut before the earliest stop string, and the ending that tells of it."""
        kept = list(token_ids[: len(token_ids) - ending.dropped_tokens])
        text = self._decoder.decode(kept, skip_special_tokens=True) if kept else ""
        matches = [(text.index(stop), stop) for stop in sampling.stop if stop in text]
        if not matches:
            return text, ending
        cut, stop = min(matches)
        return text[:cut], Ending("stop", stop)
