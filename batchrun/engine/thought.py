"""Where an answer stands in the reasoning that it may begin with."""

from __future__ import annotations

from batchrun.records import Thinking


class Thought:
    """Follows an answer's tokens from its first on: perhaps those that open a block of reasoning,
    then the block, until it is closed."""

    def __init__(self, thinking: Thinking):
        self._thinking = thinking
        self._is_open = thinking.is_open
        self._opened: list[int] = []  # of the tokens that open the block
        self._tail: list[int] = []  # of the block, as long as what closes it
        self._num_tokens = 0
        self._num_closed: int | None = None  # of the tokens that close it, once they are forced
        self.is_over = False
        self._close_in_time()

    @property
    def may_be_over(self) -> bool:
        """Whether the next token may be the answer's."""
        return self.is_over or (not self._is_open and not self._opened)

    @property
    def opening(self) -> int | None:
        """The token that would begin the block, where that may come."""
        is_first = not self.is_over and not self._is_open and not self._opened
        return self._thinking.start[0] if is_first else None

    @property
    def forced(self) -> int | None:
        """The token that has to come."""
        if self.is_over:
            return None
        if self._num_closed is not None:
            return self._thinking.end[self._num_closed]
        return self._thinking.start[len(self._opened)] if self._opened else None

    def take(self, token_id: int) -> list[int]:
        """The next token. Returns it if it is the answer's."""
        if not self._is_open:
            return self._open(token_id)
        self._num_tokens += 1
        if self._num_closed is not None:
            self._num_closed += 1
            self.is_over = self._num_closed == len(self._thinking.end)
            return []
        self._tail = [*self._tail, token_id][-len(self._thinking.end) :]
        self.is_over = tuple(self._tail) == self._thinking.end
        self._close_in_time()
        return []

    def _open(self, token_id: int) -> list[int]:
        if token_id != self._thinking.start[len(self._opened)]:
            self.is_over = True
            return [token_id]
        self._opened.append(token_id)
        if len(self._opened) == len(self._thinking.start):
            self._is_open, self._opened = True, []
            self._close_in_time()
        return []

    def _close_in_time(self) -> None:
        budget = self._thinking.budget
        if self._is_open and not self.is_over and budget is not None:
            self._num_closed = 0 if self._num_tokens >= budget else None
