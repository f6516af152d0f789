"""Which rows ask for a draw of the same: counted where a run does not see the whole input.

Rows that are drawn at random and name no seed want a draw each. One process that sees all rows
tells them apart as they come; where several share the input, each needs to know of those before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256

from batchrun.records import Failure, Request, Row

_NOWHERE = Row(0, "", 0)


def counted(rows: Iterable[Request | Failure]) -> Iterator[Request | Failure]:
    """`rows`, the whole input, with `drawn` in those that ask for a draw."""
    # In a file that has no name and is gone at the end: rows may be more than memory has room for.
    with closing(sqlite3.connect("")) as db:
        db.execute("CREATE TABLE asked (digest BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        for row in rows:
            if isinstance(row, Request) and not row.sampling.has_one_answer:
                yield replace(row, drawn=_count(db, _digest(row)))
            else:
                yield row


def _count(db: sqlite3.Connection, digest: bytes) -> int:
    """How many came before."""
    statement = """
        INSERT INTO asked VALUES (?, 0) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times
    """
    ((times,),) = db.execute(statement, (digest,))
    return int(times)


def _digest(request: Request) -> bytes:
    """Of what the request asks for, as it is written."""
    # `n` is no part of it: a third choice of a row is drawn beside the two that are there.
    sampling = replace(request.sampling, n=1)
    asked = replace(request, row=_NOWHERE, model=None, sampling=sampling)
    return sha256(repr(asked).encode("utf-8", "surrogatepass")).digest()
