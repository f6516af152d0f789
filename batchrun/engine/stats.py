"""What the engine has done so far: plain counters that others may read at any time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Running totals. Times are seconds, sizes bytes.

    `max_num_seqs` is the most rows that may run at once, as far as is known.
    `row_steps` adds up the rows that each decode step really served, so that row_steps /
    decode_steps is the mean number of rows in a step. `cached_tokens` are prompt tokens that were
    not computed for their row; `disk_tokens` of them came from disk, the others from a row before.
    `media_used` images and videos were in prompts, `media_encoded` went through the vision tower.
    """

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    disk_tokens: int = 0
    disk_bytes: int = 0
    disk_seconds_saved: float = 0.0
    media_used: int = 0
    media_encoded: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    row_steps: int = 0
    running: int = 0
    peak_running: int = 0
    max_num_seqs: int = 0
    kv_bytes_peak: int = 0
    retries: int = 0
    notes: list[str] = field(default_factory=list)
