"""What a sequence's caches cost in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer keeps for a sequence: `per_token` bytes for each of its tokens, of which at
    most `window` are kept, and `fixed` bytes however long it is."""

    per_token: int = 0
    window: int | None = None
    fixed: int = 0

    def bytes(self, tokens: int) -> int:
        kept = tokens if self.window is None else min(tokens, self.window)
        return self.fixed + self.per_token * kept
