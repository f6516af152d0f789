"""Where the tokens of a context end and those of its continuation begin."""

from __future__ import annotations

from batchrun.errors import RowError
from batchrun.prepare.tokenizer import BosRule, Tokenizer, row_error
from batchrun.records import Request


class Continued:
    """Tokenises contexts with their continuations, as lm-evaluation-harness does."""

    def __init__(self, tokenizer: Tokenizer, bos: BosRule) -> None:
        self._tokenizer = tokenizer
        self._bos = bos

    def encode(self, request: Request) -> tuple[list[int], int]:
        """The tokens of both together, and how many of them are the context's. White space between
        the two belongs to the continuation. Raises RowError."""
        text = str(request.prompt)
        context = text.rstrip()
        with row_error("tokenizer_error", "the tokenizer refuses the row", "context"):
            before = self._bos.apply(list(self._tokenizer.encode(context))) if context else []
            both = self._bos.apply(list(self._tokenizer.encode(f"{text}{request.continuation}")))
        cut = len(before)
        if not cut:
            both, cut = self._begun(both), 1
        if len(both) <= cut:
            message = "the continuation has no tokens of its own after the context"
            raise RowError("empty_prompt", message, param="continuation")
        return both, cut

    def _begun(self, token_ids: list[int]) -> list[int]:
        """`token_ids` with something before them that the first can be likely after."""
        bos = self._tokenizer.bos_token_id
        if bos is None:
            message = "the context is empty, and the model has no token to begin a text with"
            raise RowError("empty_prompt", message, param="context")
        return token_ids if token_ids[:1] == [bos] else [bos, *token_ids]
