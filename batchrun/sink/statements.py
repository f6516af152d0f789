"""The SQL of the journal."""

from __future__ import annotations

VERSION = 2
# Old versions of SQLite take no more in one statement.
MAX_VALUES = 999

# stop_reason has no type, so that a token id stays a number and a stop string stays text.
# Times are microseconds since the epoch.
CREATE = f"""
BEGIN;
CREATE TABLE answers (
    key TEXT NOT NULL,
    choice INTEGER NOT NULL,
    text TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    stop_reason,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    disk_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    model TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    reasoning TEXT,
    tool_calls TEXT,
    logprobs TEXT,
    parsed TEXT,
    choice_probs TEXT,
    prompt_logprobs TEXT,
    logprob REAL,
    is_greedy INTEGER,
    reasoning_tokens INTEGER,
    PRIMARY KEY (key, choice)
);
CREATE TABLE rows (
    idx INTEGER PRIMARY KEY,
    file TEXT NOT NULL,
    line INTEGER NOT NULL,
    custom_id TEXT,
    kept TEXT,
    is_chat INTEGER NOT NULL DEFAULT 1,
    key TEXT,
    n INTEGER NOT NULL DEFAULT 1,
    error_code TEXT,
    error_message TEXT,
    error_status INTEGER,
    error_param TEXT,
    finished_at INTEGER
);
CREATE INDEX rows_by_key ON rows (key);
CREATE TABLE asked (key TEXT PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""

# NORMAL: a commit costs no fsync; it outlives the process, and after a power cut the file is whole.
# Keys are random, so that a commit touches a page per row: checkpoints (in pages of 4 KiB) are far
# apart to write each of these pages once for many commits. Pages that fell out of the small cache
# come back from the system's, at no cost that could be measured.
SETTINGS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 8192;
PRAGMA cache_size = -4096;
"""

# Set in a journal whose run started over: the output's answers are not to come in.
START_OVER = "PRAGMA application_id = 1"
STARTED_OVER = "PRAGMA application_id"

START = ("DELETE FROM rows", "DELETE FROM asked")


def add_answers(count: int) -> str:
    return f"""
INSERT INTO answers VALUES {_values(count, 21)}
ON CONFLICT (key, choice) DO NOTHING
"""


def add_rows(count: int) -> str:
    return f"""
INSERT INTO rows (idx, file, line, custom_id, kept, is_chat, key, n)
VALUES {_values(count, 8)}
"""


def finish_reasons(num_keys: int) -> str:
    keys = ", ".join(["?"] * num_keys)
    return f"SELECT key, choice, finish_reason FROM answers WHERE key IN ({keys})"


def _values(count: int, width: int) -> str:
    row = f"({', '.join(['?'] * width)})"
    return ", ".join([row] * count)


ADD_FAILURE = """
INSERT INTO rows (idx, file, line, custom_id, kept,
                  error_code, error_message, error_status, error_param, finished_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Keys of which all choices up to the last are there.
ANSWERED_KEYS = """
SELECT key, count(*) FROM answers GROUP BY key HAVING max(choice) + 1 = count(*) ORDER BY key
"""

COUNT_ASKED = """
INSERT INTO asked VALUES (?, 0) ON CONFLICT (key) DO UPDATE SET times = times + 1
"""

ASKED = "SELECT times FROM asked WHERE key = ?"

_ROW = "rows.idx, rows.file, rows.line, rows.custom_id, rows.kept"
ROW_WIDTH = 5

_ANSWERED = (
    "(SELECT count(*) FROM answers WHERE answers.key = rows.key AND answers.choice < rows.n)"
    " = rows.n"
)

UNANSWERED = f"""
SELECT {_ROW} FROM rows
WHERE key = ? AND error_code IS NULL AND NOT {_ANSWERED} ORDER BY idx
"""

FAIL_ROW = """
UPDATE rows SET error_code = ?, error_message = ?, error_status = ?, error_param = ?,
                finished_at = ?
WHERE idx = ?
"""

COUNTS = f"""
SELECT count(*), count(CASE WHEN error_code IS NULL AND {_ANSWERED} THEN 1 END), count(error_code)
FROM rows
"""

_STATE = """
rows.is_chat, rows.key, rows.error_code, rows.error_message, rows.error_status, rows.error_param,
rows.finished_at
"""

RESULTS = f"""
SELECT {_ROW}, {_STATE},
       answers.choice, answers.text, answers.finish_reason, answers.stop_reason,
       answers.prompt_tokens, answers.cached_tokens, answers.disk_tokens, answers.completion_tokens,
       answers.seconds, answers.model, answers.finished_at, answers.reasoning, answers.tool_calls,
       answers.logprobs, answers.parsed, answers.choice_probs, answers.prompt_logprobs,
       answers.logprob, answers.is_greedy, answers.reasoning_tokens
FROM rows LEFT JOIN answers
  ON answers.key = rows.key AND answers.choice < rows.n AND rows.error_code IS NULL
WHERE rows.error_code IS NOT NULL OR {_ANSWERED}
ORDER BY rows.idx, answers.choice
"""

FAILURES = f"SELECT {_ROW}, {_STATE} FROM rows WHERE error_code IS NOT NULL ORDER BY idx"

KEPT = "SELECT kept FROM rows WHERE kept IS NOT NULL ORDER BY idx"
