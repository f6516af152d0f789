"""Which requests have been answered before: one copy on each machine, for all of its workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BYTES = 20  # of a key, which is written in hex


@dataclass(frozen=True, slots=True)
class Known:
    """Sorted `keys` (N,) and how many `choices` (N,) of each are there. Ray keeps arrays in memory
    that processes share."""

    keys: npt.NDArray[np.bytes_]
    choices: npt.NDArray[np.int32]

    @classmethod
    def of(cls, answered: Iterable[tuple[str, int]]) -> Known:
        """`answered` has each key once, in order."""
        pairs = ((bytes.fromhex(key), count) for key, count in answered)
        found = np.fromiter(pairs, [("key", f"S{_BYTES}"), ("choices", np.int32)])
        return cls(np.ascontiguousarray(found["key"]), np.ascontiguousarray(found["choices"]))

    def has(self, key: str, n: int) -> bool:
        """Whether choices 0 to n - 1 of `key` are there."""
        # Arrays, not their items: these lose the zeros that they end in.
        wanted = np.array([bytes.fromhex(key)], f"S{_BYTES}")
        place = int(np.searchsorted(self.keys, wanted)[0])
        is_there = self.keys[place : place + 1] == wanted
        return bool(is_there.any() and self.choices[place] >= n)
