"""What makes a run fast, and what memory it takes."""

from __future__ import annotations

import click

from batchrun.flags import Flags
from batchrun.options.groups import group
from batchrun.values import KV_BITS

_speed = group("Speed and memory")

WINDOW = _speed(
    "--window",
    type=int,
    metavar="N",
    default=Flags.window,
    show_default=True,
    help="Rows planned together, so that those with a shared prefix run together.",
)

PREFIX_CACHE_DIR = _speed(
    "--prefix-cache-dir",
    metavar="DIR",
    help="Where prefixes that prompts share are kept for later runs; with a URL, for other machines"
    " too."
    "  [default: ~/.cache/batchrun/prefixes]",
)
PREFIX_CACHE_SIZE = _speed(
    "--prefix-cache-size",
    metavar="SIZE",
    default=Flags.prefix_cache_size,
    show_default=True,
    help="Most that they take there, all models together: as 500MB or 10GB; 0 is off.",
)

SPEED = (
    _speed(
        "--max-num-seqs",
        type=str,
        metavar="N|auto",
        default=Flags.max_num_seqs,
        show_default=True,
        help="Most answers generated at once; auto finds out how many are fastest.",
    ),
    _speed(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        default=Flags.max_num_batched_tokens,
        show_default=True,
        help="Most prompt tokens computed in one turn.",
    ),
    _speed(
        "--kv-bits",
        type=click.Choice(KV_BITS),
        help="Keep attention's keys and values in so many bits: less memory, answers differ a"
        " little.  [default: full precision]",
    ),
    WINDOW,
    PREFIX_CACHE_DIR,
    PREFIX_CACHE_SIZE,
    _speed("--no-prefix-cache", is_flag=True, help="Neither use nor keep prefixes on disk."),
)
