"""Whether an answer may begin with reasoning, as the end of its prompt tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchrun.records import Dialect, Thinking


def thinking_after(
    token_ids: Sequence[int],
    dialect: Dialect,
    decode: Callable[[list[int]], str],
    budget: int | None,
) -> Thinking | None:
    """What the prompt's tokens leave open. None where the model has no reasoning, or the prompt
    ends with a block that is closed already: the template's way to turn it off."""
    start, end = dialect.think_start, dialect.think_end
    if not start or not end:
        return None
    opened, closed = _last(token_ids, start), _last(token_ids, end)
    if opened > closed:
        return Thinking(start, end, is_open=True, budget=budget)
    if closed >= 0 and not decode(list(token_ids[closed + len(end) :])).strip():
        return None
    return Thinking(start, end, budget=budget)


def _last(token_ids: Sequence[int], part: tuple[int, ...]) -> int:
    """Where `part` comes last; -1 for nowhere."""
    for place in range(len(token_ids) - len(part), -1, -1):
        # The first alone tells nearly always.
        if token_ids[place] == part[0] and tuple(token_ids[place : place + len(part)]) == part:
            return place
    return -1
