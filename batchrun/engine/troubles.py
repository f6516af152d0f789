"""What it means that running rows raised something."""

from __future__ import annotations

from batchrun.errors import RowError


def row_error(error: Exception) -> RowError:
    """For a row that raises even alone."""
    if is_out_of_memory(error):
        message = f"not enough memory for this row even alone: {error}"
        return RowError("out_of_memory", message, status=507)
    message = f"the model failed on this row: {type(error).__name__}: {error}"
    return RowError("engine_error", message, status=500)


def is_out_of_memory(error: Exception) -> bool:
    """MLX reports a failed allocation as MemoryError or as a RuntimeError that says so."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "malloc" in text or "out of memory" in text
