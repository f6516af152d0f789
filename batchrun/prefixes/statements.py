"""The SQL of the index of prefixes."""

from __future__ import annotations

VERSION = 1

# `blocks` has the hashes of those entries that can be used in part; the smallest entry that has a
# block comes first in it. Times are seconds since the epoch. `tokens`, which may be large, comes
# last, so that it need not be read for what follows it.
CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    model_name TEXT NOT NULL,
    length INTEGER NOT NULL,
    last_block BLOB NOT NULL,
    nbytes INTEGER NOT NULL,
    digest TEXT NOT NULL,
    seconds REAL NOT NULL,
    hits INTEGER NOT NULL,
    last_use REAL NOT NULL,
    tokens BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_last_block ON entries (last_block, length);
CREATE TABLE IF NOT EXISTS blocks (
    hash BLOB NOT NULL,
    nbytes INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (hash, nbytes, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blocks_by_key ON blocks (key);
PRAGMA user_version = {VERSION};
COMMIT;
"""

# NORMAL: after a power cut the newest entries may be missing, and their files are swept.
SETTINGS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL"

# A damaged page can make a value of any type.
_USE = """
CAST(key AS TEXT), CAST(model AS TEXT), CAST(nbytes AS INTEGER), CAST(digest AS TEXT),
CAST(seconds AS REAL), CAST(hits AS INTEGER), CAST(last_use AS REAL)
"""
_ENTRY = f"{_USE}, CAST(model_name AS TEXT), CAST(length AS INTEGER), CAST(tokens AS BLOB)"

# Both become parts of paths.
_NAMED = "key NOT GLOB '*[^0-9a-f]*' AND model NOT GLOB '*[^0-9a-f]*'"

LENGTHS = "SELECT DISTINCT CAST(length AS INTEGER) FROM entries WHERE last_block IN ({})"
LONGEST = f"SELECT {_ENTRY} FROM entries WHERE key IN ({{}}) ORDER BY length DESC LIMIT 1"
HAS_BLOCK = "SELECT EXISTS (SELECT 1 FROM blocks WHERE hash = ?)"
WITH_BLOCK = f"""
SELECT {_ENTRY} FROM entries
WHERE key IN (SELECT key FROM blocks WHERE hash = ? ORDER BY nbytes LIMIT ?)
ORDER BY nbytes
"""
NUM_BLOCKS = "SELECT COUNT(*) FROM blocks"
HAS_ENTRY = "SELECT EXISTS (SELECT 1 FROM entries WHERE key = ?)"
ADD_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_BLOCK = "INSERT INTO blocks VALUES (?, ?, ?)"
REMOVE_ENTRY = "DELETE FROM entries WHERE key = ? AND digest = ?"
REMOVE_BLOCKS = "DELETE FROM blocks WHERE key = ?"
COUNT_USE = "UPDATE entries SET hits = hits + 1, last_use = ? WHERE key = ?"
ENTRIES = f"SELECT {_ENTRY} FROM entries WHERE {_NAMED} ORDER BY model_name, model, key"
USES = f"SELECT {_USE} FROM entries WHERE {_NAMED}"
