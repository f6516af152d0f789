"""mlx-vlm's BatchGenerator on a file of chat rows, in a process of its own: the other side of
versus_mlx_vlm.py.

    python benchmarks/peer_mlx_vlm.py MODEL ROWS.jsonl ANSWERS.jsonl
    python benchmarks/peer_mlx_vlm.py MODEL ROWS.jsonl ANSWERS.jsonl --apc FOLDER

With --apc, automatic prefix caching is on as mlx-vlm's server has it, its disk tier in FOLDER.
Writes a line with custom_id and text for each row; prints its figures as one JSON object.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import peers  # before anything else imports MLX

import mlx.core as mx  # isort: skip
from mlx_vlm import apc as prefix_caching
from mlx_vlm import load
from mlx_vlm.generate.ar import BatchGenerator


@dataclass
class Generated:
    """Token ids by prompt, prompt tokens taken from a cache, when the first answer was whole."""

    tokens: dict[int, list[int]]
    cached_tokens: int = 0
    first_answer: float = field(default=0.0)


@click.command()
@click.argument("model")
@click.argument("rows", type=click.Path(exists=True, path_type=Path))
@click.argument("answers", type=click.Path(path_type=Path))
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--apc", type=click.Path(path_type=Path), metavar="FOLDER")
def main(model: str, rows: Path, answers: Path, max_num_seqs: int, apc: Path | None) -> None:
    """Answer ROWS with MODEL, weights unpacked to float32."""
    module, tokenizer = load(model, lazy=True)
    peers.unpack(module, mx.float32)
    asked = peers.read_rows(rows)
    prompts = [
        tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_dict=False
        )
        for row in asked
    ]
    manager = _manager(model, apc)
    generator = BatchGenerator(
        module.language_model,
        tokenizer,
        completion_batch_size=max_num_seqs,
        compute_logprobs=False,
        apc_manager=manager,
    )
    start = time.perf_counter()
    inputs = [_inputs(module, tokenizer, prompt) for prompt in prompts]
    uids = generator.insert(prompts, [row["max_tokens"] for row in asked], prompt_kwargs=inputs)
    made = _generate(generator, uids)
    seconds = time.perf_counter() - start
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in made.tokens.values()]
    peers.write_answers(answers, asked, texts)
    peers.print_figures(
        seconds=seconds,
        prefill_seconds=generator.stats().prompt_time,
        first_answer=made.first_answer - start,
        tokens_computed=sum(map(len, prompts)) - made.cached_tokens,
        tokens_cached=made.cached_tokens,
        blocks_from_disk=_close(manager),
    )


def _manager(model: str, folder: Path | None) -> prefix_caching.APCManager | None:
    return prefix_caching.from_env(
        prefix_caching.apc_disk_namespace(model),
        {"enabled": folder is not None, "disk_path": str(folder)},
    )


def _inputs(module: Any, tokenizer: Any, prompt: list[int]) -> dict[str, Any]:
    """What mlx-vlm's server hands in beside a prompt's tokens."""
    found = module.get_input_embeddings(mx.array([prompt])).to_dict()
    given = {name: value for name, value in found.items() if value is not None}
    salt = prefix_caching.semantic_extra_hash(
        media={}, model=module.language_model, processor=tokenizer
    )
    return {**given, "_apc_semantic_hash": salt}


def _generate(generator: BatchGenerator, uids: list[int]) -> Generated:
    """All answers, without the tokens that say stop."""
    made = Generated({uid: [] for uid in uids})
    while generator.has_work:
        prefilled, generated = generator.next()
        made.cached_tokens += sum(prompt.cached_tokens for prompt in prefilled)
        for response in generated:
            if response.finish_reason != "stop":
                made.tokens[response.uid].append(response.token)
            if response.finish_reason is not None and not made.first_answer:
                made.first_answer = time.perf_counter()
    return made


def _close(manager: prefix_caching.APCManager | None) -> int:
    """Wait until all is on disk; how many blocks were read from there."""
    if manager is None:
        return 0
    manager.close()
    return int(manager.stats_snapshot()["disk_hits"])


if __name__ == "__main__":
    main()
