"""Pictures of earlier rows, put into later ones without processing them again.

What stands for a picture takes the place of one word that the chat template writes. Where both are
tokens that a tokenizer finds in any text, whatever is beside them, the rest of the text has the
same tokens before and after. Which word that is shows in the rows themselves; each number of
pictures is compared with the processor's own result before it is trusted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from batchrun.models.parts import Arrays, Part, Processed

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_KEPT_BYTES = 2**26
# Rows with as many pictures that are processed all the same, to compare.
_TRIALS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The tokens in a word's place; `length` of them from `head` on are the picture's part."""

    tokens: list[int]
    head: int
    length: int
    inputs: Arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.inputs.values())


class Replay:
    """words: those of which one stands for a picture in a text, each there once for each.
    adds_special_tokens: whether the tokenizer is to add its own to a text. Remembers pictures of
    `kept_bytes` at most. For one thread at a time."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        words: frozenset[str],
        *,
        adds_special_tokens: bool,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._tokenizer = _backend(tokenizer)
        self._bos = tokenizer.bos_token_id
        self._steady = _Steady(self._tokenizer)
        self._words = self._steady.ids_of(words)
        self._adds_special_tokens = adds_special_tokens
        self._kept_bytes = kept_bytes
        self._nbytes = 0
        # A processor may look at how many pictures there are.
        self._known: OrderedDict[tuple[bytes, int], _Known] = OrderedDict()
        self._same: Counter[int] = Counter()

    def place(self, text: str, digests: list[bytes]) -> Processed | None:
        """The row as the processor gives it, if that is known of all its pictures. `digests` are
        the pictures', as they stand in the text."""
        found = [self._known.get((digest, len(digests))) for digest in digests]
        known = [one for one in found if one is not None]
        if not self._words or len(known) < len(digests):
            return None
        for digest in digests:
            self._known.move_to_end((digest, len(digests)))
        plain, word = self._encode(text), self._words[0]
        return self._placed(plain, word, known) if plain.count(word) == len(known) else None

    def is_trusted(self, count: int) -> bool:
        """Whether rows with `count` pictures were the same often enough."""
        return self._same[count] >= _TRIALS

    def learn(
        self, text: str, digests: list[bytes], processed: Processed, placed: Processed | None
    ) -> None:
        """Compare with the processor's own result, and keep what is new in it. Nothing is placed
        any more after one difference."""
        if not self._words:
            return
        if placed is not None:
            self._same[len(digests)] += 1
            if not _equal(placed, processed):
                self._give_up()
            return
        if [part.sources for part in processed.parts] != [(n,) for n in range(len(digests))]:
            return
        plain = self._encode(text)
        for word in self._words:
            known = self._found(plain, word, processed)
            if known:
                self._words = [word]
                for digest, one in zip(digests, known, strict=True):
                    self._keep((digest, len(digests)), one)
                return
        self._give_up()

    def _found(self, plain: list[int], word: int, processed: Processed) -> list[_Known]:
        """What stands for each picture, if `word` is what it takes the place of."""
        parts, count = processed.parts, len(processed.parts)
        if plain.count(word) != count:
            return []
        # All pictures have as many tokens around their own.
        total = len(processed.token_ids) - len(plain) + count
        around, rest = divmod(total - sum(part.end - part.start for part in parts), count)
        known: list[_Known] = []
        moved = 0
        for place, part in zip(_places(plain, word), parts, strict=True):
            start = place + moved
            length = part.end - part.start + around
            tokens = processed.token_ids[start : start + length]
            known.append(_Known(tokens, part.start - start, part.end - part.start, part.inputs))
            moved += length - 1
        is_exact = not rest and all(map(self._is_steady, known))
        if not is_exact or not _equal(self._placed(plain, word, known), processed):
            return []
        return known

    def _is_steady(self, known: _Known) -> bool:
        tokens = known.tokens
        if not 0 <= known.head <= len(tokens) - known.length or not tokens:
            return False
        return tokens[0] in self._steady and tokens[-1] in self._steady

    def _placed(self, plain: list[int], word: int, known: list[_Known]) -> Processed:
        token_ids: list[int] = []
        parts: list[Part] = []
        done = 0
        for source, (place, one) in enumerate(zip(_places(plain, word), known, strict=True)):
            token_ids += plain[done:place]
            start = len(token_ids) + one.head
            parts.append(Part(start, start + one.length, (source,), one.inputs))
            token_ids += one.tokens
            done = place + 1
        return Processed(token_ids + plain[done:], parts)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return []
        encoded = self._tokenizer.encode(text, add_special_tokens=self._adds_special_tokens)
        return single_bos(encoded.ids, self._bos)

    def _keep(self, name: tuple[bytes, int], known: _Known) -> None:
        if name in self._known:
            return
        self._known[name] = known
        self._nbytes += known.nbytes
        while self._nbytes > self._kept_bytes:
            self._nbytes -= self._known.popitem(last=False)[1].nbytes

    def _give_up(self) -> None:
        self._words = []
        self._known.clear()
        self._nbytes = 0


class _Steady:
    """The tokens that are found in any text, and the same text on both sides of them: those that
    take no spaces with them, and that no other token of the kind overlaps."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._added = {} if tokenizer is None else tokenizer.get_added_tokens_decoder()
        self._found: dict[int, bool] = {}

    def __contains__(self, token_id: int) -> bool:
        if token_id not in self._found:
            self._found[token_id] = token_id in self._added and self._stands_alone(token_id)
        return self._found[token_id]

    def ids_of(self, words: frozenset[str]) -> list[int]:
        return [
            token_id
            for token_id, token in self._added.items()
            if token.content in words and token_id in self
        ]

    def _stands_alone(self, token_id: int) -> bool:
        token = self._added[token_id]
        if token.lstrip or token.rstrip or token.single_word or token.normalized:
            return False
        return not any(_overlaps(other.content, token.content) for other in self._added.values())


def single_bos(token_ids: list[int], bos: int | None) -> list[int]:
    """A template and a tokenizer that both put a BOS first make one of it."""
    return token_ids[1:] if bos is not None and token_ids[:2] == [bos, bos] else token_ids


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    from transformers import PreTrainedTokenizerFast

    return tokenizer.backend_tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None


def _overlaps(other: str, word: str) -> bool:
    """Whether a text may have `other` where it has also the beginning of `word`."""
    if other == word:
        return False
    lengths = range(1, min(len(other), len(word)) + 1)
    return word in other or any(other.endswith(word[:length]) for length in lengths)


def _places(token_ids: list[int], word: int) -> list[int]:
    return [place for place, token_id in enumerate(token_ids) if token_id == word]


def _equal(one: Processed, other: Processed) -> bool:
    return (
        one.token_ids == other.token_ids
        and [*map(_facts, one.parts)] == [*map(_facts, other.parts)]
        and all(map(_same_inputs, one.parts, other.parts))
    )


def _facts(part: Part) -> tuple[Any, ...]:
    return part.start, part.end, part.sources, sorted(part.inputs)


def _same_inputs(one: Part, other: Part) -> bool:
    return all(
        array.dtype == other.inputs[name].dtype and np.array_equal(array, other.inputs[name])
        for name, array in one.inputs.items()
    )
