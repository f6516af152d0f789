"""The command's flags as click options, in the groups that --help shows them in.

Defaults come from `Flags`; here are only the words.
"""

from batchrun.options.answers import ANSWERS, MODEL
from batchrun.options.groups import GroupedCommand, apply, write_groups
from batchrun.options.rows import EVALUATION, INPUT, MEDIA, OUTPUT
from batchrun.options.running import CHECK, CLUSTER, RUN
from batchrun.options.speed import PREFIX_CACHE_DIR, PREFIX_CACHE_SIZE, SPEED

# All flags of a run, in the order of its help.
EVERY = (*INPUT, *MEDIA, *OUTPUT, *EVALUATION, *MODEL, *ANSWERS, *SPEED, *CLUSTER, *RUN)

__all__ = [
    "CHECK",
    "EVERY",
    "INPUT",
    "MEDIA",
    "MODEL",
    "PREFIX_CACHE_DIR",
    "PREFIX_CACHE_SIZE",
    "GroupedCommand",
    "apply",
    "write_groups",
]
