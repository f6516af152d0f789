"""The order in which prompts run.

An offline run sees requests before it starts them, so it can choose. Within a sliding window the
prompts that share a beginning come together, so that it is computed once and kept no longer than it
is of use; and longest first: neighbours then have like lengths, which saves padding in prefill and
attention in decode, and a long row does not start last and run on alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from batchrun.plan.tree import shared_prefixes
from batchrun.records import Media, Prefix, Prompt

MEDIA_BYTES = 2**28


def in_running_order(
    prompts: Iterable[Prompt | None], *, window: int = 4096, media_bytes: int = MEDIA_BYTES
) -> Iterator[Prompt | None]:
    """Yield `prompts` in running order within each `window` of them, each with its `prefix`. A
    window ends early with the prompt whose images and videos make `media_bytes` or more of it.

    All prompts below a prefix follow one another: first those that name it, then one child after
    the other. None, "not ready yet", is passed on when nothing is left to give, so that a slow
    source does not hold up what is here.
    """
    gathered: list[Prompt] = []
    media, nbytes = set[Media](), 0  # prompts share media
    for prompt in prompts:
        if prompt is not None:
            gathered.append(prompt)
            new = {span.media for span in prompt.media} - media
            nbytes += sum(one.nbytes for one in new)
            media |= new
        is_full = len(gathered) >= window or nbytes >= media_bytes
        if gathered and (prompt is None or is_full):
            ready, gathered, media, nbytes = _Window(gathered), [], set(), 0
            yield from ready
        elif prompt is None:
            yield None
    yield from _Window(gathered)


class _Window:
    """Prompts planned together; iterates over them in running order, once."""

    def __init__(self, prompts: list[Prompt]):
        self._prompts: dict[Prefix | None, list[Prompt]] = defaultdict(list)
        self._children: dict[Prefix | None, list[Prefix]] = defaultdict(list)
        self._work: dict[Prefix, int] = {}
        prefixes = shared_prefixes([prompt.content_ids for prompt in prompts])
        for prompt, prefix in zip(prompts, prefixes, strict=True):
            self._prompts[prefix].append(replace(prompt, prefix=prefix))
            self._add(prefix)
        self._sum_up()

    def __iter__(self) -> Iterator[Prompt]:
        # The largest group first: it fills the batch by itself. The prompts without a prefix come
        # last, as they mix with any others: while the batch drains, what joins it is short, and no
        # prefix is held for the last few.
        waiting = self._largest_last(None)
        while waiting:
            prefix = waiting.pop()
            yield from self._longest_first(prefix)
            waiting += self._largest_last(prefix)
        yield from self._longest_first(None)

    def _add(self, prefix: Prefix | None) -> None:
        while prefix is not None and prefix not in self._work:
            self._work[prefix] = 0
            self._children[prefix.parent].append(prefix)
            prefix = prefix.parent

    def _sum_up(self) -> None:
        """Note how many tokens are to be computed for each prefix and all below it."""
        for prefix in sorted(self._work, key=lambda prefix: len(prefix.token_ids), reverse=True):
            length = len(prefix.token_ids)
            own = sum(len(prompt.token_ids) - length for prompt in self._prompts[prefix])
            self._work[prefix] += own + num_new_tokens(prefix)
            if prefix.parent is not None:
                self._work[prefix.parent] += self._work[prefix]

    def _largest_last(self, parent: Prefix | None) -> list[Prefix]:
        children = self._children[parent]
        return sorted(children, key=self._work.__getitem__, reverse=True)[::-1]

    def _longest_first(self, prefix: Prefix | None) -> Iterator[Prompt]:
        """The prompts, each let go as it is given: the next window gathers while the last runs."""
        prompts = self._prompts.pop(prefix, [])
        prompts.sort(key=lambda prompt: len(prompt.token_ids), reverse=True)
        prompts.reverse()
        while prompts:
            yield prompts.pop()


def num_new_tokens(prefix: Prefix) -> int:
    """How many tokens it has beyond its parent's."""
    return len(prefix.token_ids) - (len(prefix.parent.token_ids) if prefix.parent else 0)
