"""What this room asks of a vision model's processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from batchrun.models.processor import Clip, Picture

if TYPE_CHECKING:
    import numpy.typing as npt


class Part(Protocol):
    """Tokens from `start` up to `end` that stand for media, by their numbers among the pictures and
    then the clips: one of them, or all where the processor's arrays cannot be told apart."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def sources(self) -> tuple[int, ...]: ...

    @property
    def inputs(self) -> dict[str, npt.NDArray[Any]]: ...


class Processed(Protocol):
    """A prompt's token ids, and the parts of it that stand for media, in order of place."""

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def parts(self) -> Sequence[Part]: ...


class Processor(Protocol):
    """`identity` is of all settings that decide what becomes of an image."""

    @property
    def identity(self) -> str: ...

    @property
    def takes_video(self) -> bool: ...

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The conversation as text, by the model's chat template; contents are strings, or lists
        of {"type": "text", "text": ...}, {"type": "image"} and {"type": "video"}."""
        ...

    def process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        """Token ids of a rendered conversation, with what stands for its media."""
        ...
