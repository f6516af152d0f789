"""Resident memory over many rows with an image each, by the real command.

    python benchmarks/memory_images.py           # 2,000 images, a minute
    python benchmarks/memory_images.py 500

README.md says what each figure means. Linux only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import drawn
from sides import write_rows
from watching import print_memory, run_batchrun

EVERY_SECONDS = 0.05
WARM_ROWS = 200


@click.command()
@click.argument("images", type=click.IntRange(WARM_ROWS + 1), default=2_000)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    default=drawn.MODEL,
    help="A vision model's folder.  [default: samples/shapes-vlm]",
)
def main(images: int, model: Path) -> None:
    """Ask a question on each of IMAGES drawings; print memory over time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_rows(folder / "rows.jsonl", list(drawn.image_rows(folder, images)))
        samples = run_batchrun(rows, folder / "out.parquet", model, every_seconds=EVERY_SECONDS)
    print_memory(samples, images, warm_rows=WARM_ROWS)


if __name__ == "__main__":
    main()
