"""What the plan will save, before anything runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from heapq import nlargest

from batchrun.plan.order import in_running_order, num_new_tokens
from batchrun.records import Prefix, Prompt

_LARGEST = 5
_OPENING = 32


@dataclass(frozen=True, slots=True)
class Group:
    """The prompts that share a beginning of `num_tokens`; `saved_tokens` of theirs need not be
    computed, beyond what a shorter beginning saves. `opening` are its first few token ids after
    that shorter one."""

    num_prompts: int
    num_tokens: int
    saved_tokens: int
    opening: list[int]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Figures of a run that finds nothing done or stored by an earlier one.

    `duplicates` are the prompts that ask the same as an earlier one and get its answer;
    `prompt_tokens` counts them too. Of these tokens, `duplicate_tokens` are not computed for that
    reason, `shared_tokens` because of shared beginnings, and `computed_tokens` are. There are
    `num_groups` beginnings, nested ones counted each; `largest` are those that save most.
    """

    rows: int
    duplicates: int
    prompt_tokens: int
    duplicate_tokens: int
    shared_tokens: int
    computed_tokens: int
    num_groups: int
    largest: tuple[Group, ...]


def forecast(prompts: Iterable[Prompt], *, window: int = 4096) -> Forecast:
    """What a run of `prompts` would compute, planned as the run does. A beginning that comes back
    in a later window counts as one group, and as computed again."""
    asked = _Asked(prompts)
    tally = _Tally()
    for prompt in in_running_order(asked, window=window):
        if prompt is not None:
            tally.add(prompt.prefix)
    groups = tally.groups.values()
    shared = sum(group.saved_tokens for group in groups)
    return Forecast(
        rows=asked.rows,
        duplicates=asked.duplicates,
        prompt_tokens=asked.tokens,
        duplicate_tokens=asked.duplicate_tokens,
        shared_tokens=shared,
        computed_tokens=asked.tokens - asked.duplicate_tokens - shared,
        num_groups=len(groups),
        largest=tuple(nlargest(_LARGEST, groups, key=lambda group: group.saved_tokens)),
    )


class _Asked:
    """Iterates over the prompts that have to be run, counting all."""

    def __init__(self, prompts: Iterable[Prompt]):
        self._prompts = prompts
        self.rows = self.duplicates = self.tokens = self.duplicate_tokens = 0

    def __iter__(self) -> Iterator[Prompt]:
        # Hashes, not keys: nothing else here grows with the number of rows.
        seen: set[int] = set()
        for prompt in self._prompts:
            self.rows += 1
            self.tokens += prompt.num_tokens
            request = hash((prompt.key, prompt.sampling.n))
            if prompt.sampling.has_one_answer:
                if request in seen:
                    self.duplicates += 1
                    self.duplicate_tokens += prompt.num_tokens
                    continue
                seen.add(request)
            yield prompt


class _Tally:
    """The groups of prefixes that come in running order, by a digest of the beginning."""

    def __init__(self) -> None:
        self.groups: dict[bytes, Group] = {}
        # The latest prefix and those above it: of all before, only these can come again.
        self._path: dict[Prefix, bytes] = {}

    def add(self, prefix: Prefix | None) -> None:
        """Count the prefix of a prompt and those above it, once each."""
        new: list[Prefix] = []
        while prefix is not None and prefix not in self._path:
            new.append(prefix)
            prefix = prefix.parent
        while new and self._path and next(reversed(self._path)) is not prefix:
            self._path.popitem()
        for opened in reversed(new):
            self._open(opened)

    def _open(self, prefix: Prefix) -> None:
        key = sha256(array("q", prefix.token_ids)).digest()
        if key not in self.groups:
            start = len(prefix.token_ids) - num_new_tokens(prefix)
            opening = prefix.token_ids[start : start + _OPENING]
            self.groups[key] = Group(0, len(prefix.token_ids), 0, opening)
        self._path[prefix] = key
        # What a prefix adds to its parent is computed once, and by no prompt below it.
        self._count(prefix, 0, -num_new_tokens(prefix))
        for above in self._path:
            self._count(above, prefix.num_prompts, prefix.num_prompts * num_new_tokens(above))

    def _count(self, prefix: Prefix, num_prompts: int, saved_tokens: int) -> None:
        key = self._path[prefix]
        group = self.groups[key]
        self.groups[key] = replace(
            group,
            num_prompts=group.num_prompts + num_prompts,
            saved_tokens=group.saved_tokens + saved_tokens,
        )
