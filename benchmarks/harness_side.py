"""One model of lm-evaluation-harness on a file of rows, in a process of its own: either side of
versus_harness.py.

    python benchmarks/harness_side.py MODEL ROWS.jsonl ANSWERS.jsonl --through mlxlm

Writes a line with custom_id and text for each row; prints its figures as one JSON object.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import peers  # before anything else imports MLX

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import lm_eval  # isort: skip
import mlx.core as mx
from lm_eval.tasks import TaskManager
from mlx_lm.evaluate import MLXLM

from batchrun.harness import BatchrunLM

TASK = """
task: problems
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{rows}", train: "{rows}"}}}}
test_split: test
fewshot_split: train
num_fewshot: {shots}
fewshot_config: {{sampler: first_n}}
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: " {{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n", "Question:"], max_gen_toks: {max_tokens}}}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


@click.command()
@click.argument("model")
@click.argument("rows", type=click.Path(exists=True, path_type=Path))
@click.argument("answers", type=click.Path(path_type=Path))
@click.option("--through", type=click.Choice(["batchrun", "mlxlm"]), required=True)
@click.option("--shots", default=8)
@click.option("--max-tokens", default=32)
@click.option("--max-num-seqs", default=32)
def main(
    model: str,
    rows: Path,
    answers: Path,
    through: str,
    shots: int,
    max_tokens: int,
    max_num_seqs: int,
) -> None:
    """Have the harness ask MODEL the questions of ROWS, weights unpacked to float32."""
    task = TASK.format(rows=rows.absolute(), shots=shots, max_tokens=max_tokens)
    folder = answers.with_suffix(".tasks")
    folder.mkdir(exist_ok=True)
    (folder / "problems.yaml").write_text(task, encoding="utf-8")
    lm = _batchrun(model, max_num_seqs) if through == "batchrun" else _mlxlm(model, max_num_seqs)
    start = time.perf_counter()
    result = lm_eval.simple_evaluate(
        model=lm,
        tasks=["problems"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    seconds = time.perf_counter() - start
    samples = sorted(result["samples"]["problems"], key=lambda sample: sample["doc_id"])
    peers.write_answers(answers, peers.read_rows(rows), [s["resps"][0][0] for s in samples])
    peers.print_figures(seconds=seconds)


def _batchrun(model: str, max_num_seqs: int) -> Any:
    return BatchrunLM(model=model, max_num_seqs=max_num_seqs, no_prefix_cache=True)


def _mlxlm(model: str, max_num_seqs: int) -> Any:
    lm = MLXLM(model, batch_size=max_num_seqs, use_chat_template=False)
    peers.unpack(lm._model, mx.float32)
    return lm


if __name__ == "__main__":
    main()
