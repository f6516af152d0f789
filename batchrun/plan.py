"""The order in which prompts run.

An offline run sees requests before it starts them, so it can choose: within a sliding window the
longest prompt goes first. Neighbours then have like lengths, which saves padding in prefill and
attention in decode, and a long row does not start last and run on alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchrun.records import Prompt

WINDOW = 4096


def in_running_order(
    prompts: Iterable[Prompt | None], *, window: int = WINDOW
) -> Iterator[Prompt | None]:
    """Yield `prompts` longest first within each `window` of them. None, "not ready yet", is
    passed on when nothing is left to give, so that a slow source does not hold up what is here."""
    gathered: list[Prompt] = []
    for prompt in prompts:
        if prompt is not None:
            gathered.append(prompt)
        if gathered and (prompt is None or len(gathered) >= window):
            yield from _longest_first(gathered)
            gathered = []
        elif prompt is None:
            yield None
    yield from _longest_first(gathered)


def _longest_first(prompts: list[Prompt]) -> list[Prompt]:
    return sorted(prompts, key=lambda prompt: len(prompt.token_ids), reverse=True)
