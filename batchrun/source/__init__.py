"""Files -> Requests: which files, what rows they hold, and what each row asks for.

Knows nothing of models, tokens or outputs; media parts pass through unseen.
"""

from __future__ import annotations

from batchrun.source.draws import counted
from batchrun.source.reading import count_rows, first_columns, kept_schema, read_requests

__all__ = ["count_rows", "counted", "first_columns", "kept_schema", "read_requests"]
