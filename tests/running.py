"""Whole runs for tests: inputs written, outputs read back, and what an answer should be."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from batchrun.report.summary import Summary
from tests import tiny


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """`rows` as lines; a row that is bytes is the line itself."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def read_summary(output: Path) -> dict[str, Any]:
    """What the report file beside `output` says, without what its page draws."""
    report: dict[str, Any] = json.loads(output.with_name(f"{output.stem}.report.json").read_text())
    del report["figures"]
    return report


def texts(path: Path) -> list[str | None]:
    """The text of every choice of an output in either format, None for a failed row."""
    if path.suffix == ".parquet":
        return [row["text"] for row in read_parquet(path)]
    return [text for line in read_jsonl(path) for text in _line_texts(line)]


def _line_texts(line: dict[str, Any]) -> list[str | None]:
    if line["response"] is None or line["response"]["status_code"] != 200:
        return [None]
    choices = line["response"]["body"]["choices"]
    return [c["message"]["content"] if "message" in c else c["text"] for c in choices]


def computed(summary: Summary) -> int:
    """How many rows this run answered itself."""
    return summary.request_counts.completed - summary.request_counts.reused


class Alone:
    """A model as its library runs it: one prompt, greedy, nothing of ours."""

    def __init__(self, path: Path):
        from mlx_lm.tokenizer_utils import load as load_tokenizer
        from mlx_lm.utils import load_model

        self.module, _ = load_model(path)
        self.tokenizer = load_tokenizer(path)

    def ids(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """The next tokens, EOS or not."""
        from mlx_lm.models.cache import make_prompt_cache

        return tiny.greedy(self.module, make_prompt_cache(self.module), token_ids, num_tokens)

    def text(self, token_ids: list[int], num_tokens: int, eos: Iterable[int] = (2,)) -> str:
        """The answer's text, up to EOS."""
        chosen = self.ids(token_ids, num_tokens)
        end = next((place for place, token in enumerate(chosen) if token in set(eos)), num_tokens)
        return str(self.tokenizer.decode(chosen[:end], skip_special_tokens=True))

    def chat(self, messages: list[dict[str, Any]], num_tokens: int, **kwargs: Any) -> str:
        token_ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, **kwargs
        )
        return self.text(list(token_ids), num_tokens)

    def complete(self, prompt: str, num_tokens: int) -> str:
        return self.text(list(self.tokenizer.encode(prompt)), num_tokens)


@cache
def alone(path: Path) -> Alone:
    return Alone(path)
