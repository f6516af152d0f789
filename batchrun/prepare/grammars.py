"""Shapes -> grammars that decoding can follow, through llguidance.

A distinct shape is compiled once, and ahead of the engine. Knows nothing of batches or logits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import jsonschema_rs
from llguidance import LLMatcher, LLTokenizer

from batchrun.errors import RowError, UsageError
from batchrun.prepare.tokenizer import Tokenizer, row_error
from batchrun.records import Choice, Shape

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# As json.dumps writes it, and most of what models have read: white space of any length would let
# a weak model fill its answer with that. A schema's own "x-guidance" wins.
JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

_MAX_KEPT = 1024
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A shape compiled for one tokenizer. `start` is never advanced: answers begin with copies."""

    shape: Shape
    start: LLMatcher
    vocab_size: int

    def begin(self) -> LLMatcher:
        return self.start.deep_copy()


def check(shape: Shape) -> None:
    """Raises UsageError for a shape of the command's that no answer could have."""
    try:
        is_error, problems = LLMatcher.validate_grammar_with_warnings(_source(shape))
    except ValueError as error:
        is_error, problems = True, [str(error)]
    if is_error:
        raise UsageError(f"{shape.param} cannot be followed: {_one_line(problems[0])}")


class Grammars:
    """The grammars of one tokenizer. An answer ends with one of `eos_token_ids`."""

    def __init__(
        self, tokenizer: Tokenizer, eos_token_ids: Iterable[int], vocab_size: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._vocab_size = vocab_size
        self._words: LLTokenizer | None = None
        self._compiled = lru_cache(_MAX_KEPT)(self._compile)
        self.choices = lru_cache(_MAX_KEPT)(self._choices)

    def compile(self, shape: Shape) -> CompiledGrammar:
        """Raises RowError for a shape that is none, or that no text can have."""
        try:
            return self._compiled(shape)
        except ValueError as error:
            message = f"{shape.param} cannot be followed: {_one_line(str(error))}"
            raise RowError("invalid_grammar", message, param=shape.param) from error

    def _compile(self, shape: Shape) -> CompiledGrammar:
        words = self._read_words(shape)
        matcher = LLMatcher(words, _source(shape), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        if not any(matcher.deep_copy().compute_bitmask()):
            raise ValueError("no token can begin it")
        return CompiledGrammar(shape, matcher, words.vocab_size)

    def _choices(self, shape: Shape) -> tuple[Choice, ...]:
        """The texts of a shape of choices as the tokens that an answer has them in. Raises RowError
        for a text that leaves no token, which nothing could tell the likelihood of."""
        choices = [
            Choice(text, tuple(self._tokenizer.encode(text, add_special_tokens=False)))
            for text in json.loads(shape.source)
        ]
        empty = next((choice.text for choice in choices if not choice.token_ids), None)
        if empty is not None:
            message = f"{shape.param} has {empty!r}, of which the tokenizer leaves nothing"
            raise RowError("invalid_grammar", message, param=shape.param)
        return tuple(choices)

    def _read_words(self, shape: Shape) -> LLTokenizer:
        """llguidance's view of the tokenizer, made when a row first needs it."""
        if self._words is None:
            with row_error("grammar_unsupported", "this tokenizer cannot be guided", shape.param):
                self._words = self._made_words()
        return self._words

    def _made_words(self) -> LLTokenizer:
        backend = copy.copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        size = len(self._tokenizer)
        return LLTokenizer(
            backend.to_str(),
            n_vocab=max(size, self._vocab_size or size),
            eos_token=self._eos_token_ids or None,
        )


def _source(shape: Shape) -> str:
    """The shape as llguidance's grammar. Raises ValueError."""
    if shape.kind == "json":
        jsonschema_rs.validator_for(json.loads(shape.source), offline=True)
        return LLMatcher.grammar_from_json_schema(shape.source, defaults=JSON_STYLE)
    if shape.kind == "regex":
        return LLMatcher.grammar_from_regex(shape.source)
    if shape.kind == "choice":
        choices = json.loads(shape.source)
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, choices))}")
    return LLMatcher.grammar_from_lark(shape.source)


def _one_line(reason: str) -> str:
    return " ".join(reason.split())[:_MAX_REASON]
