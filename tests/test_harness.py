"""batchrun under lm-evaluation-harness: its requests, and tasks of its own over local data."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

import lm_eval
import mlx.core as mx
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import batchrun
from batchrun.errors import RunError, UsageError
from batchrun.harness import BatchrunLM
from tests.command import ROOT
from tests.running import alone, read_parquet, write_jsonl

SHOTS = "".join(f"Question: one and {i}?\nAnswer: {i + 1}\n\n" for i in range(8))

MATHS = """
task: local_maths
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}", train: "{data}"}}}}
test_split: test
fewshot_split: train
num_fewshot: 3
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: " {{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n", "Question:"], max_gen_toks: 8}}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}} Answer:"
doc_to_choice: ["5", "60", "105"]
doc_to_target: "{{{{[5, 60, 105].index(answer) if answer in [5, 60, 105] else 0}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture
def lm(model: Path) -> BatchrunLM:
    return BatchrunLM(pretrained=str(model), max_num_seqs=4, batch_size="auto", device="cpu")


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def reference(model: Path, token_ids: list[int], num_scored: int) -> tuple[float, bool]:
    """The last tokens' log-likelihood by the library's own model, and whether they are greedy."""
    logits = alone(model).module(mx.array([token_ids[:-1]]))[0].astype(mx.float32)
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    rows = range(len(token_ids) - 1 - num_scored, len(token_ids) - 1)
    total = sum(float(scores[row, token_ids[row + 1]]) for row in rows)
    greedy = all(int(mx.argmax(scores[row])) == token_ids[row + 1] for row in rows)
    return total, greedy


def test_answers_are_those_of_batchrun_and_of_the_model_alone(
    lm: BatchrunLM, model: Path, tmp_path: Path
) -> None:
    contexts = [f"{SHOTS}Question: two and {i}?\nAnswer:" for i in range(6)]
    asked = [(context, {"until": ["\n\n"], "max_gen_toks": 5}) for context in contexts]
    found = lm.generate_until(instances("generate_until", *asked))
    rows = [{"prompt": context, "max_tokens": 5, "stop": ["\n\n"]} for context in contexts]
    write_jsonl(tmp_path / "in.jsonl", rows)
    batchrun.run(
        tmp_path / "in.jsonl", output=tmp_path / "out.parquet", model=str(model), quiet=True
    )

    assert found == [row["text"] for row in read_parquet(tmp_path / "out.parquet")]
    assert found[0] == alone(model).complete(contexts[0], 5).partition("\n\n")[0]


def test_log_likelihoods_are_those_of_the_model(lm: BatchrunLM, model: Path) -> None:
    pairs = [(f"{SHOTS}Question {i}", f" {word} {i}") for i, word in enumerate(("yes", "no", "x"))]
    found = lm.loglikelihood(instances("loglikelihood", *pairs))
    encode = alone(model).tokenizer.encode

    for (context, continuation), (total, is_greedy) in zip(pairs, found, strict=True):
        whole = list(encode(context + continuation))
        wanted = reference(model, whole, len(whole) - len(encode(context)))
        assert total == pytest.approx(wanted[0], abs=1e-3)
        assert is_greedy == wanted[1]


def test_the_greedy_continuation_is_greedy(lm: BatchrunLM, model: Path) -> None:
    (text,) = lm.generate_until(instances("generate_until", ("one two", {"max_gen_toks": 1})))
    (found,) = lm.loglikelihood(instances("loglikelihood", ("one two", text)))

    assert found[1] or len(alone(model).tokenizer.encode(text, add_special_tokens=False)) != 1


def test_a_text_longer_than_the_context_is_scored_whole(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("llama", max_position_embeddings=64)
    lm = BatchrunLM(model=str(model), no_prefix_cache=True)
    texts = ["a short text", "one two three " * 60, ""]
    short, long, nothing = lm.loglikelihood_rolling(
        instances("loglikelihood_rolling", *((text,) for text in texts))
    )
    words = alone(model).tokenizer
    ids = [words.bos_token_id, *words.encode(texts[0], add_special_tokens=False)]

    assert short == pytest.approx(reference(model, ids, len(ids) - 1)[0], abs=1e-3)
    assert math.isfinite(long)
    assert long < short < 0 == nothing


def test_what_cannot_be_honoured_is_an_error(lm: BatchrunLM) -> None:
    with pytest.raises(UsageError, match="num_beams is not known"):
        lm.generate_until(instances("generate_until", ("a", {"num_beams": 2})))
    with pytest.raises(RunError, match="request 1 cannot be done"):
        lm.generate_until(instances("generate_until", ("a", {}), ("word " * 9_000, {})))
    with pytest.raises(TypeError, match="did you mean 'max_num_seqs'"):
        BatchrunLM(model="x", max_num_seq=3)


def test_the_harness_runs_its_tasks_over_local_data(lm: BatchrunLM, tmp_path: Path) -> None:
    for name, task in (("maths", MATHS), ("choices", CHOICES)):
        data = ROOT / "samples" / "maths.jsonl"
        (tmp_path / f"{name}.yaml").write_text(task.format(data=data))
    results = lm_eval.simple_evaluate(
        model=lm,
        tasks=["local_maths", "local_choices"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )

    assert results is not None
    rows = len((ROOT / "samples" / "maths.jsonl").read_text().splitlines())
    counts = {name: count["effective"] for name, count in results["n-samples"].items()}
    assert counts == {"local_maths": rows, "local_choices": rows}
    assert "exact_match,none" in results["results"]["local_maths"]
    assert 0 <= results["results"]["local_choices"]["acc,none"] <= 1
    assert json.dumps(results["config"]["model"])
    assert lm._engine.stats.cached_tokens > 0
