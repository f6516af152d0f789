"""The command's flags as click options, in the groups that --help shows them in.

Defaults come from `Flags`; here are only the words.
"""

from batchrun.options.answers import ANSWERS, MODEL
from batchrun.options.groups import GroupedCommand, apply, write_groups
from batchrun.options.rows import EVALUATION, INPUT, MEDIA, OUTPUT
from batchrun.options.running import CHECK, CLUSTER, JSON, RUN
from batchrun.options.speed import PREFIX_CACHE_DIR, PREFIX_CACHE_SIZE, SPEED

# All that a run is asked for, in the order of its help; and how its end is told.
ASKED = (*INPUT, *MEDIA, *OUTPUT, *EVALUATION, *MODEL, *ANSWERS, *SPEED, *CLUSTER, *RUN)
EVERY = (*ASKED, JSON)

__all__ = [
    "ASKED",
    "CHECK",
    "EVERY",
    "PREFIX_CACHE_DIR",
    "PREFIX_CACHE_SIZE",
    "GroupedCommand",
    "apply",
    "write_groups",
]
