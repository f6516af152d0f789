"""mlx-vlm's batch_generate on a file of rows with one image each, in a process of its own: the
other side of versus_mlx_vlm_images.py.

    python benchmarks/peer_mlx_vlm_images.py MODEL ROWS.jsonl ANSWERS.jsonl

Writes a line with custom_id and text for each row; prints its figures as one JSON object.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import peers  # before anything else imports MLX

import mlx.core as mx  # isort: skip
from mlx_vlm import batch_generate, load


@click.command()
@click.argument("model")
@click.argument("rows", type=click.Path(exists=True, path_type=Path))
@click.argument("answers", type=click.Path(path_type=Path))
@click.option("--max-num-seqs", type=int, help="Rows a call.  [default: all rows in one call]")
@click.option("--sizes-mixed", is_flag=True, help="Images of all sizes in one batch.")
def main(
    model: str, rows: Path, answers: Path, max_num_seqs: int | None, sizes_mixed: bool
) -> None:
    """Answer ROWS with MODEL, weights unpacked to float32.

    By itself, batch_generate makes a batch of images of one size, and of each size in turn.
    """
    module, processor = load(model, lazy=True)
    peers.unpack(module, mx.float32)
    asked = peers.read_rows(rows)
    start = time.perf_counter()
    texts: list[str] = []
    step = max_num_seqs or len(asked)
    for first in range(0, len(asked), step):
        some = asked[first : first + step]
        response = batch_generate(
            module,
            processor,
            images=[str(rows.parent / _image(row)) for row in some],
            prompts=[row["messages"] for row in some],  # a bare question would come first
            max_tokens=[row["max_tokens"] for row in some],
            group_by_shape=not sizes_mixed,
        )
        texts += response.texts
    seconds = time.perf_counter() - start
    peers.write_answers(answers, asked, texts)
    peers.print_figures(seconds=seconds)


def _image(row: peers.Row) -> str:
    (url,) = (
        part["image_url"]["url"]
        for message in row["messages"]
        for part in message["content"]
        if part["type"] == "image_url"
    )
    return str(url)


if __name__ == "__main__":
    main()
