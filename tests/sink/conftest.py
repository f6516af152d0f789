from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchrun.sink import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal in a folder of its own, so that outputs have theirs to themselves."""
    folder = tmp_path / "journal"
    folder.mkdir()
    opened = Journal(folder / "out.journal")
    yield opened
    opened.close()
