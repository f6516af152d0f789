"""Whole runs of rows that want given tokens scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.report.summary import Summary
from tests.running import alone, computed, read_jsonl, read_parquet, write_jsonl

Run = Callable[..., Summary]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def logprobs_alone(model: Path, token_ids: list[int]) -> list[list[float]]:
    """Of each token from the second on, the whole vocabulary's."""
    import mlx.core as mx

    logits = alone(model).module(mx.array([token_ids]))[0, :-1].astype(mx.float32)
    rows: list[list[float]] = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    return rows


def chosen_alone(model: Path, token_ids: list[int]) -> list[float]:
    rows = logprobs_alone(model, token_ids)
    return [row[token] for row, token in zip(rows, token_ids[1:], strict=True)]


def test_continuations_have_a_logprob_and_may_be_greedy(
    run: Run, output: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama")
    encode = alone(model).tokenizer.encode
    contexts = ["The quick brown fox", "Is this review positive or negative?"]
    rows = [
        {"context": context, "continuation": continuation, "custom_id": f"{i}"}
        for i, context in enumerate(contexts)
        for continuation in (" the", " positive answer", "x", alone(model).complete(context, 3))
    ]
    assert run(rows).exit_status == 0
    for row, asked in zip(read_parquet(output), rows, strict=True):
        context = encode(asked["context"])
        ids = encode(asked["context"] + asked["continuation"])
        scores = chosen_alone(model, ids)[len(context) - 1 :]
        assert row["logprob"] == pytest.approx(sum(scores), abs=1e-4)
        best = logprobs_alone(model, ids)[len(context) - 1 :]
        assert row["is_greedy"] == all(
            score == max(each) for score, each in zip(scores, best, strict=True)
        )
        assert (row["text"], row["finish_reason"]) == ("", "stop")
        assert (row["prompt_tokens"], row["completion_tokens"]) == (len(ids), 0)
        assert row["prompt_logprobs"] is None
    again = run(rows)
    assert computed(again) == 0
    assert again.truncated == 0


def test_an_echoed_prompt_comes_with_its_logprobs(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama")
    text = "The quick brown fox"
    rows: list[dict[str, Any]] = [
        {"prompt": text, "echo": True, "logprobs": 2, "max_tokens": 0},
        {"prompt": text, "echo": True, "logprobs": 2, "max_tokens": 3},
        {"prompt": text, "echo": True, "max_tokens": 3},
    ]
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    for reused in (0, 3):
        summary = batchrun.run(path, output=tmp_path / "out.jsonl", model=str(model), quiet=True)
        assert summary.request_counts.reused == reused
        lines = read_jsonl(tmp_path / "out.jsonl")
        scored, written, plain = (line["response"]["body"]["choices"][0] for line in lines)
        answer = alone(model).complete(text, 3)
        assert [scored["text"], written["text"], plain["text"]] == [
            text,
            text + answer,
            text + answer,
        ]
        assert plain["logprobs"] is None
        ids = alone(model).tokenizer.encode(text)
        for choice, extra in ((scored, 0), (written, 3)):
            given = choice["logprobs"]
            assert given["token_logprobs"][0] is given["top_logprobs"][0] is None
            expected = chosen_alone(model, ids)
            assert given["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-4)
            assert len(given["tokens"]) == len(ids) + extra
            assert "".join(given["tokens"][: len(ids)]) == text
            # By their text: halves of characters look alike.
            assert all(0 < len(top) <= 2 for top in given["top_logprobs"][1:])


def test_prompt_logprobs_stand_beside_a_chats_answer(
    run: Run, output: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama")
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    rows = [chat, {**chat, "prompt_logprobs": 1, "n": 2}, {**chat, "prompt_logprobs": 0}]
    run(rows, max_tokens=5)
    plain, *both, none = read_parquet(output)
    ids = alone(model).tokenizer.apply_chat_template(
        chat["messages"], add_generation_prompt=True, tokenize=True
    )
    assert plain["prompt_logprobs"] is None
    for row, top in ((both[0], 1), (both[1], 1), (none, 0)):
        assert row["text"] == plain["text"]
        first, *scores = json.loads(row["prompt_logprobs"])
        assert first is None
        for token, entry, expected in zip(ids[1:], scores, chosen_alone(model, ids), strict=True):
            assert entry[str(token)]["logprob"] == pytest.approx(expected, abs=1e-4)
            assert entry[str(token)]["decoded_token"] == alone(model).tokenizer.decode([token])
            assert len(entry) in (top, top + 1) if top else len(entry) == 1


def test_scores_have_no_place_beside_the_probabilities_of_choices(run: Run, output: Path) -> None:
    rows = [{"prompt": "a", "prompt_logprobs": 1}, {"prompt": "b"}]
    assert run(rows, choices="x,y").exit_status == 3
    failed, answered = read_parquet(output)
    assert failed["error_code"] == "unsupported_parameter"
    assert answered["choice_probs"] is not None
