"""mlx-lm's BatchGenerator on a file of chat rows, in a process of its own: the other side of
versus_mlx_lm.py.

    python benchmarks/peer_mlx_lm.py MODEL ROWS.jsonl ANSWERS.jsonl

Writes a line with custom_id and text for each row; prints its figures as one JSON object.
"""

from __future__ import annotations

import copy
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import peers  # before anything else imports MLX

import mlx.core as mx  # isort: skip
from mlx_lm import load
from mlx_lm.generate import BatchGenerator, StopSequences
from mlx_lm.models.cache import make_prompt_cache


@click.command()
@click.argument("model")
@click.argument("rows", type=click.Path(exists=True, path_type=Path))
@click.argument("answers", type=click.Path(path_type=Path))
@click.option("--dtype", default="float32", show_default=True)
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--shared-prefix", is_flag=True, help="Hand in what all prompts begin with.")
def main(
    model: str, rows: Path, answers: Path, dtype: str, max_num_seqs: int, shared_prefix: bool
) -> None:
    """Answer ROWS with MODEL, weights unpacked to DTYPE."""
    module, tokenizer = load(model, lazy=True)
    peers.unpack(module, getattr(mx, dtype))
    asked = peers.read_rows(rows)
    prompts = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True) for row in asked
    ]
    generator = BatchGenerator(module, completion_batch_size=max_num_seqs)
    start = time.perf_counter()
    with generator.stats() as stats:
        prefix = _common_beginning(prompts) if shared_prefix else []
        caches = _copies_of_prefix(module, prefix, len(prompts)) if prefix else None
        uids = generator.insert(
            [prompt[len(prefix) :] for prompt in prompts],
            [row["max_tokens"] for row in asked],
            caches=caches,
            all_tokens=[list(prefix) for _ in prompts],
            stop_sequences=_stops(asked, tokenizer.eos_token_ids),
        )
        tokens = _generate(generator, uids)
    seconds = time.perf_counter() - start
    texts = [tokenizer.decode(token_ids, skip_special_tokens=True) for token_ids in tokens]
    peers.write_answers(answers, asked, texts)
    peers.print_figures(
        seconds=seconds,
        prompt_tps=sum(map(len, prompts)) / stats.prompt_time,
        decode_tps=stats.generation_tokens / stats.decode_time,
    )


def _stops(rows: list[peers.Row], eos_token_ids: set[int]) -> list[StopSequences]:
    """What ends each row's answer before its max_tokens: nothing where it ignores the end."""
    at_end, never = StopSequences([[token_id] for token_id in eos_token_ids]), StopSequences()
    return [never if row.get("ignore_eos") else at_end for row in rows]


def _common_beginning(prompts: list[list[int]]) -> list[int]:
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    return [ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, columns)]


def _copies_of_prefix(module: Any, prefix: list[int], count: int) -> list[Any]:
    cache = make_prompt_cache(module)
    module(mx.array([prefix]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return [copy.deepcopy(cache) for _ in range(count)]


def _generate(generator: BatchGenerator, uids: list[int]) -> list[list[int]]:
    """The generated tokens of every prompt, without the one that says stop."""
    tokens: dict[int, list[int]] = {uid: [] for uid in uids}
    running = len(uids)
    while running:
        for response in generator.next()[1]:
            if response.finish_reason != "stop":
                tokens[response.uid].append(response.token)
            running -= response.finish_reason is not None
    return list(tokens.values())


if __name__ == "__main__":
    main()
