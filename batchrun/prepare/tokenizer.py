"""What this room asks of a tokenizer, the rule of its BOS token, and how its failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from batchrun.errors import RowError

_MAX_REASON = 500


class Tokenizer(Protocol):
    """A Hugging Face tokenizer in mlx-lm's TokenizerWrapper, or anything that acts like it."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def backend_tokenizer(self) -> Any:
        """The tokenizer of the `tokenizers` library; slow ones have none."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """The token ids of `text`, with the special tokens that the tokenizer adds by its rule
        unless told not to."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, **options: Any
    ) -> Any:
        """The rendered conversation: its token ids, or its text where `tokenize` is false."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Their text, special tokens included."""
        ...

    def __len__(self) -> int:
        """The size of the vocabulary, added tokens included."""
        ...


class BosRule:
    """Holds every prompt to exactly one BOS where the tokenizer puts one before plain text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        bos = tokenizer.bos_token_id
        # This first call also settles the tokenizer's own padding and truncation, which must not
        # change any more once several threads use it.
        added = tokenizer.encode("a")[:1]
        self._bos = added if bos is not None and added == [bos] else []

    def apply(self, token_ids: list[int]) -> list[int]:
        """`token_ids` with a missing BOS put first and a doubled one made single."""
        bos = self._bos
        if bos and token_ids[:2] == bos * 2:
            return token_ids[1:]
        return token_ids if token_ids[:1] == bos else bos + token_ids


@contextmanager
def row_error(code: str, message: str, param: str) -> Iterator[None]:
    """Turns whatever a tokenizer or its template raises into a RowError that gives the reason.

    Both are foreign programs run on one row's data: templates raise what they like, and
    tokenizers a bare Exception.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
        raise RowError(code, f"{message}: {reason}", param=param) from error
