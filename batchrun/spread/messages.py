"""What passes between the processes of a run: Ray copies it as it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


def light(prompt: Prompt) -> Prompt:
    """What the books need of a prompt: no images, no grammar, of a chat the last message alone."""
    request = prompt.request
    if request.messages is not None:
        request = replace(request, messages=request.messages[-1:])
    return replace(prompt, request=request, prefix=None, media=(), grammar=None)
