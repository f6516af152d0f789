"""A folder elsewhere, of a store in memory and of a real server."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder with a few files."""
    if request.param == "s3":
        root = f"{request.getfixturevalue('bucket').url}/root"
    else:
        root = "memory://bucket/root"
    for name in ("in/b.jsonl", "in/a.jsonl", "in/deep/c.jsonl", "in/[1].csv"):
        fsspec.filesystem(request.param).pipe_file(f"{root}/{name}", name.encode())
    yield root
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/bucket", recursive=True)
