"""Shared prefixes in memory: each is prefilled once, alone, up to exactly where it ends, and the
caches of that moment serve every prompt that begins so, whatever kind of layers a model has."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from batchrun.records import Prefix

# Prefixes come depth-first, so few are ever needed again: the ancestors of the latest.
KEPT = 8


@dataclass(frozen=True, slots=True, eq=False)
class PrefixState:
    """The caches after a prefix of `length` tokens, one per layer: `PrefixKV` for plain layers,
    for others the layer's own cache of one sequence, not to be written to."""

    length: int
    layers: list[Any]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


class PrefixPool:
    """The states that are kept because prompts still to come may need them."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, tuple[Prefix, PrefixState]] = OrderedDict()

    @property
    def states(self) -> list[PrefixState]:
        return [state for _, state in self._states.values()]

    def get(self, prefix: Prefix) -> PrefixState | None:
        kept = self._states.get(id(prefix))
        if kept is None:
            return None
        self._states.move_to_end(id(prefix))
        return kept[1]

    def add(self, prefix: Prefix, state: PrefixState) -> None:
        self._states[id(prefix)] = (prefix, state)
        while len(self._states) > KEPT:
            self._states.popitem(last=False)

    def missing(self, prefix: Prefix | None) -> list[Prefix]:
        """`prefix` and those of its ancestors that have to be computed first, shortest first."""
        chain: list[Prefix] = []
        while prefix is not None and self.get(prefix) is None:
            chain.insert(0, prefix)
            prefix = prefix.parent
        return chain

    def clear(self) -> None:
        self._states.clear()
