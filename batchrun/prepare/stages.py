"""From rows to prompts ahead of the engine, in one step for text, in two where there are images.

The first reads rows and starts to load their media, the second finishes them in order. So several
rows' media load at once, while the processor and the tokenizer are used by one thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from batchrun.prepare.ahead import Ahead
from batchrun.prepare.preparer import Begun, Preparer
from batchrun.records import Failure, Prompt, Request

# Rows whose media are loaded at the same time.
_ROWS_AHEAD = 64

Finish = Callable[[Begun | Failure], Prompt | Failure]


@contextmanager
def prepared_ahead(
    rows: Iterable[Request | Failure], preparer: Preparer, finish: Finish, *, depth: int
) -> Iterator[Ahead[Prompt | Failure]]:
    """`rows` through `preparer.begin` and `finish`, which calls `preparer.finish`; at most `depth`
    of them are ready and not yet taken."""
    with ExitStack() as stack:
        if not preparer.takes_media:
            step = _both(preparer, finish)
            yield stack.enter_context(Ahead(rows, step, depth=depth))
            return
        begun = stack.enter_context(
            Ahead(rows, preparer.begin, depth=_ROWS_AHEAD, weigh=_row_sizes)
        )
        ready = (row for row in begun if row is not None)
        yield stack.enter_context(Ahead(ready, finish, depth=depth, weigh=_media_sizes))


def _both(preparer: Preparer, finish: Finish) -> Callable[[Request | Failure], Prompt | Failure]:
    return lambda row: finish(preparer.begin(row))


def _row_sizes(begun: Begun | Failure) -> dict[int, int]:
    return {id(begun): begun.nbytes} if isinstance(begun, Begun) and begun.nbytes else {}


def _media_sizes(prompt: Prompt | Failure) -> dict[int, int]:
    if isinstance(prompt, Failure):
        return {}
    return {id(span.media): span.media.nbytes for span in prompt.media}
