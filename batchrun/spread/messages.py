"""What passes between the processes of a run: Ray copies it as it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from batchrun.device import Device
from batchrun.engine.stats import EngineStats
from batchrun.records import Completion, Failure, Prompt, Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of the input, done by one worker. `error` says that the input could not be
    read beyond them."""

    number: int
    rows: list[Request | Failure]
    error: str | None = None


@dataclass(slots=True)
class Done:
    """What a worker made of a chunk: its rows, as far as they were read, and their answers.
    `error` is the chunk's, or the worker's, which then cannot go on. With `is_whole` false rows are
    missing, as the run has to end."""

    rows: list[Prompt | Failure] = field(default_factory=list)
    finished: list[Completion | Failure] = field(default_factory=list)
    error: str | None = None
    is_whole: bool = True

    def add(self, other: Done) -> None:
        self.rows += other.rows
        self.finished += other.finished
        self.is_whole &= other.is_whole


@dataclass(slots=True)
class State:
    """What a worker has done since it began. `seconds` went to loading and to preparing rows,
    `peak_memory` is bytes of the device and of the process."""

    stats: EngineStats = field(default_factory=EngineStats)
    seconds: dict[Literal["load", "prepare"], float] = field(
        default_factory=lambda: {"load": 0.0, "prepare": 0.0}
    )
    peak_memory: tuple[int, int] = (0, 0)
    device: Device | None = None
    node: str = ""
    notes: tuple[str, ...] = ()


def light(prompt: Prompt) -> Prompt:
    """What the books need of a prompt: no images, no grammar, of a chat the last message alone."""
    request = prompt.request
    if request.messages is not None:
        request = replace(request, messages=request.messages[-1:])
    return replace(prompt, request=request, prefix=None, media=(), grammar=None)
