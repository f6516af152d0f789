"""Which entries go when there is no room: those that save least for each byte they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from batchrun.prefixes.index import Use

_HALF_LIFE = 7 * 24 * 3600.0

# Nobody has used a newcomer yet. Were it to replace its equals, a run with more prefixes than there
# is room for would, every night, replace each just before it needs it.
_NEWCOMER = 0.5


def worth(use: Use, now: float) -> float:
    """Seconds that an entry can be expected to save for each byte. It is likely to be used again
    the more often it has been, and half as likely after every week without."""
    age = max(0.0, now - use.last_use)
    return use.seconds * (1 + use.hits) * 0.5 ** (age / _HALF_LIFE) / max(use.nbytes, 1)


def to_evict(
    uses: Iterable[Use],
    max_bytes: int,
    now: float,
    *,
    newcomer: Use | None = None,
    pinned: Collection[str] = (),
) -> list[Use] | None:
    """What has to go so that all that stays, with `newcomer`, is at most `max_bytes`.

    None if that cannot be: entries in `pinned` stay, and so do those worth more than half the
    newcomer.
    """
    everything = list(uses)
    excess = sum(use.nbytes for use in everything) - max_bytes
    if newcomer is not None:
        excess += newcomer.nbytes
    gone: list[Use] = []
    for use in sorted(everything, key=lambda use: (worth(use, now), use.last_use)):
        if excess <= 0:
            break
        if use.key in pinned:
            continue
        if newcomer is not None and worth(use, now) > _NEWCOMER * worth(newcomer, now):
            break
        gone.append(use)
        excess -= use.nbytes
    return gone if excess <= 0 else None
