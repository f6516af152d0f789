"""What a sequence's caches cost in memory, and from what length on a prefix is shared."""

from __future__ import annotations

from dataclasses import dataclass

# Attention over a shared prefix is a part of its own in every step. Copies of a shorter prefix,
# among each row's own tokens, take less time than that.
SHARED_FROM = 64


def is_worth_sharing(prefix_length: int) -> bool:
    """Whether rows that are decoded keep one copy of a prefix of so many tokens, and not each its
    own."""
    return prefix_length >= SHARED_FROM


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer keeps for a sequence: `per_token` bytes for each of its tokens, of which at
    most `window` are kept, and `fixed` bytes however long it is. Where `is_shared`, the tokens of
    a prefix that is worth sharing are not the sequence's own. `full_per_token` is `per_token`
    before it was cut to fewer bits, 0 where it was not."""

    per_token: int = 0
    window: int | None = None
    fixed: int = 0
    is_shared: bool = False
    full_per_token: int = 0

    def bytes(self, tokens: int, prefix: int = 0) -> int:
        """For `tokens` in all, the first `prefix` of which are a shared prefix's."""
        own = tokens - prefix if self.is_shared and is_worth_sharing(prefix) else tokens
        return self.fixed + self.per_token * (own if self.window is None else min(own, self.window))

    def prefix_bytes(self, tokens: int) -> int:
        """For a shared prefix: kept in full, as others may go on from it, and if its rows share it
        in fewer bits, so as well."""
        if not self.full_per_token:
            return self.bytes(tokens)
        return (self.full_per_token + self.per_token * self.is_shared) * tokens
