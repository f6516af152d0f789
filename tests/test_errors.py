"""Errors are the same in another process."""

from __future__ import annotations

import pickle

from batchrun.errors import RowError


def test_a_row_error_is_whole_when_copied() -> None:
    error = RowError("code", "why", status=404, param="body.model")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == ("why", vars(error))
