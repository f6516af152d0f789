"""The embedded default model gives a real answer through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ROOT, Command
from tests.running import read_jsonl, write_jsonl

pytestmark = pytest.mark.real_model


def test_it_knows_the_capital_of_france(tmp_path: Path) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    sample = (ROOT / "samples" / "questions.jsonl").read_text().splitlines()[0]
    rows = [{"custom_id": "paris", "messages": [question], "max_tokens": 16}, json.loads(sample)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    status, stdout, stderr = Command(
        tmp_path, "--json", "--max-tokens", "24", model=None, output="out.jsonl"
    ).wait()

    assert status == 0, stderr
    paris, other = [line["response"]["body"] for line in read_jsonl(tmp_path / "out.jsonl")]
    assert "Paris" in paris["choices"][0]["message"]["content"]
    assert other["choices"][0]["message"]["content"].strip()
    summary = json.loads(stdout)
    assert summary["model"] == paris["model"] == "SmolLM2-135M-Instruct"
    assert any("small demonstration model" in note for note in summary["notes"])
