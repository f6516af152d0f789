from __future__ import annotations

import pytest

from batchrun.engine import budget


@pytest.fixture(autouse=True)
def short_prefixes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' prefixes are shorter than those that are shared for the time it saves."""
    monkeypatch.setattr(budget, "SHARED_FROM", 1)
