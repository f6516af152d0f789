"""A few of the answers, each with an equal chance, out of any number."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from batchrun.evaluation.judge import as_text
from batchrun.records import Completion, Request, Result

NUM_SAMPLES = 8
MOST_CHARACTERS = 1500
MOST_IMAGES = 4
MOST_COLUMNS = 12
_MOST_OF_A_COLUMN = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer as the report shows it; `prompt` is the last thing that was asked, `images` are
    JPEGs in base64 of the first that it showed."""

    row: str
    prompt: str
    images: list[str]
    answer: str
    finish_reason: str
    seconds: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that is not what was expected; `columns` are what else was kept of its row."""

    row: str
    columns: dict[str, str]
    expected: str
    answer: str


class _Reservoir:
    """Some of what was added; the same in the same order give the same."""

    def __init__(self) -> None:
        self._seen = 0
        self._kept: list[tuple[int, Sample | Wrong]] = []
        self._random = random.Random(0)

    def add(self, index: int, make: Callable[[], Sample | Wrong]) -> None:
        """The item of row `index`, which is made only where it is chosen."""
        self._seen += 1
        if len(self._kept) < NUM_SAMPLES:
            self._kept.append((index, make()))
            return
        place = self._random.randrange(self._seen)
        if place < NUM_SAMPLES:
            self._kept[place] = (index, make())

    def to_list(self) -> list[dict[str, Any]]:
        """In the order of the rows."""
        return [asdict(item) for _, item in sorted(self._kept, key=lambda kept: kept[0])]


class Samples:
    """Of the answers that this run computed."""

    def __init__(self) -> None:
        self._kept = _Reservoir()

    def add(self, completion: Completion) -> None:
        self._kept.add(completion.prompt.row.index, lambda: _sample(completion))

    def to_list(self) -> list[dict[str, Any]]:
        return self._kept.to_list()


class WrongAnswers:
    """Of the judged results that are not correct."""

    def __init__(self) -> None:
        self._kept = _Reservoir()

    def add(self, result: Result, expected: str) -> None:
        """`expected` is the kept column that says what is right."""
        if result.correct is False:
            self._kept.add(result.row.index, lambda: _wrong(result, expected))

    def to_list(self) -> list[dict[str, Any]]:
        return self._kept.to_list()


def _sample(completion: Completion) -> Sample:
    prompt = completion.prompt
    thumbnails = [span.media.thumbnail for span in prompt.media if span.media.thumbnail]
    return Sample(
        row=str(prompt.row),
        prompt=_cut(_last_text(prompt.request)),
        images=[base64.b64encode(each).decode() for each in thumbnails[:MOST_IMAGES]],
        answer=_cut(completion.text),
        finish_reason=completion.finish_reason,
        seconds=completion.seconds,
        prompt_tokens=prompt.num_tokens,
        completion_tokens=len(completion.token_ids),
    )


def _wrong(result: Result, expected: str) -> Wrong:
    kept = dict(result.row.kept)
    wanted = as_text(kept.pop(expected, None)) or ""
    most = _MOST_OF_A_COLUMN
    texts = {name: as_text(value) for name, value in islice(kept.items(), MOST_COLUMNS)}
    return Wrong(
        row=str(result.row),
        columns={_cut(name, most): _cut(text, most) for name, text in texts.items() if text},
        expected=_cut(wanted),
        answer="" if result.answer is None else _cut(result.answer.text),
    )


def _last_text(request: Request) -> str:
    if request.messages is None:
        return request.prompt if isinstance(request.prompt, str) else "(token ids)"
    content = request.messages[-1].get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def _cut(text: str, most: int = MOST_CHARACTERS) -> str:
    return text if len(text) <= most else text[:most] + "…"
