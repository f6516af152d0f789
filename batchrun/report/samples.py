"""A few of the answers, each with an equal chance, out of any number."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from batchrun.records import Completion, Request

NUM_SAMPLES = 8
MOST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer as the report shows it; `prompt` is the last thing that was asked."""

    row: str
    prompt: str
    answer: str
    finish_reason: str
    seconds: float
    prompt_tokens: int
    completion_tokens: int


class Samples:
    """Reservoir sampling; the same answers in the same order give the same samples."""

    def __init__(self) -> None:
        self._seen = 0
        self._kept: list[tuple[int, Sample]] = []
        self._random = random.Random(0)

    def add(self, completion: Completion) -> None:
        self._seen += 1
        if len(self._kept) < NUM_SAMPLES:
            self._kept.append(_sample(completion))
            return
        place = self._random.randrange(self._seen)
        if place < NUM_SAMPLES:
            self._kept[place] = _sample(completion)

    def to_list(self) -> list[dict[str, Any]]:
        """In the order of the rows."""
        return [asdict(sample) for _, sample in sorted(self._kept, key=lambda item: item[0])]


def _sample(completion: Completion) -> tuple[int, Sample]:
    prompt = completion.prompt
    sample = Sample(
        row=str(prompt.row),
        prompt=_cut(_last_text(prompt.request)),
        answer=_cut(completion.text),
        finish_reason=completion.finish_reason,
        seconds=completion.seconds,
        prompt_tokens=prompt.num_tokens,
        completion_tokens=len(completion.token_ids),
    )
    return prompt.row.index, sample


def _last_text(request: Request) -> str:
    if request.messages is None:
        return request.prompt if isinstance(request.prompt, str) else "(token ids)"
    content = request.messages[-1].get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"
