"""The commands `batchrun cache ...`: what is kept of shared prefixes on disk."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchrun import folders, options
from batchrun.errors import UsageError
from batchrun.report.render import one_line
from batchrun.values import prefix_cache, size

if TYPE_CHECKING:
    from batchrun.prefixes.catalog import Removed

_COLUMNS = ("prefixes", "size", "longest", "hits", "last use", "model")


@click.group(short_help="List, verify, clear or prune the prefixes on disk.")
def cache() -> None:
    """Look after the prefixes that runs keep on disk for later ones.

    None of this changes any answer: a prefix that is not there is computed again.
    """


def _folder(asked: str | None) -> Path:
    folder, url = prefix_cache(asked)
    if url is not None:
        raise UsageError(
            f"{url}: is looked after with the store's own tools; what of it is here is in {folder}"
        )
    return folders.prefix_cache(folder)


@cache.command("list", cls=options.GroupedCommand, short_help="Say what is kept of which model.")
@options.PREFIX_CACHE_DIR
def list_command(prefix_cache_dir: str | None) -> None:
    """Print a line for each model: how many prefixes, their size, the longest in tokens, how often
    they were used, and when last."""
    from batchrun.prefixes.catalog import stored

    folder = _folder(prefix_cache_dir)
    models = stored(folder)
    if not models:
        click.echo(f"No prefixes in {folder}.", err=True)
        return
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for model in models:
        used = datetime.fromtimestamp(model.last_use).isoformat(" ", "minutes")
        counts = (f"{model.num_prefixes:,}", _bytes(model.nbytes), f"{model.longest:,}")
        rows.append((*counts, f"{model.hits:,}", used, one_line(model.model_name)))
    _print_table(rows)


@cache.command(cls=options.GroupedCommand, short_help="Check the files of all prefixes.")
@options.PREFIX_CACHE_DIR
@click.option("--fix", is_flag=True, help="Remove those that are bad.")
def verify(prefix_cache_dir: str | None, fix: bool) -> None:
    """Compare every file with its checksum and print a line for each that is bad.

    Exit status: 0 none is bad any more, 3 some are.
    """
    from batchrun.prefixes.catalog import verify as verify_files

    checked = bad = 0
    for path, fault in verify_files(_folder(prefix_cache_dir), fix=fix):
        checked += 1
        if fault is not None:
            bad += 1
            click.echo(f"{path} {fault}")
    click.echo(f"Bad prefixes{' (removed)' if fix else ''}: {bad:,} of {checked:,}.", err=True)
    sys.exit(3 if bad and not fix else 0)


@cache.command(cls=options.GroupedCommand, short_help="Remove all prefixes, or those of a model.")
@options.PREFIX_CACHE_DIR
@click.option("--model", metavar="NAME", help="Remove those of this model alone, named as in list.")
def clear(prefix_cache_dir: str | None, model: str | None) -> None:
    """Remove every prefix, or those of one model."""
    from batchrun.prefixes import catalog

    _say_removed(catalog.clear(_folder(prefix_cache_dir), model))


@cache.command(cls=options.GroupedCommand, short_help="Remove what saves least, down to a size.")
@options.PREFIX_CACHE_DIR
@options.PREFIX_CACHE_SIZE
def prune(prefix_cache_dir: str | None, prefix_cache_size: str) -> None:
    """Remove the prefixes that save least until the others take --prefix-cache-size at most."""
    from batchrun.prefixes import catalog

    max_bytes = size("prefix_cache_size", prefix_cache_size)
    _say_removed(catalog.prune(_folder(prefix_cache_dir), max_bytes))


def _say_removed(removed: Removed) -> None:
    count, freed = f"{removed.num_prefixes:,}", _bytes(removed.nbytes)
    click.echo(f"Prefixes removed: {count} ({freed}).", err=True)


def _bytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns that line up, numbers to the right and the last one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        *cells, last = row
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
        click.echo("  ".join([*padded, last]))
